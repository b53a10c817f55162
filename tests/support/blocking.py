"""Wait until another connection is really blocked, as each database shows it."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from perdure.errors import StorageError
from perdure.storage.stores import SQLStorage

T = TypeVar("T")

_WAITERS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
    "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'",
}


async def blocked(storage: SQLStorage, rival: "asyncio.Task[object]") -> None:
    """Return once the database reports a connection that waits for a lock; fail if the other side ends instead."""
    query = _WAITERS.get(storage._backend.driver.name)
    async with asyncio.timeout(20):
        while True:
            assert not rival.done(), f"the rival was not blocked: {rival!r}"
            if query is None:
                # SQLite: a caller that is queued at the gate or at the writer waits for the open transaction
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert not rival.done()
                return
            # MySQL cannot show the list while any statement on the server has a character beyond its own set
            with storage.detached(), suppress(StorageError):
                if await storage.db().fetchval(query):
                    return
            await next_picture()


async def next_picture() -> None:
    """Wait until MySQL may show its transactions anew: the list is not renewed until nobody has asked for 0.1 s."""
    await asyncio.sleep(0.12)


async def at_once(call: Awaitable[T]) -> T:
    """The answer to a call that must not wait for an open transaction."""
    async with asyncio.timeout(9):
        return await call
