"""Render statements for SQLite: times as text with six digits, no row locks because there is one writer, RETURNING."""

import json
import math
from datetime import datetime

from perdure.database.dialects.base import Rendering, naive_utc
from perdure.database.dialects.error_codes import ErrorCodes
from perdure.database.dialects.features import Features
from perdure.model.json_paths import filter_keys

# Text is prefixed with a quotation mark; true, false and null are words; numbers are REAL. So no two types are equal.
_VALUE = (
    "CASE WHEN {0}.type = 'text' THEN '\"' || {0}.atom WHEN {0}.type IN ('true', 'false', 'null') THEN {0}.type "
    "ELSE CAST({0}.atom AS REAL) END"
)


class SQLiteDriver(Rendering):
    """Implement `Driver` for SQLite."""

    name = "sqlite"
    features = Features(
        returning=True,
        one_statement_writes=False,
        repeated_calls=True,
        round_trips=False,
        row_locks=False,
        gap_locks=False,
        idle_timeout=False,
        notifications=False,
        schemas=False,
        locks_of_process=True,
        transactional_ddl=True,
    )
    error_codes = ErrorCodes(unreadable=frozenset({1}), collisions=frozenset({5, 6}))

    def get_current_time_expr(self) -> str:
        return self._time("'now'")

    def select_for_update_skip_locked(self) -> str:
        return ""  # a writer holds the whole database

    def json_extract(self, column: str, path: str) -> str:
        # Through json_each, because the last of two equal keys applies, and a key may be written with escapes.
        keys = filter_keys(path)
        names = [f"k{n}" for n in range(len(keys))]
        inner = [f"CASE {name}.type WHEN 'object' THEN {name}.value END" for name in names[:-1]]
        sources = [f"CASE WHEN json_valid({column}) THEN {column} END", *inner]
        steps = ", ".join(f"json_each({source}) {name}" for source, name in zip(sources, names, strict=True))
        found = " AND ".join(f"{name}.key = '{key}'" for name, key in zip(names, keys, strict=True))
        last = ", ".join(f"{name}.id DESC" for name in names)
        # The keys are identifiers: `filter_keys` accepts nothing else.
        return f"(SELECT {_VALUE.format(names[-1])} FROM {steps} WHERE {found} ORDER BY {last} LIMIT 1)"  # nosec B608

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        first, second = self.placeholder(placeholder_num), self.placeholder(placeholder_num + 1)
        if isinstance(value, int | float) and not isinstance(value, bool):
            # SQLite may read a fraction with an error in the last digits
            number = float(value)
            margin = 0.0 if number.is_integer() else 4 * math.ulp(number)
            return f"{extract_expr} BETWEEN {first} AND {second}", [number - margin, number + margin]
        return f"{extract_expr} = {first}", ['"' + value if isinstance(value, str) else json.dumps(value)]

    def json_doubt(self, column: str, path: str) -> str:
        return f"(NOT json_valid({column}) OR instr({column}, '\\u0000'))"  # which ends a text or a key

    def piece_after(self, seconds: str) -> str:
        return self._time(f"'now', ({seconds}) || ' seconds'")

    def piece_ago(self, seconds: str) -> str:
        return self._time(f"'now', '-' || ({seconds}) || ' seconds'")

    def piece_for_update(self, _: str) -> str:
        return ""

    def piece_greatest(self, values: str) -> str:
        return f"max({values})"

    def piece_iso(self, column: str) -> str:
        return f"replace({column}, ' ', 'T') || '+00:00'"

    def piece_any(self, parameter: str) -> str:
        return f"IN (SELECT value FROM json_each({parameter}))"  # nosec B608 # the name of a parameter

    def piece_index(self, name: str) -> str:
        return f"INDEXED BY {name}"

    def piece_contains(self, arguments: str) -> str:
        column, text = arguments.split(",")
        return f"instr(lower({column}), {text}) > 0"  # lower() folds ASCII letters only

    def _time(self, arguments: str) -> str:
        shift = f", '{self.clock_shift.total_seconds():+.6f} seconds'" if self.clock_shift else ""
        if self.clock_stopped_at is not None:
            arguments, shift = arguments.replace("'now'", f"'{self._stopped_clock()}'"), ""
        return f"strftime('%Y-%m-%d %H:%M:%f000', {arguments}{shift})"

    def bind(self, value: object) -> object:
        if isinstance(value, datetime):
            return naive_utc(value).isoformat(" ", "microseconds")
        if isinstance(value, list | tuple):
            return json.dumps(value)
        return value

    def error_code(self, error: BaseException) -> object:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of the number is the detailed reason
