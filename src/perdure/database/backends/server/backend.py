"""Run operations on a server, each on a connection of the pool, and retry those that failed."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from perdure.database.backends.base import Executor, Script, drive
from perdure.database.backends.pool import Pool
from perdure.database.backends.server.adapter import Adapter
from perdure.database.backends.server.connections import Connections
from perdure.database.backends.server.executors import PoolExecutor, ScriptExecutor
from perdure.database.backends.server.retries import Attempts, Fault, Sent, Verdict, judge_read, judge_write
from perdure.database.backends.server.session import ServerSession
from perdure.database.backends.server.transaction import OwnTransaction
from perdure.database.operation import Again, Work
from perdure.errors import CommitUnknownError, DatabaseUnavailableError, SchemaError, StorageError

log = logging.getLogger("perdure.storage")

C = TypeVar("C")
T = TypeVar("T")

_BROKEN = (Fault.LOST, Fault.UNSENT)


class ServerBackend(Adapter[C], Generic[C]):
    """Implement the common half of a backend; subclasses implement the adapter of one server."""

    def __init__(self, pool_size: int, wait_sec: float) -> None:
        self._pool: Pool[C] = Pool(self.connect, self.reusable, self.discard, pool_size, wait_sec)
        self._connections: Connections[C] = Connections(self, self._pool)

    async def open(self) -> None:
        self._pool.release(await self._pool.acquire())

    @property
    def pool_use(self) -> tuple[int, int]:
        """Return how many connections are in use, and the maximum."""
        return self._pool.used, self._pool.limit

    async def close(self) -> None:
        self._pool.close()

    async def read(self, work: Work[T], *, bounded: bool) -> T:
        attempts = Attempts()
        while True:
            connection = self._pool.take() or await self._connections.acquire(attempts.until)
            try:
                return await self._run_alone_each(connection, work, Sent())
            except StorageError:
                raise
            except Exception as error:
                fault, late = self.fault(error), attempts.are_over()
                if fault in _BROKEN:  # even if late: the next user would get the same error
                    await self._connections.discard_after(connection, error)
                if judge_read(fault, late) is Verdict.RAISE:
                    raise self.translate(error) from error
                _log_retry("a read", error)
            finally:
                self._pool.release(connection)

    async def write(self, work: Work[T]) -> T:
        attempts = Attempts()
        while True:
            connection = self._pool.take() or await self._connections.acquire(attempts.until)
            sent, unresolved = Sent(work.single), None
            try:
                if work.single:
                    return await self._run_alone_each(connection, work, sent)
                return await self._transact(connection, work, sent)
            except StorageError:
                raise
            except Again as error:
                if attempts.are_over():
                    raise self.translate(error) from error
            except Exception as error:
                fault, late = self.fault(error), attempts.are_over()
                if fault in _BROKEN:  # even if late: the next user would get the same error
                    await self._connections.discard_after(connection, error)
                unknown = sent.may_have_written(fault)
                verdict = judge_write(fault, late, unknown=unknown, idempotent=work.repeat)
                if verdict is Verdict.RAISE:
                    raise self.translate(error) from error
                if verdict is Verdict.READ_BACK:
                    unresolved = error
                else:
                    _log_retry("a write", error)
            finally:
                self._pool.release(connection)
            if unresolved is not None:  # after the release: the pool may be full of callers that have to read back
                return await self._read_back(work, unresolved)
            await attempts.pause()

    async def _run_alone_each(self, connection: C, work: Work[T], sent: Sent) -> T:
        """Run an operation whose calls each are a transaction; `drive` is inlined because most operations run here."""
        operation = work.start()
        try:
            call = next(operation)
            while True:
                answer = await self.run_alone(connection, call)
                sent.answered = True
                call = operation.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            await self._connections.roll_back(connection)
            raise
        finally:
            operation.close()

    async def _transact(self, connection: C, work: Work[T], sent: Sent) -> T:
        """Run an operation in one transaction."""
        transaction = self.own_transaction(connection)
        try:
            result = await drive(work.start(), transaction.run)
            if self.idle_too_long(transaction.since):  # a commit at the end of its session would look like a lost one
                self.discard(connection)
            sent.commit = self.alive(connection)
            await transaction.commit()
        except BaseException:
            await self._connections.roll_back(connection)
            raise
        return result

    def own_transaction(self, connection: C) -> OwnTransaction[C]:
        """Return the transaction in which one operation runs."""
        return OwnTransaction(self, connection)

    async def _read_back(self, work: Work[T], error: Exception) -> T:
        """Return the result after a lost answer, if the operation defines how to read it and it exists."""
        if work.confirm is not None:
            try:
                found = await self.read(Work(work.confirm), bounded=True)
            except DatabaseUnavailableError:
                found = None
            if found is not None:
                return found
        raise CommitUnknownError(
            "the connection was lost during a commit, so the write may or may not exist: read it back before you retry"
        ) from error

    async def begin(self) -> ServerSession[C]:
        attempts = Attempts()
        while True:
            connection = await self._connections.acquire(attempts.until)
            try:
                await self.begin_on(connection)
                return ServerSession(self, self._connections, connection)
            except BaseException as error:
                try:
                    await self._connections.discard_after(connection, error)
                finally:
                    self._pool.release(connection)
                if not isinstance(error, Exception):
                    raise
                if self.fault(error) not in _BROKEN or attempts.are_over():
                    raise self.translate(error) from error
                _log_retry("the begin of a transaction", error)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[C]:
        """Lend a connection for a caller's own SQL, whose driver's errors are translated."""
        connection = await self._connections.acquire(Attempts().until)
        try:
            yield connection
        except asyncio.CancelledError:
            await self._connections.roll_back(connection)
            raise
        except StorageError:
            raise
        except Exception as error:
            if self.fault(error) is Fault.LOST:  # it may have written something
                await self._connections.discard_after(connection, error)
                raise CommitUnknownError(
                    "the connection was lost during a statement, so its writes may or may not exist: "
                    "read them back before you retry"
                ) from error
            raise self.translate(error) from error
        finally:
            self._pool.release(connection)

    def executor(self) -> Executor:
        return PoolExecutor(self, self._borrowed)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Script]:
        connection = await self.connect()
        try:
            yield ScriptExecutor(self, connection)
        except SchemaError as error:
            await self._connections.discard_after(connection, error)
            cause = error.__cause__
            if isinstance(cause, Exception) and self.fault(cause) in _BROKEN:  # no fault of a table
                raise self.translate(cause) from cause
            raise
        finally:
            self.discard(connection)


def _log_retry(what: str, error: Exception) -> None:
    log.debug("%s failed and is retried: %s: %s", what, type(error).__name__, error, extra={"reason": str(error)})
