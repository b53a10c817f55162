"""Render statements for PostgreSQL: naive UTC timestamps, statement_timestamp(), RETURNING, arrays as parameters."""

import json
import math
from datetime import datetime, timedelta
from decimal import Decimal

from perdure.database.dialects.base import Rendering, naive_utc
from perdure.database.dialects.error_codes import ErrorCodes
from perdure.database.dialects.features import Features
from perdure.model.json_paths import filter_keys


class PostgresDriver(Rendering):
    """Implement `Driver` for PostgreSQL 14 and later."""

    name = "postgresql"
    mark = "${n}"
    features = Features(
        returning=True,
        one_statement_writes=True,
        repeated_calls=False,
        round_trips=True,
        row_locks=True,
        gap_locks=False,
        idle_timeout=True,
        notifications=True,
        schemas=True,
        locks_of_process=False,
        transactional_ddl=True,
    )
    error_codes = ErrorCodes(
        unreadable=frozenset({"42P01", "42703", "42501", "3F000"}),
        collisions=frozenset({"40P01", "40001", "23505", "42P07", "42P06"}),
    )

    def __init__(self, clock_shift: timedelta = timedelta(0), schema: str = "") -> None:
        super().__init__(clock_shift)
        self.schema = schema

    def use_schema(self, schema: str) -> None:
        """Qualify every table with this schema; without one the session's search_path applies."""
        self.schema = schema
        self._rendered.clear()

    def qualified(self, name: str) -> str:
        return f"{quoted(self.schema)}.{name}" if self.schema else name

    def _number(self, name: str, names: list[str]) -> str:
        # a name used twice is one parameter, so that its type is inferred once
        if name not in names:
            names.append(name)
        return self.placeholder(names.index(name) + 1)

    def get_current_time_expr(self) -> str:
        if self.clock_stopped_at is not None:
            return f"timestamp '{self._stopped_clock()}'"
        now = "timezone('utc', statement_timestamp())"
        if not self.clock_shift:
            return now
        return f"({now} + interval '{self.clock_shift.total_seconds():.6f} seconds')"

    def json_extract(self, column: str, path: str) -> str:
        return "(" + " -> ".join([self._json(column), *(f"'{key}'" for key in filter_keys(path))]) + ")"

    def _json(self, column: str) -> str:
        return f"{self.qualified('perdure_json')}({column})"

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        first, second = self.placeholder(placeholder_num), self.placeholder(placeholder_num + 1)
        if isinstance(value, int | float) and not isinstance(value, bool):
            # jsonb keeps every digit: all numbers that round to this double are equal. No other type sorts in between.
            return f"{extract_expr} BETWEEN {first}::text::jsonb AND {second}::text::jsonb", _rounding_to(float(value))
        return f"{extract_expr} = {first}::text::jsonb", [json.dumps(value, ensure_ascii=False)]

    def json_doubt(self, column: str, path: str) -> str:
        return f"{self._json(column)} IS NULL"  # also for JSON that jsonb rejects: \u0000, lone surrogates

    def piece_ordinal(self, column: str) -> str:
        return f'{column} COLLATE "C"'

    def piece_after(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} + make_interval(secs => {seconds}))"

    def piece_ago(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} - make_interval(secs => {seconds}))"

    def piece_utc(self, column: str) -> str:
        return f"{column} AT TIME ZONE 'UTC'"

    def piece_iso(self, column: str) -> str:
        return f"to_char({column}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US+00:00')"

    def piece_any(self, parameter: str) -> str:
        return f"= ANY({parameter}::text[])"

    def piece_contains(self, arguments: str) -> str:
        column, text = arguments.split(",")
        return f'strpos(lower({column} COLLATE "C"), {text}) > 0'

    def bind(self, value: object) -> object:
        return naive_utc(value) if isinstance(value, datetime) else value

    def error_code(self, error: BaseException) -> object:
        return getattr(error, "sqlstate", None)


def quoted(identifier: str) -> str:
    """Return an identifier quoted for PostgreSQL."""
    return '"' + identifier.replace('"', '""') + '"'


def _rounding_to(value: float) -> list[object]:
    middle, half = Decimal(value), Decimal(math.ulp(value)) / 2
    return [str(middle - half), str(middle + half)]
