"""Write batches to the guarded target. Each is one transaction, which also records how far its step is."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from perdure.copying.batches import BATCH_BYTES, Key, equal, key_of
from perdure.copying.catalog import Kind, Table
from perdure.copying.database import Database
from perdure.copying.guarding import MARKER, STEPS
from perdure.copying.values import Value, size_of
from perdure.database.backends.base import Executor
from perdure.errors import (
    CommitUnknownError,
    CopyError,
    DatabaseUnavailableError,
    SchemaError,
    StorageError,
    TransactionError,
)

LARGE = 1 << 20  # values that are written by themselves if their row exceeds a batch
_NOT_OF_A_ROW = (DatabaseUnavailableError, SchemaError, TransactionError, CommitUnknownError)  # such as a full disk

Row = list[Value]


@dataclass(frozen=True, slots=True)
class Step:
    """How far a table, or a column that refers to its own table, has been copied."""

    name: str
    after: Key | None = None
    copied: int = 0
    is_done: bool = False


class Writer:
    """Writes to the target of a copy."""

    def __init__(self, copy_id: str, target: Database) -> None:
        self._id = copy_id
        self._target = target

    async def prepare(self, names: Sequence[str]) -> dict[str, Step]:
        """Record the steps that are not recorded yet, and return all by name."""
        steps = self._target.table(STEPS)
        await self._target.execute("create_steps", table=steps)
        async with self._opened() as transaction:
            known = await self.steps(transaction)
            for name in names:
                if name not in known:
                    await self._target.execute("add_step", {"step": name}, on=transaction, table=steps)
        return await self.steps()

    async def steps(self, transaction: Executor | None = None) -> dict[str, Step]:
        """Return the recorded steps by name."""
        try:
            rows = await self._target.fetch("steps", on=transaction, table=self._target.table(STEPS))
        except SchemaError:  # there is no such table
            return {}
        return {
            name: Step(name, tuple(json.loads(key)) if key else None, copied, bool(is_done))
            for name, key, copied, is_done in rows
        }

    async def insert(self, table: Table, rows: Sequence[Row], before: Step, after: Step) -> None:
        """Insert a batch; raise `CopyError` that names the first row which the target rejects."""
        try:
            async with self._recorded(before, after) as transaction:
                await self._insert(table, rows, transaction)
        except _NOT_OF_A_ROW:
            raise
        except StorageError:
            await self._raise_rejected(table, rows)
            raise  # each row alone is accepted

    async def set(
        self, table: Table, column: str, rows: Sequence[tuple[Key, Value]], before: Step, after: Step
    ) -> None:
        """Set a column of the rows with these keys."""
        async with self._recorded(before, after) as transaction:
            for key, value in rows:
                await self._set(table, column, key, value, transaction)

    async def record(self, before: Step, after: Step) -> None:
        """Record how far a step is."""
        async with self._recorded(before, after):
            pass

    async def empty(self, tables: Sequence[Table]) -> None:
        """Delete all rows of the target, in tables that come before those that they refer to."""
        async with self._opened() as transaction:
            for table in tables:
                written = self._target.table(table.name)
                for column in table.own_references:  # so that rows can be deleted in any order
                    await self._target.execute("forget", on=transaction, table=written, column=column)
                await self._target.execute("clear", on=transaction, table=written)

    @asynccontextmanager
    async def _recorded(self, before: Step, after: Step) -> AsyncIterator[Executor]:
        target = self._target
        values = {
            "step": after.name,
            "last_key": None if after.after is None else json.dumps(after.after),
            "copied": after.copied,
            "is_done": int(after.is_done),
            "before": before.copied,
        }
        async with self._opened() as transaction:
            if not await target.execute("advance_step", values, on=transaction, table=target.table(STEPS)):
                raise CopyError(f"another process copies to {target.place} at the same time: let one of them finish")
            yield transaction

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Executor]:
        """Open a transaction that may write to the guarded target."""
        marker = self._target.table(MARKER)
        async with self._target.storage.transaction() as transaction:
            try:
                is_open = await self._target.execute("open_guard", {"id": self._id}, on=transaction, table=marker)
            except SchemaError:  # there is no such table
                is_open = False
            if not is_open:
                raise CopyError(f"the copy to {self._target.place} was aborted by another process")
            yield transaction
            await self._target.execute("close_guard", {"id": self._id}, on=transaction, table=marker)

    async def _insert(self, table: Table, rows: Sequence[Row], transaction: Executor) -> None:
        large = _large_places(rows)
        small = [[_empty(value) if place in large else value for place, value in enumerate(row)] for row in rows]
        width, mark = len(table.columns), self._target.driver.placeholder
        marks = (f"({', '.join(mark(row * width + n + 1) for n in range(width))})" for row in range(len(rows)))
        await self._target.execute(
            "insert",
            [value for row in small for value in row],
            on=transaction,
            table=self._target.table(table.name),
            columns=", ".join(table.columns),
            values=", ".join(marks),
        )
        for place in large:
            (row,) = rows
            await self._set(table, list(table.columns)[place], key_of(table, row), row[place], transaction)

    async def _set(self, table: Table, column: str, key: Key, value: Value, transaction: Executor) -> None:
        # MySQL would set some of the times to now, unless they are assigned.
        times = "".join(f", {name} = {name}" for name, kind in table.columns.items() if kind is Kind.TIME)
        await self._target.execute(
            "set",
            [value, *key],
            on=transaction,
            table=self._target.table(table.name),
            assignments=f"{column} = {self._target.driver.placeholder(1)}{times}",
            same=equal(self._target, table.key, 2),
        )

    async def _raise_rejected(self, table: Table, rows: Sequence[Row]) -> None:
        """Raise `CopyError` for the first row that the target rejects, and write nothing."""
        for row in rows:
            try:
                async with self._opened() as transaction:
                    await self._insert(table, [row], transaction)
                    raise _UndoError
            except _UndoError:
                continue
            except _NOT_OF_A_ROW:
                raise
            except StorageError as error:
                raise CopyError(
                    f"{self._target.place} rejects the row {list(key_of(table, row))} of {table.name}: {error}. "
                    "Correct or delete it: `perdure copy --abort` makes the source usable again"
                ) from error


class _UndoError(Exception):
    """Ends a transaction without an error."""


def _large_places(rows: Sequence[Row]) -> list[int]:
    """Return which values of a row are written by themselves, because one statement with all of them is too long."""
    if len(rows) > 1 or sum(map(size_of, rows[0])) <= BATCH_BYTES:
        return []
    return [place for place, value in enumerate(rows[0]) if size_of(value) > LARGE]


def _empty(value: Value) -> Value:
    return b"" if isinstance(value, bytes) else ""
