"""What a database is asked and what it does, counted while storages are open: counts do not depend on the machine.

- statements: as the driver sends them; those of a batch on SQLite are one for each row
- round_trips: messages to a server that an answer is awaited for
- commits: transactions that wrote something
- rows_read, rows_written: by the tables of a server; SQLite counts only what it writes
- hot_updates: rows of PostgreSQL that were updated without a change of any index
- log_bytes: of the write-ahead log
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from perdure.database.backends.mysql.backend import MySQLBackend
from perdure.database.backends.postgres import PostgresBackend
from perdure.database.backends.sqlite import SQLiteBackend
from tests.support.databases import connect_mysql, fetch_mysql

ENDING_SEC = 0.005  # a pause while a session ends

Counts = Counter[str]
FIGURES = ("statements", "round_trips", "commits", "rows_read", "rows_written", "hot_updates", "log_bytes")


class Counters(Protocol):
    """The counters of one database."""

    @property
    def figures(self) -> Sequence[str]:
        """Return the figures that this database has."""

    async def read(self) -> Counts:
        """Return all counts so far; reading them is not counted."""


@asynccontextmanager
async def counting(url: str) -> AsyncIterator[Counters]:
    """Count what every storage does that is opened on this database meanwhile."""
    if url.startswith("sqlite"):
        with _counting_sqlite(url.removeprefix("sqlite:///")) as counters:
            yield counters
    elif url.startswith("postgresql"):
        asker = await asyncpg.connect(url)
        try:
            with _counting_postgres(asker) as counted:
                yield counted
        finally:
            await asker.close()
    else:
        async with connect_mysql(url) as connection:
            with _counting_mysql(connection) as found:
                await found.calibrate()
                yield found


@contextmanager
def _replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    plain = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, plain)


class SQLiteCounters:
    """Traces the statements of every connection; the log is not truncated meanwhile, so its size counts its bytes."""

    figures = ("statements", "commits", "rows_written", "log_bytes")

    def __init__(self, path: str) -> None:
        self._log = Path(f"{path}-wal")
        self._counts = Counts()
        self._written: dict[Any, int] = {}

    def watch(self, connection: Any) -> None:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.set_trace_callback(self._trace)
        self._written[connection] = 0

    def _trace(self, text: str) -> None:
        self._counts.update(statements=1, commits=text == "COMMIT")

    async def read(self) -> Counts:
        for connection in self._written:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                self._written[connection] = connection.total_changes
        written = sum(self._written.values())
        size = self._log.stat().st_size if self._log.exists() else 0
        return self._counts + Counts(rows_written=written, log_bytes=size)


@contextmanager
def _counting_sqlite(path: str) -> Iterator[SQLiteCounters]:
    counters, connect = SQLiteCounters(path), SQLiteBackend._connect

    def watched(backend: SQLiteBackend) -> Any:
        connection = connect(backend)
        counters.watch(connection)
        return connection

    with _replaced(SQLiteBackend, "_connect", watched):
        yield counters


class PostgresCounters:
    """Counts the calls of asyncpg's protocol, and reads the server's statistics."""

    figures = FIGURES
    _ASK = """
SELECT COALESCE(sum(seq_tup_read + COALESCE(idx_tup_fetch, 0)), 0)::bigint,
       COALESCE(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint, COALESCE(sum(n_tup_hot_upd), 0)::bigint,
       (SELECT pg_current_wal_insert_lsn() - '0/0')::bigint,
       (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
  FROM pg_stat_user_tables"""
    _OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> ALL ($1::int[])"""

    def __init__(self, asker: Any) -> None:
        self._asker = asker
        self.counts = Counts()
        self.backends: dict[Any, asyncio.AbstractEventLoop] = {}
        self.connections: list[Any] = []

    async def read(self) -> Counts:
        counts = Counts(self.counts)
        await self._wait_for_closed_sessions()
        for backend, loop in self.backends.items():
            if loop is asyncio.get_running_loop():  # a thread has connections for heartbeats
                await self._flush(backend._pool)
        self.counts = Counts(counts)
        names = ("rows_read", "rows_written", "hot_updates", "log_bytes", "commits")
        return counts + Counts(dict(zip(names, await self._asker.fetchrow(self._ASK), strict=True)))

    async def _wait_for_closed_sessions(self) -> None:
        """Wait until sessions that were closed have ended on the server: they report their statistics only then."""
        while await self._asker.fetchval(self._OTHERS, self._open_sessions()):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(ENDING_SEC)

    def _open_sessions(self) -> list[int]:
        self.connections[:] = [each for each in self.connections if not each.is_closed()]
        return [each.get_server_pid() for each in (self._asker, *self.connections)]

    async def _flush(self, pool: Any) -> None:
        """Have the sessions of a pool report their statistics, which they do once a second otherwise."""
        while pool.used:  # noqa: ASYNC110 - by a notification that follows a commit
            await asyncio.sleep(ENDING_SEC)
        idle = list(iter(pool.take, None))
        for connection in idle:
            with suppress(asyncpg.UndefinedFunctionError):  # PostgreSQL 14
                await connection.execute("SELECT pg_stat_force_next_flush()")
        for connection in reversed(idle):
            pool.release(connection)


class _CountedProtocol:
    """Asyncpg's protocol; each of these calls is a round trip."""

    def __init__(self, real: Any, counters: PostgresCounters) -> None:
        self._real, self._counters = real, counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def query(self, query: str, *arguments: Any, **options: Any) -> Any:
        self._counters.counts.update(round_trips=1, statements=len(list(filter(str.strip, query.split(";")))))
        return self._real.query(query, *arguments, **options)

    def prepare(self, *arguments: Any, **options: Any) -> Any:
        self._counters.counts.update(round_trips=1)
        return self._real.prepare(*arguments, **options)

    def bind_execute(self, *arguments: Any, **options: Any) -> Any:
        self._counters.counts.update(round_trips=1, statements=1)
        return self._real.bind_execute(*arguments, **options)


@contextmanager
def _counting_postgres(asker: Any) -> Iterator[PostgresCounters]:
    counters, dial = PostgresCounters(asker), PostgresBackend._dial

    async def watched(backend: PostgresBackend) -> Any:
        connection = await dial(backend)
        connection._protocol = _CountedProtocol(connection._protocol, counters)
        counters.connections.append(connection)
        counters.backends[backend] = asyncio.get_running_loop()
        return connection

    with _replaced(PostgresBackend, "_dial", watched):
        yield counters


class MySQLCounters:
    """Counts packets and the statements in them, and reads the server's status; the server must have no other user."""

    figures = ("statements", "round_trips", "rows_read", "rows_written", "log_bytes")
    _ASK = "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Handler%' OR Variable_name LIKE 'Innodb_%l%'"
    _WRITES = ("Handler_write", "Handler_update", "Handler_delete")
    _LOG = ("Innodb_lsn_current", "Innodb_os_log_written")

    def __init__(self, asker: Any) -> None:
        self._asker = asker
        self._asking = Counts()  # what each reading of the counters costs itself
        self._reads = 0
        self.counts = Counts()

    async def calibrate(self) -> None:
        first = await self.read()
        self._asking = await self.read() - first

    async def read(self) -> Counts:
        self._reads += 1
        rows = dict(await fetch_mysql(self._asker, self._ASK))
        found = Counts(
            rows_read=sum(int(value) for name, value in rows.items() if name.startswith("Handler_read")),
            rows_written=sum(int(rows[name]) for name in self._WRITES),
            log_bytes=int(next(rows[name] for name in self._LOG if name in rows)),
        )
        for name, cost in self._asking.items():
            found[name] -= self._reads * cost
        return found + self.counts


@contextmanager
def _counting_mysql(asker: Any) -> Iterator[MySQLCounters]:
    counters, ask = MySQLCounters(asker), MySQLBackend._ask

    async def watched(
        backend: MySQLBackend, connection: Any, texts: Sequence[str], results: list[Any], **options: Any
    ) -> list[Any]:
        counters.counts.update(round_trips=1, statements=len(texts))
        return await ask(backend, connection, texts, results, **options)

    with _replaced(MySQLBackend, "_ask", watched):
        yield counters


async def settled(counters: Counters, figure: str = "statements", pause_sec: float = 0.05) -> Counts:
    """Return the counts once nothing more happens."""
    before = await counters.read()
    while True:
        await asyncio.sleep(pause_sec)
        now = await counters.read()
        if now[figure] == before[figure]:
            return now
        before = now
