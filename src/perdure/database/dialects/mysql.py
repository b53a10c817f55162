"""Render statements for MySQL and MariaDB: DATETIME(6) in UTC, no RETURNING, values written into the text as literals.

A rendered text is a `%` format over a mapping of the parameters' literals, so that each is made once however often it
occurs. `render` doubles every `%` of a template, so templates write it as for any other dialect. A piece that needs
one writes `%%`.
"""

import json
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from string import ascii_uppercase
from types import NoneType
from typing import Any

from perdure.database.dialects.base import Bare, Now, Part, Rendering, naive_utc
from perdure.database.dialects.error_codes import ErrorCodes
from perdure.database.dialects.features import Features
from perdure.errors import LimitError
from perdure.model.json_paths import filter_keys

DEPTH_MAX = 100
LARGE = 1 << 20  # larger values are sent as base64: a third more, where escapes or hexadecimal digits can double them


class MySQLDriver(Rendering):
    """Implement `Driver` for MySQL 8.0 and MariaDB 10.6 and later."""

    name = "mysql"
    mark = "%s"
    features = Features(
        returning=False,
        one_statement_writes=False,
        repeated_calls=False,
        round_trips=True,
        row_locks=True,
        gap_locks=True,
        idle_timeout=True,
        notifications=False,
        schemas=False,
        locks_of_process=False,
        transactional_ddl=False,
    )
    error_codes = ErrorCodes(
        unreadable=frozenset({1146, 1054, 1142}),
        repeated={"add column": 1060, "create index": 1061, "drop index": 1091, "insert": 1062},
    )

    def render(self, template: str) -> Part:
        return super().render(template.replace("%", "%%"))

    def _number(self, name: str, names: list[str]) -> str:
        names.append(name)
        return f"%({name})s"

    def get_current_time_expr(self) -> str:
        if self.clock_stopped_at is not None:
            return f"TIMESTAMP'{self._stopped_clock()}'"
        if not self.clock_shift:
            return "UTC_TIMESTAMP(6)"
        return f"(UTC_TIMESTAMP(6) + INTERVAL {self.clock_shift.total_seconds():.6f} SECOND)"

    def on_conflict_do_nothing(self, *conflict_columns: str) -> str:
        return ""  # the backend treats error 1062 of such a statement as "no row": ON DUPLICATE KEY can't tell

    def returning_clause(self, *columns: str) -> str:
        return ""  # the backend returns the generated id of such an insert as a row

    def json_extract(self, column: str, path: str) -> str:
        return _if_readable(column, f"JSON_EXTRACT({column}, {_path(path)})", "NULL")

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        kind, mark = f"JSON_TYPE({extract_expr})", self.placeholder(placeholder_num)
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers = "('INTEGER', 'UNSIGNED INTEGER', 'DOUBLE')"
            return f"({kind} IN {numbers} AND {extract_expr} + 0e0 = {mark})", [float(value)]
        if isinstance(value, str):
            # as bytes: utf8mb4_bin ignores trailing spaces
            same = f"CAST(JSON_UNQUOTE({extract_expr}) AS BINARY) = CAST({mark} AS BINARY)"
            return f"({kind} = 'STRING' AND {same})", [value]
        return f"({kind} IN ('BOOLEAN', 'NULL') AND JSON_UNQUOTE({extract_expr}) = {mark})", [json.dumps(value)]

    def json_doubt(self, column: str, path: str) -> str:
        # MariaDB returns the first of two equal keys (all of them for two paths), and does not find a key written with
        # escapes.
        several = f"JSON_LENGTH(JSON_EXTRACT({column}, {_path(path)}, '$.\"!\"')) > 1"
        escaped = " OR ".join(f"LOCATE('\\\\u00{digit}', {column})" for digit in "34567")
        return _if_readable(column, f"{several} OR {escaped}", "TRUE")

    def piece_after(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} + INTERVAL ({seconds}) SECOND)"

    def piece_ago(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} - INTERVAL ({seconds}) SECOND)"

    def piece_dual(self, _: str) -> str:
        return "FROM DUAL"  # MariaDB has no WHERE without FROM

    def piece_on_conflict_do_update(self, columns: str) -> str:
        return "ON DUPLICATE KEY UPDATE"

    def piece_iso(self, column: str) -> str:
        return f"CONCAT(REPLACE({column}, ' ', 'T'), '+00:00')"

    def piece_any(self, parameter: str) -> str:
        return f"IN {parameter}"

    def piece_index(self, name: str) -> str:
        return f"FORCE INDEX ({name})"

    def piece_from_index(self, arguments: str) -> str:
        # MySQL reads all rows of a small table rather than look up a list, and DELETE waits for each that is locked,
        # unlike UPDATE. FORCE INDEX excludes reading the table, but not the whole index: that needs another column.
        table, index, other = arguments.split(", ")
        return f"{table} FROM {table} FORCE INDEX ({index}) JOIN (SELECT 1) one ON {table}.{other} <=> {table}.{other}"

    def piece_contains(self, arguments: str) -> str:
        column, text = arguments.split(",")
        for letter in ascii_uppercase:  # LOWER() would fold every alphabet
            column = f"REPLACE({column}, '{letter}', '{letter.lower()}')"
        return f"INSTR({column}, {text}) > 0"

    def bind(self, value: object) -> object:
        return naive_utc(value) if isinstance(value, datetime) else value

    def error_code(self, error: BaseException) -> object:
        return error.args[0] if error.args else None


def _if_readable(column: str, result: str, otherwise: str) -> str:
    """Guard with CASE, whose order is guaranteed: JSON nested more than 100 levels deep is an error in MySQL."""
    openings = f"LENGTH({column}) - LENGTH(REPLACE(REPLACE({column}, '[', ''), '{{', ''))"
    readable = f"CASE WHEN JSON_VALID({column}) THEN {result} ELSE {otherwise} END"
    return f"(CASE WHEN {openings} <= {DEPTH_MAX} THEN {readable} ELSE {otherwise} END)"


def _path(path: str) -> str:
    return "'$" + "".join(f'."{key}"' for key in filter_keys(path)) + "'"


def literal(value: object) -> str:
    """Return a value as SQL text for a UTF-8 session, valid in every sql_mode, because a caller may have set one."""
    exact = _LITERALS.get(type(value))
    if exact is not None:
        return exact(value)
    for kind, render in _LITERALS.items():
        if isinstance(value, kind):
            return render(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be bound as a parameter")


def utf8(text: str) -> bytes:
    """Return a text as it is sent to the server."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LimitError("the text contains a lone surrogate and cannot be stored as Unicode") from error


def _text(value: str) -> str:
    if len(value) > LARGE:
        return f"CONVERT({_base64(utf8(value))} USING utf8mb4)"
    if "\\" in value:  # whether it escapes depends on the session's mode
        return f"_utf8mb4 x'{utf8(value).hex()}'"
    return "'" + value.replace("'", "''") + "'"


def _binary(value: bytes) -> str:
    return _base64(value) if len(value) > LARGE else f"x'{value.hex()}'"


def _base64(value: bytes) -> str:
    return f"FROM_BASE64('{b64encode(value).decode()}')"


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise LimitError(f"the number {value!r} cannot be stored: numbers must be finite")
    text = float.__repr__(value)
    return text if "e" in text else text + "e0"  # without an exponent it would be a DECIMAL


def _moment(value: datetime) -> str:
    return f"TIMESTAMP'{naive_utc(value).isoformat(' ', 'microseconds')}'"


def _list(values: list[object]) -> str:
    return f"({','.join(map(literal, values)) or 'NULL'})"  # IN (NULL) is never true


_LITERALS: dict[type, Callable[[Any], str]] = {
    NoneType: lambda _: "NULL",
    bool: lambda value: "TRUE" if value else "FALSE",
    int: int.__repr__,
    float: _float,
    str: _text,
    bytes: _binary,
    datetime: _moment,
    Bare: lambda values: ",".join(map(literal, values)),
    list: _list,
    tuple: _list,
    Now: lambda value: value.variable,
    bytearray: _binary,
    memoryview: _binary,
    Decimal: lambda value: f"{value:f}",
    date: lambda value: f"DATE'{value.isoformat()}'",
}
