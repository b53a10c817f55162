"""Waits of an earlier version are migrated to their own table, and back."""

from datetime import datetime

import pytest

from perdure.storage.migrations import migrate, up_statements, versions
from perdure.storage.stores import open_storage
from tests.storage.migrations.databases import Database
from tests.storage.migrations.test_crash import SETUP, crashes, recorded
from tests.storage.migrations.test_dbmate import dbmate

WAITS = "20261116000000"
WAITING = "channel_subscriptions (instance_id, channel, mode, activity_id, timeout_at, framework, cursor_message_id)"

# Two waits of one instance, one of them timed; one of another; the same activity twice; nothing; a relative's.
ROWS = (
    "INSERT INTO workflow_definitions (workflow_name, source_hash, source_code) VALUES ('w', 'h', '')",
    *(
        "INSERT INTO workflow_instances "
        "(instance_id, workflow_name, source_hash, owner_service, input_data, framework, status) "
        f"VALUES ('{name}', 'w', 'h', 'o', '{{}}', '{framework}', 'waiting_for_message')"
        for name, framework in (("i", "perdure"), ("j", "perdure"), ("edda", "python"))
    ),
    f"INSERT INTO {WAITING} VALUES ('i', 'd', 'broadcast', 'b', NULL, 'perdure', 5)",
    f"INSERT INTO {WAITING} VALUES ('i', 'c', 'competing', 'a', '2030-01-01 00:00:00.123456', 'perdure', 0)",
    f"INSERT INTO {WAITING} VALUES ('j', 'd', 'broadcast', 'a', NULL, 'perdure', 0)",
    f"INSERT INTO {WAITING} VALUES ('j', 'e', 'broadcast', 'a', NULL, 'perdure', 0)",
    f"INSERT INTO {WAITING} VALUES ('j', 'f', 'broadcast', NULL, NULL, 'perdure', 0)",
    f"INSERT INTO {WAITING} VALUES ('edda', 'd', 'broadcast', 'a', '2030-01-01 00:00:00.123456', 'python', 0)",
)
MOVED = [("i", "b", "d", None, None), ("i", "a", "c", None, "2030"), ("j", "a", "d", None, None)]


async def before(database: Database) -> None:
    """A database of the version before, with waits."""
    older = [migration for migration in up_statements(database.dialect) if migration.version < WAITS]
    for migration in older:
        await database.execute(*migration.statements)
    await database.execute("CREATE TABLE schema_migrations (version VARCHAR(128) PRIMARY KEY)")
    await database.execute(
        *(f"INSERT INTO schema_migrations VALUES ('{migration.version}')" for migration in older), *ROWS
    )


async def waits(database: Database) -> list[tuple[object, ...]]:
    rows = await database.fetch(
        "SELECT instance_id, activity_id, channel, match_key, timeout_at FROM perdure_waits ORDER BY id"
    )
    return [(*row[:4], row[4] and str(row[4])[:4]) for row in rows]


async def left(database: Database) -> list[tuple[object, ...]]:
    rows = await database.fetch(
        "SELECT instance_id, channel, activity_id FROM channel_subscriptions WHERE activity_id IS NOT NULL ORDER BY id"
    )
    return [tuple(row) for row in rows]


async def test_waits_are_migrated_in_order_and_those_of_other_frameworks_stay(database: Database) -> None:
    await before(database)
    assert await database.migrate() == [version for version in versions(database.dialect) if version >= WAITS]
    assert await database.schema() == await database.finished_schema()
    assert await waits(database) == MOVED
    assert await left(database) == [("edda", "d", "a")]
    cursors = await database.fetch("SELECT cursor_message_id FROM channel_subscriptions ORDER BY id")
    assert [cursor for (cursor,) in cursors] == [5, 0, 0, 0, 0, 0]


async def test_waits_from_before_the_migration_are_delivered(database: Database) -> None:
    await before(database)
    url = database.url.replace("sqlite://", "sqlite:///") if database.dialect == "sqlite" else database.url
    async with open_storage(url) as storage:
        assert await storage.next_due_at() == datetime.fromisoformat("2030-01-01T00:00:00.123456+00:00")
        for channel in "cde":
            await storage.publish_to_channel(channel, b"1")
        found = [(each.instance_id, each.channel, each.activity_id) for each in await storage.deliver_pending()]
        assert found == [("edda", "d", "a"), ("j", "d", "a"), ("i", "c", "a")]  # the other of `i` has had more


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
async def test_crash_after_any_statement_loses_no_wait(database: Database) -> None:
    await before(database)
    done, statements = await recorded(database), 1
    while await crashes(database, statements):
        now = await recorded(database)
        statements, done = (SETUP + 1, now) if now > done else (statements + 1, done)
    assert await database.schema() == await database.finished_schema()
    assert await waits(database) == MOVED
    assert await left(database) == [("edda", "d", "a")]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
async def test_crash_before_the_commit_keeps_the_old_waits(database: Database) -> None:
    await before(database)
    known = await left(database)
    statements = 1
    while await crashes(database, statements) and await recorded(database) != len(versions(database.dialect)):
        assert await left(database) == known
        statements += 1
    assert statements > len(up_statements(database.dialect)[-1].statements)
    assert await waits(database) == MOVED


async def test_dbmate_migrates_waits_back_and_forth(database: Database) -> None:
    await before(database)
    async with database.connect() as connection:
        await migrate(connection, database.dialect)
    await database.execute(
        "INSERT INTO perdure_waits (instance_id, activity_id, channel, match_key) VALUES ('i', 'second', 'd', 'k')"
    )
    while WAITS in [version for (version,) in await database.fetch("SELECT version FROM schema_migrations")]:
        dbmate(database, "rollback")
    assert await left(database) == [("i", "d", "b"), ("i", "c", "a"), ("j", "d", "a"), ("edda", "d", "a")]
    assert "perdure_waits" not in await database.tables()
    dbmate(database, "migrate")
    assert await waits(database) == MOVED
