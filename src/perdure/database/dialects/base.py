"""Describe what differs between databases: the Driver of the API page, and the rendering of statements through it."""

import copy
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import NamedTuple, Protocol, Self

from perdure.database.dialects.error_codes import ErrorCodes
from perdure.database.dialects.features import Features
from perdure.database.statements import Shape, Statement

RENDERED_MAX = 1000  # far above the fixed statements; listing composes some of its own

_PIECE = re.compile(r"\{(\w+)(?:\((.*?)\))?\}", re.DOTALL)
_TABLE = re.compile(r"\{\.(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_READS = re.compile(r"\s*(SELECT|WITH|VALUES|SHOW)\b|\bRETURNING\b")


class Driver(Protocol):
    """Abstract the differences between the databases' SQL. Statements are rendered through it."""

    def driver_name(self) -> str:
        """Return the dialect's name: sqlite, postgresql or mysql."""

    def get_current_time_expr(self) -> str:
        """Return an expression for the database's own clock in UTC, which every time-dependent statement uses."""

    def make_datetime_comparable(self, column: str) -> str:
        """Return the column as it is compared with a time: never wrapped, so that its index is used."""

    def select_for_update_skip_locked(self) -> str:
        """Return the clause that locks rows and skips rows locked by other transactions."""

    def placeholder(self, n: int) -> str:
        """Return the placeholder of the nth parameter, counted from 1."""

    def on_conflict_do_nothing(self, *conflict_columns: str) -> str:
        """Return the clause that makes an insert of an existing key change nothing."""

    def returning_clause(self, *columns: str) -> str:
        """Return the clause that returns columns of the rows written."""

    def json_extract(self, column: str, path: str) -> str:
        """Return an expression for the value at a dotted path of a JSON text column, for use in `json_compare`.

        It never fails: it is NULL if the column is not JSON, or has nothing at the path.
        """

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        """Return a condition that the extracted value equals `value` in type and value, and the arguments it binds."""


class Bare(list[object]):
    """Hold values separated by commas without the parentheses of a list: MySQL's rows of one insert."""


class Now:
    """Stand for the time in `@now`, or in another variable, among the values of such rows."""

    def __init__(self, variable: str = "@now") -> None:
        self.variable = variable


class Part(NamedTuple):
    """Hold one SQL text of a rendered statement, ready for the native driver."""

    text: str
    names: tuple[str, ...]
    reads: bool
    inserts: bool  # MySQL: return the generated id as RETURNING would
    forgives: bool  # MySQL: a duplicate key counts as no row written


class Rendered(tuple[Part, ...]):
    """Hold the parts of a rendered statement, and the function that makes its answer from theirs."""

    shape: Shape
    plain: bool  # the answer is that of the only part, as it is


class Rendering:
    """Render statements for one dialect and one clock, once each."""

    name = ""
    mark = "?"
    features: Features
    error_codes: ErrorCodes

    def __init__(self, clock_shift: timedelta = timedelta(0)) -> None:
        self._rendered: dict[Statement, Rendered] = {}
        self.clock_shift = clock_shift
        self.clock_stopped_at: datetime | None = None

    def driver_name(self) -> str:
        """Return the dialect's name: sqlite, postgresql or mysql."""
        return self.name

    def make_datetime_comparable(self, column: str) -> str:
        """Return the column as it is compared with a time."""
        return column

    def shift_clock(self, shift: timedelta) -> None:
        """Move the clock that every statement uses; for tests."""
        self.clock_shift = shift
        self._rendered.clear()

    def stop_clock(self, at: datetime | None) -> None:
        """Let the clock that every statement uses stand still at a time, or run again; for tests."""
        self.clock_stopped_at = at
        self._rendered.clear()

    def parts(self, statement: Statement) -> Rendered:
        """Return the statement in this dialect."""
        try:
            return self._rendered[statement]
        except KeyError:
            if len(self._rendered) >= RENDERED_MAX:
                self._rendered.clear()
            parts = Rendered(self.render(text) for text in statement.parts(self.name))
            parts.shape = statement.shape(self.name)
            parts.plain = len(parts) == 1 and isinstance(parts.shape, itemgetter)
            self._rendered[statement] = parts
            return parts

    def render(self, template: str) -> Part:
        """Return one part of a template in this dialect."""
        reads = bool(_READS.match(template)) or "RETURNING" in template or "{returning(" in template
        text = _PIECE.sub(lambda found: self._piece(found[1], found[2] or ""), template)
        names: list[str] = []
        text = _PARAMETER.sub(lambda found: self._number(found[1], names), text)
        text = _TABLE.sub(lambda found: self.qualified(found[1]), text)
        return Part(
            text,
            tuple(names),
            reads,
            inserts="{returning(" in template,
            forgives="{on_conflict_do_nothing(" in template,
        )

    def qualified(self, name: str) -> str:
        """Return a table or function of ours as statements name it, with its schema where the database has schemas."""
        return name

    def _piece(self, name: str, argument: str) -> str:
        piece: Callable[[str], str] | None = getattr(self, f"piece_{name}", None)
        if piece is None:
            raise ValueError(f"dialect {self.name!r} has no piece {name!r}")
        return piece(argument)

    def _stopped_clock(self) -> str:
        """Return the time at which the clock stands still, without quotes."""
        assert self.clock_stopped_at is not None, "the clock stands still"
        return naive_utc(self.clock_stopped_at).isoformat(" ", "microseconds")

    def _number(self, name: str, names: list[str]) -> str:
        names.append(name)
        return self.placeholder(len(names))

    def placeholder(self, n: int) -> str:
        """Return the placeholder of the nth parameter, counted from 1."""
        return self.mark.format(n=n)

    def naming(self, prefix: str) -> Self:
        """Return a twin whose placeholders are named parameters, so that its output can be part of a template."""
        twin = copy.copy(self)
        twin.mark = f":{prefix}_{{n}}"
        return twin

    def get_current_time_expr(self) -> str:
        """Return an expression for the database's own clock in UTC."""
        raise NotImplementedError

    def select_for_update_skip_locked(self) -> str:
        """Return the clause that locks rows and skips rows locked by other transactions."""
        return "FOR UPDATE SKIP LOCKED"

    def on_conflict_do_nothing(self, *conflict_columns: str) -> str:
        """Return the clause that makes an insert of an existing key change nothing."""
        return f"ON CONFLICT ({', '.join(conflict_columns)}) DO NOTHING"

    def returning_clause(self, *columns: str) -> str:
        """Return the clause that returns columns of the rows written."""
        return f"RETURNING {', '.join(columns)}"

    def json_extract(self, column: str, path: str) -> str:
        """Return an expression for the value at a dotted path of a JSON text column."""
        raise NotImplementedError

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        """Return a condition that the extracted value equals `value`, and the arguments it binds."""
        raise NotImplementedError

    def json_doubt(self, column: str, path: str) -> str:
        """Return a condition for rows in which this database may not find the value at the path, although it exists."""
        raise NotImplementedError

    def piece_json_doubt(self, arguments: str) -> str:
        """Return the condition of `json_doubt` for `column, path`."""
        return self.json_doubt(*_split(arguments))

    def piece_index(self, name: str) -> str:
        """Return the clause behind a table that selects this index; empty where the planner needs no hint."""
        return ""

    def piece_from_index(self, arguments: str) -> str:
        """Return what follows DELETE: the table, and its index (with a column it lacks) where planners need a hint."""
        return f"FROM {_split(arguments)[0]}"

    def piece_ordinal(self, column: str) -> str:
        """Return the column, compared by code points."""
        return column

    def piece_contains(self, arguments: str) -> str:
        """Return a condition that the column contains a lower-case text, folding ASCII letters only."""
        raise NotImplementedError

    def piece_now(self, _: str) -> str:
        """Return an expression for the current time."""
        return self.get_current_time_expr()

    def piece_skip_locked(self, _: str) -> str:
        """Return the clause that locks rows and skips locked ones."""
        return self.select_for_update_skip_locked()

    def piece_for_update(self, _: str) -> str:
        """Return the clause that locks rows and waits for locked ones."""
        return "FOR UPDATE"

    def piece_dual(self, _: str) -> str:
        """Return what a SELECT without a table needs before WHERE."""
        return ""

    def piece_on_conflict_do_nothing(self, columns: str) -> str:
        """Return the clause that makes an insert of existing keys change nothing."""
        return self.on_conflict_do_nothing(*_split(columns))

    def piece_on_conflict_do_update(self, columns: str) -> str:
        """Return what precedes the assignments of an upsert; a column's old value is written with its table's name."""
        return f"ON CONFLICT ({columns}) DO UPDATE SET"

    def piece_greatest(self, values: str) -> str:
        """Return an expression for the greatest of several values."""
        return f"GREATEST({values})"

    def piece_utc(self, column: str) -> str:
        """Return a time to be read, with its zone where the driver adds it more cheaply than Python."""
        return column

    def piece_iso(self, column: str) -> str:
        """Return a time as text in ISO format with its zone."""
        raise NotImplementedError

    def piece_returning(self, columns: str) -> str:
        """Return the clause that returns columns of the rows written."""
        return self.returning_clause(*_split(columns))

    def bind(self, value: object) -> object:
        """Return a value as the native driver takes it."""
        raise NotImplementedError

    def error_code(self, error: BaseException) -> object:
        """Return the database's own code of a native driver's error; None or 0 if the error is not the database's."""
        raise NotImplementedError


def _split(columns: str) -> Sequence[str]:
    return [column.strip() for column in columns.split(",")]


def naive_utc(value: datetime) -> datetime:
    """Return an aware time as UTC without a zone, because the columns have none."""
    if value.tzinfo is None:
        return value
    value = value.astimezone(UTC)
    return datetime.combine(value, value.time())  # much faster than replace()
