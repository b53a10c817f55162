"""What PostgreSQL and MySQL have in common: a pool, retries after lost races, and what a lost connection means.

A statement that was on its way when the connection broke may have happened or not. Before the commit was sent it did
not: the operation runs again. After that it is read back where the operation says how, run again where that changes
nothing, and else reported as `CommitUnknownError`; it is never blindly repeated.
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

ENDED = "the transaction has ended, by SQL of your own or an error that it did not heed: nothing more was written"
IDLE = "the transaction did nothing for longer than idle_transaction_timeout: it was rolled back, nothing was written"
RETRY_SEC = 15.0  # how long a lost race, or a server that is away, is tried again


class Fault(Enum):
    """What a driver's error means for the operation."""

    CONFLICT = "a deadlock or a failed serialization: nothing was written, try again"
    UNSENT = "the connection broke, or could not serve us, before this left: nothing was written, try again on another"
    LOST = "the connection broke"
    REFUSED = "the server answered with an error"


class Sent:
    """Whether a commit is on its way, or even answered; asked when the connection breaks."""

    __slots__ = ("answered", "commit")

    def __init__(self, commit: bool = False) -> None:
        self.commit = commit
        self.answered = False


class ServerBackend(Generic[C]):
    """The common half; a backend of one server adds how to talk to it."""

    driver: Rendering
    idle_sec: float | None = None  # after which the server ends a transaction that does nothing

    def __init__(self, pool_size: int, wait_sec: float) -> None:
        self._pool: Pool[C] = Pool(self.connect, self.reusable, self.discard, pool_size, wait_sec)

    # What a server's backend provides.

    async def connect(self) -> C:
        """A new connection, its session set up; `DatabaseUnavailableError` or `ConfigurationError` if it fails."""
        raise NotImplementedError

    def alive(self, connection: C) -> bool:
        """False once the connection is known to be closed."""
        raise NotImplementedError

    def discard(self, connection: C) -> None:
        """Close it without waiting."""
        raise NotImplementedError

    async def run(self, connection: C, call: Call) -> Any:
        """Run a call inside the open transaction."""
        raise NotImplementedError

    async def run_alone(self, connection: C, call: Call) -> Any:
        """Run a call as a transaction of its own."""
        raise NotImplementedError

    async def run_within(self, connection: C, call: Call) -> Any:
        """Run a call inside a caller's transaction: all of it, or nothing and an error."""
        return await self.run(connection, call)

    def within(self, connection: C) -> bool:
        """Whether a transaction is open, by the server's last answer."""
        raise NotImplementedError

    def reusable(self, connection: C) -> bool:
        """Alive, and no transaction left open by a caller's own SQL: the next user's writes would be part of it."""
        return self.alive(connection)

    async def execute_on(self, connection: C, query: str, args: tuple[object, ...] = ()) -> int:
        """Run a caller's own statement."""
        raise NotImplementedError

    async def fetch_on(self, connection: C, query: str, args: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a caller's own query."""
        raise NotImplementedError

    def fault(self, error: Exception) -> Fault:
        """What a driver's error means."""
        raise NotImplementedError

    def translate(self, error: Exception) -> StorageError:
        """A driver's error as one of ours."""
        raise NotImplementedError

    async def begin_on(self, connection: C) -> None:
        """Open a transaction."""
        await self.execute_on(connection, "BEGIN")

    async def commit_on(self, connection: C) -> None:
        """Commit it; `TransactionConflictError` if the server rolled it back instead."""
        await self.execute_on(connection, "COMMIT")

    async def rollback_on(self, connection: C) -> None:
        """Undo what is open, also after a statement that was cancelled half-way."""
        await self.execute_on(connection, "ROLLBACK")

    async def first(self, connection: C, call: Call) -> Any:
        """Open a transaction and run its first call; a server that can sends both at once."""
        await self.begin_on(connection)
        return await self.run(connection, call)

    # What follows from it.

    def outlived(self, since: float) -> bool:
        """Whether a transaction whose last answer came then has been ended by the server, or is about to be."""
        return self.idle_sec is not None and time.monotonic() - since > self.idle_sec

    async def open(self) -> None:
        self._pool.release(await self._pool.acquire())

    async def close(self) -> None:
        self._pool.close()

    async def _acquire(self, until: float) -> C:
        """A connection; a server that is restarting is waited for."""
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
                if fault in (Fault.LOST, Fault.UNSENT):  # however late: the next would meet what we met
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
                if fault in (Fault.LOST, Fault.UNSENT):  # however late: the next would meet what we met
                    await self._part_with(connection, error)
                if fault is Fault.REFUSED or (late and not unknown):
                    raise self.translate(error) from error
                if unknown and (late or not work.repeat):
                    unresolved = error
            finally:
                self._pool.release(connection)
            if unresolved is not None:  # only now: the pool may be full of callers who must read back
                return await self._resolve(work, unresolved)
            await asyncio.sleep(random.uniform(0, pause))  # nosec B311 # a pause
            pause = min(pause * 2, 0.25)

    async def _alone(self, connection: C, work: Work[T], sent: Sent) -> T:
        """Run an operation whose calls each are a transaction; `drive` spelled out, for this is the way of most."""
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
            if self.outlived(since):  # a commit that crosses the end of its session could not be told from a lost one
                self.discard(connection)
            sent.commit = self.alive(connection)
            await self.commit_on(connection)
        except BaseException:
            await self._roll_back(connection)
            raise
        return result

    async def _resolve(self, work: Work[T], error: Exception) -> T:
        """After a lost answer: what is there?"""
        if work.confirm is not None:
            try:
                found = await self.read(Work(work.confirm), bounded=True)
            except DatabaseUnavailableError:
                found = None
            if found is not None:
                return found
        raise CommitUnknownError(
            "the connection was lost while a write was being committed: read back before doing it again"
        ) from error

    async def _roll_back(self, connection: C) -> None:
        """Leave the connection clean, or throw it away; a cancellation is passed on only after that."""
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
        """Throw a connection away; a statement that ran out of time is stopped first, or it would keep its locks."""
        try:
            if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
                self._pool.clear()  # of a silent server each would cost a time-out of its own
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
                    "the connection was lost while a statement was on its way: read back before doing it again"
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
            if isinstance(cause, Exception) and self.fault(cause) in (Fault.LOST, Fault.UNSENT):  # of no table
                raise self.translate(cause) from cause
            raise
        finally:
            self.discard(connection)


class _OnPool(Rows, Generic[C]):
    """A caller's own SQL outside a transaction; every statement commits by itself."""

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
    """Statements as they come, for migrations; the driver's errors pass through."""

    def __init__(self, backend: ServerBackend[C], connection: C) -> None:
        self._backend, self._connection = backend, connection

    async def execute(self, sql: str) -> None:
        await self._backend.execute_on(self._connection, sql)

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return await self._backend.fetch_on(self._connection, sql)


class ServerSession(Rows, Generic[C]):
    """An open transaction on a connection of its own."""

    def __init__(self, backend: ServerBackend[C], connection: C) -> None:
        self._backend = backend
        self._connection: C | None = connection
        self._failed: StorageError | None = None
        self._since = time.monotonic()  # when the last answer came
        self._lent = False  # from then on not all that happens is seen here

    @property
    def native(self) -> Any:
        connection, self._since, self._lent = self._usable(), math.inf, True
        return connection

    def _look_at_the_clock(self) -> None:
        """Give up what the server has ended, or is about to: a commit could cross that, and nobody would know."""
        if self._connection is not None and self._failed is None and self._backend.outlived(self._since):
            self._backend.discard(self._connection)
            self._failed = DatabaseUnavailableError(IDLE)

    def _usable(self) -> C:
        self._look_at_the_clock()
        if self._connection is None:
            raise TransactionError("the transaction has ended")
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
        """A caller's own SQL may end the transaction: what follows would be committed by itself."""
        if not self._backend.within(connection):
            self._failed = TransactionError(ENDED)
            raise self._failed

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Every driver's error is judged here: after some the server has no transaction any more."""
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
            if work.single and not self._lent:
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
        """The transaction cannot go on: remember why, so that every later call says so."""
        fault = self._backend.fault(error)
        if fault is Fault.CONFLICT:
            self._failed = TransactionConflictError(
                "the database gave this transaction up (deadlock or lock time-out): roll it back and run it again"
            )
        elif fault in (Fault.LOST, Fault.UNSENT):
            self._failed = DatabaseUnavailableError("the connection was lost: the transaction was rolled back")
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
        except StorageError as error:  # what the level did is still there: nothing of it may be committed
            self._failed = self._failed or error

    async def commit(self) -> None:
        self._look_at_the_clock()
        if self._lent and self._failed is None and self._connection is not None:
            try:
                await self.execute("SAVEPOINT lent")  # whose answer says whether there is anything to commit
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
                    "the connection was lost while the transaction was being committed: read back what is there"
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
