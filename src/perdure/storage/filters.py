"""Filter instances by their input: a JSON path and the value that must be there, compared by type and exactly.

`true` is not `"true"`, `1` equals `1.0`, null matches null, a missing key matches nothing. Numbers are compared as
doubles, texts by code points, and the last of two equal keys applies, as Python reads JSON. The databases' own readers
differ in corner cases (nesting, escapes, very large numbers), so a listing also fetches rows that the database may
have misread, and `matches` makes the final decision.
"""

import json
from collections.abc import Mapping
from typing import NoReturn

from perdure.database.dialects.base import Driver
from perdure.errors import LimitError
from perdure.model.json_paths import Value, filter_keys, filter_value, value_at

FILTERS_MAX = 20


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
    filter_keys(path)


def checked(input_filters: Mapping[str, Value]) -> dict[str, Value]:
    """Return the filters with plain values, numbers as floats; raise if a path or a value is invalid."""
    if len(input_filters) > FILTERS_MAX:
        raise LimitError(f"a listing takes at most {FILTERS_MAX} input filters, not {len(input_filters)}")
    for path in input_filters:
        validate_json_path(path)
    return {path: filter_value(value, path) for path, value in input_filters.items()}


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
