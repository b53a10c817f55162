"""Migrations of an empty database, and of a database of Edda."""

import asyncio
import re
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from perdure.errors import SchemaError
from perdure.storage.migrations import (
    Migration,
    Session,
    files,
    migrate,
    reset,
    runner,
    tables,
    up_statements,
    versions,
)
from perdure.testing.servers import PgBouncer
from tests.storage.migrations.databases import EDDA_VERSION, Database, Postgres, Row

DIALECTS = ["sqlite", "postgresql", "mysql"]
INSTANCE = "INSERT INTO workflow_instances (instance_id, workflow_name, source_hash, owner_service, input_data"
DEFINITION = "INSERT INTO workflow_definitions (workflow_name, source_hash, source_code) VALUES ('w', 'h', '')"


class TestFiles:
    def test_every_dialect_has_the_same_files(self) -> None:
        assert versions("sqlite") == versions("postgresql") == versions("mysql")
        assert versions("sqlite")[0] == EDDA_VERSION
        assert versions("sqlite") == sorted(set(versions("sqlite")))

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_every_file_splits_into_known_statements(self, dialect: str) -> None:
        for migration in up_statements(dialect):
            assert migration.statements
            for statement in migration.statements:
                assert re.match(r"(CREATE|ALTER|DROP|INSERT|UPDATE|SELECT|SET|PREPARE|EXECUTE|DEALLOCATE)\b", statement)
                assert not re.search(r"\$\$|\\|--|/\*", statement)

    def test_splitting_respects_quotes_and_comments(self) -> None:
        script = """
        -- first; not a statement
        INSERT INTO a VALUES ('x;--y', 'it''s; /* quoted */'); /* between;
        two */ UPDATE "b;" SET `c;` = 1 - 2 / 3 -- trailing; comment
        WHERE d = ';'
        ;; ;
        SELECT 1
        """
        assert files.split(script) == [
            "INSERT INTO a VALUES ('x;--y', 'it''s; /* quoted */')",
            "UPDATE \"b;\" SET `c;` = 1 - 2 / 3 \n        WHERE d = ';'",
            "SELECT 1",
        ]


class TestLedger:
    async def test_second_run_executes_one_select(self, database: Database) -> None:
        assert await database.migrate() == versions(database.dialect)
        recorded = await database.fetch("SELECT version FROM schema_migrations ORDER BY version")
        assert [version for (version,) in recorded] == versions(database.dialect)
        before = await database.schema()
        async with database.connect() as connection:
            session = Counting(connection)
            assert await migrate(session, database.dialect) == []
        *looks, ledger = session.statements
        assert ledger.replace('"perdure".', "") == "SELECT version FROM schema_migrations"
        assert len(looks) == (1 if database.dialect == "postgresql" else 0)  # for the schema
        assert await database.schema() == before

    async def test_newer_version_is_not_changed(self, database: Database) -> None:
        await database.migrate()
        await database.execute("INSERT INTO schema_migrations VALUES ('29990101000000')")
        assert await database.migrate() == []

    async def test_tables_of_edda_without_a_ledger_are_adopted(self, database: Database) -> None:
        await database.create_edda_tables()
        assert await database.migrate() == versions(database.dialect)
        assert await database.schema() == await database.finished_schema()

    async def test_reset_drops_all_tables(self, database: Database) -> None:
        await database.migrate()
        await database.execute(DEFINITION, f"{INSTANCE}) VALUES ('i', 'w', 'h', 'o', '{{}}')")
        async with database.connect() as connection:
            await reset(connection, database.dialect)
            await reset(connection, database.dialect)
        assert await database.tables() == []
        assert await database.migrate() == versions(database.dialect)


class Counting:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.statements: list[str] = []

    async def execute(self, sql: str) -> None:
        self.statements.append(sql)
        await self._session.execute(sql)

    async def fetch(self, sql: str) -> list[Row]:
        self.statements.append(sql)
        return await self._session.fetch(sql)


class TestColumns:
    async def test_generated_columns_follow_the_row(self, database: Database) -> None:
        await database.migrate()
        # Defaults only, which MySQL fills in after it has computed generated columns for the first time.
        await database.execute(DEFINITION, f"{INSTANCE}) VALUES ('i', 'w', 'h', 'o', '{{}}')")

        async def after(change: str) -> Row:
            await database.execute(f"UPDATE workflow_instances SET {change}")
            ((*times,),) = await database.fetch(
                "SELECT started_at, updated_at, lock_expires_at, claimable_at, finished_at FROM workflow_instances"
            )
            return tuple(times)

        started, _, _, claimable, finished = await after("lock_token = lock_token + 1")
        assert claimable == started
        assert finished is None
        started, _, _, claimable, _ = await after("locked_by = 'me'")
        assert claimable == started
        _, _, expires, claimable, _ = await after("lock_expires_at = '2030-01-01 00:00:00.123456'")
        assert claimable == expires
        assert str(expires) == "2030-01-01 00:00:00.123456"
        _, _, _, claimable, _ = await after("status = 'waiting_for_timer'")
        assert claimable is None
        _, _, expires, claimable, _ = await after("status = 'compensating'")
        assert claimable == expires
        for status in ("completed", "failed", "cancelled", "recurred"):
            _, updated, _, claimable, finished = await after(f"status = '{status}'")
            assert claimable is None
            assert finished == updated

    async def test_ids_and_cursors_are_64_bit(self, database: Database) -> None:
        await database.migrate()
        await database.execute(DEFINITION, f"{INSTANCE}) VALUES ('i', 'w', 'h', 'o', '{{}}')")
        edge, beyond = 2**31 - 1, 2**31
        rows = {
            "workflow_history": ("instance_id, activity_id, event_type", "'i', '{}', 't'"),
            "workflow_history_archive": (
                "instance_id, activity_id, event_type, created_at, original_id",
                f"'i', '{{}}', 't', '2030-01-01 00:00:00', {2**40}",
            ),
            "workflow_compensations": ("instance_id, activity_id, activity_name, args", "'i', '{}', 'n', ''"),
            "workflow_timer_subscriptions": ("instance_id, timer_id, expires_at", "'i', '{}', '2030-01-01 00:00:00'"),
            "workflow_group_memberships": ("instance_id, group_name", "'i', '{}'"),
            "channel_messages": ("channel, message_id, data_type, data", "'c', '{}', 'json', '1'"),
            "channel_subscriptions": (
                "instance_id, channel, mode, cursor_message_id",
                f"'i', '{{}}', 'broadcast', {2**40}",
            ),
            "channel_delivery_cursors": ("instance_id, channel, last_delivered_id", f"'i', '{{}}', {2**40}"),
        }
        for table, (columns, values) in rows.items():
            await database.execute(f"INSERT INTO {table} (id, {columns}) VALUES ({edge}, {values.format('a')})")
            if database.dialect == "postgresql":
                await database.execute(f"SELECT setval('{table}_id_seq', {edge})")
            await database.execute(f"INSERT INTO {table} ({columns}) VALUES ({values.format('b')})")
            assert await database.fetch(f"SELECT max(id) FROM {table}") == [(beyond,)]

    async def test_new_tables_accept_rows(self, database: Database) -> None:
        await database.migrate()
        time, big = "'2030-01-01 00:00:00.123456'", 2**62
        await database.execute(
            f"INSERT INTO perdure_channels VALUES ('c', {time}, {big}), ('C', NULL, 0)",
            f"INSERT INTO perdure_message_keys VALUES ('s', 'm', {big}, {time}), ('S', 'm', {big}, {time})",
            f"INSERT INTO perdure_outbox_sources VALUES ('s', {time}), ('S', NULL)",
            f"INSERT INTO perdure_outbox_sequences VALUES ('s', {big}), ('S', 0)",
            f"INSERT INTO perdure_lock_tokens VALUES ('l', {big}), ('L', 0)",
            f"INSERT INTO perdure_workers VALUES ('w', {time}, {time}, '{{}}'), ('W', {time}, {time}, NULL)",
            f"INSERT INTO perdure_match_paths VALUES ('c', 'k', '[\"n\"]', 0, {big}), ('C', 'k', '[\"n\"]', 0, {big})",
            DEFINITION,
            f"{INSTANCE}) VALUES ('i', 'w', 'h', 'o', '{{}}')",
            f"INSERT INTO perdure_waits VALUES ({big}, 'i', 'a', 'c', NULL, {time})",
            "INSERT INTO perdure_waits (instance_id, activity_id, channel, match_key) VALUES ('i', 'A', 'c', 'k')",
            f"INSERT INTO perdure_taken_messages VALUES ('i', 'c', {big}, NULL), ('i', 'C', {big}, NULL)",
            "INSERT INTO channel_messages (id, channel, message_id, data_type, data) "
            f"VALUES ({big}, 'c', 'm', 'json', '1')",
            f"INSERT INTO perdure_message_matches VALUES ('k', {big}, 'c')",
        )
        assert await database.fetch("SELECT count(*) FROM perdure_waits") == [(2,)]
        await database.execute("DELETE FROM channel_messages", "DELETE FROM workflow_instances")
        for table in ("perdure_message_matches", "perdure_waits", "perdure_taken_messages"):
            assert await database.fetch(f"SELECT count(*) FROM {table}") == [(0,)]
        assert await database.fetch("SELECT max(last_sequence) FROM perdure_outbox_sequences") == [(big,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_times_on_sqlite_are_converted_to_one_format(database: Database) -> None:
    given = {
        "2024-01-31 23:59:59": "2024-01-31 23:59:59.000000",
        "2024-01-31 23:59:59.123456": "2024-01-31 23:59:59.123456",
        "2024-01-31T23:59:59Z": "2024-01-31 23:59:59.000000",
        "2024-01-31T23:59:59.5+09:00": "2024-01-31 14:59:59.500000",
        "2024-01-31 23:59:59.123456789-07:00": "2024-02-01 06:59:59.123000",
        "whenever": "whenever",
    }
    await database.create_edda_tables()
    await database.execute(
        # The family never switched foreign keys on.
        "PRAGMA foreign_keys = OFF",
        "INSERT INTO workflow_history (instance_id, activity_id, event_type) VALUES ('orphan', 'a', 't')",
        *(f"INSERT INTO system_locks (lock_name, lock_expires_at) VALUES ('{text}', '{text}')" for text in given),
        "INSERT INTO system_locks (lock_name) VALUES ('free')",
    )
    await database.migrate()
    rows = await database.fetch("SELECT lock_name, lock_expires_at FROM system_locks")
    assert dict(rows) == {**given, "free": None}


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
class TestMySQL:
    async def test_times_do_not_shift_in_another_time_zone(self, database: Database) -> None:
        await database.create_edda_tables()
        async with database.connect(zone=True) as connection:
            await connection.execute(
                "INSERT INTO system_locks (lock_name, locked_at) VALUES ('l', '2024-02-29 09:00:00')"
            )
            assert await migrate(connection, "mysql") == versions("mysql")
        assert await database.fetch("SELECT locked_at FROM system_locks") == [(datetime(2024, 2, 29),)]

    async def test_text_is_compared_exactly(self, database: Database) -> None:
        await database.migrate()
        await database.execute("INSERT INTO system_locks (lock_name) VALUES ('pay:1'), ('Pay:1'), ('päy:1')")
        exact = "SELECT count(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name <> "
        exact += "'schema_migrations' AND collation_name <> 'utf8mb4_bin'"
        assert await database.fetch(exact) == [(0,)]

    async def test_references_get_the_exact_case_of_their_targets(self, database: Database) -> None:
        await database.create_edda_tables()
        time = "'2024-02-29 00:00:00'"
        await database.execute(
            "INSERT INTO workflow_definitions (workflow_name, source_hash, source_code) VALUES ('Pay', 'H', '')",
            f"{INSTANCE}, updated_at) VALUES ('Pay:1', 'pay', 'h', 'o', '{{}}', {time})",
            f"{INSTANCE}, updated_at, continued_from) VALUES ('Pay:2', 'Pay', 'H', 'o', '{{}}', {time}, 'pay:1')",
            "INSERT INTO workflow_history (instance_id, activity_id, event_type) VALUES ('pay:1', 'a', 't')",
            "INSERT INTO workflow_timer_subscriptions (instance_id, timer_id, expires_at) "
            f"VALUES ('PAY:1', 't', {time})",
            "INSERT INTO channel_messages (channel, message_id, data_type, data) VALUES ('c', 'M', 'json', '1')",
            "INSERT INTO channel_message_claims (message_id, instance_id) VALUES ('m', 'pay:1')",
        )
        await database.migrate()
        instances = await database.fetch("SELECT workflow_name, source_hash, updated_at FROM workflow_instances")
        assert instances == [("Pay", "H", datetime(2024, 2, 29))] * 2
        assert await database.fetch("SELECT continued_from FROM workflow_instances WHERE instance_id = 'Pay:2'") == [
            ("Pay:1",)
        ]
        assert await database.fetch("SELECT instance_id FROM workflow_history") == [("Pay:1",)]
        timers = await database.fetch("SELECT instance_id, expires_at FROM workflow_timer_subscriptions")
        assert timers == [("Pay:1", datetime(2024, 2, 29))]
        assert await database.fetch("SELECT message_id, instance_id FROM channel_message_claims") == [("M", "Pay:1")]

    async def test_foreign_keys_of_any_name_are_found(self, database: Database) -> None:
        """MariaDB calls them 1, 2, … since 12.1."""
        await database.create_edda_tables()
        await database.execute(
            "ALTER TABLE workflow_history DROP FOREIGN KEY workflow_history_ibfk_1",
            "ALTER TABLE workflow_history ADD CONSTRAINT `1` "
            "FOREIGN KEY (instance_id) REFERENCES workflow_instances (instance_id) ON DELETE CASCADE",
        )
        await database.migrate()
        assert await database.schema() == await database.finished_schema()

    async def test_foreign_keys_are_restored_as_in_edda(self, database: Database) -> None:
        keys = """SELECT k.table_name, k.column_name, k.referenced_table_name, k.referenced_column_name,
            r.delete_rule, r.update_rule, r.constraint_name
        FROM information_schema.key_column_usage k JOIN information_schema.referential_constraints r
        ON r.constraint_schema = k.constraint_schema AND r.table_name = k.table_name
            AND r.constraint_name = k.constraint_name
        WHERE k.constraint_schema = DATABASE() ORDER BY 1, 2"""
        await database.create_edda_tables()
        before = await database.fetch(keys)
        await database.migrate()
        after = await database.fetch(keys)
        own = [key for key in after if key[0].startswith("perdure_")]
        assert [(key[0], key[2], key[4]) for key in own] == [
            ("perdure_audit_runs", "perdure_audit", "CASCADE"),
            ("perdure_message_matches", "channel_messages", "CASCADE"),
            ("perdure_stuck", "workflow_instances", "CASCADE"),
            ("perdure_taken_messages", "workflow_instances", "CASCADE"),
            ("perdure_waits", "workflow_instances", "CASCADE"),
        ]
        after = [key for key in after if key not in own]
        assert len(after) == 12
        assert [key[:-1] for key in after] == [key[:-1] for key in before]
        assert {key[-1] for key in after} == {f"{key[0]}_ibfk_{key[-1][-1]}" for key in before}

    async def test_waiting_for_the_migration_lock_times_out(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner, "WAIT_SEC", 1.0)
        async with database.connect() as holder:
            await holder.fetch("SELECT GET_LOCK('edda_migration', 60)")
            with pytest.raises(SchemaError, match="another process"):
                await database.migrate()
        assert await database.tables() == []

    async def test_migration_lock_is_released(self, database: Database) -> None:
        async with database.connect() as connection:
            await migrate(connection, "mysql")
            # Not whether it is free: on a shared server another session may hold it by now.
            held = "SELECT COALESCE(IS_USED_LOCK('edda_migration') = CONNECTION_ID(), 0)"
            assert await connection.fetch(held) == [(0,)]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_migration_works_behind_a_transaction_pooler(database: Database) -> None:
    with PgBouncer(database.url, settings={"default_pool_size": 2}) as pooler:
        sessions = [Postgres(await asyncpg.connect(pooler.url, statement_cache_size=0)) for _ in range(4)]
        applied = await asyncio.gather(*(migrate(session, "postgresql") for session in sessions))
        for session in sessions:
            await session.close()
    assert sorted(applied) == [[], [], [], versions("postgresql")]
    assert await database.schema() == await database.finished_schema()


class TestFailure:
    async def test_unexpected_migration_error_is_raised(self, database: Database) -> None:
        """Only a column that is there already may be there already, and only on MySQL."""
        if database.dialect == "postgresql":
            await database.execute("CREATE SCHEMA perdure")
        columns = ", ".join(f"1 AS {column}" for column in tables(database.dialect)["outbox_events"])
        await database.execute(f"CREATE VIEW outbox_events AS SELECT {columns}")
        with pytest.raises(SchemaError, match="migration 20251217000000: CREATE INDEX") as caught:
            await database.migrate()
        assert caught.value.__cause__ is not None
        made = await database.tables()
        assert "schema_migrations" not in made
        assert database.dialect == "mysql" or not set(made) - {"outbox_events"}

    @pytest.mark.parametrize(
        ("statement", "code", "skipped"),
        [
            ("CREATE INDEX a ON b (c)", 1061, True),
            ("CREATE INDEX a ON b (c)", 1060, False),
            ("DROP INDEX a ON b", 1091, True),
            ("DROP INDEX a ON b", 1553, False),
            ("ALTER TABLE a ADD COLUMN b INT", 1060, True),
            ("ALTER TABLE a ADD COLUMN b INT", 1061, False),
            ("ALTER TABLE a ADD CONSTRAINT b CHECK (1)", 1826, False),
            ("INSERT INTO schema_migrations (version) VALUES (1)", 1062, True),
            ("INSERT INTO perdure_schema_migrations (version) VALUES (1)", 1062, True),
            ("INSERT INTO schema_migrations (version) VALUES (1)", 1061, False),
            ("INSERT INTO a VALUES (1)", 1062, False),
            ("UPDATE a SET b = 1", 1062, False),
            ("CREATE TABLE a (b INT)", 1050, False),
        ],
    )
    async def test_only_the_expected_error_code_is_skipped(
        self, monkeypatch: pytest.MonkeyPatch, statement: str, code: int, skipped: bool
    ) -> None:
        monkeypatch.setattr(runner, "up_statements", lambda _: (Migration("1", (statement,)),))
        session = Failing(statement, code)
        if skipped:
            assert await migrate(session, "mysql") == ["1"]
        else:
            with pytest.raises(SchemaError):
                await migrate(session, "mysql")
        assert session.released

    @pytest.mark.parametrize("database", ["sqlite"], indirect=True)
    async def test_waiting_for_a_busy_sqlite_times_out(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runner, "WAIT_SEC", 0.2)
        async with database.connect() as writer:
            await writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(SchemaError, match="locked"):
                await database.migrate()
            await writer.execute("COMMIT")
        assert await database.migrate() == versions("sqlite")


class Failing:
    """A MySQL server that answers one statement with an error."""

    def __init__(self, statement: str, code: int) -> None:
        self._statement, self._code = statement, code
        self.released = False

    async def execute(self, sql: str) -> None:
        if sql == self._statement:
            raise RuntimeError(self._code, "already exists, duplicate")

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        self.released = self.released or "RELEASE_LOCK" in sql
        return [(1,)] if "LOCK" in sql else []
