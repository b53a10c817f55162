"""A worker that is stopped at any moment (SIGSTOP, a frozen machine) leaves no row of a lease locked."""

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE

import pytest

from perdure.storage.stores import SQLStorage, open_storage
from tests.conftest import BackendDatabase
from tests.support.blocking import next_picture

STOPS = 40
LEASES = 1000  # so many that an answer is larger than what a socket takes at once
OPEN = {
    # Only a transaction that has written holds locks. A reading transaction may wait until its client reads the answer.
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
    "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID()",
}


@pytest.mark.parametrize("backend", OPEN)
async def test_a_stopped_worker_holds_no_locks(backend: str, backend_database: BackendDatabase) -> None:
    async with backend_database(backend) as database, open_storage(f"{database.url}?pool_size=1") as storage:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.storage.lease_process", database.url, str(LEASES), stdout=PIPE
        )
        try:
            assert worker.stdout is not None
            assert await worker.stdout.readline() == b"ready\n"
            for _ in range(STOPS):
                await asyncio.sleep(random.uniform(0, 0.15))
                worker.send_signal(signal.SIGSTOP)
                await nothing_is_open(storage, backend)
                worker.send_signal(signal.SIGCONT)
            assert worker.returncode is None, "it has met something that it did not expect"
        finally:
            worker.kill()
            await worker.wait()


async def nothing_is_open(storage: SQLStorage, backend: str) -> None:
    """Return once the server has done what it was sent before, and holds nothing of it."""
    async with asyncio.timeout(20):
        while True:
            if not await storage.db().fetchval(OPEN[backend]):
                return
            await next_picture()
