"""Filter instances by their input: a JSON path and the value that must be there, compared by type and exactly.

`true` is not `"true"`, `1` equals `1.0`, null matches null, a missing key matches nothing. Numbers are compared as
doubles, texts by code points, and the last of two equal keys applies, as Python reads JSON. The databases' own readers
differ in corner cases (nesting, escapes, very large numbers), so a listing also fetches rows that the database may
have misread, and `matches` makes the final decision.
"""

import json
import re
from collections.abc import Mapping
from typing import NoReturn

from perdure.database.dialects.base import Driver, json_keys
from perdure.errors import LimitError
from perdure.model import limits
from perdure.model.json_paths import value_at

Value = str | bool | int | float | None

FILTERS_MAX = 20
NUMBER_MAX = 2**53  # beyond it not every integer is a double

_UNASKABLE = re.compile(r"[\0\ud800-\udfff]")


class InputFilterBuilder:
    """Render input filters as conditions of a driver's dialect, for a WHERE clause."""

    def __init__(self, driver: Driver, column: str = "input_data") -> None:
        self._driver, self._column = driver, column

    def build_filter_query(
        self, input_filters: Mapping[str, Value], start_placeholder: int = 1
    ) -> tuple[list[str], list[object]]:
        """Return one condition per filter, all of which must hold, and the arguments they bind, from a placeholder on.

        A row that the database cannot read as JSON fulfils none of them. Corner cases that `list_instances` handles
        (two equal keys, keys written with escapes, NUL, deep nesting) are decided by the database.
        """
        conditions: list[str] = []
        args: list[object] = []
        for path, value in checked(input_filters).items():
            extract = self._driver.json_extract(self._column, path)
            condition, bound = self._driver.json_compare(extract, value, start_placeholder + len(args))
            conditions.append(condition)
            args += bound
        return conditions, args


def validate_json_path(path: str) -> None:
    """Raise `InvalidJSONPathError` unless it is identifiers joined by dots: no index, no quotes, no empty key."""
    json_keys(path)


def checked(input_filters: Mapping[str, Value]) -> dict[str, Value]:
    """Return the filters with plain values, numbers as floats; raise if a path or a value is invalid."""
    if len(input_filters) > FILTERS_MAX:
        raise LimitError(f"a listing takes at most {FILTERS_MAX} input filters, not {len(input_filters)}")
    for path in input_filters:
        validate_json_path(path)
    return {path: _plain(value, f"the value at {path!r}") for path, value in input_filters.items()}


def _plain(value: Value, kind: str) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value, kind, limits.METADATA_MAX)[:]
    if not isinstance(value, int | float):
        raise LimitError(f"{kind} must be str, bool, a number or None, not {type(value).__name__}")
    if not abs(value) <= NUMBER_MAX:
        raise LimitError(f"{kind} must be a finite number within ±2^53")
    return float(value)


def text(value: str, kind: str, longest: int = limits.NAME_MAX) -> str:
    """Return a text to search for: not too long, and without characters that a database rejects in a parameter."""
    if not isinstance(value, str):
        raise LimitError(f"{kind} must be a str, not {type(value).__name__}")
    if len(value) > longest:
        raise LimitError(f"{kind} has {len(value)} characters, but at most {longest} are allowed")
    if _UNASKABLE.search(value):
        raise LimitError(f"{kind} contains a NUL character or a lone surrogate, which no database can search for")
    return value


def matches(stored: str, wanted: Mapping[str, Value]) -> bool:
    """Return whether a stored input has the value of every filter, which are `checked`, at its path."""
    try:
        document = json.loads(stored, parse_int=float, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return False
    return all(_is(value_at(document, path), value) for path, value in wanted.items())


def _is(found: object, value: Value) -> bool:
    return type(found) is type(value) and bool(found == value)


def _no_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
