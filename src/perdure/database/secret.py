"""Keep texts secret: they work like any other str, but logs, debuggers and tracebacks that show the values of local
variables show stars."""

from typing import TypeVar
from urllib.parse import parse_qsl

E = TypeVar("E", bound=BaseException)


class Secret(str):
    """Hold a URL or a password. Parts of it are secret, too."""

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
    """Hold a password as bytes, for drivers that need them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "b'***'"


def options_of(query: str) -> dict[str, Secret]:
    """Return the options of a URL as secrets: one may contain part of a password that was not percent-encoded."""
    return {Secret(name): Secret(value) for name, value in parse_qsl(query, keep_blank_values=True)}


def without_traces(error: E) -> E:
    """Remove the frames of an error and its causes, because a log may show their local variables."""
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
