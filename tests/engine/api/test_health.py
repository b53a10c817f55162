"""Health: late work and missing migrations."""

from datetime import timedelta
from pathlib import Path

import pytest

from perdure import App, Client
from perdure.errors import StorageError
from perdure.storage.stores import SQLiteStorage, shift_clock
from tests.engine.api.workflows import simple
from tests.support.storages import Database, storage_of


@pytest.mark.call("observe")
async def test_health_reports_how_late_work_is(database: Database) -> None:
    async with App(database.url, workflows=[]) as app:
        health = await app.health()
        assert (health.ok, health.database, health.migrations, health.oldest_due_sec) == (True, True, True, None)
        assert health.tasks
        await simple.start("x")
        shift_clock(storage_of(app), timedelta(seconds=90))
        oldest = (await app.health()).oldest_due_sec
        assert oldest is not None
        assert 80 < oldest < 120


@pytest.mark.call("observe")
async def test_health_reports_missing_migrations(database: Database) -> None:
    async with App(database.url, workflows=[]) as client:
        ledger = "schema_migrations WHERE version = '20261117000000'"
        await client._storage.db().execute(f"DELETE FROM {ledger}")
        try:
            health = await client.health()
            assert (health.ok, health.database, health.migrations) == (False, True, False)
        finally:
            await client._storage.db().execute("INSERT INTO schema_migrations (version) VALUES ('20261117000000')")


async def test_health_of_a_database_that_is_only_read(tmp_path: Path) -> None:
    path = str(tmp_path / "test.db")
    async with Client(f"sqlite:///{path}") as client:
        await simple.start("x")
        assert (await client.health()).ok
    async with SQLiteStorage(path, read_only=True) as storage, Client(storage) as client:
        health = await client.health()
        assert (health.database, health.migrations) == (True, True)
        with pytest.raises(StorageError, match="readonly"):
            await storage.db().execute("DELETE FROM workflow_instances")
