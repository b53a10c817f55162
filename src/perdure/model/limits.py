"""Check the limits of the contract, which are the same on every database, before a statement is sent."""

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from perdure.errors import LimitError
from perdure.model.envelopes import PREFIX, is_encoded

NAME_MAX = 255
INSTANCE_ID_MAX = 200  # leaves space for generations (`~12`) and children (`/step`)
EVENT_TYPE_MAX = 100
PAYLOAD_MAX = 8 * 1024 * 1024
METADATA_MAX = 64 * 1024
ENVELOPE_ROOM = 4096  # bytes that an encoded value may be larger, apart from base64
PAGE_MAX = 1000
COUNT_MAX = 1_000_000  # the maximum that a count returns
STEPS_MAX = 25_000  # unfinished ones of a run
WAITS_MAX = 2 * STEPS_MAX + 1  # of one instance at once: a step has at most two, and the run itself may have a timeout
EVERYTHING = 2**62
SHOWN_MAX = 40  # characters of a value in an error
NUMBER_MAX = 2**63 - 1
LEASE_MAX_SEC = 366 * 24 * 3600
SPAN_MAX = timedelta(days=36525)  # keeps every date within the range that all databases can store

E = TypeVar("E", bound=StrEnum)

_UNSEARCHABLE = re.compile(r"[\0\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def name(value: str, kind: str = "name", longest: int = NAME_MAX) -> str:
    """Return the name if it can be stored: not empty, no outer white space, no control characters, not too long."""
    if type(value) is str and 0 < len(value) <= longest and value.isprintable() and value[0] != " " != value[-1]:
        return value  # the usual case; no other white space is printable
    if not isinstance(value, str):
        raise LimitError(f"{kind} must be a str, not {_short(value)}")
    if not value or len(value) > longest:
        raise LimitError(f"{kind} must have 1 to {longest} characters, and {_short(value)} has {len(value)}")
    if value[0].isspace() or value[-1].isspace() or (not value.isprintable() and _CONTROL.search(value)):
        raise LimitError(f"{kind} {value[:40]!r} has outer white space, or a control character: remove it")
    return value


def instance_id(value: str) -> str:
    """Return an id that may be created. (Reads and writes accept longer ones: generations and children.)"""
    return name(value, "instance_id", INSTANCE_ID_MAX)


def text(value: bytes | str | None, kind: str, longest: int = PAYLOAD_MAX) -> str | None:
    """Return a JSON payload as text: UTF-8, not too large, and without NUL, which PostgreSQL cannot store."""
    if value is None:
        return None
    size(value, kind, longest)
    try:
        decoded = value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as error:
        raise LimitError(f"{kind} is not UTF-8 text; pass binary data in the binary field") from error
    if "\x00" in decoded:
        raise LimitError(f"{kind} contains a NUL character, which is not JSON; pass binary data in the binary field")
    return decoded


def searchable(value: str, kind: str, longest: int = NAME_MAX) -> str:
    """Return a text to search for: not too long, and without characters that a database rejects in a parameter."""
    if not isinstance(value, str):
        raise LimitError(f"{kind} must be a str, not {type(value).__name__}")
    if len(value) > longest:
        raise LimitError(f"{kind} has {len(value)} characters, but at most {longest} are allowed")
    if _UNSEARCHABLE.search(value):
        raise LimitError(f"{kind} contains a NUL character or a lone surrogate, which no database can search for")
    return value


def size(value: bytes | str | None, kind: str, longest: int = PAYLOAD_MAX) -> None:
    """Raise `LimitError` if the value is not bytes (or text, where text is expected), or too large."""
    if value is None or (type(value) is bytes and len(value) <= longest):
        return
    if not isinstance(value, bytes | str):
        raise LimitError(f"{kind} must be bytes, not {type(value).__name__}")
    length = len(value)
    if isinstance(value, str) and length * 4 > longest:
        length = len(value.encode("utf-8", "surrogatepass"))
    if length > longest and _is_encoded(value):
        longest = encoded_max(longest)
    if length > longest:
        raise LimitError(
            f"{kind} has {length} bytes, the limit is {longest}: store large data elsewhere and pass a reference to it"
        )


def _is_encoded(value: bytes | str) -> bool:
    return value.startswith(PREFIX) if isinstance(value, str) else is_encoded(value)


def encoded_max(longest: int) -> int:
    """Return the maximum length of a value once it is encoded: base64 makes it longer by a third."""
    return longest * 4 // 3 + ENVELOPE_ROOM


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) > SHOWN_MAX:
        return repr(f"{value[:SHOWN_MAX]}…")
    text = repr(value)
    return text if len(text) <= SHOWN_MAX + 2 else f"{text[:SHOWN_MAX]}…"


def page(limit: int, default: int) -> int:
    """Return a page size: the default for 0, otherwise the limit itself, which must be 1 to 1,000."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= PAGE_MAX:
        raise LimitError(f"limit must be 1 to {PAGE_MAX} rows, or 0 for the default ({default}), not {limit!r}")
    return limit or default


def some(limit: int | None) -> int:
    """Return the maximum length of a list; without a limit the list is complete."""
    return EVERYTHING if limit is None else page(limit, PAGE_MAX)


def choice(kinds: type[E], value: str, kind: str) -> E:
    """Return a member of an enumeration, given by itself or by its value."""
    try:
        return kinds(value)
    except ValueError as error:
        raise LimitError(f"{kind} must be one of {', '.join(kinds)}, not {str(value)[:40]!r}") from error


def number(value: int, kind: str, most: int = NUMBER_MAX) -> int:
    """Return an id, or a position after one: 64 bits, as in every database. A value to be incremented must be less."""
    if not isinstance(value, int) or isinstance(value, bool) or not -most <= value <= most:
        raise LimitError(f"{kind} must be a whole number from -{most} to {most}, not {str(value)[:40]}")
    return value


def count(value: int, kind: str, most: int = EVERYTHING) -> int:
    """Return a count; raise `LimitError` if it is not a whole number from 0 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise LimitError(f"{kind} must be a whole number from 0 to {most}, not {value!r}")
    return value


def seconds(value: float, kind: str = "timeout_sec") -> float:
    """Return a duration in seconds that a lease may have."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LEASE_MAX_SEC:
        raise LimitError(f"{kind} must be greater than 0 and at most {LEASE_MAX_SEC} seconds, not {value!r}")
    return float(value)


def moment(value: datetime | None, kind: str) -> datetime | None:
    """Return an aware time in UTC."""
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise LimitError(f"{kind} must be a datetime with a time zone, for example datetime.now(UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise LimitError(f"{kind} {value} is outside the range of times that a database can store") from error


def span(value: timedelta, kind: str) -> float:
    """Return a duration that is not negative, in seconds."""
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= SPAN_MAX:
        raise LimitError(f"{kind} must be a timedelta from 0 to 100 years, not {value!r}")
    return value.total_seconds()
