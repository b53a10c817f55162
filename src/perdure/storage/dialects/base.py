"""What differs between databases, as data and small pieces: the seed's Driver, and the rendering of statements by it."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from perdure.storage.sql import Statement

_PIECE = re.compile(r"\{(\w+)(?:\((.*?)\))?\}", re.DOTALL)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_READS = re.compile(r"\s*(SELECT|WITH|VALUES|SHOW)\b|\bRETURNING\b")


class Driver(Protocol):
    """Abstracts what the databases spell differently. The statements are rendered through it."""

    def driver_name(self) -> str:
        """The dialect's name: sqlite, postgresql or mysql."""

    def get_current_time_expr(self) -> str:
        """The database's own clock in UTC; every time-dependent statement judges by it."""

    def make_datetime_comparable(self, column: str) -> str:
        """The column as it is compared with a time: never wrapped, so that its index serves."""

    def select_for_update_skip_locked(self) -> str:
        """The clause that locks rows and passes over those somebody else has locked."""

    def placeholder(self, n: int) -> str:
        """The placeholder of the nth parameter, counted from 1."""

    def on_conflict_do_nothing(self, *conflict_columns: str) -> str:
        """The clause that makes an insert of an existing key change nothing."""

    def returning_clause(self, *columns: str) -> str:
        """The clause that gives back columns of the rows written."""

    def json_extract(self, column: str, path: str) -> str:
        """An expression for the value at a dotted path of a JSON text column."""

    def json_compare(self, extract_expr: str, value: object, placeholder_num: int) -> tuple[str, list[object]]:
        """A condition that the extracted value equals `value`, typed, and the arguments it binds."""


class Bare(list[object]):
    """Values separated by commas without the parentheses of a list: MySQL's rows of one insert."""


class Part(NamedTuple):
    """One SQL text of a rendered statement, ready for the native driver."""

    text: str
    names: tuple[str, ...]
    reads: bool
    inserts: bool  # MySQL: give back the generated id as RETURNING would
    forgives: bool  # MySQL: a duplicate key counts as no row written


class Rendering:
    """Renders statements for one dialect and one clock, once each."""

    name = ""

    def __init__(self, clock_shift: timedelta = timedelta(0)) -> None:
        self._rendered: dict[Statement, tuple[Part, ...]] = {}
        self.clock_shift = clock_shift

    def driver_name(self) -> str:
        return self.name

    def make_datetime_comparable(self, column: str) -> str:
        return column

    def shift_clock(self, shift: timedelta) -> None:
        """Move the clock that every statement judges by; for tests."""
        self.clock_shift = shift
        self._rendered.clear()

    def parts(self, statement: Statement) -> tuple[Part, ...]:
        """The statement in this dialect."""
        try:
            return self._rendered[statement]
        except KeyError:
            parts = tuple(self.render(text) for text in statement.parts(self.name))
            self._rendered[statement] = parts
            return parts

    def render(self, template: str) -> Part:
        """One part of a template in this dialect."""
        reads = bool(_READS.match(template)) or "RETURNING" in template or "{returning(" in template
        text = _PIECE.sub(lambda found: self._piece(found[1], found[2] or ""), template)
        names: list[str] = []
        text = _PARAMETER.sub(lambda found: self._number(found[1], names), text)
        return Part(
            text,
            tuple(names),
            reads,
            inserts="{returning(" in template,
            forgives="{on_conflict_do_nothing(" in template,
        )

    def _piece(self, name: str, argument: str) -> str:
        piece: Callable[[str], str] | None = getattr(self, f"piece_{name}", None)
        if piece is None:
            raise ValueError(f"no piece {name!r} in dialect {self.name}")
        return piece(argument)

    def _number(self, name: str, names: list[str]) -> str:
        names.append(name)
        return self.placeholder(len(names))

    def placeholder(self, n: int) -> str:
        raise NotImplementedError

    def get_current_time_expr(self) -> str:
        raise NotImplementedError

    def select_for_update_skip_locked(self) -> str:
        return "FOR UPDATE SKIP LOCKED"

    def on_conflict_do_nothing(self, *conflict_columns: str) -> str:
        return f"ON CONFLICT ({', '.join(conflict_columns)}) DO NOTHING"

    def returning_clause(self, *columns: str) -> str:
        return f"RETURNING {', '.join(columns)}"

    def piece_now(self, _: str) -> str:
        return self.get_current_time_expr()

    def piece_skip_locked(self, _: str) -> str:
        return self.select_for_update_skip_locked()

    def piece_for_update(self, _: str) -> str:
        return "FOR UPDATE"

    def piece_dual(self, _: str) -> str:
        return ""

    def piece_on_conflict_do_nothing(self, columns: str) -> str:
        return self.on_conflict_do_nothing(*_split(columns))

    def piece_returning(self, columns: str) -> str:
        return self.returning_clause(*_split(columns))

    def bind(self, value: object) -> object:
        """A value as the native driver takes it."""
        raise NotImplementedError


def _split(columns: str) -> Sequence[str]:
    return [column.strip() for column in columns.split(",")]


def naive_utc(value: datetime) -> datetime:
    """The columns have no zone: an aware time goes in as UTC without one."""
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
