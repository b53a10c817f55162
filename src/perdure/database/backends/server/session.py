"""Hold a caller's transaction open on a connection to a server."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from perdure.database.backends.base import Rows, drive
from perdure.database.backends.server.adapter import Adapter
from perdure.database.backends.server.connections import Connections
from perdure.database.backends.server.retries import Attempts, Fault
from perdure.database.dialects.base import Rendering
from perdure.database.operation import Again, Work
from perdure.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    StorageError,
    TransactionConflictError,
    TransactionError,
)

C = TypeVar("C")
T = TypeVar("T")

ENDED = "the transaction has ended, through your own SQL or an error that was ignored: nothing more was written"
IDLE = "the transaction was idle for longer than idle_transaction_timeout and was rolled back: nothing was written"


class ServerSession(Rows, Generic[C]):
    """Hold an open transaction on a connection of its own."""

    def __init__(self, adapter: Adapter[C], connections: Connections[C], connection: C) -> None:
        self._adapter = adapter
        self._connections = connections
        self._connection: C | None = connection
        self._failed: StorageError | None = None
        self._since = time.monotonic()  # when the last answer came
        self._native_used = False  # the caller has the native connection, whose statements are not seen here

    @property
    def driver(self) -> Rendering:
        return self._adapter.driver

    @property
    def native(self) -> Any:
        connection, self._since, self._native_used = self._usable(), math.inf, True
        return connection

    def _check_idle_timeout(self) -> None:
        """Give up a transaction that the server has ended or is about to: the outcome of a commit would be unknown."""
        if self._connection is not None and self._failed is None and self._adapter.idle_too_long(self._since):
            self._adapter.discard(self._connection)
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
            count = await self._adapter.execute_on(connection, query, args)
            self._check_open(connection)
        return count

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        connection = self._usable()
        with self._failing():
            rows = await self._adapter.fetch_on(connection, query, args)
            self._check_open(connection)
        return rows

    def _check_open(self, connection: C) -> None:
        """Raise if a caller's own SQL has ended the transaction: each later write would be committed separately."""
        if not self._adapter.within(connection):
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
            raise self.fail(error) from error
        finally:
            self._since = max(self._since, time.monotonic())

    async def operate(self, work: Work[T]) -> T:
        attempts = Attempts()
        while True:
            try:
                return await self._operate(work)
            except Again as error:
                if attempts.are_over():
                    raise self._adapter.translate(error) from error

    async def _operate(self, work: Work[T]) -> T:
        connection, adapter = self._usable(), self._adapter
        with self._failing():
            if work.single and not self._native_used:
                return await drive(work.start(), lambda call: adapter.run_within(connection, call))
            await adapter.execute_on(connection, "SAVEPOINT operation")
            self._check_open(connection)
            try:
                result = await drive(work.start(), lambda call: adapter.run(connection, call))
                await adapter.execute_on(connection, "RELEASE SAVEPOINT operation")
            except Exception as error:
                if isinstance(error, StorageError | Again) or adapter.fault(error) is Fault.REFUSED:
                    await adapter.execute_on(connection, "ROLLBACK TO SAVEPOINT operation")
                raise
            return result

    def fail(self, error: Exception) -> StorageError:
        """Return a driver's error as one of ours; if it ended the transaction, every later call raises the same."""
        fault = self._adapter.fault(error)
        if fault is Fault.CONFLICT:
            self._failed = TransactionConflictError(
                "the database aborted this transaction (deadlock or lock timeout): roll it back and run it again"
            )
        elif fault in (Fault.LOST, Fault.UNSENT):
            self._failed = DatabaseUnavailableError("the connection was lost, so the transaction was rolled back")
        else:
            return self._adapter.translate(error)
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
        alive = self._adapter.alive(connection)
        try:
            await self._adapter.commit_on(connection)
        except StorageError:
            raise
        except Exception as error:
            if alive and self._adapter.fault(error) is Fault.LOST:
                await self._connections.discard_after(connection, error)
                raise CommitUnknownError(
                    "the connection was lost during the commit, so the writes may or may not exist: read them back"
                ) from error
            await self._connections.roll_back(connection)
            raise self.fail(error) from error
        except BaseException:
            await self._connections.roll_back(connection)
            raise
        finally:
            self._connection = None
            self._connections.release(connection)

    async def rollback(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await self._connections.roll_back(connection)
        finally:
            self._connections.release(connection)
