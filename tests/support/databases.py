"""A database for one test, on a server that many tests share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import asyncmy
import asyncpg

DATABASES = ("sqlite", "postgresql", "mysql")


@asynccontextmanager
async def fresh_postgres(server_url: str) -> AsyncIterator[str]:
    """Yield the URL of an empty database, which is dropped afterwards, even with open connections."""
    name = f"perdure_{uuid4().hex}"
    await _create_postgres(server_url, name)
    try:
        yield _with_database(server_url, name)
    finally:
        await _execute_postgres(server_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@asynccontextmanager
async def fresh_mysql(server_url: str) -> AsyncIterator[str]:
    """Yield the URL of an empty database, which is dropped afterwards, even with open connections."""
    name = f"perdure_{uuid4().hex}"
    async with connect_mysql(server_url) as connection:
        await fetch_mysql(connection, f"CREATE DATABASE {name}")
    try:
        yield _with_database(server_url, name)
    finally:
        async with connect_mysql(server_url) as connection:
            await _drop_mysql(connection, name)


_existing: set[tuple[str, str]] = set()


async def named_database(server_url: str, name: str) -> str:
    """Return the URL of the database with that name, and create it if it does not exist."""
    if (server_url, name) not in _existing:
        await _create_named(server_url, name)
        _existing.add((server_url, name))
    return _with_database(server_url, name)


async def _create_named(server_url: str, name: str) -> None:
    if server_url.startswith("mysql"):
        async with connect_mysql(server_url) as connection:
            await fetch_mysql(connection, f"CREATE DATABASE IF NOT EXISTS {name}")
    else:
        with suppress(asyncpg.DuplicateDatabaseError):
            await _create_postgres(server_url, name)


async def _create_postgres(server_url: str, name: str) -> None:
    """Create a database where tests can name our tables without their schema; our own statements always name it."""
    await _execute_postgres(server_url, f"CREATE DATABASE {name}")
    await find_tables_by_plain_names(server_url, name)


async def find_tables_by_plain_names(server_url: str, name: str) -> None:
    """Let a test's own statements name our tables without their schema."""
    await _execute_postgres(server_url, f"ALTER DATABASE {name} SET search_path = perdure, public")


async def _execute_postgres(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _drop_mysql(connection: asyncmy.Connection, name: str) -> None:
    # Without this a test's forgotten transaction would hold its metadata lock, and the drop would wait for it.
    for row in await fetch_mysql(connection, "SHOW PROCESSLIST"):
        if row[3] == name:
            with suppress(asyncmy.errors.OperationalError):  # gone by now
                await fetch_mysql(connection, f"KILL {row[0]}")
    await fetch_mysql(connection, "SET lock_wait_timeout = 20")
    await fetch_mysql(connection, f"DROP DATABASE IF EXISTS {name}")


@asynccontextmanager
async def connect_mysql(url: str) -> AsyncIterator[asyncmy.Connection]:
    """A connection in autocommit mode."""
    connection = await asyncmy.connect(**mysql_login(url), autocommit=True)
    try:
        yield connection
    finally:
        await connection.ensure_closed()


def mysql_login(url: str) -> dict[str, Any]:
    """The parameters with which every driver connects to the database of a URL."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port or 3306,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/") or None,
    }


async def fetch_mysql(connection: asyncmy.Connection, statement: str) -> list[tuple[Any, ...]]:
    async with connection.cursor() as cursor:
        await cursor.execute(statement)
        return list(await cursor.fetchall())


def _with_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


async def run_natively(native: Any, statement: str) -> None:
    """Execute a statement on the connection of any driver, without the storage."""
    if hasattr(native, "ping"):
        async with native.cursor() as cursor:
            await cursor.execute(statement)
    elif hasattr(native, "fetchval"):
        await native.execute(statement)
    else:
        native.execute(statement)
