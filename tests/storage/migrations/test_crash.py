"""A process that dies after any statement leaves a state that the next start repairs."""

import pytest

from perdure.storage.migrations import migrate, reset, up_statements, versions
from tests.storage.migrations.databases import TABLES, Connection, Database, Row

SETUP = 2  # statements of every MySQL start: the wait for tables in use, and the ledger


class CrashError(BaseException):
    """The process is gone: nothing in it handles this."""


class Crashing:
    """A session whose process dies after so many statements; what it tries then never reaches the database."""

    def __init__(self, session: Connection, statements: int) -> None:
        self._session, self._left = session, statements

    async def execute(self, sql: str) -> None:
        self._live()
        try:
            await self._session.execute(sql)
        finally:
            self._left -= 1
            self._live()

    async def fetch(self, sql: str) -> list[Row]:
        self._live()
        return await self._session.fetch(sql)

    def _live(self) -> None:
        if self._left == 0:
            raise CrashError


class Watched:
    """Record after each statement whether another connection can see a table."""

    def __init__(self, session: Connection, watcher: Connection) -> None:
        self._session, self._watcher = session, watcher
        self.seen: list[bool] = []

    async def execute(self, sql: str) -> None:
        await self._session.execute(sql)
        self.seen.append(bool(await self._watcher.fetch(TABLES["postgresql"])))

    async def fetch(self, sql: str) -> list[Row]:
        return await self._session.fetch(sql)


async def crashes(database: Database, statements: int) -> bool:
    """Die after so many statements; False if the migration needed fewer."""
    async with database.connect(zone=True) as connection:
        try:
            await migrate(Crashing(connection, statements), database.dialect)
        except CrashError:
            return True
    return False


async def recorded(database: Database) -> int:
    if "schema_migrations" not in await database.tables():
        return 0
    ((number,),) = await database.fetch("SELECT count(*) FROM schema_migrations")
    return int(number)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_crash_in_the_transaction_leaves_no_tables(database: Database) -> None:
    statements = 1
    while await crashes(database, statements) and not await database.tables():
        statements += 1
    assert statements > sum(len(migration.statements) for migration in up_statements(database.dialect))
    assert await database.migrate() == []
    assert await database.schema() == await database.finished_schema()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_no_table_is_visible_before_the_commit(database: Database) -> None:
    """What others can see is what a crash would leave, so one run, looked at after each statement, is them all."""
    for statements in (1, 2, 4, 5, 50):
        assert await crashes(database, statements)
        assert await database.tables() == []
    async with database.connect() as connection, database.connect() as watcher:
        watched = Watched(connection, watcher)
        assert await migrate(watched, database.dialect) == versions(database.dialect)
    assert watched.seen[:-1] == [False] * (len(watched.seen) - 1)
    assert len(watched.seen) > sum(len(migration.statements) for migration in up_statements(database.dialect))
    assert await database.schema() == await database.finished_schema()


FAMILY_ROWS = (
    "INSERT INTO workflow_definitions (workflow_name, source_hash, source_code) VALUES ('w', 'h', '')",
    """INSERT INTO workflow_instances (instance_id, workflow_name, source_hash, owner_service, input_data, started_at)
    VALUES ('i', 'w', 'h', 'o', '{}', '2024-01-31 23:59:59')""",
    """INSERT INTO workflow_history (instance_id, activity_id, event_type, created_at)
    VALUES ('i', 'a', 't', '2024-02-29 12:00:00')""",
)
TIMES = """SELECT CONCAT(i.started_at), CONCAT(h.created_at)
FROM workflow_instances i JOIN workflow_history h USING (instance_id)"""


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
class TestMySQL:
    async def test_migration_completes_after_a_crash_at_each_statement(self, database: Database) -> None:
        """Each start gets one statement further than the last, so that all of them are the last one once."""
        await database.create_edda_tables()
        await database.execute(*FAMILY_ROWS)
        deaths, statements, done = 0, 1, 0
        while await crashes(database, statements):
            deaths += 1
            before, done = done, await recorded(database)
            statements = SETUP + 1 if done > before else statements + 1
        assert done == len(versions("mysql"))
        assert deaths == SETUP + sum(len(migration.statements) + 1 for migration in up_statements("mysql"))
        assert await database.migrate() == []
        assert await database.schema() == await database.finished_schema()
        assert await database.fetch(TIMES) == [("2024-01-31 23:59:59.000000", "2024-02-29 12:00:00.000000")]

    async def test_conversion_completes_after_a_crash_and_one_restart(self, database: Database) -> None:
        """From the tables of Edda each time, with keys missing, tables half converted, keys half restored."""
        conversion = len(up_statements("mysql")[1].statements)
        for statements in range(5, conversion, 13):
            await database.create_edda_tables()
            await database.execute(*FAMILY_ROWS)
            await database.execute("CREATE TABLE schema_migrations (version VARCHAR(128) PRIMARY KEY)")
            await database.execute(f"INSERT INTO schema_migrations VALUES ({versions('mysql')[0]})")
            assert await crashes(database, SETUP + statements)
            assert await database.migrate() == versions("mysql")[1:]
            assert await database.schema() == await database.finished_schema()
            assert await database.fetch(TIMES) == [("2024-01-31 23:59:59.000000", "2024-02-29 12:00:00.000000")]
            async with database.connect() as connection:
                await reset(connection, "mysql")
            assert await database.tables() == []
