"""Define operations: generators that yield calls of statements, receive the answers, and return a result.

An operation does no I/O itself. So the same code runs on every backend (in SQLite's thread, on a connection to a
server), inside a caller's transaction or in one of its own, and can be run again from the start after a deadlock.

The answer to a call is the one that the statement declares: a list of rows as tuples, or a number of rows.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from perdure.database.statements import Call

T = TypeVar("T")
OWN_FORM = len("2026-01-31 23:59:59.123456")
_parse, _combine = datetime.fromisoformat, datetime.combine
Operation = Generator[Call, Any, T]


class Again(Exception):
    """Signal that an operation found no row to write to, and then saw that one exists by now: it is run again."""


@dataclass(slots=True)
class Work(Generic[T]):
    """Describe an operation to run, and how it may be retried.

    `single`: its first call alone writes all or nothing, so on a server it needs no transaction around it.
    `confirm`: run after the answer to a commit was lost; returns the result if the write exists, else None.
    `repeat`: it is idempotent, so it may be repeated after such a loss.
    `row`: what it locks first; the items of a batch run in that order, so that two batches never wait for each other.
    """

    start: Callable[[], Operation[T]]
    single: bool = False
    repeat: bool = False
    confirm: Callable[[], Operation[T | None]] | None = None
    row: str = ""


def utc(value: Any) -> datetime:
    """Return a time from a database (naive, or SQLite's text) as an aware one; fast, because lists contain many."""
    if type(value) is datetime and value.tzinfo is UTC:
        return value
    if type(value) is str:
        if len(value) == OWN_FORM:
            return _parse(value + "+00:00")
        value = _parse(value)
    if value.tzinfo is None:
        return _combine(value, value.time(), UTC)  # much faster than replace()
    return value.astimezone(UTC)  # type: ignore[no-any-return]


def utc_or_none(value: Any) -> datetime | None:
    """Return the same as `utc`, or None for an empty column."""
    return None if value is None else utc(value)


def raw(value: str | bytes | None) -> bytes | None:
    """Return a text or binary column as bytes."""
    return value.encode() if isinstance(value, str) else value
