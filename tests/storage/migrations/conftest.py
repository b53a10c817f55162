from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.storage.migrations.databases import Database
from tests.support.databases import fresh_mysql, fresh_postgres


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database, of each kind in turn."""
    if request.param == "sqlite":
        yield Database("sqlite", f"sqlite://{tmp_path / 'test.db'}")
    elif request.param == "postgresql":
        async with fresh_postgres(request.getfixturevalue("postgres_url")) as url:
            yield Database("postgresql", url)
    else:
        async with fresh_mysql(request.getfixturevalue("mysql_url")) as url:
            yield Database("mysql", url)
