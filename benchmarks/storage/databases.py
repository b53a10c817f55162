"""Open the databases to measure: fresh, durable, with the library and the bare driver side by side on each.

They are on throwaway servers that sync every commit, or on those that PERDURE_TEST_POSTGRES_URL and
PERDURE_TEST_MYSQL_URL name. SQLite's file and the servers' data are in the folder for temporary files: set TMPDIR if
that is not on a disk, because otherwise nothing is synced.
"""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.storage.raw_mysql import RawMySQL
from benchmarks.storage.raw_postgres import RawPostgres
from benchmarks.storage.raw_sqlite import RawSQLite
from benchmarks.storage.sides import POOL_SIZE, Side
from perdure.storage.stores import SQLStorage, open_storage
from perdure.testing.servers import MySQLServer, PostgresServer
from tests.support.databases import fresh_mysql, fresh_postgres

DATABASES = ("sqlite", "postgresql", "mysql")


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[tuple[SQLStorage, Side]]:
    """Open a migrated storage on an empty database, and the bare driver on it."""
    async with AsyncExitStack() as stack:
        if database == "sqlite":
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-bench-")) + "/bench.db"
            url = f"sqlite:///{path}"
        elif database == "postgresql":
            server = os.environ.get("PERDURE_TEST_POSTGRES_URL")
            server = server or stack.enter_context(PostgresServer(durable=True)).url
            url = await stack.enter_async_context(fresh_postgres(server))
        else:
            server = os.environ.get("PERDURE_TEST_MYSQL_URL")
            server = server or stack.enter_context(MySQLServer(durable=True)).url
            url = await stack.enter_async_context(fresh_mysql(server))
        storage = await stack.enter_async_context(open_storage(url if database == "sqlite" else _with_pool(url)))
        raw = await _by_hand(database, url)
        stack.push_async_callback(raw.close)
        yield storage, raw


async def _by_hand(database: str, url: str) -> Side:
    if database == "sqlite":
        return RawSQLite(url.removeprefix("sqlite:///"))
    return await (RawPostgres if database == "postgresql" else RawMySQL).open(url)


def _with_pool(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}pool_size={POOL_SIZE}"
