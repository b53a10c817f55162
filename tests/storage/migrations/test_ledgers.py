"""Other migration tools in the same database: their ledgers are not changed, and perdure finds its own."""

from pathlib import Path

import pytest

from perdure.errors import SchemaError
from perdure.model.records import WorkflowInstance
from perdure.storage.migrations import tables, up_statements, versions
from perdure.storage.stores import open_storage
from tests.storage.migrations.databases import Database, Row
from tests.storage.migrations.other_tools import ECTO, RAILS, TOOLS

OWN = "perdure_schema_migrations"
SHARED = [name for name, (_, ledger) in TOOLS.items() if ledger == "schema_migrations"]

_SHAPE = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = '{table}' ORDER BY name",
    "postgresql": "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull::text, "
    "array(SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = a.attrelid)::text "
    "FROM pg_attribute a WHERE a.attrelid = 'public.{table}'::regclass AND a.attnum > 0 ORDER BY a.attnum",
    "mysql": "SHOW CREATE TABLE {table}",
}


def url_of(database: Database, schema: str = "own") -> str:
    """A storage's URL; on PostgreSQL with our tables in a schema of their own, or beside the tool's."""
    if database.dialect == "sqlite":
        return database.url.replace("sqlite://", "sqlite:///")
    return f"{database.url}?schema=public" if database.dialect == "postgresql" and schema == "public" else database.url


async def snapshot(database: Database, ledger: str) -> tuple[list[Row], list[Row]]:
    """All of a ledger: its definition and its rows."""
    table = f"public.{ledger}" if database.dialect == "postgresql" else ledger
    rows = await database.fetch(f"SELECT * FROM {table}")
    return await database.fetch(_SHAPE[database.dialect].format(table=ledger)), sorted(rows, key=str)


async def use(url: str, name: str) -> None:
    """Open a storage, write, and read back."""
    async with open_storage(url) as storage:
        await storage.create_instance(WorkflowInstance(name, "wf"))
        found = await storage.get_instance(name)
        assert found is not None
        assert found.workflow_name == "wf"


async def recorded(database: Database, ledger: str) -> list[str]:
    return sorted(str(version) for (version,) in await database.fetch(f"SELECT version FROM {ledger}"))


@pytest.mark.parametrize(
    ("database", "schema"),
    [("sqlite", "public"), ("postgresql", "own"), ("postgresql", "public"), ("mysql", "public")],
    indirect=["database"],
)
@pytest.mark.parametrize("name", TOOLS)
async def test_ledger_of_another_tool_is_not_changed(
    database: Database, schema: str, name: str, tmp_path: Path
) -> None:
    tool, ledger = TOOLS[name]
    await tool(database, tmp_path)
    before = await snapshot(database, ledger)
    await use(url_of(database, schema), "first")
    await use(url_of(database, schema), "second")
    assert await snapshot(database, ledger) == before
    place = "public" if schema == "public" else "perdure"
    ours = OWN if schema == "public" and ledger == "schema_migrations" else "schema_migrations"
    ours = f"{place}.{ours}" if database.dialect == "postgresql" else ours
    assert await recorded(database, ours) == versions(database.dialect)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", TOOLS)
async def test_another_tool_can_be_added_later_on_postgresql(database: Database, name: str, tmp_path: Path) -> None:
    tool, ledger = TOOLS[name]
    await use(url_of(database), "first")
    await tool(database, tmp_path)
    before = await snapshot(database, ledger)
    await use(url_of(database), "second")
    assert await snapshot(database, ledger) == before


@pytest.mark.parametrize("name", [name for name in TOOLS if name not in SHARED])
async def test_tool_with_another_ledger_name_can_be_added_later(database: Database, name: str, tmp_path: Path) -> None:
    tool, ledger = TOOLS[name]
    await use(url_of(database, "public"), "first")
    await tool(database, tmp_path)
    before = await snapshot(database, ledger)
    await use(url_of(database, "public"), "second")
    assert await snapshot(database, ledger) == before


@pytest.mark.parametrize("name", SHARED)
async def test_tool_with_the_same_ledger_name_can_be_added_after_a_rename(
    database: Database, name: str, tmp_path: Path
) -> None:
    tool, ledger = TOOLS[name]
    url = url_of(database, "public")
    await use(url, "first")
    place = "public." if database.dialect == "postgresql" else ""
    await database.execute(f"ALTER TABLE {place}schema_migrations RENAME TO {OWN}")
    if database.dialect == "postgresql":  # an index is renamed separately
        await database.execute(f"ALTER INDEX public.schema_migrations_pkey RENAME TO {OWN}_pkey")
    await tool(database, tmp_path)
    before = await snapshot(database, ledger)
    await use(url, "second")
    assert await snapshot(database, ledger) == before
    assert await recorded(database, place + OWN) == versions(database.dialect)


async def test_upgrade_beside_another_tool_is_recorded_in_our_own_ledger(database: Database) -> None:
    older = up_statements(database.dialect)[:-1]
    place = "public." if database.dialect == "postgresql" else ""
    await database.execute(
        *RAILS[database.dialect],
        *(statement for migration in older for statement in migration.statements),
        f"CREATE TABLE {place}{OWN} (version VARCHAR(128) PRIMARY KEY)",
        *(f"INSERT INTO {place}{OWN} (version) VALUES ('{each.version}')" for each in older),
    )
    before = await snapshot(database, "schema_migrations")
    await use(url_of(database), "first")
    assert await snapshot(database, "schema_migrations") == before
    assert await recorded(database, place + OWN) == versions(database.dialect)


@pytest.mark.parametrize("name", ["rails", "ecto"])
async def test_versions_recorded_in_another_ledger_by_an_earlier_release_count(database: Database, name: str) -> None:
    """Until now the rows went into whatever `schema_migrations` there was."""
    older = up_statements(database.dialect)[:-1]
    place = "public." if database.dialect == "postgresql" else ""
    ddl = {"rails": RAILS, "ecto": ECTO}[name]
    await database.execute(
        *ddl[database.dialect],
        *(statement for migration in older for statement in migration.statements),
        *(f"INSERT INTO {place}schema_migrations (version) VALUES ('{each.version}')" for each in older),
    )
    before = await snapshot(database, "schema_migrations")
    await use(url_of(database), "first")
    assert await database.schema() == await database.finished_schema()
    if name == "ecto":
        assert await snapshot(database, "schema_migrations") == before
        assert await recorded(database, place + OWN) == versions(database.dialect)
    else:
        assert await recorded(database, f"{place}schema_migrations") == versions(database.dialect)


@pytest.mark.parametrize("table", ["workflow_instances", "schema_version", "perdure_workers"])
async def test_foreign_table_is_reported_before_anything_is_written(database: Database, table: str) -> None:
    place = "public." if database.dialect == "postgresql" else ""
    await database.execute(f"CREATE TABLE {place}{table} (id INTEGER PRIMARY KEY, version INTEGER)")
    with pytest.raises(SchemaError, match=f"the table '{table}'.* is not perdure's.*Use another"):
        await use(url_of(database, "public"), "first")
    assert await database.tables() == [table]


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
async def test_ledger_is_recognized_after_a_crash_before_its_first_row(database: Database) -> None:
    first = up_statements("mysql")[0]
    await database.execute(*first.statements, "CREATE TABLE schema_migrations (version VARCHAR(128) PRIMARY KEY)")
    await use(url_of(database), "first")
    assert await recorded(database, "schema_migrations") == versions("mysql")
    assert set(await database.tables()) == {*tables("mysql"), "schema_migrations"}
