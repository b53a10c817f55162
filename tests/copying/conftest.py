"""Databases that tests of copies use."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from perdure.copying.database import Database
from perdure.copying.guarding import release
from perdure.storage.stores import open_migrated
from tests.conftest import BackendDatabase

OpenURL = Callable[[str], AbstractAsyncContextManager[str]]


@pytest.fixture
def empty_database(backend_database: BackendDatabase) -> OpenURL:
    """A function that returns the URL of an empty, migrated database of a backend, which can be used again later."""

    @asynccontextmanager
    async def opened(backend: str) -> AsyncIterator[str]:
        async with backend_database(backend) as database:
            try:
                yield database.url
            finally:
                if backend != "sqlite":  # other tests use the same database of the server
                    async with open_migrated(database.url) as storage:
                        await release(Database(database.url, storage))

    return opened


@pytest.fixture
async def pair(request: pytest.FixtureRequest, empty_database: OpenURL) -> AsyncIterator[tuple[str, str]]:
    """The URLs of two empty databases, by default two files of SQLite."""
    backends: tuple[str, str] = getattr(request, "param", ("sqlite", "sqlite"))
    folder: Path = request.getfixturevalue("tmp_path")
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(empty_database(backends[0]))
        if backends[0] == backends[1]:
            yield source, f"sqlite:///{folder}/target.db"
        else:
            yield source, await stack.enter_async_context(empty_database(backends[1]))
