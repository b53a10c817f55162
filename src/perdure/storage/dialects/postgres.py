"""PostgreSQL: naive UTC timestamps judged by statement_timestamp(), RETURNING, arrays as parameters."""

import json
from datetime import datetime

from perdure.storage.dialects.base import Rendering, naive_utc


class PostgresDriver(Rendering):
    """The seed's Driver for PostgreSQL 14 and later."""

    name = "postgresql"

    def placeholder(self, n: int) -> str:
        return f"${n}"

    def _number(self, name: str, names: list[str]) -> str:
        # a name used twice is one parameter, so that its type is settled once
        if name not in names:
            names.append(name)
        return self.placeholder(names.index(name) + 1)

    def get_current_time_expr(self) -> str:
        now = "timezone('utc', statement_timestamp())"
        if not self.clock_shift:
            return now
        return f"({now} + interval '{self.clock_shift.total_seconds():.6f} seconds')"

    def json_extract(self, column: str, path: str) -> str:
        keys = ",".join(path.split("."))
        return f"perdure_json({column}) #> '{{{keys}}}'"

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        return f"{extract_expr} = {self.placeholder(placeholder_num)}::jsonb", [json.dumps(value)]

    def piece_after(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} + make_interval(secs => {seconds}))"

    def piece_ago(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} - make_interval(secs => {seconds}))"

    def piece_any(self, parameter: str) -> str:
        return f"= ANY({parameter}::text[])"

    def bind(self, value: object) -> object:
        return naive_utc(value) if isinstance(value, datetime) else value
