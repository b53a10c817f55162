"""Transactions of the prototype on each driver: as few round trips as the driver allows, synced like perdure's."""

import asyncio
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import asyncmy
import asyncpg

from tests.support.databases import mysql_login

TABLES = (
    "CREATE TABLE runs (id VARCHAR(50) NOT NULL PRIMARY KEY, input TEXT NOT NULL, output TEXT)",
    "CREATE TABLE steps (run VARCHAR(50) NOT NULL, step BIGINT NOT NULL, result TEXT NOT NULL, "
    "PRIMARY KEY (run, step))",
)


class Rows(NamedTuple):
    """What a group stores: the ids and inputs of new runs, steps with their results, the results of ended runs."""

    starts: list[tuple[str, str]]
    steps: list[tuple[str, int, str]]
    ends: list[tuple[str, str]]


class Writer(Protocol):
    """A connection that stores groups."""

    async def store(self, rows: Rows) -> None:
        """Store all rows in one transaction."""

    async def close(self) -> None:
        """Close the connection."""


async def open_writer(url: str) -> Writer:
    """Connect to an empty database and create the tables."""
    if url.startswith("sqlite"):
        return SQLiteWriter(url.removeprefix("sqlite:///"))
    elif url.startswith("postgresql"):
        return await PostgresWriter.open(url)
    return await MySQLWriter.open(url)


class SQLiteWriter:
    """Writes in a thread."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode = wal", "synchronous = 2"):
            self._connection.execute(f"PRAGMA {pragma}")
        for table in TABLES:
            self._connection.execute(table)
        self._thread = ThreadPoolExecutor(1)

    async def store(self, rows: Rows) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store, rows)

    def _store(self, rows: Rows) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO runs (id, input) VALUES (?, ?)", rows.starts)
        connection.executemany("INSERT INTO steps VALUES (?, ?, ?)", rows.steps)
        connection.executemany("UPDATE runs SET output = ?2 WHERE id = ?1", rows.ends)
        connection.execute("COMMIT")

    async def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()


_POSTGRES = """WITH started AS (
  INSERT INTO runs (id, input) SELECT * FROM unnest($1::text[], $2::text[])),
stepped AS (
  INSERT INTO steps SELECT * FROM unnest($3::text[], $4::bigint[], $5::text[]))
UPDATE runs SET output = ended.output FROM unnest($6::text[], $7::text[]) AS ended (id, output) WHERE runs.id = ended.id
"""


class PostgresWriter:
    """Sends one prepared statement, which commits by itself."""

    def __init__(self, connection: Any, statement: Any) -> None:
        self._connection, self._statement = connection, statement

    @classmethod
    async def open(cls, url: str) -> "PostgresWriter":
        connection = await asyncpg.connect(url)
        for table in TABLES:
            await connection.execute(table)
        # As perdure does: a plan made for empty tables would read all of them later.
        await connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
        return cls(connection, await connection.prepare(_POSTGRES))

    async def store(self, rows: Rows) -> None:
        await self._statement.fetch(*_columns(rows.starts, 2), *_columns(rows.steps, 3), *_columns(rows.ends, 2))

    async def close(self) -> None:
        await self._connection.close()


def _columns(rows: Sequence[tuple[Any, ...]], count: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * count


class MySQLWriter:
    """Sends one packet with all statements of the transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> "MySQLWriter":
        connection: Any = await asyncmy.connect(**mysql_login(url), autocommit=True)
        for table in TABLES:
            await connection.query(table)
        return cls(connection)

    async def store(self, rows: Rows) -> None:
        texts = ["BEGIN"]
        if rows.starts:
            texts.append(f"INSERT INTO runs (id, input) VALUES {_values(rows.starts)}")
        if rows.steps:
            texts.append(f"INSERT INTO steps VALUES {_values(rows.steps)}")
        if rows.ends:
            outputs = " ".join(f"WHEN '{run}' THEN '{output}'" for run, output in rows.ends)
            ids = ",".join(f"'{run}'" for run, _ in rows.ends)
            texts.append(f"UPDATE runs SET output = CASE id {outputs} END WHERE id IN ({ids})")
        connection = self._connection
        await connection.query(";".join([*texts, "COMMIT"]))
        while connection._result.has_next:
            await connection.next_result()

    async def close(self) -> None:
        await self._connection.ensure_closed()


def _values(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return the rows as SQL; no text of the prototype needs escaping."""
    return ",".join(f"({','.join(repr(value) for value in row)})" for row in rows)
