"""Hold a caller's transaction open on SQLite, and run a caller's own SQL."""

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from perdure.database.backends.base import Rows
from perdure.database.backends.sqlite.commits import commit_or_end
from perdure.database.backends.sqlite.jobs import Job, OpenTransaction
from perdure.database.backends.sqlite.operations import Operations
from perdure.database.backends.sqlite.writer import Writer
from perdure.database.dialects.sqlite import SQLiteDriver
from perdure.database.operation import Work
from perdure.errors import StorageError, TransactionError

T = TypeVar("T")


class OwnSQL(Rows):
    """Run a caller's own SQL with `?` placeholders."""

    async def _do(self, run: Callable[[sqlite3.Connection], T]) -> T:
        raise NotImplementedError

    async def execute(self, query: str, *args: object) -> int:
        return await self._do(lambda connection: connection.execute(query, args).rowcount)

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        return await self._do(lambda connection: connection.execute(query, args).fetchall())


class WriterExecutor(OwnSQL):
    """Run every statement in a transaction of its own, on the writer; without one if the database is only read."""

    native = None

    def __init__(self, writer: Writer, *, read_only: bool) -> None:
        self._writer = writer
        self._read_only = read_only

    async def _do(self, run: Callable[[sqlite3.Connection], T]) -> T:
        return await self._writer.submit(Job(run, bare=self._read_only))


class ScriptExecutor:
    """Run statements unchanged, for migrations; the driver's errors are not translated."""

    def __init__(self, do: Callable[[Callable[[sqlite3.Connection], Any]], Awaitable[Any]]) -> None:
        self._do = do

    async def execute(self, sql: str) -> None:
        await self.fetch(sql)

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            rows: list[tuple[Any, ...]] = await self._do(lambda connection: connection.execute(sql).fetchall())
        except StorageError as error:
            raise error.__cause__ or error from None
        return rows


class SQLiteSession(OwnSQL):
    """Hold an open transaction, and with it the writer and the whole file."""

    def __init__(self, operations: Operations, transaction: OpenTransaction) -> None:
        self._operations = operations
        self._transaction = transaction
        self._failed: StorageError | None = None

    @property
    def driver(self) -> SQLiteDriver:
        return self._operations.driver

    @property
    def native(self) -> Any:
        return self._transaction.connection

    async def _do(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if self._failed is not None:
            raise self._failed
        if self._transaction.ended:
            raise TransactionError("the transaction has ended: begin a new one")
        job: Job[T] = Job(run)
        self._transaction.commands.put(job)
        return await job.future

    async def operate(self, work: Work[T]) -> T:
        def run(connection: sqlite3.Connection) -> T:
            connection.execute("SAVEPOINT operation")
            try:
                result = self._operations.run(connection, work)
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
        if self._transaction.ended:  # SQLite has rolled back everything already
            return
        try:
            await self.execute(f"ROLLBACK TO level{depth}")
            await self.release(depth)
        except StorageError as error:  # a cancelled release took effect: the level's writes must not be committed
            self._failed = self._failed or error

    async def commit(self) -> None:
        if self._failed is not None:
            await self.rollback()
        await self._do(commit_or_end)

    async def rollback(self) -> None:
        if not self._transaction.ended:
            self._transaction.commands.put(None)
