"""Check and find values at JSON paths, for filters of inputs and for waits that match messages.

A path is keys joined by dots. Filters and waits have different rules. The path of a filter becomes part of a
statement's text, so its keys are identifiers, and its value is bound, so it cannot be an array or object. A wait is
compared in Python, so it can have any keys and any JSON value.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from perdure.errors import InvalidJSONPathError, LimitError
from perdure.model import limits

Value = str | bool | int | float | None  # of a filter

PATH_MAX = 255
PATH_KEYS_MAX = 30  # MariaDB's maximum depth
EXACT_MAX = 2**53  # beyond it not every integer is a double

_IDENTIFIERS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")


class Missing:
    """Mark that there is no value; it equals nothing that JSON can hold, not even null."""


MISSING: Final = Missing()


def value_at(document: object, path: str) -> object:
    """Return the value at a path, or `MISSING`. An array has no keys."""
    for key in path.split("."):
        if not isinstance(document, Mapping) or key not in document:
            return MISSING
        document = document[key]
    return document


def filter_keys(path: str) -> list[str]:
    """Return the keys of a filter's path: identifiers, so that the path may be part of a statement's text."""
    if not isinstance(path, str):
        raise InvalidJSONPathError(f"a JSON path must be a str, not {type(path).__name__}")
    if not _IDENTIFIERS.fullmatch(path):
        raise InvalidJSONPathError(f"the JSON path {path[:40]!r} is invalid: write identifiers joined by dots")
    keys = path.split(".")
    if len(path) > PATH_MAX or len(keys) > PATH_KEYS_MAX:
        raise InvalidJSONPathError(
            f"the JSON path {path[:40]!r} is too long: at most {PATH_KEYS_MAX} keys and {PATH_MAX} characters"
        )
    return keys


def filter_value(value: Value, path: str) -> Value:
    """Return the value of a filter as it is compared, numbers as floats; raise `LimitError` for any other type."""
    kind = f"the value at {path!r}"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return limits.searchable(value, kind, limits.METADATA_MAX)[:]
    if not isinstance(value, int | float):
        raise LimitError(f"{kind} must be str, bool, a number or None, not {type(value).__name__}")
    if not abs(value) <= EXACT_MAX:
        raise LimitError(f"{kind} must be a finite number within ±2^53")
    return float(value)


def check_match(path: str, value: object) -> None:
    """Raise `InvalidJSONPathError` or `LimitError` unless a wait can ask for this value at this path."""
    if not isinstance(path, str) or len(path) > PATH_MAX or not all(path.split(".")):
        raise InvalidJSONPathError(
            f"the JSON path {path!r} is invalid: write keys joined by dots, at most {PATH_MAX} characters"
        )
    try:
        json.dumps(canonical(value))
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise LimitError(f"the value to match at {path!r} is not JSON: {error}") from error


def canonical(value: object) -> object:
    """Return a form that is equal only for equal values: numbers as text, objects in the order of their keys."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of an object must be str")
        return {"object": [[key, canonical(value[key])] for key in sorted(value)]}
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"number": str(int(value)) if value == value // 1 else repr(float(value))}
    return value
