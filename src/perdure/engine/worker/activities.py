"""Execution of activities: user code on the worker's event loop or in threads, with a limit on concurrency."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import Any, Literal, Protocol, cast

from perdure.database.backends import base
from perdure.engine.execution.clock import Clock, Timeout
from perdure.engine.execution.interfaces import Attempt, Done, Record
from perdure.engine.replay import stubs
from perdure.engine.replay.context import ATTEMPT, RUN
from perdure.engine.replay.guard import came_by_signal, is_cancelled, is_interruption, outcome_of
from perdure.engine.replay.steps import Effect
from perdure.engine.worker import sharing
from perdure.engine.worker.places import Places
from perdure.engine.worker.threads import Threads
from perdure.errors import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseUnavailableError,
    LeaseLostError,
    OutsideWorkflowError,
    TransactionConflictError,
    TransactionTooLongError,
)
from perdure.model import limits
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

CONFLICTS_MAX = 10  # maximum number of executions of a transaction that loses deadlocks

CONNECTION: "ContextVar[TransactionConnection | None]" = ContextVar("perdure_connection", default=None)
OUTGOING: ContextVar[list[Effect] | None] = ContextVar("perdure_outgoing", default=None)


class Executor(Protocol):
    """What executes the attempts of a worker's activities."""

    async def execute(self, attempt: Attempt) -> Done:
        """Execute an attempt in this task and return its result or error."""

    async def transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        """Execute an attempt in its own transaction, whose last statements record the result."""

    def close(self) -> None:
        """Let each thread end when its function returns."""


class Activities:
    """Executes attempts, at most `most` at a time; plain functions run in at most `threads` threads."""

    def __init__(self, most: int, threads: int, transaction_sec: float | None, idle_sec: float, clock: Clock) -> None:
        self.most = most
        self._places = Places(most)
        self._transaction_sec = transaction_sec
        self._idle_sec = idle_sec  # after this time a server ends an idle transaction
        self._threads = Threads(threads)
        self._scope = stubs.current_scope() or stubs.StubScope()  # of the app
        self._clock = clock
        self._steady = clock.steady

    async def execute(self, attempt: Attempt) -> Done:
        """Execute an attempt in this task and return its result or error.

        Only a lost lease, a cancellation from outside and an exit by a signal are raised.
        """
        if not self._places.take_free():
            await self._places.take()
        outgoing: list[Effect] = []
        began = self._steady()
        try:
            result, value = _written(attempt, await self._call(attempt, outgoing))
            return Done(result, value, effects=tuple(outgoing), seconds=self._steady() - began)
        except LeaseLostError:
            raise
        except BaseException as error:
            if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and attempt.stopped):
                raise
            return Done(error=error)
        finally:
            self._places.release()

    async def transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        """Execute an attempt in its own transaction, whose last statements record the result.

        An error of the code is returned, and nothing is written. A lost lease and an unavailable database are raised,
        because they are not failures of the attempt. A transaction that lost a deadlock is executed again at once.
        """
        await self._places.take()
        try:
            done = await self._transact_in_task(attempt, storage, record)
            for _ in range(CONFLICTS_MAX - 1):
                if not isinstance(done.error, TransactionConflictError):
                    break
                log.debug(
                    "run %s (%s) executes %s again at once after a conflict: %s",
                    attempt.info.workflow_id,
                    attempt.info.workflow_name,
                    attempt.activity.name,
                    done.error,
                )
                done = await self._transact_in_task(attempt, storage, record)
            return done
        finally:
            self._places.release()

    async def _transact_in_task(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = asyncio.create_task(outcome_of(lambda: self._transact(attempt, storage, record)), context=copy_context())
        try:
            done, error = await task
        except (LeaseLostError, CommitUnknownError):
            raise
        except DatabaseUnavailableError as unavailable:
            if loop.time() - began < self._idle_sec:
                raise
            return Done(error=unavailable)  # the code may have left the transaction idle for too long
        except BaseException as raised:
            if came_by_signal(raised):
                raise
            if isinstance(raised, asyncio.CancelledError) and is_cancelled():
                task.cancel()
                try:
                    await asyncio.wait([task])
                finally:
                    task.cancel()  # again, if this task was cancelled a second time: the grace time is over
                raise
            return Done(error=raised.error if isinstance(raised, _Raised) else raised)
        return Done(error=error) if done is None else replace(done, seconds=loop.time() - began)

    async def _transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        outgoing: list[Effect] = []
        _loaded_sqlalchemy()  # before the transaction opens, because on SQLite it blocks all other writers
        limit = None if self._transaction_sec is None else asyncio.get_running_loop().time() + self._transaction_sec
        async with storage.transaction() as executor:
            given = TransactionConnection(executor, attempt.activity.plain)
            await given.prepare()
            CONNECTION.set(given)
            try:
                async with asyncio.timeout_at(limit):
                    value = await _as_exception(self._call(attempt, outgoing))
            except TimeoutError as error:
                if limit is not None and asyncio.get_running_loop().time() >= limit:
                    raise TransactionTooLongError(
                        f"the transaction of activity {attempt.activity.name!r} took more than "
                        f"{self._transaction_sec:g} s, and on SQLite it blocks all other writers: do less in the "
                        "activity, or increase App(transaction_timeout=)"
                    ) from error
                raise
            finally:
                given.end()
            result, _ = _written(attempt, value)
            await record(storage, result, outgoing)
        return Done(result)

    async def _call(self, attempt: Attempt, outgoing: list[Effect]) -> Any:
        """Call the function in this task, whose context belongs to this attempt alone."""
        activity = attempt.activity
        args, kwargs = activity.signature.unbind(attempt.payload)
        ATTEMPT.set(attempt.info)
        RUN.set(None)
        OUTGOING.set(outgoing)
        if self._scope.installed and (stub := self._scope.find(activity, attempt.info)) is not None:
            return await self._call_stub(stub, attempt, args, kwargs)
        if activity.plain:
            context = copy_context()

            def call() -> Any:
                attempt.check()  # the lease may have expired while the attempt waited for a thread
                return activity.function(*args, **kwargs)

            over = self._clock.timeout(activity.timeout)
            async with over:
                return await self._in_thread(lambda: context.run(call), over)
        attempt.check()  # the lease may have expired while the attempt waited for its turn
        if activity.timeout is None:
            return await activity.function(*args, **kwargs)
        async with self._clock.timeout(activity.timeout):
            return await activity.function(*args, **kwargs)

    async def _call_stub(
        self, stub: stubs.InstalledStub, attempt: Attempt, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        activity, info = attempt.activity, attempt.info
        attempt.check()
        over = self._clock.timeout(activity.timeout)
        async with over:

            async def call_plain(call: Callable[[], Any]) -> Any:
                context = copy_context()
                return await self._in_thread(lambda: context.run(call), over) if activity.plain else call()

            call = (activity, args, kwargs, info.idempotency_key, info, self._scope.sleep, call_plain)
            return await stub.call(stubs.StubbedCall(*call))

    async def _in_thread(self, call: Callable[[], Any], over: Timeout) -> Any:
        """Call a plain function in a thread.

        A thread cannot be stopped, so a cancellation waits for the function to end: nothing must be compensated while
        it still runs. A second cancellation does not wait: the worker stops and its grace time is over.
        """
        future = self._threads.submit(call)
        try:
            value, error = await asyncio.shield(future)
        except asyncio.CancelledError:
            if not self._threads.withdraw(future) and not over.expired():
                await asyncio.wait([future])
            raise
        if error is not None:
            raise error
        return value

    @property
    def executing(self) -> int:
        """Return the number of attempts that execute now."""
        return self.most - self._places.free

    def close(self) -> None:
        """Let each thread end when its function returns."""
        self._threads.close()


def _written(attempt: Attempt, value: object) -> tuple[bytes, object]:
    """Return the result encoded, and decoded again, because every later replay must be able to decode it."""
    signature = attempt.activity.signature
    result = signature.encode_result(value)
    limits.size(result, f"the result of activity {attempt.activity.name}")
    return result, signature.decode_result(result)


class _Raised(Exception):
    """Carries a `BaseException` of user code through a transaction as an `Exception`, so that it is rolled back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


async def _as_exception(code: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await code
    except Exception:
        raise
    except BaseException as error:
        if is_interruption(error):
            raise
        raise _Raised(error) from error


class Blocking:
    """The connection of a transaction for a plain function, which runs in a thread; every call blocks."""

    def __init__(self, executor: base.Executor) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop()

    @property
    def dialect(self) -> str:
        """Return the kind of database: "sqlite", "postgresql" or "mysql"."""
        return cast(base.Session, self._executor).driver.name  # a transaction's executor is its session

    def _wait(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def execute(self, query: str, *args: object) -> int:
        """Execute a statement, with the driver's own parameter style, and return the number of affected rows."""
        return int(self._wait(self._executor.execute(query, *args)))

    def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        """Execute a query and return all rows."""
        rows: list[tuple[Any, ...]] = self._wait(self._executor.fetch(query, *args))
        return rows

    def fetchrow(self, query: str, *args: object) -> tuple[Any, ...] | None:
        """Execute a query and return the first row, or None."""
        rows = self.fetch(query, *args)
        return rows[0] if rows else None

    def fetchval(self, query: str, *args: object) -> Any:
        """Execute a query and return the first column of the first row, or None."""
        row = self.fetchrow(query, *args)
        return row[0] if row else None


class TransactionConnection:
    """The connection of an attempt's transaction, in the forms that `connection()` returns."""

    def __init__(self, executor: base.Executor, plain: bool) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop() if plain else None
        self.native = Blocking(executor) if plain else executor.native
        self._sharing: sharing.Sharing | None = None

    async def prepare(self) -> None:
        """If the program uses SQLAlchemy, run the queries that its connection needs before first use."""
        library = _loaded_sqlalchemy()
        if library is not None:
            await library.prepare(self._executor)

    def sqlalchemy(self) -> Any:
        """Return the SQLAlchemy connection, the same one each time."""
        if self._sharing is None:
            try:
                library = sharing.load("sqlalchemy")
            except ImportError as error:
                raise ConfigurationError(
                    'connection("sqlalchemy") needs SQLAlchemy: install sqlalchemy[asyncio]'
                ) from error
            self._sharing = library.share(self._executor, self._loop)
        return self._sharing.connection

    def end(self) -> None:
        """Close the SQLAlchemy connection, because the attempt's code has ended."""
        if self._sharing is not None:
            self._sharing.end()


def _loaded_sqlalchemy() -> sharing.Library | None:
    """Return the module that wraps a transaction for SQLAlchemy, or None if the program does not use SQLAlchemy."""
    with suppress(ImportError):  # an unsupported version, or one without greenlet
        return sharing.load("sqlalchemy") if "sqlalchemy" in sys.modules else None
    return None


def connection(kind: Literal["native", "sqlalchemy"] = "native") -> Any:
    """Return the connection of the transaction that records the result of the calling transactional activity.

    - `"native"` (the default): the driver's own connection; in a plain function, an object with the blocking methods
      `execute`, `fetch`, `fetchrow` and `fetchval`. Don't commit or roll back.
    - `"sqlalchemy"`: an `AsyncConnection`; in a plain function, a `Connection`. It refuses to commit, and `rollback()`
      undoes only the statements that were executed on it.

    Raises `OutsideWorkflowError` outside a transactional activity that a workflow executes.
    """
    found = CONNECTION.get()
    if found is None:
        raise OutsideWorkflowError(
            "connection() was called outside a transactional activity that a workflow runs: call it in a function with "
            "@activity(transactional=True)"
        )
    if kind not in ("native", "sqlalchemy"):
        raise ValueError(f'connection() takes "native" or "sqlalchemy", not {kind!r}')
    return found.sqlalchemy() if kind == "sqlalchemy" else found.native
