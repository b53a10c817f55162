"""Run plain SQL on a server: a caller's own outside a transaction, and the statements of migrations."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from perdure.database.backends.base import Rows
from perdure.database.backends.server.adapter import Adapter

C = TypeVar("C")


class PoolExecutor(Rows, Generic[C]):
    """Run a caller's own SQL outside a transaction; every statement commits separately."""

    native = None

    def __init__(self, adapter: Adapter[C], borrow: Callable[[], AbstractAsyncContextManager[C]]) -> None:
        self._adapter, self._borrow = adapter, borrow

    async def execute(self, query: str, *args: object) -> int:
        async with self._borrow() as connection:
            return await self._adapter.execute_on(connection, query, args)

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        async with self._borrow() as connection:
            return await self._adapter.fetch_on(connection, query, args)


class ScriptExecutor(Generic[C]):
    """Run statements unchanged, for migrations; the driver's errors are not translated."""

    def __init__(self, adapter: Adapter[C], connection: C) -> None:
        self._adapter, self._connection = adapter, connection

    async def execute(self, sql: str) -> None:
        await self._adapter.execute_on(self._connection, sql)

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return await self._adapter.fetch_on(self._connection, sql)
