"""PostgreSQL behind PgBouncer in transaction mode, with fewer server connections than clients."""

from collections.abc import AsyncIterator, Iterator

import pytest

from perdure.testing.servers import PgBouncer, PostgresServer
from tests.support.storages import Database, server_database


@pytest.fixture(scope="module")
def pooled_url() -> Iterator[str]:
    """The URL of a database through the pooler."""
    with PostgresServer() as server, PgBouncer(server, settings={"default_pool_size": "4"}) as bouncer:
        yield bouncer.url


@pytest.fixture
async def database(pooled_url: str) -> AsyncIterator[Database]:
    async with server_database("postgresql", pooled_url) as database:
        yield database
