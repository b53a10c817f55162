"""Provide what PostgreSQL and MySQL have in common: a pool, retries, and the handling of lost connections.

A statement whose connection broke may have been executed or not. Before the commit was sent nothing was written, and
the operation is retried. After that the result is read back if the operation defines how, or the operation is retried
if it is idempotent; otherwise `CommitUnknownError` is raised. No operation is blindly repeated.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import Any, Generic, TypeVar

from perdure.database.backends.base import Executor, Rows, Script, drive
from perdure.database.backends.pool import Pool
from perdure.database.dialects.base import Rendering
from perdure.database.operation import Again, Work
from perdure.database.statements import Call
from perdure.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    SchemaError,
    StorageError,
    TransactionConflictError,
    TransactionError,
)

C = TypeVar("C")
T = TypeVar("T")

ENDED = "the transaction has ended, through your own SQL or an error that was ignored: nothing more was written"
IDLE = "the transaction was idle for longer than idle_transaction_timeout and was rolled back: nothing was written"
RETRY_SEC = 15.0  # how long an operation is retried after conflicts, or while the server is unavailable


class Fault(Enum):
    """Classify a driver's error by what it means for the operation."""

    CONFLICT = "a deadlock or a serialization failure: nothing was written, retry"
    UNSENT = "the connection broke, or could not serve us, before sending: nothing was written, retry on another"
    LOST = "the connection broke"
    REFUSED = "the server answered with an error"


class Sent:
    """Record whether a commit was sent, or even answered, for when the connection breaks."""

    __slots__ = ("answered", "commit")

    def __init__(self, commit: bool = False) -> None:
        self.commit = commit
        self.answered = False


class ServerBackend(Generic[C]):
    """Implement the common half of a backend; subclasses add the protocol of one server."""

    driver: Rendering
    idle_sec: float | None = None  # after which the server ends an idle transaction

    def __init__(self, pool_size: int, wait_sec: float) -> None:
        self._pool: Pool[C] = Pool(self.connect, self.reusable, self.discard, pool_size, wait_sec)

    # Provided by the backend of a server.

    async def connect(self) -> C:
        """Return a new connection with its session set up; raise `DatabaseUnavailableError` or `ConfigurationError`."""
        raise NotImplementedError

    def alive(self, connection: C) -> bool:
        """Return False if the connection is known to be closed."""
        raise NotImplementedError

    def discard(self, connection: C) -> None:
        """Close the connection without waiting."""
        raise NotImplementedError

    async def run(self, connection: C, call: Call) -> Any:
        """Run a call inside the open transaction."""
        raise NotImplementedError

    async def run_alone(self, connection: C, call: Call) -> Any:
        """Run a call as a transaction of its own."""
        raise NotImplementedError

    async def run_within(self, connection: C, call: Call) -> Any:
        """Run a call inside a caller's transaction: if it fails, nothing of it is written."""
        return await self.run(connection, call)

    def within(self, connection: C) -> bool:
        """Return whether a transaction is open, by the server's last answer."""
        raise NotImplementedError

    def reusable(self, connection: C) -> bool:
        """Return whether it is alive and in no transaction, which the next user's writes would become part of."""
        return self.alive(connection)

    async def execute_on(self, connection: C, query: str, args: tuple[object, ...] = ()) -> int:
        """Run a caller's own statement."""
        raise NotImplementedError

    async def fetch_on(self, connection: C, query: str, args: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a caller's own query."""
        raise NotImplementedError

    def fault(self, error: Exception) -> Fault:
        """Return what a driver's error means."""
        raise NotImplementedError

    def translate(self, error: Exception) -> StorageError:
        """Return a driver's error as one of ours."""
        raise NotImplementedError

    async def begin_on(self, connection: C) -> None:
        """Open a transaction."""
        await self.execute_on(connection, "BEGIN")

    async def commit_on(self, connection: C) -> None:
        """Commit the transaction; raise `TransactionConflictError` if the server rolled it back instead."""
        await self.execute_on(connection, "COMMIT")

    async def rollback_on(self, connection: C) -> None:
        """Roll back what is open, also after a statement that was cancelled half-way."""
        await self.execute_on(connection, "ROLLBACK")

    async def first(self, connection: C, call: Call) -> Any:
        """Open a transaction and run its first call, in one round trip if the server can."""
        await self.begin_on(connection)
        return await self.run(connection, call)

    # Built on the above.

    def outlived(self, since: float) -> bool:
        """Return whether the server has ended a transaction that was idle since then, or is about to."""
        return self.idle_sec is not None and time.monotonic() - since > self.idle_sec

    async def open(self) -> None:
        self._pool.release(await self._pool.acquire())

    async def close(self) -> None:
        self._pool.close()

    async def _acquire(self, until: float) -> C:
        """Return a connection; wait for a server that is restarting."""
        pause = 0.05
        while True:
            try:
                return await self._pool.acquire()
            except DatabaseUnavailableError:
                if self._pool.closed or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    async def read(self, work: Work[T], *, bounded: bool) -> T:
        until = time.monotonic() + RETRY_SEC
        while True:
            connection = self._pool.take() or await self._acquire(until)
            try:
                return await self._alone(connection, work, Sent())
            except StorageError:
                raise
            except Exception as error:
                fault, late = self.fault(error), time.monotonic() > until
                if fault in (Fault.LOST, Fault.UNSENT):  # even if late: the next user would get the same error
                    await self._part_with(connection, error)
                if fault is Fault.REFUSED or late:
                    raise self.translate(error) from error
            finally:
                self._pool.release(connection)

    async def write(self, work: Work[T]) -> T:
        until = time.monotonic() + RETRY_SEC
        pause = 0.002
        while True:
            connection = self._pool.take() or await self._acquire(until)
            sent, unresolved = Sent(work.single), None
            try:
                if work.single:
                    return await self._alone(connection, work, sent)
                return await self._transact(connection, work, sent)
            except StorageError:
                raise
            except Again as error:
                if time.monotonic() > until:
                    raise self.translate(error) from error
            except Exception as error:
                fault = self.fault(error)
                late, unknown = time.monotonic() > until, sent.answered or (fault is Fault.LOST and sent.commit)
                if fault in (Fault.LOST, Fault.UNSENT):  # even if late: the next user would get the same error
                    await self._part_with(connection, error)
                if fault is Fault.REFUSED or (late and not unknown):
                    raise self.translate(error) from error
                if unknown and (late or not work.repeat):
                    unresolved = error
            finally:
                self._pool.release(connection)
            if unresolved is not None:  # after the release: the pool may be full of callers that have to read back
                return await self._resolve(work, unresolved)
            await asyncio.sleep(random.uniform(0, pause))  # nosec B311 # a pause
            pause = min(pause * 2, 0.25)

    async def _alone(self, connection: C, work: Work[T], sent: Sent) -> T:
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
            await self._roll_back(connection)
            raise
        finally:
            operation.close()

    async def _transact(self, connection: C, work: Work[T], sent: Sent) -> T:
        run, since = self.first, time.monotonic()

        async def step(call: Call) -> Any:
            nonlocal run, since
            now, run = run, self.run
            answer = await now(connection, call)
            since = time.monotonic()
            return answer

        try:
            result = await drive(work.start(), step)
            if self.outlived(since):  # a commit during the end of its session would look like a lost one
                self.discard(connection)
            sent.commit = self.alive(connection)
            await self.commit_on(connection)
        except BaseException:
            await self._roll_back(connection)
            raise
        return result

    async def _resolve(self, work: Work[T], error: Exception) -> T:
        """Read back the result after a lost answer."""
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

    async def _roll_back(self, connection: C) -> None:
        """Clean the connection, or discard it; re-raise a cancellation only after that."""
        task = asyncio.ensure_future(self._rolled_back(connection))
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _rolled_back(self, connection: C) -> None:
        if not self.alive(connection):
            return
        try:
            await asyncio.wait_for(self.rollback_on(connection), 5)
        except Exception:
            self.discard(connection)

    async def _part_with(self, connection: C, error: BaseException) -> None:
        """Discard a connection; stop a statement that timed out first, because it would keep its locks."""
        try:
            if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
                self._pool.clear()  # on a silent server each idle connection would cost another timeout
                await self._roll_back(connection)
        finally:
            self.discard(connection)

    async def begin(self) -> "ServerSession[C]":
        until = time.monotonic() + RETRY_SEC
        while True:
            connection = await self._acquire(until)
            try:
                await self.begin_on(connection)
                return ServerSession(self, connection)
            except BaseException as error:
                try:
                    await self._part_with(connection, error)
                finally:
                    self._pool.release(connection)
                if not isinstance(error, Exception):
                    raise
                if self.fault(error) in (Fault.CONFLICT, Fault.REFUSED) or time.monotonic() > until:
                    raise self.translate(error) from error

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[C]:
        connection = await self._acquire(time.monotonic() + RETRY_SEC)
        try:
            yield connection
        except asyncio.CancelledError:
            await self._roll_back(connection)
            raise
        except StorageError:
            raise
        except Exception as error:
            if self.fault(error) is Fault.LOST:  # it may have written something
                await self._part_with(connection, error)
                raise CommitUnknownError(
                    "the connection was lost during a statement, so its writes may or may not exist: "
                    "read them back before you retry"
                ) from error
            raise self.translate(error) from error
        finally:
            self._pool.release(connection)

    def executor(self) -> Executor:
        return _OnPool(self)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Script]:
        connection = await self.connect()
        try:
            yield _Bare(self, connection)
        except SchemaError as error:
            await self._part_with(connection, error)
            cause = error.__cause__
            if isinstance(cause, Exception) and self.fault(cause) in (Fault.LOST, Fault.UNSENT):  # no fault of a table
                raise self.translate(cause) from cause
            raise
        finally:
            self.discard(connection)


class _OnPool(Rows, Generic[C]):
    """Run a caller's own SQL outside a transaction; every statement commits by itself."""

    native = None

    def __init__(self, backend: ServerBackend[C]) -> None:
        self._backend = backend

    async def execute(self, query: str, *args: object) -> int:
        async with self._backend._borrowed() as connection:
            return await self._backend.execute_on(connection, query, args)

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        async with self._backend._borrowed() as connection:
            return await self._backend.fetch_on(connection, query, args)


class _Bare(Generic[C]):
    """Run statements unchanged, for migrations; the driver's errors are not translated."""

    def __init__(self, backend: ServerBackend[C], connection: C) -> None:
        self._backend, self._connection = backend, connection

    async def execute(self, sql: str) -> None:
        await self._backend.execute_on(self._connection, sql)

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return await self._backend.fetch_on(self._connection, sql)


class ServerSession(Rows, Generic[C]):
    """Hold an open transaction on a connection of its own."""

    def __init__(self, backend: ServerBackend[C], connection: C) -> None:
        self._backend = backend
        self._connection: C | None = connection
        self._failed: StorageError | None = None
        self._since = time.monotonic()  # when the last answer came
        self._native_used = False  # the caller has the native connection, whose statements are not seen here

    @property
    def native(self) -> Any:
        connection, self._since, self._native_used = self._usable(), math.inf, True
        return connection

    def _check_idle_timeout(self) -> None:
        """Give up a transaction that the server has ended or is about to: the outcome of a commit would be unknown."""
        if self._connection is not None and self._failed is None and self._backend.outlived(self._since):
            self._backend.discard(self._connection)
            self._failed = DatabaseUnavailableError(IDLE)

    def _usable(self) -> C:
        self._check_idle_timeout()
        if self._connection is None:
            raise TransactionError("the transaction has ended: begin a new one")
        if self._failed is not None:
            raise self._failed
        return self._connection

    async def execute(self, query: str, *args: object) -> int:
        connection = self._usable()
        with self._failing():
            count = await self._backend.execute_on(connection, query, args)
            self._check_open(connection)
        return count

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        connection = self._usable()
        with self._failing():
            rows = await self._backend.fetch_on(connection, query, args)
            self._check_open(connection)
        return rows

    def _check_open(self, connection: C) -> None:
        """Raise if a caller's own SQL has ended the transaction: later writes would be committed by themselves."""
        if not self._backend.within(connection):
            self._failed = TransactionError(ENDED)
            raise self._failed

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Translate a driver's errors; after some of them the server has no transaction any more."""
        try:
            yield
        except (StorageError, Again):
            raise
        except Exception as error:
            raise self._fail(error) from error
        finally:
            self._since = max(self._since, time.monotonic())

    async def operate(self, work: Work[T]) -> T:
        until = time.monotonic() + RETRY_SEC
        while True:
            try:
                return await self._operate(work)
            except Again as error:
                if time.monotonic() > until:
                    raise self._backend.translate(error) from error

    async def _operate(self, work: Work[T]) -> T:
        connection, backend = self._usable(), self._backend
        with self._failing():
            if work.single and not self._native_used:
                return await drive(work.start(), lambda call: backend.run_within(connection, call))
            await backend.execute_on(connection, "SAVEPOINT operation")
            self._check_open(connection)
            try:
                result = await drive(work.start(), lambda call: backend.run(connection, call))
                await backend.execute_on(connection, "RELEASE SAVEPOINT operation")
            except Exception as error:
                if isinstance(error, StorageError | Again) or backend.fault(error) is Fault.REFUSED:
                    await backend.execute_on(connection, "ROLLBACK TO SAVEPOINT operation")
                raise
            return result

    def _fail(self, error: Exception) -> StorageError:
        """Record why the transaction cannot continue, so that every later call raises the same error."""
        fault = self._backend.fault(error)
        if fault is Fault.CONFLICT:
            self._failed = TransactionConflictError(
                "the database aborted this transaction (deadlock or lock timeout): roll it back and run it again"
            )
        elif fault in (Fault.LOST, Fault.UNSENT):
            self._failed = DatabaseUnavailableError("the connection was lost, so the transaction was rolled back")
        else:
            return self._backend.translate(error)
        return self._failed

    async def savepoint(self, depth: int) -> None:
        await self.execute(f"SAVEPOINT level{depth}")

    async def release(self, depth: int) -> None:
        await self.execute(f"RELEASE SAVEPOINT level{depth}")

    async def rollback_to(self, depth: int) -> None:
        try:
            await self.execute(f"ROLLBACK TO SAVEPOINT level{depth}")
        except StorageError as error:  # its writes are still there and must not be committed
            self._failed = self._failed or error

    async def commit(self) -> None:
        self._check_idle_timeout()
        if self._native_used and self._failed is None and self._connection is not None:
            try:
                await self.execute("SAVEPOINT open_check")  # the answer shows whether a transaction is open
            except StorageError as error:
                self._failed = error
        if self._failed is not None:
            await self.rollback()
            raise self._failed
        connection = self._usable()
        alive = self._backend.alive(connection)
        try:
            await self._backend.commit_on(connection)
        except StorageError:
            raise
        except Exception as error:
            if alive and self._backend.fault(error) is Fault.LOST:
                await self._backend._part_with(connection, error)
                raise CommitUnknownError(
                    "the connection was lost during the commit, so the writes may or may not exist: read them back"
                ) from error
            await self._backend._roll_back(connection)
            raise self._fail(error) from error
        except BaseException:
            await self._backend._roll_back(connection)
            raise
        finally:
            self._connection = None
            self._backend._pool.release(connection)

    async def rollback(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await self._backend._roll_back(connection)
        finally:
            self._backend._pool.release(connection)
