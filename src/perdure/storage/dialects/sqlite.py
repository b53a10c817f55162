"""SQLite: text times with six digits, no row locks because there is one writer, RETURNING."""

import json
from datetime import datetime

from perdure.storage.dialects.base import Rendering, naive_utc


class SQLiteDriver(Rendering):
    """The seed's Driver for SQLite."""

    name = "sqlite"

    def placeholder(self, n: int) -> str:
        return "?"

    def get_current_time_expr(self) -> str:
        return self._time("'now'")

    def select_for_update_skip_locked(self) -> str:
        return ""  # whoever writes holds the whole database

    def json_extract(self, column: str, path: str) -> str:
        # json_each on an array of one keeps the type beside the value; a row that is not JSON gives no rows
        return f"CASE WHEN json_valid({column}) THEN json_extract({column}, '{_path(path)}') END"

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        kind = extract_expr.replace("json_extract(", "json_type(", 1)
        if value is None:
            return f"{kind} = 'null'", []
        if isinstance(value, bool):
            return f"{kind} = '{'true' if value else 'false'}'", []
        types = "('text')" if isinstance(value, str) else "('integer', 'real')"
        return f"({kind} IN {types} AND {extract_expr} = {self.placeholder(placeholder_num)})", [value]

    def piece_after(self, seconds: str) -> str:
        return self._time(f"'now', ({seconds}) || ' seconds'")

    def piece_ago(self, seconds: str) -> str:
        return self._time(f"'now', '-' || ({seconds}) || ' seconds'")

    def piece_for_update(self, _: str) -> str:
        return ""

    def piece_any(self, parameter: str) -> str:
        return f"IN (SELECT value FROM json_each({parameter}))"

    def _time(self, arguments: str) -> str:
        shift = f", '{self.clock_shift.total_seconds():+.6f} seconds'" if self.clock_shift else ""
        return f"strftime('%Y-%m-%d %H:%M:%f000', {arguments}{shift})"

    def bind(self, value: object) -> object:
        if isinstance(value, datetime):
            return naive_utc(value).isoformat(" ", "microseconds")
        if isinstance(value, list | tuple):
            return json.dumps(value)
        return value


def _path(path: str) -> str:
    return "$" + "".join(f'."{key}"' for key in path.split("."))
