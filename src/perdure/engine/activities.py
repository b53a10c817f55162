"""Activities at work: the code of users, on the host's loop or in a thread, so many at a time."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

from perdure.database.backends.base import Executor
from perdure.engine import ambient
from perdure.engine.body import Effect
from perdure.engine.clock import steady
from perdure.engine.driven import Attempt, Done, Record
from perdure.engine.guard import came_by_signal, is_cancelled, outcome_of
from perdure.engine.threads import Threads
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

CONFLICTS_MAX = 10  # how often a transaction that lost a deadlock is run

CONNECTION: "ContextVar[Lent | None]" = ContextVar("perdure_connection", default=None)
OUTGOING: ContextVar[list[Effect] | None] = ContextVar("perdure_outgoing", default=None)


class Activities:
    """Runs attempts; `most` at a time, plain functions in `threads`."""

    def __init__(self, most: int, threads: int, transaction_sec: float | None, idle_sec: float) -> None:
        self._places = asyncio.Semaphore(most)
        self._transaction_sec = transaction_sec
        self._idle_sec = idle_sec  # after which a server ends a transaction without a word
        self._threads = Threads(threads)

    async def execute(self, attempt: Attempt) -> Done:
        """Run an attempt's code. An error is part of the answer; only a cancellation from outside is raised."""
        async with self._places:
            outgoing: list[Effect] = []
            began = steady()
            try:
                result = _written(attempt, await self._call(attempt, outgoing))
                return Done(result, effects=tuple(outgoing), seconds=steady() - began)
            except LeaseLostError:
                raise
            except BaseException as error:
                if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                    raise
                return Done(error=error)

    async def transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        """Run an attempt's code in a transaction of its own, whose last statements record what came of it.

        A lost lease is raised, and trouble of the database's own, which is no failure of the attempt; any other error
        is part of the answer, and nothing was written. A transaction that lost a deadlock is run again at once.
        """
        async with self._places:
            for _ in range(CONFLICTS_MAX):
                done = await self._transact_in_task(attempt, storage, record)
                if not isinstance(done.error, TransactionConflictError):
                    break
                log.debug(
                    "run %s (%s) executes %s again at once after a conflict: %s",
                    attempt.info.workflow_id,
                    attempt.info.workflow_name,
                    attempt.activity.name,
                    done.error,
                )
            return done

    async def _transact_in_task(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = asyncio.create_task(outcome_of(self._transact(attempt, storage, record)), context=copy_context())
        try:
            done, error = await task
        except (LeaseLostError, CommitUnknownError):
            raise
        except DatabaseUnavailableError as unavailable:
            if loop.time() - began < self._idle_sec:
                raise
            return Done(error=unavailable)  # it may be the code that took too long
        except BaseException as raised:
            if came_by_signal(raised):
                raise
            if isinstance(raised, asyncio.CancelledError) and is_cancelled():
                task.cancel()
                try:
                    await asyncio.wait([task])
                finally:
                    task.cancel()  # again, if it is this task that was: the time is up
                raise
            return Done(error=raised.error if isinstance(raised, _Raised) else raised)
        return Done(error=error) if done is None else replace(done, seconds=loop.time() - began)

    async def _transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        outgoing: list[Effect] = []
        _import_sharing()  # now: on SQLite nobody else writes while the transaction is open
        limit = None if self._transaction_sec is None else asyncio.get_running_loop().time() + self._transaction_sec
        async with storage.transaction() as executor:
            lent = Lent(executor, attempt.activity.plain)
            await lent.prepare()
            CONNECTION.set(lent)
            try:
                async with asyncio.timeout_at(limit):
                    value = await _as_exception(self._call(attempt, outgoing, own_task=False))
            except TimeoutError as error:
                if limit is not None and asyncio.get_running_loop().time() >= limit:
                    raise TransactionTooLongError(
                        f"{attempt.activity.name} held the database for over {self._transaction_sec:g} s, and nobody "
                        "else could write: do less in it, or raise App(transaction_limit=)"
                    ) from error
                raise
            finally:
                lent.end()
            result = _written(attempt, value)
            await record(storage, result, outgoing)
        return Done(result)

    async def _call(self, attempt: Attempt, outgoing: list[Effect], *, own_task: bool = True) -> Any:
        activity = attempt.activity
        args, kwargs = activity.signature.unbind(attempt.payload)
        context = copy_context()
        context.run(ambient.RUN.set, None)
        context.run(ambient.ATTEMPT.set, attempt.info)
        context.run(OUTGOING.set, outgoing)

        def call() -> Any:
            attempt.check()  # a place or a thread may have been waited for
            return activity.function(*args, **kwargs)

        async with asyncio.timeout(activity.timeout) as over:
            if activity.plain:
                return await self._in_thread(lambda: context.run(call), over)
            if own_task:
                code = outcome_of(call())
                value, error = await asyncio.create_task(code, context=context, name=attempt.info.idempotency_key)
                if error is not None:
                    raise error
                return value
            ambient.ATTEMPT.set(attempt.info)  # the task, and with it the context, is this attempt's alone
            ambient.RUN.set(None)
            OUTGOING.set(outgoing)
            return await call()

    async def _in_thread(self, call: Callable[[], Any], over: asyncio.Timeout) -> Any:
        """A thread cannot be stopped: who cancels waits for it, so that nothing is undone before it is done.

        Who cancels twice does not wait: the worker stops, and its grace time is over.
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

    def close(self) -> None:
        """Let the threads end when they are done."""
        self._threads.close()


def _written(attempt: Attempt, value: object) -> bytes:
    """A result as it is recorded; once it is, it has to be read for ever, so it is read here."""
    signature = attempt.activity.signature
    result = signature.encode_result(value)
    limits.size(result, f"the result of activity {attempt.activity.name}")
    signature.decode_result(result)
    return result


class _Raised(Exception):
    """What user code raised that is no `Exception`, on its way through a transaction, which must be rolled back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


async def _as_exception(code: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await code
    except Exception:
        raise
    except BaseException as error:
        if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
            raise
        raise _Raised(error) from error


class Blocking:
    """A transaction's connection for a plain function, which runs in a thread: every call waits for its answer."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop()

    def _wait(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def execute(self, query: str, *args: object) -> int:
        """Run a statement, in the driver's own parameter style, and give the number of rows it wrote."""
        return int(self._wait(self._executor.execute(query, *args)))

    def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        """All rows."""
        rows: list[tuple[Any, ...]] = self._wait(self._executor.fetch(query, *args))
        return rows

    def fetchrow(self, query: str, *args: object) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = self.fetch(query, *args)
        return rows[0] if rows else None

    def fetchval(self, query: str, *args: object) -> Any:
        """The first column of the first row, or None."""
        row = self.fetchrow(query, *args)
        return row[0] if row else None


class Lent:
    """The connection of an attempt's transaction, in the forms that its code may ask for."""

    def __init__(self, executor: Executor, plain: bool) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop() if plain else None
        self.native = Blocking(executor) if plain else executor.native
        self._sharing: Any = None

    async def prepare(self) -> None:
        """Where SQLAlchemy is in use, let it ask the server what it must know before it can be handed out."""
        sharing = _import_sharing()
        if sharing is not None:
            await sharing.prepare(self._executor)

    def sqlalchemy(self) -> Any:
        """The same one every time."""
        if self._sharing is None:
            try:
                from perdure.integrations.shared import Sharing  # needs a library of the user's
            except ImportError as error:
                raise ConfigurationError(
                    'connection("sqlalchemy") needs SQLAlchemy: install sqlalchemy[asyncio]'
                ) from error
            self._sharing = Sharing(self._executor, self._loop)
        return self._sharing.connection

    def end(self) -> None:
        """The attempt's code is done."""
        if self._sharing is not None:
            self._sharing.end()


def _import_sharing() -> Any:
    """What lends a transaction to SQLAlchemy, where that is in use."""
    with suppress(ImportError):  # of another age, or without greenlets
        return import_module("perdure.integrations.shared") if "sqlalchemy" in sys.modules else None
    return None


def connection(kind: Literal["native", "sqlalchemy"] = "native") -> Any:
    """In a transactional activity: the driver's own connection, inside the transaction that records the result.

    In a plain function it is a facade with `execute`, `fetch`, `fetchrow` and `fetchval`. Do not commit or roll back.
    With "sqlalchemy" it is an `AsyncConnection`, in a plain function a `Connection`, that refuses to commit and whose
    `rollback()` undoes what was done on it, no more.
    """
    found = CONNECTION.get()
    if found is None:
        raise OutsideWorkflowError(
            "connection() was called outside a transactional activity that a workflow runs: use "
            "@activity(transactional=True)"
        )
    if kind not in ("native", "sqlalchemy"):
        raise ValueError(f'connection() gives "native" or "sqlalchemy", not {kind!r}')
    return found.sqlalchemy() if kind == "sqlalchemy" else found.native
