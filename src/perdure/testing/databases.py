"""The databases of test Apps: what a test leaves behind must not affect the next one."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit
from uuid import uuid4

from perdure.database.dialects import new_driver
from perdure.database.secret import Secret
from perdure.engine.api.database import Database
from perdure.storage.contract import Storage
from perdure.storage.stores import connected, open_storage


class TestDatabase(Database):
    """Opens the database of a test App: on a server, a new and empty one, which is dropped at the end.

    On PostgreSQL that is a schema, on MySQL a database.
    """

    __test__ = False

    def open(self) -> AbstractAsyncContextManager[Storage]:
        """Return the given storage, or one on the URL."""
        return super().open() if not self.url or self._dialect() == "sqlite" else self._open_new()

    def open_another(self, opened: Storage) -> AbstractAsyncContextManager[Storage]:
        """Return the storage that is open: the heartbeat of a test App is a task of the same event loop."""
        return _borrowed(opened)

    def _dialect(self) -> str:
        return new_driver(self.url).driver_name()

    @asynccontextmanager
    async def _open_new(self) -> AsyncIterator[Storage]:
        name, is_mysql = f"perdure_test_{uuid4().hex[:16]}", self._dialect() == "mysql"
        if is_mysql:
            await self._execute(f"CREATE DATABASE {name}")
        try:
            async with open_storage(self._with_database(name) if is_mysql else self._with_schema(name)) as storage:
                yield storage
        finally:
            await self._execute(f"DROP DATABASE {name}" if is_mysql else f"DROP SCHEMA IF EXISTS {name} CASCADE")

    def _with_database(self, name: str) -> str:
        return Secret(urlsplit(self.url)._replace(path=f"/{name}").geturl())

    def _with_schema(self, name: str) -> str:
        parts = urlsplit(self.url)
        kept = [each for each in parts.query.split("&") if each and not each.startswith("schema=")]
        return Secret(parts._replace(query="&".join([*kept, f"schema={name}"])).geturl())

    async def _execute(self, statement: str) -> None:
        async with connected(self.url) as database:
            await database.execute(statement)


@asynccontextmanager
async def _borrowed(storage: Storage) -> AsyncIterator[Storage]:
    yield storage
