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
from typing import TypeVar

from perdure.database.backends.base import Executor, Script, Silent
from perdure.database.backends.sqlite.errors import is_busy, translate
from perdure.database.backends.sqlite.jobs import WAIT_SEC, Job, OpenTransaction
from perdure.database.backends.sqlite.operations import Operations
from perdure.database.backends.sqlite.session import ScriptExecutor, SQLiteSession, WriterExecutor
from perdure.database.backends.sqlite.url import MEMORY
from perdure.database.backends.sqlite.wal_watch import watch_log
from perdure.database.backends.sqlite.writer import Writer
from perdure.database.backends.sqlite.writer_lock import WriterLock
from perdure.database.dialects.sqlite import SQLiteDriver
from perdure.database.operation import Work
from perdure.errors import CommitUnknownError, ConfigurationError
from perdure.model.records import WakeUp

T = TypeVar("T")
log = logging.getLogger("perdure.storage")

BUSY_SEC = 0.02  # between two attempts while another program writes to the file
_PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": int(WAIT_SEC * 1000)}
_SAFE_VERSION = (3, 51, 3)
_warned: list[str] = []


def connect(path: str) -> sqlite3.Connection:
    """Return a new connection; every connection is made here, so that tests can replace Python's SQLite."""
    return sqlite3.connect(path, timeout=WAIT_SEC, isolation_level=None, check_same_thread=False, cached_statements=512)


class SQLiteBackend:
    """Run operations on one database file, or on one private database in memory."""

    def __init__(self, path: str, *, read_only: bool = False, must_exist: bool = False) -> None:
        self.driver = SQLiteDriver()
        self._read_only = read_only
        self._operations = Operations(self.driver)
        self.notifier = Silent()
        self._memory = path == MEMORY
        self._path = path if self._memory else _usable(path)
        if (read_only or must_exist) and not self._memory and not os.path.exists(path):  # SQLite would create it
            raise ConfigurationError(f"the file {os.path.abspath(path)} does not exist: correct the path in the URL")
        self._lock: WriterLock | None = None
        self._writer = Writer(self._connect)
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
        self._lock = None if self._memory else WriterLock(self._path)
        await self._writer.start(self._lock)
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
        if self._lock is not None:
            self._lock.close()

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
        if self._read_only:
            connection.execute("PRAGMA query_only = 1")

    async def read(self, work: Work[T], *, bounded: bool) -> T:
        if self._reader is None:
            return await self._writer.submit(Job(self._running(work)))
        if bounded:
            try:
                return self._operations.run(self._reader, work)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise translate(error) from error
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._scan, work)

    def _scan(self, work: Work[T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            self._scanners.append(connection)
        try:
            return self._operations.run(connection, work)
        except sqlite3.Error as error:
            raise translate(error) from error

    async def write(self, work: Work[T]) -> T:
        try:
            return await self._writer.submit(Job(self._running(work)))
        except CommitUnknownError:
            if not work.repeat:
                raise
        return await self._writer.submit(Job(self._running(work)))

    def _running(self, work: Work[T]) -> Callable[[sqlite3.Connection], T]:
        return lambda connection: self._operations.run(connection, work)

    async def begin(self) -> SQLiteSession:
        return SQLiteSession(self._operations, await self._writer.submit(OpenTransaction()))

    def executor(self) -> Executor:
        return WriterExecutor(self._writer, read_only=self._read_only)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Script]:
        if self._memory:
            yield ScriptExecutor(lambda run: self._writer.submit(Job(run, bare=True)))
            return
        connection, loop = self._connect(), asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "perdure-script")
        try:
            yield ScriptExecutor(lambda run: loop.run_in_executor(thread, run, connection))
        finally:  # in the writer's turn: closing under a statement of a cancelled caller crashes Python
            closing = loop.run_in_executor(thread, connection.close)
            thread.shutdown(wait=False)
        await closing

    def wakeups(self) -> AsyncIterator[WakeUp]:
        return watch_log(None if self._memory else self._path + "-wal")


def _set(connection: sqlite3.Connection, pragma: str, wanted: object) -> None:
    """Set a pragma. SQLite does not wait for a writer before it changes the journal mode, so this function does."""
    until = time.monotonic() + WAIT_SEC
    while True:
        try:
            connection.execute(f"PRAGMA {pragma} = {wanted}")
            return
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() > until:
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
