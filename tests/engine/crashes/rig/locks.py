"""Whether any session holds locks in a database at this moment.

A worker that is stopped in the middle of a transaction keeps its locks, and other sessions wait until the database
ends its session. The zombie rig is about what comes after a takeover, so it stops workers between transactions.
"""

import asyncio
import fcntl
import os
import time

from perdure.storage.stores import SQLStorage
from tests.support.storages import Database

SETTLE_SEC = 0.2  # longer than any statement takes whose answer is not read
OPEN = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p"
    " ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> connection_id()",
}


async def are_held(database: Database, storage: SQLStorage) -> bool:
    """Return whether there are locks that are not released in time."""
    deadline = time.monotonic() + SETTLE_SEC
    while await _any(database, storage):
        if time.monotonic() > deadline:
            return True
        await asyncio.sleep(0.02)
    return False


async def _any(database: Database, storage: SQLStorage) -> bool:
    if database.backend == "sqlite":
        path = database.url.removeprefix("sqlite:///")
        return any(_is_locked(path + suffix) for suffix in ("-turn", "-gate"))
    return bool(await storage.db().fetchval(OPEN[database.backend]))


def _is_locked(path: str) -> bool:
    """A process that writes to a SQLite file holds a file lock beside it meanwhile."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
