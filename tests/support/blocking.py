"""Wait until another connection is really blocked, or find out why one is, as each database shows it."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from perdure.errors import StorageError
from perdure.storage.stores import SQLStorage
from tests.support.storages import Database

T = TypeVar("T")

LOCK_SEC = 9.0  # less than the servers let a statement wait for a lock
SLOW_SEC = 60.0  # for a call that waits for no lock, on a busy machine

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


# The waiting connection and its statement, the lock that it needs, and the connection that holds it with its statement.
_LOCK_WAITS = {
    "postgresql": (
        "SELECT w.pid, w.query, concat_ws(' ', l.mode, 'of', l.locktype, l.relation::regclass), b.pid, b.query "
        "FROM pg_stat_activity w CROSS JOIN unnest(pg_blocking_pids(w.pid)) AS p (pid) "
        "LEFT JOIN pg_stat_activity b ON b.pid = p.pid LEFT JOIN pg_locks l ON l.pid = w.pid AND NOT l.granted "
        "WHERE w.datname = current_database()",
    ),
    "mysql": (
        "SELECT r.trx_mysql_thread_id, r.trx_query, "
        "CONCAT_WS(' ', l.lock_mode, 'of', l.lock_table, l.lock_index, l.lock_data), "
        "b.trx_mysql_thread_id, b.trx_query "
        "FROM information_schema.innodb_lock_waits w "
        "JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id "
        "JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id "
        "JOIN information_schema.innodb_locks l ON l.lock_id = w.requested_lock_id",  # MariaDB
        "SELECT w.waiting_pid, w.waiting_query, "
        "CONCAT_WS(' ', w.waiting_lock_mode, 'of', w.locked_table, w.locked_index, l.lock_data), "
        "w.blocking_pid, w.blocking_query FROM sys.innodb_lock_waits w "
        "JOIN performance_schema.data_locks l ON l.engine_lock_id = w.waiting_lock_id",  # MySQL
    ),
}
_SESSIONS = {
    "postgresql": "SELECT pid, state, wait_event, query FROM pg_stat_activity WHERE datname = current_database()",
    "mysql": "SELECT id, command, state, info FROM information_schema.processlist WHERE db = DATABASE()",
}

_watched: list[Database] = []


@contextmanager
def watching(database: Database) -> Iterator[None]:
    """Let `at_once` ask this database why a call waits."""
    _watched.append(database)
    try:
        yield
    finally:
        _watched.remove(database)


async def at_once(call: Awaitable[T], lock_sec: float = LOCK_SEC) -> T:
    """The answer to a call that must not wait for an open transaction; if it does, fail and say for which lock."""
    over = asyncio.Event()
    try:
        async with asyncio.timeout(SLOW_SEC) as limit:
            watch = asyncio.create_task(_watch(limit, over, lock_sec))
            return await call
    except TimeoutError:
        if not limit.expired():
            raise
        over.set()
        raise AssertionError("\n".join(["the call did not end", *await watch])) from None
    finally:
        over.set()
        await watch  # not cancelled: that would leave a connection open


async def _watch(limit: asyncio.Timeout, over: asyncio.Event, lock_sec: float) -> list[str]:
    """End a call that has had so much time once a connection waits for a lock; return who waits for which."""
    with suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), lock_sec)
    if over.is_set():
        return []
    storage, waits = await _watched[-1].storage(), list[str]()
    while not (over.is_set() or waits):
        if waits := await lock_waits(storage):
            waits += await _sessions(storage)
            limit.reschedule(asyncio.get_running_loop().time())
        await next_picture()
    return waits or ["no connection waited for a lock"]


async def lock_waits(storage: SQLStorage) -> list[str]:
    """Describe each wait for a lock that the server of this storage reports."""
    for query in _LOCK_WAITS.get(storage._backend.driver.name, ()):
        with suppress(StorageError):  # the other server's list, or a list that cannot be shown at this moment
            return [
                _line(f"connection {waiter} waits for {lock}, blocked by connection {holder} ({held}): {text}")
                for waiter, text, lock, holder, held in await storage.db().fetch(query)
            ]
    return []


async def _sessions(storage: SQLStorage) -> list[str]:
    with suppress(StorageError):
        rows = await storage.db().fetch(_SESSIONS[storage._backend.driver.name])
        return [_line(f"session {', '.join(map(str, row))}") for row in rows]
    return []


def _line(text: str) -> str:
    return " ".join(text.split())
