"""The tables, columns and their order come from the database itself."""

from pathlib import Path

import pytest

from perdure.copying.catalog import read_tables
from perdure.copying.database import Database
from perdure.storage.stores import open_storage
from tests.support.databases import DATABASES

LISTED = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    "postgresql": "SELECT tablename::text FROM pg_tables WHERE schemaname = 'perdure'",
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
}


@pytest.mark.parametrize("backend", DATABASES)
async def test_every_table_of_the_schema_is_copied_after_those_it_refers_to(
    backend: str, fresh_postgres_db: str, fresh_mysql_db: str, tmp_path: Path
) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path}/new.db", "postgresql": fresh_postgres_db, "mysql": fresh_mysql_db}
    url = urls[backend]  # it has no tables of other tests
    async with open_storage(url) as storage:
        tables = await read_tables(Database(url, storage))
        existing = {name for (name,) in await storage.db().fetch(LISTED[backend])}
    assert set(tables) == existing - {"schema_migrations"}
    names = list(tables)
    for name, table in tables.items():
        assert all(names.index(other) < names.index(name) for other in table.references - {name})
        assert table.key
    instances = tables["workflow_instances"]
    assert instances.own_references == ("continued_from",)
    assert {"finished_at", "claimable_at"}.isdisjoint(instances.columns), "generated columns are not copied"
