"""A lane: one database that runs a sequence and tells its answers."""

import asyncio
import traceback
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from perdure.database.backends.listen import Notifier
from perdure.database.operation import utc
from perdure.errors import StorageError
from perdure.storage.history import HistoryIterator, HistoryIteratorOptions
from perdure.storage.stores import PostgresStorage, Rooms, shift_clock
from tests.properties.memory import QUANTUM, Memory
from tests.properties.steps import Step, resolved
from tests.storages import tables

PAUSE_SEC = 0.002  # between steps: SQLite's clock counts milliseconds, and must tell one step from the next
STEP_MAX_SEC = 30

# Operations whose answer is an id, or several, and of which kind.
_GIVES = {
    "append_history": "history",
    "append_histories": "history",
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
}

_MATTER = {
    "perdure_channels": " WHERE dirty_at IS NOT NULL",  # the others are locks that nobody holds
    "workflow_definitions": " WHERE 1 = 0",  # one may be there without the instance that was refused
}

_TABLE_COLUMNS = {
    "sqlite": "SELECT name FROM pragma_table_xinfo('{table}')",
    "postgresql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_name = '{table}' AND table_schema = current_schema()",
    "mysql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_name = '{table}' AND table_schema = DATABASE()",
}


class Lane:
    """One database: what runs on it, and what it remembers of the sequence under way."""

    def __init__(self, name: str, storage: Rooms) -> None:
        self.name, self.storage = name, storage
        self.memory: Memory
        self._columns: dict[str, list[str]] = {}
        self._shift = timedelta(0)
        self._called: list[str] = []
        self._notifier: Any = storage._backend.notifier

    @cached_property
    def _tables(self) -> list[str]:
        return tables(self.storage._backend.driver.name)

    async def run(self, steps: Sequence[Step]) -> list[str]:
        """The answer to every step and, at the end, what is in every table; the database is emptied before."""
        try:
            await self._begin()
            answers = [await self._answer(step) for step in steps]
            while self.storage.in_transaction():
                await self.storage.commit_transaction()
            return answers + await self._contents()
        finally:
            while self.storage.in_transaction():
                await self.storage.rollback_transaction()

    async def _begin(self) -> None:
        await self._empty()
        self._move_clock(timedelta(0))
        now = await self.storage.db().fetchval(f"SELECT {self.storage._backend.driver.get_current_time_expr()}")
        self.memory = Memory(utc(now))
        self._called.clear()

    async def _empty(self) -> None:
        """Delete the rows of the tables that have any, children before their parents."""
        looks = [f"SELECT * FROM (SELECT '{table}' FROM {table} LIMIT 1) found_{table}" for table in self._tables]
        full = {row[0] for row in await self.storage.db().fetch(" UNION ALL ".join(looks))}
        async with self.storage.transaction() as conn:
            if "workflow_instances" in full:
                await conn.execute("UPDATE workflow_instances SET continued_from = NULL")  # MySQL looks row by row
            for table in reversed(self._tables):
                if table in full:
                    await conn.execute(f"DELETE FROM {table}")

    def _move_clock(self, shift: timedelta) -> None:
        self._shift = shift
        shift_clock(self.storage, shift)

    async def _answer(self, step: Step) -> str:
        await asyncio.sleep(PAUSE_SEC)
        if isinstance(self._notifier, Notifier):
            self._notifier._latest.clear()  # else it is silent for a while
        arguments = {key: resolved(value, self.memory) for key, value in step.arguments.items()}
        call: Any = getattr(self, step.operation, None) or getattr(self.storage, step.operation)
        try:
            async with asyncio.timeout(STEP_MAX_SEC):
                answer = call(**arguments)
                if asyncio.iscoroutine(answer):
                    answer = await answer
        except StorageError as error:
            answer = error
        except Exception:
            return f"{self.name} raised {traceback.format_exc()}"  # which no other database says
        told = self.memory.tell(answer, _GIVES.get(step.operation, ""))
        called, self._called = self._called, []
        return f"{told} and called {called}" if called else told

    async def _contents(self) -> list[str]:
        return [f"{table}: {row}" for table in self._tables for row in await self._rows(table)]

    async def _rows(self, table: str) -> list[str]:
        if table not in self._columns:
            found = await self.storage.db().fetch(_TABLE_COLUMNS[self.storage._backend.driver.name].format(table=table))
            self._columns[table] = sorted(row[0] for row in found)
        columns = self._columns[table]
        own = "id" in columns and table != "perdure_message_keys"
        order = " ORDER BY id" if own else _MATTER.get(table, "")
        rows = await self.storage.db().fetch(f"SELECT {', '.join(columns)} FROM {table}{order}")
        told = [" ".join(map(self._cell, [f"{table}.{column}" for column in columns], row)) for row in rows]
        return told if own else sorted(told)

    def _cell(self, column: str, value: Any) -> str:
        if column.endswith("_at") and value is not None:
            value = utc(value)
        return f"{column.rpartition('.')[2]}={self.memory.tell(value, _COLUMNS.get(column, ''))}"

    # Operations that are no method of a storage, or that the memory has to know of.

    def notify(self, loud: bool) -> None:
        """Send NOTIFY with every transaction, or with none, where there is such a thing; else it is now and then."""
        if isinstance(self.storage, PostgresStorage):
            self.storage.set_notify_enabled(loud)

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
