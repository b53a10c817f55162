"""Hold the tables as plain dicts of rows, named and filled as in a database.

A row is never changed in place. So a copy of the dicts is a copy of the database, and that is all a transaction needs.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from perdure.errors import DatabaseUnavailableError

BUSY_SEC = 30.0  # how long a transaction waits for another one
POLL_SEC = 0.0005

K = TypeVar("K")
Row = Mapping[str, Any]
Named = dict[str, Row]
Numbered = dict[int, Row]
Paired = dict[tuple[str, str], Row]
Taken = dict[tuple[str, str, int], Row]


@dataclass(slots=True)
class Tables:
    """Hold every table, by the unique key of its rows."""

    workflow_instances: Named = field(default_factory=dict)
    workflow_history: Paired = field(default_factory=dict)  # instance, activity
    workflow_history_archive: Numbered = field(default_factory=dict)
    workflow_compensations: Numbered = field(default_factory=dict)
    workflow_timer_subscriptions: Paired = field(default_factory=dict)  # instance, timer
    workflow_group_memberships: Paired = field(default_factory=dict)  # instance, group
    outbox_events: Named = field(default_factory=dict)
    perdure_outbox_sequences: Named = field(default_factory=dict)
    perdure_outbox_sources: Named = field(default_factory=dict)
    channel_messages: Numbered = field(default_factory=dict)
    channel_subscriptions: Paired = field(default_factory=dict)  # instance, channel
    channel_delivery_cursors: Paired = field(default_factory=dict)  # instance, channel
    channel_message_claims: Named = field(default_factory=dict)
    perdure_waits: Paired = field(default_factory=dict)  # instance, activity
    perdure_taken_messages: Taken = field(default_factory=dict)  # instance, channel, message
    perdure_channels: Named = field(default_factory=dict)
    perdure_message_keys: Paired = field(default_factory=dict)  # source, key
    system_locks: Named = field(default_factory=dict)
    perdure_lock_tokens: Named = field(default_factory=dict)
    perdure_workers: Named = field(default_factory=dict)
    perdure_stuck: Named = field(default_factory=dict)

    def copy(self) -> "Tables":
        """Return the same rows in dicts of their own."""
        return Tables(*(dict(getattr(self, each.name)) for each in fields(self)))


def now() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


class World:
    """Hold what all storages on one reference share: the clock, the committed tables, and the lock of the writer.

    The storages may belong to several threads: a worker renews its leases in a thread of its own.
    """

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self.clock = clock
        self.tables = Tables()
        self.mutex = threading.RLock()  # held during one operation
        self._writer = threading.Lock()  # held during one transaction
        self._drawn = Counter[str]()
        self._listeners: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def begin_writing(self) -> None:
        """Wait until no other transaction is open. This polls, because the other one may be of another event loop."""
        until = time.monotonic() + BUSY_SEC
        while not self._writer.acquire(blocking=False):
            if time.monotonic() > until:
                raise DatabaseUnavailableError(f"another transaction has been open for {BUSY_SEC:g} seconds")
            await asyncio.sleep(POLL_SEC)

    def end_writing(self) -> None:
        """Let the next transaction begin."""
        self._writer.release()

    def commit(self, tables: Tables) -> None:
        """Replace the tables, and wake the listeners if anything has changed."""
        with self.mutex:
            changed = tables != self.tables
            self.tables = tables
            for loop, listener in self._listeners if changed else ():
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(listener.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Provide an event that is set by every commit that changes something, while the block lasts."""
        listener = asyncio.get_running_loop(), asyncio.Event()
        self._listeners.append(listener)
        try:
            yield listener[1]
        finally:
            self._listeners.remove(listener)

    def draw(self, table: str) -> int:
        """Return the next id of a table; ids that are rolled back are not reused."""
        self._drawn[table] += 1
        return self._drawn[table]


def change(table: dict[K, Row], key: K, **columns: Any) -> None:
    """Set new values of a row."""
    table[key] = {**table[key], **columns}


def remove(table: dict[K, Row], keys: Iterable[K]) -> int:
    """Delete rows and return their number."""
    gone = [key for key in keys if table.pop(key, None) is not None]
    return len(gone)


def where(table: dict[K, Row], **columns: Any) -> list[K]:
    """Return the keys of the rows that have these values."""
    return [key for key, row in table.items() if columns.items() <= row.items()]
