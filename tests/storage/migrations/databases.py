"""An empty database of each kind, with its connections and its schema."""

import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import asyncmy
import asyncpg

from perdure.storage.migrations import migrate, up_statements
from tests.support.databases import fresh_mysql, fresh_postgres, mysql_login

Row = tuple[Any, ...]

EDDA_VERSION = "20251217000000"


class Connection(Protocol):
    """A migration session that can be closed, or cut off as a crash would."""

    async def execute(self, sql: str) -> None: ...

    async def fetch(self, sql: str) -> list[Row]: ...

    async def close(self) -> None: ...


class SQLite:
    def __init__(self, path: str) -> None:
        # A short wait in the library, so that the runner's own is what is tested.
        self._raw = sqlite3.connect(path, isolation_level=None, timeout=0.02)
        self._raw.execute("PRAGMA foreign_keys = ON")

    async def execute(self, sql: str) -> None:
        self._raw.execute(sql)

    async def fetch(self, sql: str) -> list[Row]:
        return self._raw.execute(sql).fetchall()

    async def close(self) -> None:
        self._raw.close()


class Postgres:
    def __init__(self, raw: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._raw = raw

    async def execute(self, sql: str) -> None:
        await self._raw.execute(sql)

    async def fetch(self, sql: str) -> list[Row]:
        return [tuple(row) for row in await self._raw.fetch(sql)]

    async def close(self) -> None:
        self._raw.terminate()


class MySQL:
    def __init__(self, raw: Any) -> None:
        self._raw = raw

    async def execute(self, sql: str) -> None:
        await self._raw.query(sql)

    async def fetch(self, sql: str) -> list[Row]:
        async with self._raw.cursor() as cursor:
            await cursor.execute(sql)
            return list(await cursor.fetchall())

    async def close(self) -> None:
        self._raw.close()


async def open_connection(url: str, *, zone: bool = False) -> Connection:
    """Connect; with `zone` the session's clock is nine hours ahead of UTC."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return SQLite(parts.path)
    if parts.scheme.startswith("postgres"):
        # The strictest isolation a server can have as its default: the runner may not rely on a milder one.
        settings = {"timezone": "Asia/Tokyo" if zone else "UTC", "default_transaction_isolation": "serializable"}
        return Postgres(await asyncpg.connect(url, statement_cache_size=0, server_settings=settings))
    return MySQL(
        await asyncmy.connect(
            **mysql_login(url), autocommit=True, init_command=f"SET time_zone = '{'+09:00' if zone else '+00:00'}'"
        )
    )


@dataclass(frozen=True)
class Database:
    """One empty database."""

    dialect: str
    url: str

    @asynccontextmanager
    async def another(self) -> AsyncIterator["Database"]:
        """A second empty database of the same kind."""
        if self.dialect == "sqlite":
            yield Database("sqlite", f"{self.url}.{uuid4().hex}")
            return
        fresh = fresh_postgres if self.dialect == "postgresql" else fresh_mysql
        async with fresh(self.url) as url:
            yield Database(self.dialect, url)

    @asynccontextmanager
    async def connect(self, *, zone: bool = False) -> AsyncIterator[Connection]:
        connection = await open_connection(self.url, zone=zone)
        try:
            yield connection
        finally:
            await connection.close()

    async def migrate(self) -> list[str]:
        async with self.connect() as connection:
            return await migrate(connection, self.dialect)

    async def finished_schema(self) -> list[str]:
        """What an undisturbed migration of an empty database makes, on the same server."""
        server = self.url.rpartition("/")[0] if self.dialect != "sqlite" else "sqlite"
        if server not in _finished:
            async with self.another() as other:
                await other.migrate()
                _finished[server] = await other.schema()
        return _finished[server]

    async def create_edda_tables(self) -> None:
        """Create the tables of Edda, as Romancy leaves them after a crash: without a row in the ledger."""
        first = up_statements(self.dialect)[0]
        assert first.version == EDDA_VERSION
        await self.execute(*first.statements)

    async def execute(self, *statements: str) -> None:
        async with self.connect() as connection:
            for statement in statements:
                await connection.execute(statement)

    async def fetch(self, query: str) -> list[Row]:
        async with self.connect() as connection:
            return await connection.fetch(query)

    async def tables(self) -> list[str]:
        rows = await self.fetch(TABLES[self.dialect])
        return [str(name) for (name,) in rows]

    async def schema(self) -> list[str]:
        """Everything that makes up the tables, in a form to compare; not the ledger, which others make too."""
        if self.dialect == "mysql":
            found = []
            async with self.connect() as connection:
                for table in set(await self.tables()) - {"schema_migrations", "perdure_schema_migrations"}:
                    ((_, text),) = await connection.fetch(f"SHOW CREATE TABLE {table}")
                    text = re.sub(r" AUTO_INCREMENT=\d+", "", text)
                    found += [f"{table}: {line.rstrip(',')}" for line in text.split("\n")]
            return sorted(found, key=lambda line: line.partition(":")[0])
        found = [str(row) for query in _SCHEMA[self.dialect] for row in await self.fetch(query)]
        plain = [row.replace("public.", "").replace("perdure.", "") for row in found]  # wherever they are
        return sorted(row for row in plain if "schema_migrations" not in row)

    async def rows(self, table: str, columns: Sequence[str]) -> list[Row]:
        return sorted(await self.fetch(f"SELECT {', '.join(columns)} FROM {table}"), key=str)

    async def columns(self, table: str) -> list[str]:
        if self.dialect == "sqlite":
            return [str(row[1]) for row in await self.fetch(f"PRAGMA table_info({table})")]
        where = "table_schema = DATABASE()" if self.dialect == "mysql" else "table_schema IN ('public', 'perdure')"
        query = f"SELECT column_name FROM information_schema.columns WHERE {where} AND table_name = '{table}'"
        return sorted(str(name) for (name,) in await self.fetch(query))


_finished: dict[str, list[str]] = {}

TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name",
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname IN ('public', 'perdure') ORDER BY tablename",
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name",
}

_SCHEMA = {
    "sqlite": ("SELECT type, name, tbl_name, replace(replace(sql, ' ', ''), char(10), '') FROM sqlite_master",),
    "postgresql": (
        """SELECT table_name, ordinal_position, column_name, data_type, is_nullable, column_default,
            generation_expression
        FROM information_schema.columns WHERE table_schema IN ('public', 'perdure')""",
        "SELECT indexdef FROM pg_indexes WHERE schemaname IN ('public', 'perdure')",
        """SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace::regnamespace::text IN ('public', 'perdure')""",
        "SELECT sequencename, data_type, max_value FROM pg_sequences",
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace::regnamespace::text IN ('public', 'perdure')",
    ),
}
