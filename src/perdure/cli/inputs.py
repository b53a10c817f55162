"""Values from the command line: JSON, durations and times."""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from perdure.cli.exits import UsageError
from perdure.inspection.filters import FilterError, parse_age

STDIN = "-"
STDIN_FILE = "@-"


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read of the terminal: in a coroutine it would only be noticed after the read."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def json_value(given: str, what: str) -> Any:
    """Return the value of a JSON text, of a file (`@file.json`), or of the standard input (`-`)."""
    text = _read(given, what)
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{what} is no JSON ({error}): write a text in both quotes, '\"text\"'") from error


def json_object(given: str, what: str) -> dict[str, Any]:
    """Return a JSON object."""
    value = json_value(given, what)
    if not isinstance(value, dict):
        raise UsageError(f'{what} must be a JSON object with the arguments by name, such as \'{{"order_id": "A-1"}}\'')
    return value


def _read(given: str, what: str) -> str:
    if given in (STDIN, STDIN_FILE):
        with interruptible():
            return sys.stdin.read()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what}: {given[1:]} cannot be read: {error}") from error


def duration(given: str | None, what: str, *, may_be_zero: bool = False) -> timedelta | None:
    """Return a duration, by default above 0: seconds, or a number with a unit, such as `30m`, `1h` or `7d`."""
    if given is None:
        return None
    try:
        age = parse_age(given)
        found = timedelta(seconds=float(given)) if age is None else age
    except (FilterError, ValueError, OverflowError):
        raise UsageError(f"{what} must be a duration such as 30s, 15m, 1h or 7d, not {given!r}") from None
    if found < timedelta(0) or (not found and not may_be_zero):
        raise UsageError(f"{what} must be above 0, not {given!r}")
    return found


def point_in_time(given: str | None, what: str) -> datetime | None:
    """Return a time in ISO 8601; without a zone it is in the local one."""
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise UsageError(
            f"{what} must be a time such as 2026-11-01T09:00 or 2026-11-01T09:00Z, not {given!r}"
        ) from None
    return found if found.tzinfo is not None else found.astimezone()
