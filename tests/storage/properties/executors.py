"""A database under test with its workers, which runs a sequence of steps and returns the results."""

import asyncio
import traceback
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from perdure.database.backends.postgres.notifier import Notifier
from perdure.database.operation import utc
from perdure.errors import StorageError
from perdure.storage.history import HistoryIterator, HistoryIteratorOptions
from perdure.storage.migrations import tables
from perdure.storage.stores import PostgresStorage, SQLStorage, shift_clock
from tests.storage.properties.answers import QUANTUM, Memory
from tests.storage.properties.steps import Step, resolved

PAUSE_SEC = 0.0011  # between steps: SQLite's clock counts milliseconds, and two steps must not have the same time
MARGIN = timedelta(milliseconds=1)  # no clock shows a time so soon after the beginning that it looks like a given one
STEP_MAX_SEC = 30

# Operations whose answer is an id, or several, and of which kind.
_GIVES = {
    "append_history": "history",
    "append_histories": "history",
    "append_and_complete": "history",
    "add_compensation": "compensation",
    "publish_to_channel": "message",
    "publish_messages": "message",
    "get_delivery_cursor": "message",
}

# Which ids the columns of a table hold; a table's own are in `id`.
_COLUMNS = {
    "workflow_history.id": "history",
    "workflow_history_archive.id": "archive",
    "workflow_history_archive.original_id": "history",
    "workflow_compensations.id": "compensation",
    "workflow_timer_subscriptions.id": "timer",
    "workflow_group_memberships.id": "membership",
    "channel_messages.id": "message",
    "channel_messages.message_id": "text",
    "channel_subscriptions.id": "subscription",
    "channel_subscriptions.cursor_message_id": "message",
    "channel_delivery_cursors.id": "cursor",
    "channel_delivery_cursors.last_delivered_id": "message",
    "channel_message_claims.message_id": "text",
    "perdure_message_keys.id": "message",
    "perdure_waits.id": "wait",
    "perdure_taken_messages.message_id": "message",
}

_MATTER = {
    "perdure_channels": " WHERE dirty_at IS NOT NULL",  # the others are locks that no worker holds
    "perdure_match_paths": " WHERE 1 = 0",  # these two are an index: what is found by it matters
    "perdure_message_matches": " WHERE 1 = 0",
    "workflow_definitions": " WHERE 1 = 0",  # one may be there without the instance that was refused
    "perdure_outbox_sequences": " WHERE 1 = 0",  # who loses a race may skip a number; events show those that were given
    "perdure_outbox_sources": " WHERE EXISTS (SELECT 1 FROM outbox_events e WHERE e.status IN ('pending', 'processing')"
    " AND e.event_source = perdure_outbox_sources.event_source)",  # else a mark costs the next relay one look
}

_TABLE_COLUMNS = {
    "sqlite": "SELECT name FROM pragma_table_xinfo('{table}')",
    "postgresql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_name = '{table}' AND table_schema = current_schema()",
    "mysql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_name = '{table}' AND table_schema = DATABASE()",
}


class DatabaseUnderTest:
    """One database: what runs on it, and what it remembers of the sequence under way."""

    def __init__(self, name: str, sides: Sequence[SQLStorage]) -> None:
        self.name, self.sides = name, sides
        self.storage = sides[0]  # of the worker whose turn it is
        self.memory: Memory
        self.answers: list[str] = []  # to the last sequence
        self._columns: dict[str, list[str]] = {}
        self._shift = timedelta(0)
        self._called: list[str] = []

    @cached_property
    def dialect(self) -> str:
        return self.storage._backend.driver.name

    @cached_property
    def _tables(self) -> list[str]:
        return list(tables(self.dialect))

    async def run(self, steps: Sequence[Step], burst: Sequence[Step] = ()) -> list[str]:
        """The answer to every step and, at the end, what is in every table; the database is emptied before.

        The steps of a burst come last and at the same time, each by a worker of its own.
        """
        try:
            await self._begin()
            self.answers = [await self._answer(step) for step in steps]
            for side in self.sides:
                while side.in_transaction():
                    await side.commit_transaction()
            found = await self._burst(burst)
            described = [self._describe(step, answer) for step, answer in zip(burst, found, strict=True)]
            return self.answers + described + await self._contents()
        finally:
            for side in self.sides:
                while side.in_transaction():
                    await side.rollback_transaction()

    async def _begin(self) -> None:
        self._move_clock(timedelta(0))
        await self._empty()
        self.memory = Memory(await self._origin() - MARGIN)
        self._called.clear()

    async def _origin(self) -> datetime:
        return utc(await self.storage.db().fetchval(f"SELECT {self.storage._backend.driver.get_current_time_expr()}"))

    async def _full(self) -> list[str]:
        """The tables that have rows."""
        looks = [f"SELECT * FROM (SELECT '{table}' FROM {table} LIMIT 1) found_{table}" for table in self._tables]
        full = {row[0] for row in await self.storage.db().fetch(" UNION ALL ".join(looks))}
        return [table for table in self._tables if table in full]

    async def _empty(self) -> None:
        """Delete the rows of the tables that have any, children before their parents."""
        full = await self._full()
        async with self.storage.transaction() as conn:
            if "workflow_instances" in full:
                await conn.execute("UPDATE workflow_instances SET continued_from = NULL")  # MySQL looks row by row
            for table in reversed(full):
                await conn.execute(f"DELETE FROM {table}")

    def _move_clock(self, shift: timedelta) -> None:
        self._shift = shift
        for side in self.sides:
            shift_clock(side, shift)

    async def _pause(self) -> None:
        if self.dialect == "sqlite":
            await asyncio.sleep(PAUSE_SEC)
        notifier: Any = self.storage._backend.notifier
        if isinstance(notifier, Notifier):
            notifier._latest.clear()  # otherwise it sends nothing for some time

    async def _burst(self, steps: Sequence[Step]) -> list[Any]:
        return await asyncio.gather(*(self._call(step) for step in steps))

    async def _answer(self, step: Step) -> str:
        self.storage = self.sides[step.worker]
        await self._pause()
        return self._describe(step, await self._call(step))

    async def _call(self, step: Step) -> Any:
        """What a step came to: an answer, an error of ours or, as no other database would say it, any other one."""
        arguments = {key: resolved(value, self.memory) for key, value in step.arguments.items()}
        call: Any = getattr(self, step.operation, None) or getattr(self.sides[step.worker], step.operation)
        try:
            async with asyncio.timeout(STEP_MAX_SEC):
                answer = call(**arguments)
                return await answer if asyncio.iscoroutine(answer) else answer
        except StorageError as error:
            return error
        except Exception:
            return f"{self.name} raised {traceback.format_exc()}"

    def _describe(self, step: Step, answer: Any) -> str:
        described = self.memory.describe(answer, _GIVES.get(step.operation, ""))
        called, self._called = self._called, []
        return f"{described} and called {called}" if called else described

    async def _contents(self) -> list[str]:
        return [f"{table}: {row}" for table in await self._full() for row in await self._described_rows(table)]

    async def _described_rows(self, table: str) -> list[str]:
        """Return the rows in an order that is the same on every database: by id, or by their description."""
        rows = await self._rows(table)
        numbered = bool(rows) and "id" in rows[0] and table != "perdure_message_keys"
        if numbered:  # a batch may draw the ids of several instances' events in any order
            rows.sort(key=lambda row: (row["instance_id"] if table == "workflow_history" else "", row["id"]))
        described = [" ".join(self._cell(table, column, row[column]) for column in sorted(row)) for row in rows]
        return described if numbered else sorted(described)

    async def _rows(self, table: str) -> list[dict[str, Any]]:
        if table not in self._columns:
            found = await self.storage.db().fetch(_TABLE_COLUMNS[self.dialect].format(table=table))
            self._columns[table] = [row[0] for row in found]
        columns = [column for column in self._columns[table] if f"{table}.{column}" != "perdure_channels.swept_id"]
        rows = await self.storage.db().fetch(f"SELECT {', '.join(columns)} FROM {table}{_MATTER.get(table, '')}")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _cell(self, table: str, column: str, value: Any) -> str:
        if (column.endswith("_at") or column == "since") and value is not None:
            value = utc(value)
        return f"{column}={self.memory.describe(value, _COLUMNS.get(f'{table}.{column}', ''))}"

    # Operations that are no method of a storage, or that the memory has to know of.

    def notify(self, loud: bool) -> None:
        """Send NOTIFY with every transaction, or with none, where the database has it; by default, some send it."""
        for side in self.sides:
            if isinstance(side, PostgresStorage):
                side.set_notify_enabled(loud)

    async def begin_transaction(self) -> None:
        await self.storage.begin_transaction()
        self.memory.begin()

    async def commit_transaction(self) -> None:
        await self.storage.commit_transaction()
        self.memory.end(undone=False)

    async def rollback_transaction(self) -> None:
        if self.storage.in_transaction():
            self.memory.end(undone=True)
        await self.storage.rollback_transaction()

    def advance_clock(self, quanta: int) -> None:
        """Let time go by."""
        self._move_clock(self._shift + quanta * QUANTUM)

    def call_after_commit(self, name: str) -> None:
        """Register a callback."""
        self.storage.register_post_commit_callback(lambda: self._called.append(name))

    async def own_sql(self, query: str) -> object:
        """A caller's own query, in the open transaction if there is one."""
        return await self.storage.conn().fetchval(query)

    async def own_write(self, statement: str) -> int:
        """A caller's own statement."""
        return await self.storage.conn().execute(statement)

    async def iterate_history(self, instance_id: str, batch_size: int) -> object:
        """All of a history, by the iterator."""
        return await HistoryIterator(self.storage, instance_id, HistoryIteratorOptions(batch_size)).collect()

    async def back_off_by_default(self, event_id: str, relay_id: str | None) -> bool:
        """The default back-off, which lasts seconds, and enough time for it to be over."""
        backed_off = await self.storage.increment_outbox_attempts(event_id, relay_id=relay_id)
        self.advance_clock(2)
        return backed_off
