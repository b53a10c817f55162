"""The real Edda on the tables of perdure, and perdure on the tables and rows of Edda."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.resources import files as resources
from typing import Any

import pytest
from edda.storage.sqlalchemy_storage import Base, SQLAlchemyStorage
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine

from perdure.errors import SchemaError
from perdure.storage.migrations import files, migrate, versions
from tests.storage.migrations.databases import EDDA_VERSION, Database

DRIVERS = {"sqlite": "sqlite+aiosqlite:/", "postgresql": "postgresql+asyncpg:", "mysql": "mysql+asyncmy:"}


@asynccontextmanager
async def edda(database: Database) -> AsyncIterator[Any]:
    """Edda's storage, initialized as its application does, in sessions nine hours ahead of UTC."""
    address = database.url.partition(":")[2]
    arguments: dict[str, Any] = {}
    if database.dialect == "postgresql":
        arguments = {"server_settings": {"timezone": "Asia/Tokyo"}}
    elif database.dialect == "mysql":
        arguments = {"init_command": "SET time_zone = '+09:00'"}
    engine = create_async_engine(DRIVERS[database.dialect] + address, connect_args=arguments)
    storage = SQLAlchemyStorage(engine)
    try:
        await _initialized(storage)
        yield storage
    finally:
        await storage.close()


async def _initialized(storage: Any) -> None:
    """Start as Edda does. Its lock is the server's: while another test has it, it starts without tables."""
    for _ in range(10):
        try:
            await storage.initialize()
            return
        except ProgrammingError as error:
            if "schema_version" not in str(error):
                raise
    pytest.fail("Edda did not get its migration lock")


async def fill(storage: Any, prefix: str) -> None:
    """Write something into each of the tables that Edda writes to."""
    instance, other, soon = f"{prefix}-1", f"{prefix}-2", datetime.now(UTC) + timedelta(hours=1)
    await storage.upsert_workflow_definition("Order", "hash", "source ' ; --")
    await storage.create_instance(instance, "Order", "hash", "shop", {"n": 1}, lock_timeout_seconds=30)
    await storage.create_instance(other, "Order", "hash", "shop", {"n": 2}, continued_from=instance)
    await storage.append_history(instance, "pay:1", "ActivityCompleted", {"result": "ü€"})
    await storage.append_history(instance, "pay:2", "ActivityCompleted", b"\x00\xff")
    await storage.append_history(other, "pay:1", "ActivityCompleted", {"result": 2})
    assert await storage.archive_history(other) == 1
    await storage.push_compensation(instance, "pay:1", "refund", {"n": 1})
    assert await storage.try_acquire_lock(instance, "worker")
    await storage.register_timer_subscription_and_release_lock(instance, "worker", "timer", soon, "sleep:1")
    await storage.join_group(instance, "crew")
    await storage.add_outbox_event(f"{prefix}-event", "paid", "shop", {"n": 1})
    await storage.subscribe_to_channel(other, "news", "broadcast")
    message = await storage.publish_to_channel("news", {"n": 1}, {"from": "test"})
    assert await storage.claim_channel_message(message, instance)
    assert await storage.try_acquire_lock(other, "worker")
    await storage.register_channel_receive_and_release_lock(other, "worker", "news", "receive:1", 60)
    assert await storage.try_acquire_system_lock(f"{prefix}-cleanup", "worker")


async def check(storage: Any, prefix: str) -> None:
    """Read through Edda what `fill` wrote."""
    instance, other = f"{prefix}-1", f"{prefix}-2"
    found = await storage.get_instance(instance)
    assert (found["status"], found["input_data"]) == ("waiting_for_timer", {"n": 1})
    assert (await storage.get_instance(other))["status"] == "waiting_for_message"
    history = await storage.get_history(instance)
    assert {event["activity_id"]: event["event_data"] for event in history} == {
        "pay:1": {"result": "ü€"},
        "pay:2": b"\x00\xff",
    }
    assert [row["activity_name"] for row in await storage.get_compensations(instance)] == ["refund"]
    assert instance in await storage.get_group_members("crew")
    assert other in [row["instance_id"] for row in await storage.get_channel_subscribers_waiting("news")]
    assert {row["instance_id"] for row in (await storage.list_instances())["instances"]} >= {instance, other}
    assert await storage.release_system_lock(f"{prefix}-cleanup", "worker") is None


async def snapshot(database: Database, columns: dict[str, list[str]]) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the given columns, times as times."""

    def plain(value: object) -> object:
        if isinstance(value, str) and database.dialect == "sqlite" and value[4:5] == value[7:8] == "-":
            return datetime.fromisoformat(value)
        return value

    return {
        table: [tuple(plain(value) for value in row) for row in await database.rows(table, names)]
        for table, names in columns.items()
    }


async def test_a_database_of_edda_is_adopted_with_its_rows(database: Database) -> None:
    async with edda(database) as storage:
        await fill(storage, "before")
    tables = set(await database.tables()) - {"schema_migrations"}
    columns = {table: await database.columns(table) for table in tables}
    before = await snapshot(database, columns)
    assert {table for table, rows in before.items() if not rows} == {"channel_delivery_cursors"}

    async with database.connect(zone=True) as connection:
        assert await migrate(connection, database.dialect) == versions(database.dialect)[1:]

    assert await snapshot(database, columns) == before
    async with edda(database) as storage:
        await check(storage, "before")
        await fill(storage, "after")
        await check(storage, "after")
    assert await database.schema() == await database.finished_schema()


async def test_edda_starts_on_our_tables(database: Database) -> None:
    await database.migrate()
    before = await database.schema()
    async with edda(database) as storage:
        await fill(storage, "on-ours")
        await check(storage, "on-ours")
    assert await database.schema() == before
    assert await database.migrate() == []


async def test_tables_from_before_edda_had_migrations_are_refused(database: Database) -> None:
    """They differ in more than a column, and the ledger does not show it: Edda still uses them and records its file."""
    engine = create_async_engine(DRIVERS[database.dialect] + database.url.partition(":")[2])
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()
    async with edda(database):
        before = await database.schema()
    with pytest.raises(SchemaError, match="data_type"):
        await database.migrate()
    assert await database.schema() == before


async def test_first_migration_is_that_of_edda(database: Database) -> None:
    theirs = resources("edda") / "migrations" / database.dialect / f"{EDDA_VERSION}_initial_schema.sql"
    up = files._UP.search(theirs.read_text())
    assert up is not None
    await database.create_edda_tables()
    async with database.another() as other:
        await other.execute(*files.split(up[1]))
        assert await database.schema() == await other.schema()
