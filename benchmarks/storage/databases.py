"""Open the databases to measure, with the library and the bare driver side by side on each."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.databases import fresh_database, server_for
from benchmarks.storage.raw_mysql import RawMySQL
from benchmarks.storage.raw_postgres import RawPostgres
from benchmarks.storage.raw_sqlite import RawSQLite
from benchmarks.storage.sides import POOL_SIZE, Side
from perdure.storage.stores import SQLStorage, open_storage


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[tuple[SQLStorage, Side]]:
    """Open a migrated storage on an empty database, and the bare driver on it."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(server_for(database))
        url = await stack.enter_async_context(fresh_database(database, server))
        yield await stack.enter_async_context(sides(url))


@asynccontextmanager
async def sides(url: str) -> AsyncIterator[tuple[SQLStorage, Side]]:
    """Open a migrated storage on a database, and the bare driver on it."""
    async with open_storage(url if url.startswith("sqlite") else _with_pool(url)) as storage:
        raw = await _by_hand(url)
        try:
            yield storage, raw
        finally:
            await raw.close()


async def _by_hand(url: str) -> Side:
    if url.startswith("sqlite"):
        return RawSQLite(url.removeprefix("sqlite:///"))
    return await (RawPostgres if url.startswith("postgresql") else RawMySQL).open(url)


def _with_pool(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}pool_size={POOL_SIZE}"
