"""The databases that benchmarks run on: fresh, and durable.

They are on throwaway servers that sync every commit, or on those that PERDURE_TEST_POSTGRES_URL and
PERDURE_TEST_MYSQL_URL name. SQLite's file and the servers' data are in the folder for temporary files: set TMPDIR if
that is not on a disk, because otherwise nothing is synced.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from perdure.testing.servers import MySQLServer, PostgresServer
from tests.support.databases import connect_mysql, fetch_mysql, fresh_mysql, fresh_postgres


@contextmanager
def server_for(database: str) -> Iterator[str]:
    """Yield the URL of a server, or an empty text for SQLite, which has none."""
    if database == "sqlite":
        yield ""
    elif url := os.environ.get(f"PERDURE_TEST_{'POSTGRES' if database == 'postgresql' else 'MYSQL'}_URL"):
        yield url
    else:
        with (PostgresServer if database == "postgresql" else MySQLServer)(durable=True) as server:
            yield server.url


def version_of(database: str, server: str) -> str:
    """Return the version of a server."""
    return asyncio.run(_version_of(database, server))


async def _version_of(database: str, server: str) -> str:
    if database == "postgresql":
        connection = await asyncpg.connect(server)
        try:
            return str(await connection.fetchval("SHOW server_version"))
        finally:
            await connection.close()
    async with connect_mysql(server) as session:
        return str((await fetch_mysql(session, "SELECT version()"))[0][0])


@asynccontextmanager
async def fresh_database(database: str, server: str) -> AsyncIterator[str]:
    """Yield the URL of an empty database, on the server unless it is a file."""
    if database == "sqlite":
        with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
            yield f"sqlite:///{folder}/bench.db"
        return
    async with fresh_postgres(server) if database == "postgresql" else fresh_mysql(server) as url:
        yield url
