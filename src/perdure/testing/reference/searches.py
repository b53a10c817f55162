"""Filter instances: by parts of names, by values in their inputs, and by the position of a page token."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple, NoReturn

from perdure.errors import InvalidJSONPathError, InvalidPageTokenError, LimitError
from perdure.model import limits
from perdure.model.json_paths import value_at

Value = str | bool | int | float | None

FILTERS_MAX = 20
NUMBER_MAX = 2**53  # beyond it not every integer is a double
PATH_MAX, PATH_KEYS_MAX = 255, 30

_KEY = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.:+Z-]{0,16}", re.ASCII)


class Position(NamedTuple):
    """Hold the position of an instance in the order of a listing."""

    started_at: datetime
    instance_id: str


def folded(name: str) -> str:
    """Return a name with small ASCII letters; other letters keep their case."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def folded_part(value: str | None, kind: str) -> str:
    """Return a part of a name to search for; an empty one is in every name."""
    return folded(_searchable(value, kind, limits.NAME_MAX)) if value else ""


def _searchable(value: str, kind: str, longest: int) -> str:
    if not isinstance(value, str):
        raise LimitError(f"{kind} must be a str, not {type(value).__name__}")
    if len(value) > longest:
        raise LimitError(f"{kind} has {len(value)} characters, but at most {longest} are allowed")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise LimitError(f"{kind} contains a NUL character or a lone surrogate, which no database can search for")
    return value


def position(token: str) -> Position:
    """Return the position that a page token names."""
    try:
        at, _, instance_id = token.partition("||")
        if not _TIME.fullmatch(at) or not instance_id:
            raise ValueError("a token has a time and an id")
        _searchable(instance_id, "the page token", len(token))
        started_at = datetime.fromisoformat(at)
        zoned = started_at.replace(tzinfo=UTC) if started_at.tzinfo is None else started_at.astimezone(UTC)
    except (AttributeError, TypeError, ValueError, OverflowError, LimitError):
        raise InvalidPageTokenError(
            "the page token is invalid: pass the next token of the previous page unchanged"
        ) from None
    return Position(zoned, instance_id)


def checked_filters(input_filters: Mapping[str, Value]) -> dict[str, Value]:
    """Return the filters if every path and value can be searched for."""
    if len(input_filters) > FILTERS_MAX:
        raise LimitError(f"a listing takes at most {FILTERS_MAX} input filters, not {len(input_filters)}")
    for path, value in input_filters.items():
        _check_path(path)
        _check_value(value, f"the value at {path!r}")
    return dict(input_filters)


def _check_path(path: str) -> None:
    if not isinstance(path, str):
        raise InvalidJSONPathError(f"a JSON path must be a str, not {type(path).__name__}")
    keys = path.split(".")
    if not all(_KEY.fullmatch(key) for key in keys):
        raise InvalidJSONPathError(f"the JSON path {path[:40]!r} is invalid: write identifiers joined by dots")
    if len(path) > PATH_MAX or len(keys) > PATH_KEYS_MAX:
        raise InvalidJSONPathError(
            f"the JSON path {path[:40]!r} is too long: at most {PATH_KEYS_MAX} keys and {PATH_MAX} characters"
        )


def _check_value(value: Value, kind: str) -> None:
    if isinstance(value, str):
        _searchable(value, kind, limits.METADATA_MAX)
    elif not isinstance(value, bool | int | float | None):
        raise LimitError(f"{kind} must be str, bool, a number or None, not {type(value).__name__}")
    elif isinstance(value, int | float) and not abs(value) <= NUMBER_MAX:
        raise LimitError(f"{kind} must be a finite number within ±2^53")


def has_values(stored: str, wanted: Mapping[str, Value]) -> bool:
    """Return whether an input has the value of every filter at its path: of the same JSON type, and equal."""
    if not wanted:
        return True
    try:
        document = json.loads(stored, parse_int=float, parse_constant=_reject)
    except (ValueError, RecursionError):
        return False
    return all(_is_same(value_at(document, path), value) for path, value in wanted.items())


def _is_same(found: object, value: Value) -> bool:
    """Compare by type, as `True` equals 1.0 in Python but not in JSON."""
    wanted = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(wanted, str):
        return isinstance(found, str) and found == wanted
    return type(found) is type(wanted) and found == wanted


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
