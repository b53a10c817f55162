"""Run the one thread that writes to a SQLite database.

Jobs that arrive during a commit form the next group: they run in one transaction, and one fsync makes them all durable
(group commit). A job that fails does not affect the others. A caller's transaction is a job that occupies the thread,
and with it the file, until it ends.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from perdure.database.backends.gate import Gate
from perdure.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    SchemaError,
    StorageError,
    TransactionError,
)

T = TypeVar("T")

WAIT_SEC = 30.0
GROUP_MAX = 256


class Job(Generic[T]):
    """Run a function on the writer's connection. The first to take the ticket, writer or caller, decides its fate."""

    __slots__ = ("bare", "future", "loop", "run", "tickets", "until")

    def __init__(self, run: Callable[[sqlite3.Connection], T], *, bare: bool = False) -> None:
        self.run = run
        self.bare = bare
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.tickets = [None]
        self.until = self.loop.time() + WAIT_SEC

    def take(self) -> bool:
        """Return True for the first caller."""
        try:
            self.tickets.pop()
        except IndexError:
            return False
        return True

    def expire(self) -> None:
        """Give up waiting; a job already begun is waited for."""
        if self.take() and not self.future.done():
            self.future.set_exception(
                DatabaseUnavailableError(f"no turn to write within {WAIT_SEC:.0f} s: a caller holds a transaction open")
            )


class Hold(Job["Hold"]):
    """Represent a caller's transaction, which occupies the writer until a command ends it."""

    __slots__ = ("commands", "connection", "ended")

    def __init__(self) -> None:
        super().__init__(lambda _: self)
        self.connection: sqlite3.Connection | None = None
        self.commands: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self.ended = False


class Outcome(NamedTuple):
    """Hold the result of a job, or its error."""

    job: Job[Any]
    value: Any
    error: BaseException | None


class Writer:
    """Owns the writing connection; everything on it happens in its thread."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], gate: Gate | None) -> None:
        self._connect = connect
        self._gate: Gate | contextlib.nullcontext[None] = gate or contextlib.nullcontext()
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waiting: dict[Job[Any], None] = {}  # in order of arrival
        self._watch: asyncio.TimerHandle | None = None  # one for all: a timer for each would cost more than the queue

    async def start(self) -> None:
        """Start the thread and open the connection in it."""
        opened: Job[None] = Job(lambda _: None)
        self._thread = threading.Thread(target=self._main, args=(opened,), name="perdure-writer", daemon=True)
        self._thread.start()
        await opened.future

    async def close(self) -> None:
        """Finish what is queued and end the thread; a thread that waits at the gate ends when it gets through."""
        if self._thread is None or self._closed:
            return
        self._closed = True
        self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, WAIT_SEC)

    async def submit(self, job: Job[T]) -> T:
        """Queue a job and return its result; raise `DatabaseUnavailableError` if its turn does not come within 30 s."""
        if self._thread is None or self._closed:
            raise DatabaseUnavailableError("the storage is not open: call initialize(), or use it in `async with`")
        self._queue.put(job)
        self._waiting[job] = None
        if self._watch is None:
            self._watch = job.loop.call_later(1, self._expire)
        try:
            return await job.future
        except asyncio.CancelledError:
            if not job.take() and isinstance(job, Hold):
                job.commands.put(None)
            raise
        finally:
            del self._waiting[job]

    def _expire(self) -> None:
        """Expire jobs once a second, while there are any; those that have waited longest come first."""
        self._watch = None
        for job in list(self._waiting):  # other loops may submit meanwhile
            if job.until > job.loop.time():
                self._watch = job.loop.call_later(1, self._expire)
                return
            job.expire()

    def _main(self, opened: Job[None]) -> None:
        try:
            connection = self._connect()
        except BaseException as error:
            settle([Outcome(opened, None, error)])
            return
        settle([Outcome(opened, None, None)])
        job: Job[Any] | None = None
        while True:
            job = job or self._queue.get()
            if job is None:
                break
            if isinstance(job, Hold):
                self._serve(connection, job)
                job = None
            elif job.bare:
                settle([_attempt(connection, job)])
                job = None
            else:
                job = self._group(connection, job)
                if job is _STOP:
                    break
        connection.close()

    def _group(self, connection: sqlite3.Connection, first: Job[Any]) -> Job[Any] | None:
        """Run what is queued in one transaction; return a job that cannot be part of a group."""
        with self._gate:
            jobs, left = self._gather(first)
            jobs = [job for job in jobs if job.take()]
            try:
                outcomes = _commit_together(connection, jobs) if jobs else []
            except sqlite3.Error as error:  # of a savepoint between jobs, or of a rollback
                _roll_back(connection)
                outcomes = [Outcome(job, None, translate(error)) for job in jobs]
        settle(outcomes)
        return left

    def _gather(self, first: Job[Any]) -> tuple[list[Job[Any]], Job[Any] | None]:
        jobs = [first]
        while len(jobs) < GROUP_MAX:
            try:
                job = self._queue.get_nowait()
            except Empty:
                break
            if job is None:
                return jobs, _STOP
            if job.bare or isinstance(job, Hold):
                return jobs, job
            jobs.append(job)
        return jobs, None

    def _serve(self, connection: sqlite3.Connection, hold: Hold) -> None:
        """Run a caller's transaction, command by command, until it ends."""
        with self._gate:
            if not hold.take():
                return
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                settle([Outcome(hold, None, translate(error))])
                return
            hold.connection = connection
            settle([Outcome(hold, hold, None)])
            while not hold.ended:
                command = hold.commands.get()
                if command is not None and connection.in_transaction:
                    outcome = _attempt(connection, command)
                    hold.ended = not connection.in_transaction
                    settle([outcome])
                else:  # rolled back, or ended by the caller's own SQL: nothing may run outside the transaction
                    hold.ended = True
                    _roll_back(connection)
                    _settle_late(command)
        while not hold.commands.empty():
            _settle_late(hold.commands.get())


def _settle_late(command: Job[Any] | None) -> None:
    if command is not None:
        settle([Outcome(command, None, TransactionError("the transaction has ended: nothing more was written"))])


_STOP: Job[Any] = Job.__new__(Job)


def _commit_together(connection: sqlite3.Connection, jobs: list[Job[Any]], savepoints: bool = False) -> list[Outcome]:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        return [Outcome(job, None, translate(error)) for job in jobs]
    if len(jobs) == 1:
        return [_commit(connection, _attempt(connection, jobs[0]))]
    outcomes = _attempt_all(connection, jobs, savepoints)
    if outcomes is None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
            return _commit_together(connection, jobs, savepoints=True)
        # the database dropped the whole transaction (disk full, I/O error): run each job by itself
        return [each for job in jobs for each in _commit_together(connection, [job])]
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        failure = _undo(connection, error)
        return [outcome if outcome.error else Outcome(outcome.job, None, failure) for outcome in outcomes]
    return outcomes


def _attempt_all(connection: sqlite3.Connection, jobs: list[Job[Any]], savepoints: bool) -> list[Outcome] | None:
    """Run the jobs of a group; return None if one has failed and cannot be undone by itself.

    Most jobs that fail have written nothing. Savepoints cost as much as the jobs, so they are used only after one that
    has written.
    """
    outcomes = []
    for job in jobs:
        if savepoints:
            connection.execute("SAVEPOINT job")
        written = connection.total_changes
        outcome = _attempt(connection, job)
        failed = outcome.error is not None
        if not connection.in_transaction or (failed and not savepoints and connection.total_changes != written):
            return None
        if savepoints:
            if failed:
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
        outcomes.append(outcome)
    return outcomes


def _attempt(connection: sqlite3.Connection, job: Job[Any]) -> Outcome:
    try:
        return Outcome(job, job.run(connection), None)
    except sqlite3.Error as error:
        return Outcome(job, None, translate(error))
    except BaseException as error:
        return Outcome(job, None, error)


def _commit(connection: sqlite3.Connection, outcome: Outcome) -> Outcome:
    try:
        if outcome.error is None:
            connection.execute("COMMIT")
        elif connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return Outcome(outcome.job, None, _undo(connection, error))
    return outcome


def commit(connection: sqlite3.Connection) -> None:
    """Commit a caller's transaction; end it even if that fails, because the caller would go on holding the file."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise _undo(connection, error) from error


def _undo(connection: sqlite3.Connection, error: sqlite3.Error) -> StorageError:
    """Roll back after a failed commit; what failed while syncing may still be in the log after a crash."""
    _roll_back(connection)
    if getattr(error, "sqlite_errorname", "").startswith("SQLITE_IOERR"):
        unknown = CommitUnknownError(
            "the disk failed during a commit, so the writes may or may not exist: read them back before you retry"
        )
        unknown.__cause__ = error
        return unknown
    return translate(error)


def _roll_back(connection: sqlite3.Connection) -> None:
    """Roll back and ignore errors: one raised here would end the thread."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def settle(outcomes: list[Outcome]) -> None:
    """Hand results to the event loops that wait for them, with one wake-up per loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        loops.setdefault(outcome.job.loop, []).append(outcome)
    for loop, own in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(_resolve, own)


def _resolve(outcomes: list[Outcome]) -> None:
    for job, value, error in outcomes:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(value)
        else:
            job.future.set_exception(error)


def translate(error: sqlite3.Error) -> StorageError:
    """Return SQLite's error as one of ours, chained."""
    name, text = getattr(error, "sqlite_errorname", ""), str(error)
    if text.startswith(("no such table", "no such column")) or "has no column" in text:
        own: StorageError = SchemaError(f"the schema is not up to date: {text}; call initialize(), or migrate")
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        own = DatabaseUnavailableError("another program kept the database locked for too long; nothing was written")
    elif name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB")):
        own = DatabaseUnavailableError(f"SQLite cannot use the file: {text}; nothing was written")
    else:
        own = StorageError(f"SQLite rejected a statement: {text}")
    own.__cause__ = error
    return own
