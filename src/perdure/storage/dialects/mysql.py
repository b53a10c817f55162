"""MySQL and MariaDB: DATETIME(6) in UTC, no RETURNING, values escaped into the text by the native driver."""

from datetime import datetime

from perdure.storage.dialects.base import Rendering, naive_utc


class MySQLDriver(Rendering):
    """The seed's Driver for MySQL 8.0 and MariaDB 10.6 and later."""

    name = "mysql"

    def placeholder(self, n: int) -> str:
        return "%s"

    def get_current_time_expr(self) -> str:
        if not self.clock_shift:
            return "UTC_TIMESTAMP(6)"
        return f"(UTC_TIMESTAMP(6) + INTERVAL {self.clock_shift.total_seconds():.6f} SECOND)"

    def on_conflict_do_nothing(self, *conflict_columns: str) -> str:
        return ""  # the backend takes error 1062 of such a statement for "no row": ON DUPLICATE KEY can't tell

    def returning_clause(self, *columns: str) -> str:
        return ""  # the backend gives the generated id of such an insert as a row

    def json_extract(self, column: str, path: str) -> str:
        keys = "".join(f'."{key}"' for key in path.split("."))
        return f"CASE WHEN JSON_VALID({column}) THEN JSON_EXTRACT({column}, '${keys}') END"

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        kind = f"JSON_TYPE({extract_expr})"
        if value is None:
            return f"{kind} = 'NULL'", []
        if isinstance(value, bool):
            return f"({kind} = 'BOOLEAN' AND {extract_expr} = {'true' if value else 'false'})", []
        if isinstance(value, str):
            return f"({kind} = 'STRING' AND JSON_UNQUOTE({extract_expr}) = %s)", [value]
        numbers = "('INTEGER', 'UNSIGNED INTEGER', 'DOUBLE', 'DECIMAL')"
        return f"({kind} IN {numbers} AND JSON_UNQUOTE({extract_expr}) + 0e0 = %s)", [float(value)]  # type: ignore[arg-type]

    def piece_after(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} + INTERVAL ({seconds}) SECOND)"

    def piece_ago(self, seconds: str) -> str:
        return f"({self.get_current_time_expr()} - INTERVAL ({seconds}) SECOND)"

    def piece_dual(self, _: str) -> str:
        return "FROM DUAL"  # MariaDB has no WHERE without FROM

    def piece_any(self, parameter: str) -> str:
        return f"IN {parameter}"

    def bind(self, value: object) -> object:
        return naive_utc(value) if isinstance(value, datetime) else value
