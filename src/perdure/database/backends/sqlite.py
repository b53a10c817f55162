"""Connect to SQLite: one writing thread, queued with other processes, and reads beside it."""

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import NoneType
from typing import Any, TypeVar

from perdure.database.backends.base import Executor, Rows, Script, Silent
from perdure.database.backends.gate import Gate
from perdure.database.backends.wal import watch
from perdure.database.backends.writer import WAIT_SEC, Hold, Job, Writer, commit, translate
from perdure.database.dialects.base import Part
from perdure.database.dialects.sqlite import SQLiteDriver
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call
from perdure.errors import ConfigurationError, LimitError, StorageError, TransactionError
from perdure.model.records import WakeUp

T = TypeVar("T")
log = logging.getLogger("perdure.storage")

MEMORY = ":memory:"
BUSY_SEC = 0.02  # between two attempts while another program writes to the file
_PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": int(WAIT_SEC * 1000)}
_PLAIN = {NoneType, str, int, float, bytes}  # types that need no binding, which is nearly every value
_SAFE_VERSION = (3, 51, 3)
_warned: list[str] = []


def connect(path: str) -> sqlite3.Connection:
    """Return a new connection; every connection is made here, so that tests can replace Python's SQLite."""
    return sqlite3.connect(path, timeout=WAIT_SEC, isolation_level=None, check_same_thread=False, cached_statements=512)


class SQLiteBackend:
    """Run operations on one database file, or on one private database in memory."""

    def __init__(self, path: str) -> None:
        self.driver = SQLiteDriver()
        self.notifier = Silent()
        self._path = path
        self._memory = path == MEMORY
        self._gate = None if self._memory else Gate(_usable(path))
        self._writer = Writer(self._connect, self._gate)
        self._reader: sqlite3.Connection | None = None
        self._local = threading.local()
        self._threads: ThreadPoolExecutor | None = None
        self._scanners: list[sqlite3.Connection] = []

    async def open(self) -> None:
        if sqlite3.sqlite_version_info < _SAFE_VERSION and not _warned:
            _warned.append(sqlite3.sqlite_version)
            log.debug(
                "SQLite %s has the WAL-reset bug, which can corrupt a database, very rarely; it is fixed in 3.51.3",
                sqlite3.sqlite_version,
                extra={"version": sqlite3.sqlite_version},
            )
        await self._writer.start()
        if not self._memory:
            self._reader = self._connect()
            self._threads = ThreadPoolExecutor(2, "perdure-reader")

    async def close(self) -> None:
        await self._writer.close()
        if self._threads is not None:
            self._threads.shutdown()
        for connection in filter(None, [self._reader, *self._scanners]):
            connection.close()
        self._reader = None  # the writer reports to later callers that the storage is closed
        if self._gate is not None:
            self._gate.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = connect(self._path)
        except sqlite3.Error as error:
            raise translate(error) from error
        try:
            self._set_up(connection)
        except sqlite3.Error as error:
            connection.close()
            if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
                raise ConfigurationError(
                    f"the file {os.path.abspath(self._path)} is not a SQLite database: correct the path in the URL"
                ) from error
            raise translate(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        for pragma, wanted in _PRAGMAS.items():
            _set(connection, pragma, wanted)
            found = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
            if found != wanted and not (self._memory and pragma == "journal_mode"):
                raise ConfigurationError(
                    f"SQLite keeps the pragma {pragma} of this file at {found!r}, but perdure needs {wanted!r}"
                )

    async def read(self, work: Work[T], *, bounded: bool) -> T:
        if self._reader is None:
            return await self._writer.submit(Job(self._running(work)))
        if bounded:
            try:
                return self._operate(self._reader, work)
            except sqlite3.Error as error:
                if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                    raise translate(error) from error
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._scan, work)

    def _scan(self, work: Work[T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            self._scanners.append(connection)
        try:
            return self._operate(connection, work)
        except sqlite3.Error as error:
            raise translate(error) from error

    async def write(self, work: Work[T]) -> T:
        return await self._writer.submit(Job(self._running(work)))

    def _running(self, work: Work[T]) -> Callable[[sqlite3.Connection], T]:
        return lambda connection: self._operate(connection, work)

    def _operate(self, connection: sqlite3.Connection, work: Work[T]) -> T:
        operation: Operation[T] = work.start()
        run, parts_of = self._run, self.driver.parts
        try:
            call = next(operation)
            while True:
                parts = parts_of(call.statement)
                call = operation.send(parts.shape([run(connection, part, call) for part in parts]))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _run(self, connection: sqlite3.Connection, part: Part, call: Call) -> Any:
        if call.each and not part.reads:
            rows = [[each[name] for name in part.names] for each in call.each]
            return connection.executemany(part.text, rows).rowcount
        params = call.params
        values = [params[name] for name in part.names]
        if not _PLAIN.issuperset(map(type, values)):
            values = [self.driver.bind(value) for value in values]
        try:
            cursor = connection.execute(part.text, values)
        except UnicodeEncodeError as error:
            raise LimitError(
                "the text contains a lone surrogate: it is not valid Unicode and cannot be stored"
            ) from error
        return cursor.fetchall() if part.reads else cursor.rowcount

    async def begin(self) -> "SQLiteSession":
        return SQLiteSession(self, await self._writer.submit(Hold()))

    def executor(self) -> Executor:
        return _Autocommit(self._writer)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Script]:
        if self._memory:
            yield _Bare(lambda run: self._writer.submit(Job(run, bare=True)))
            return
        connection, loop = self._connect(), asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "perdure-script")
        try:
            yield _Bare(lambda run: loop.run_in_executor(thread, run, connection))
        finally:  # in the writer's turn: closing under a statement of a cancelled caller crashes Python
            closing = loop.run_in_executor(thread, connection.close)
            thread.shutdown(wait=False)
        await closing

    def wakeups(self) -> AsyncIterator[WakeUp]:
        return watch(None if self._memory else self._path + "-wal")


class _Native(Rows):
    """Run a caller's own SQL with `?` placeholders."""

    async def _do(self, run: Callable[[sqlite3.Connection], T]) -> T:
        raise NotImplementedError

    async def execute(self, query: str, *args: object) -> int:
        return await self._do(lambda connection: connection.execute(query, args).rowcount)

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        return await self._do(lambda connection: connection.execute(query, args).fetchall())


class _Autocommit(_Native):
    """Run every statement in a transaction of its own, on the writer."""

    native = None

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def _do(self, run: Callable[[sqlite3.Connection], T]) -> T:
        return await self._writer.submit(Job(run))


class _Bare:
    """Run statements unchanged, for migrations; the driver's errors are not translated."""

    def __init__(self, do: Callable[..., Any]) -> None:
        self._do = do

    async def execute(self, sql: str) -> None:
        await self.fetch(sql)

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            rows: list[tuple[Any, ...]] = await self._do(lambda connection: connection.execute(sql).fetchall())
        except StorageError as error:
            raise error.__cause__ or error from None
        return rows


class SQLiteSession(_Native):
    """Hold an open transaction, and with it the writer and the whole file."""

    def __init__(self, backend: SQLiteBackend, hold: Hold) -> None:
        self._backend = backend
        self._hold = hold
        self._failed: StorageError | None = None

    @property
    def native(self) -> Any:
        return self._hold.connection

    async def _do(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if self._failed is not None:
            raise self._failed
        if self._hold.ended:
            raise TransactionError("the transaction has ended: begin a new one")
        job: Job[T] = Job(run)
        self._hold.commands.put(job)
        return await job.future

    async def operate(self, work: Work[T]) -> T:
        def run(connection: sqlite3.Connection) -> T:
            connection.execute("SAVEPOINT operation")
            try:
                result = self._backend._operate(connection, work)
                connection.execute("RELEASE operation")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK TO operation")
                    connection.execute("RELEASE operation")
                raise
            return result

        return await self._do(run)

    async def savepoint(self, depth: int) -> None:
        await self.execute(f"SAVEPOINT level{depth}")

    async def release(self, depth: int) -> None:
        await self.execute(f"RELEASE level{depth}")

    async def rollback_to(self, depth: int) -> None:
        if self._hold.ended:  # SQLite has rolled back everything already
            return
        try:
            await self.execute(f"ROLLBACK TO level{depth}")
            await self.release(depth)
        except StorageError as error:  # a cancelled release took effect: the level's writes must not be committed
            self._failed = self._failed or error

    async def commit(self) -> None:
        if self._failed is not None:
            await self.rollback()
        await self._do(commit)

    async def rollback(self) -> None:
        if not self._hold.ended:
            self._hold.commands.put(None)


def _set(connection: sqlite3.Connection, pragma: str, wanted: object) -> None:
    """Set a pragma. SQLite does not wait for a writer before it changes the journal mode, so this function does."""
    until = time.monotonic() + WAIT_SEC
    while True:
        try:
            connection.execute(f"PRAGMA {pragma} = {wanted}")
            return
        except sqlite3.Error as error:
            busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
            if not busy or time.monotonic() > until:
                raise
        time.sleep(BUSY_SEC)


def _usable(path: str) -> str:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConfigurationError(f"the folder {folder} does not exist: create it, or correct the path in the URL")
    if not os.access(folder, os.W_OK):
        raise ConfigurationError(f"the folder {folder} is not writable: SQLite needs its log and locks beside the file")
    if os.path.isdir(path):
        raise ConfigurationError(f"{os.path.abspath(path)} is a folder: add the name of a file to the URL")
    return path
