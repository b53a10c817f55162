"""A connection beside the storages that takes snapshots of all tables, empties them, and sees which locks are held.

A snapshot is of one moment, and without what differs from one run to the next: times, random ids, and the numbers that
a database assigns to rows, of which only the order counts.
"""

import asyncio
import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Protocol

import asyncmy
import asyncpg

from perdure.storage.migrations import tables
from tests.support.databases import connect_mysql

State = tuple[str, ...]

WIPE_SEC = 3.0
SESSION = "perdure-faults"  # the name of the sessions that are looked at
_LOCKS = (
    "SELECT state, query FROM pg_stat_activity"
    " WHERE application_name = $1 AND datname = current_database() AND state <> 'idle'"
)
_NUMBERS = {"cursor_message_id", "last_delivered_id", "swept_id", "from_id", "to_id"}
_NUMBERED = {
    ("id", "perdure_message_keys"),
    ("message_id", "perdure_taken_messages"),
    ("message_id", "perdure_message_matches"),
}
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[0-9.+:Z]*")
_ID = re.compile(r'"id": ?\d+')
_RANDOM = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


class Watcher(Protocol):
    """What a case needs to know of its database."""

    async def snapshot(self) -> State:
        """All rows of all tables at one moment."""

    async def wipe(self) -> None:
        """Empty all tables."""

    async def held(self) -> str:
        """What the sessions of the storage under test hold; empty if nothing."""

    async def kill(self, session: int) -> None:
        """End a session of the server."""

    async def close(self) -> None:
        """Release the connections."""


class SQLiteWatcher:
    """On a SQLite file; what it does takes no turn of the loop."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)

    def look(self) -> State:
        """A snapshot, from whatever thread."""
        self._connection.execute("BEGIN")
        found = {}
        for table in tables("sqlite"):
            cursor = self._connection.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            found[table] = [dict(zip(names, row, strict=True)) for row in cursor]
        self._connection.execute("COMMIT")
        return _state(found)

    async def snapshot(self) -> State:
        return self.look()

    async def wipe(self) -> None:
        async with asyncio.timeout(WIPE_SEC):  # a worker of the last case may just be taking its leave
            while not self._has_begun():  # noqa: ASYNC110 - others let go of it
                await asyncio.sleep(0.005)
        for table in _children_first("sqlite"):
            self._connection.execute(f"DELETE FROM {table}")
        self._connection.execute("COMMIT")

    def _has_begun(self) -> bool:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True

    async def held(self) -> str:
        if not self._has_begun():
            return "the file"
        self._connection.execute("ROLLBACK")
        return ""

    async def kill(self, session: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self._connection.close()


class PostgresWatcher:
    """On PostgreSQL."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, url: str) -> "PostgresWatcher":
        return cls(await asyncpg.connect(url))

    async def snapshot(self) -> State:
        found: dict[str, list[Mapping[str, Any]]] = {table: [] for table in tables("postgresql")}
        parts = [f"SELECT '{table}', to_jsonb(t)::text FROM {table} t" for table in found]
        for table, row in await self._connection.fetch(" UNION ALL ".join(parts)):
            found[table].append(json.loads(row))
        return _state(found)

    async def wipe(self) -> None:
        await self._connection.execute("; ".join(f"DELETE FROM {table}" for table in _children_first("postgresql")))

    async def held(self) -> str:
        rows = await self._connection.fetch(_LOCKS, SESSION)
        return "; ".join(" ".join(map(str, row)) for row in rows)

    async def kill(self, session: int) -> None:
        await self._connection.execute(f"SELECT pg_terminate_backend({session})")

    async def close(self) -> None:
        await self._connection.close()


class MySQLWatcher:
    """On MySQL: nothing is held if every row of every table can be locked at once."""

    def __init__(self, context: Any, connection: Any) -> None:
        self._context, self._connection = context, connection

    @classmethod
    async def connect(cls, url: str) -> "MySQLWatcher":
        context = connect_mysql(url)
        return cls(context, await context.__aenter__())

    async def _ask(self, *texts: str) -> list[list[dict[str, Any]]]:
        """The rows of each statement, all sent at once."""
        found = []
        await self._connection.query("; ".join(texts))
        while True:
            result = self._connection._result
            names = [column[0] for column in result.description or ()]
            found.append([dict(zip(names, row, strict=True)) for row in result.rows or ()])
            if not result.has_next:
                return found
            await self._connection.next_result()

    async def snapshot(self) -> State:
        begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT"
        names = list(tables("mysql"))
        _, _, *answers, _ = await self._ask(*begin, *(f"SELECT * FROM {name}" for name in names), "COMMIT")
        return _state(dict(zip(names, answers, strict=True)))

    async def wipe(self) -> None:
        deletes = [f"DELETE FROM {table}" for table in _children_first("mysql")]
        await self._ask("SET FOREIGN_KEY_CHECKS = 0", "BEGIN", *deletes, "COMMIT")

    async def held(self) -> str:
        try:
            await self._ask("BEGIN", *(f"SELECT 1 FROM {name} FOR UPDATE NOWAIT" for name in tables("mysql")))
        except asyncmy.errors.OperationalError as error:
            return str(error)
        finally:
            await self._ask("ROLLBACK")
        return ""

    async def kill(self, session: int) -> None:
        await self._ask(f"KILL {session}")

    async def close(self) -> None:
        await self._context.__aexit__(None, None, None)


async def watch(backend: str, url: str) -> Watcher:
    """A watcher of the database at the URL."""
    if backend == "sqlite":
        return SQLiteWatcher(url.removeprefix("sqlite:///"))
    return await (PostgresWatcher if backend == "postgresql" else MySQLWatcher).connect(url)


def _children_first(dialect: str) -> list[str]:
    return list(reversed(tables(dialect)))


def _state(found: Mapping[str, Iterable[Mapping[str, Any]]]) -> State:
    """One line a row; rows that have a number in its order."""
    messages = _ranks(found)
    lines = []
    for table, rows in found.items():
        own = [_line(table, row, messages) for row in sorted(rows, key=lambda row: row.get("id") or 0)]
        numbered = table != "perdure_message_keys" and any("id" in row for row in rows)
        lines += own if numbered else sorted(own)
    return tuple(lines)


def _ranks(found: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[int, int]:
    numbers = {row["id"] for name in ("channel_messages", "perdure_message_keys") for row in found.get(name, ())}
    numbers |= {row[name] for rows in found.values() for row in rows for name in _NUMBERS if row.get(name)}
    return {number: rank for rank, number in enumerate(sorted(numbers - {None, 0}), 1)}


def _line(table: str, row: Mapping[str, Any], messages: Mapping[int, int]) -> str:
    values = []
    for name, value in row.items():
        if name in _NUMBERS or (name, table) in _NUMBERED:
            value = messages.get(value, value)
        elif name in ("id", "original_id", "last_sequence") or value is None:  # what is added twice may skip one
            continue
        values.append(f"{name}={plain(value)}")
    return f"{table}: {' '.join(values)}"


def plain(value: Any) -> Any:
    """A value without what differs from one run to the next."""
    if isinstance(value, datetime):
        return "a time"
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode()
    if isinstance(value, str):
        return _ID.sub("a number", _RANDOM.sub("random", _TIME.sub("a time", value)))
    return value


def shape(value: Any) -> Any:
    """An operation's answer without what differs from one run to the next."""
    if isinstance(value, BaseException):
        return type(value).__name__
    if is_dataclass(value):
        return {field.name: shape(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [shape(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return "a number" if value else 0
    return plain(value)
