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
from typing import Any, TypeVar

from perdure.database.backends.sqlite.commits import attempt, commit_together, roll_back
from perdure.database.backends.sqlite.errors import translate
from perdure.database.backends.sqlite.jobs import WAIT_SEC, Job, OpenTransaction, Outcome, settle
from perdure.database.backends.sqlite.writer_lock import WriterLock
from perdure.errors import DatabaseUnavailableError, TransactionError

T = TypeVar("T")

GROUP_MAX = 256


class Writer:
    """Own the writing connection; everything on it happens in its thread."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock: WriterLock | contextlib.nullcontext[None] = contextlib.nullcontext()
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waiting: dict[Job[Any], None] = {}  # in order of arrival
        self._watch: asyncio.TimerHandle | None = None  # one for all: a timer for each would cost more than the queue

    async def start(self, lock: WriterLock | None) -> None:
        """Start the thread and open the connection in it; writes wait for the lock if other processes may write."""
        self._lock = lock or self._lock
        opened: Job[None] = Job(lambda _: None)
        self._thread = threading.Thread(target=self._main, args=(opened,), name="perdure-writer", daemon=True)
        self._thread.start()
        await opened.future

    async def close(self) -> None:
        """Finish what is queued and end the thread; a thread that waits for the lock ends when it has got it."""
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
            if not job.take() and isinstance(job, OpenTransaction):
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
            if isinstance(job, OpenTransaction):
                self._serve(connection, job)
                job = None
            elif job.bare:
                settle([attempt(connection, job)])
                job = None
            else:
                job = self._group(connection, job)
                if job is _STOP:
                    break
        connection.close()

    def _group(self, connection: sqlite3.Connection, first: Job[Any]) -> Job[Any] | None:
        """Run what is queued in one transaction; return a job that cannot be part of a group."""
        with self._lock:
            jobs, left = self._gather(first)
            jobs = [job for job in jobs if job.take()]
            try:
                outcomes = commit_together(connection, jobs) if jobs else []
            except sqlite3.Error as error:  # of a savepoint between jobs, or of a rollback
                roll_back(connection)
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
            if job.bare or isinstance(job, OpenTransaction):
                return jobs, job
            jobs.append(job)
        return jobs, None

    def _serve(self, connection: sqlite3.Connection, transaction: OpenTransaction) -> None:
        """Run a caller's transaction, command by command, until it ends."""
        with self._lock:
            if not transaction.take():
                return
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                settle([Outcome(transaction, None, translate(error))])
                return
            transaction.connection = connection
            settle([Outcome(transaction, transaction, None)])
            while not transaction.ended:
                command = transaction.commands.get()
                if command is not None and connection.in_transaction:
                    outcome = attempt(connection, command)
                    transaction.ended = not connection.in_transaction
                    settle([outcome])
                else:  # rolled back, or ended by the caller's own SQL: nothing may run outside the transaction
                    transaction.ended = True
                    roll_back(connection)
                    _settle_late(command)
        while not transaction.commands.empty():
            _settle_late(transaction.commands.get())


def _settle_late(command: Job[Any] | None) -> None:
    if command is not None:
        settle([Outcome(command, None, TransactionError("the transaction has ended: nothing more was written"))])


_STOP: Job[Any] = Job.__new__(Job)
