"""The limits of the contract, the same on every database, checked before anything is sent."""

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from perdure.errors import LimitError

NAME_MAX = 255
INSTANCE_ID_MAX = 200  # leaves room for generations (`~12`) and children (`/step`)
EVENT_TYPE_MAX = 100
PAYLOAD_MAX = 8 * 1024 * 1024
METADATA_MAX = 64 * 1024
PAGE_MAX = 1000
COUNT_MAX = 1_000_000  # that a count goes up to
WAITS_MAX = 25_000  # of one instance at once; the engine allows 10,000 steps, each with at most two
EVERYTHING = 2**62
SHOWN_MAX = 40  # characters of a value in an error
NUMBER_MAX = 2**63 - 1
LEASE_MAX_SEC = 366 * 24 * 3600
SPAN_MAX = timedelta(days=36525)  # no clock's date leaves the range that every database can store

E = TypeVar("E", bound=StrEnum)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def name(value: str, kind: str = "name", longest: int = NAME_MAX) -> str:
    """A name as it may be stored: not empty, no outer white space, no control character, not too long."""
    if type(value) is str and 0 < len(value) <= longest and value.isprintable() and value[0] != " " != value[-1]:
        return value  # as nearly all are; no other white space is printable
    if not isinstance(value, str):
        raise LimitError(f"{kind} must be a str, not {_short(value)}")
    if not value or len(value) > longest:
        raise LimitError(f"{kind} must have 1 to {longest} characters, and {_short(value)} has {len(value)}")
    if value[0].isspace() or value[-1].isspace() or (not value.isprintable() and _CONTROL.search(value)):
        raise LimitError(f"{kind} {value[:40]!r} has white space at an end, or a control character: remove it")
    return value


def instance_id(value: str) -> str:
    """An instance id as it may be created. (Reads and writes take longer ones: generations and children.)"""
    return name(value, "instance_id", INSTANCE_ID_MAX)


def text(value: bytes | str | None, kind: str, longest: int = PAYLOAD_MAX) -> str | None:
    """A JSON payload as text: UTF-8 without NUL, which PostgreSQL cannot store, and not too large."""
    if value is None:
        return None
    size(value, kind, longest)
    try:
        decoded = value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as error:
        raise LimitError(f"{kind} is not UTF-8 text; give binary data in the binary field") from error
    if "\x00" in decoded:
        raise LimitError(f"{kind} contains a NUL character, which is not JSON; give binary data in the binary field")
    return decoded


def size(value: bytes | str | None, kind: str, longest: int = PAYLOAD_MAX) -> None:
    """Refuse what is not bytes (or text, where text is meant) or is too large."""
    if value is None or (type(value) is bytes and len(value) <= longest):
        return
    if not isinstance(value, bytes | str):
        raise LimitError(f"{kind} must be bytes, not {type(value).__name__}")
    length = len(value)
    if isinstance(value, str) and length * 4 > longest:
        length = len(value.encode("utf-8", "surrogatepass"))
    if length > longest:
        raise LimitError(
            f"{kind} has {length} bytes, the limit is {longest}: store large data elsewhere and pass a reference to it"
        )


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) > SHOWN_MAX:
        return repr(f"{value[:SHOWN_MAX]}…")
    text = repr(value)
    return text if len(text) <= SHOWN_MAX + 2 else f"{text[:SHOWN_MAX]}…"


def page(limit: int, default: int) -> int:
    """A page size: 0 is the seed's default, else 1 to 1,000."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= PAGE_MAX:
        raise LimitError(f"a page has 1 to {PAGE_MAX} rows (0 for the default of {default}), not {limit!r}")
    return limit or default


def some(limit: int | None) -> int:
    """The size of a list that is given whole unless a limit is asked for."""
    return EVERYTHING if limit is None else page(limit, PAGE_MAX)


def choice(kinds: type[E], value: str, kind: str) -> E:
    """A member of an enumeration, by itself or by its value."""
    try:
        return kinds(value)
    except ValueError as error:
        raise LimitError(f"{kind} is one of {', '.join(kinds)}, not {str(value)[:40]!r}") from error


def number(value: int, kind: str, most: int = NUMBER_MAX) -> int:
    """An id, or where to go on from one: 64 bits, as in every database. What is counted on from here has to be less."""
    if not isinstance(value, int) or isinstance(value, bool) or not -most <= value <= most:
        raise LimitError(f"{kind} must be a whole number from -{most} to {most}, not {str(value)[:40]}")
    return value


def count(value: int, kind: str, most: int = EVERYTHING) -> int:
    """A number of things; `LimitError` if it is none, or above `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise LimitError(f"{kind} must be a whole number from 0 to {most}, not {value!r}")
    return value


def seconds(value: float, kind: str = "timeout_sec") -> float:
    """A duration in seconds that a lease may have."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LEASE_MAX_SEC:
        raise LimitError(f"{kind} must be a number of seconds above 0 and at most {LEASE_MAX_SEC}, not {value!r}")
    return float(value)


def moment(value: datetime | None, kind: str) -> datetime | None:
    """An aware time in UTC."""
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise LimitError(f"{kind} must be a datetime with a time zone, for example datetime.now(UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise LimitError(f"{kind} {value} is beyond the times a database has") from error


def span(value: timedelta, kind: str) -> float:
    """A duration that is not negative, in seconds."""
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= SPAN_MAX:
        raise LimitError(f"{kind} must be a timedelta of at most a hundred years that is not negative, not {value!r}")
    return value.total_seconds()
