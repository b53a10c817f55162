"""Databases of a rig's own, so that faults affect no other test."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.testing.servers import MySQLServer, PostgresServer, Server
from tests.support.databases import connect_mysql, fetch_mysql, named_database
from tests.support.storages import Database

NAME = "rig"
USER = "worker"


@asynccontextmanager
async def own_server(backend: str, settings: Mapping[str, object] | None = None) -> AsyncIterator[Server]:
    """A server that may be crashed."""
    with PostgresServer(settings) if backend == "postgresql" else MySQLServer(settings) as server:
        yield server


@asynccontextmanager
async def own_database(backend: str, folder: Path, server: Server | None = None) -> AsyncIterator[Database]:
    """A migrated database, on the server that is given or else on one of its own."""
    if backend == "sqlite":
        async with opened(Database(backend, f"sqlite:///{folder}/perdure.db")) as database:
            yield database
    elif server is None:
        async with own_server(backend) as started, own_database(backend, folder, started) as database:
            yield database
    else:
        async with opened(Database(backend, await named_database(server.url, NAME))) as database:
            yield database


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Database]:
    """Migrate it, and close what was opened on it."""
    try:
        await database.storage()
        yield database
    finally:
        await database.close()


async def plain_user(url: str) -> str:
    """The URL with a MySQL user who, unlike root, has to heed read_only and max_connections."""
    async with connect_mysql(url) as connection:
        await fetch_mysql(connection, f"CREATE USER IF NOT EXISTS {USER}@'127.0.0.1'")
        await fetch_mysql(connection, f"GRANT ALL PRIVILEGES ON {NAME}.* TO {USER}@'127.0.0.1'")
    return url.replace("root@", f"{USER}@")
