"""Texts that nobody should see: they work like any other, but a log, a debugger or a traceback that shows the values of
local variables shows stars."""

from typing import TypeVar
from urllib.parse import parse_qsl

E = TypeVar("E", bound=BaseException)


class Secret(str):
    """A URL or a password. What it is cut into is secret, too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def partition(self, sep: str, /) -> tuple["Secret", "Secret", "Secret"]:
        first, middle, last = super().partition(sep)
        return Secret(first), Secret(middle), Secret(last)

    def rpartition(self, sep: str, /) -> tuple["Secret", "Secret", "Secret"]:
        first, middle, last = super().rpartition(sep)
        return Secret(first), Secret(middle), Secret(last)


class SecretBytes(bytes):
    """A password as a driver wants it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "b'***'"


def options_of(query: str) -> dict[str, Secret]:
    """The options of a URL; what stands among them may be a piece of a password that was not encoded."""
    return {Secret(name): Secret(value) for name, value in parse_qsl(query, keep_blank_values=True)}


def without_traces(error: E) -> E:
    """The error and all that led to it without their frames, whose local variables somebody may show."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            chain += [each.__cause__, each.__context__]
            chain += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return error
