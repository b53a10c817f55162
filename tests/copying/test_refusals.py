"""What is not copied, and how a copy is undone."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from perdure import App, Client
from perdure.copying import abort_copy, copy_database, moving, plan_copy
from perdure.copying.database import Database, place_of
from perdure.copying.guarding import Marker, guard, mark_moved, release
from perdure.errors import ConfigurationError, CopyError, SchemaError
from perdure.storage.migrations.placement import qualified
from perdure.storage.stores import open_storage
from tests.copying.conftest import OpenURL
from tests.copying.rows import add_rows, empty_tables
from tests.copying.work import publish, sleeper
from tests.support.databases import connect_mysql, fetch_mysql

ALL = [("sqlite", "postgresql"), ("postgresql", "mysql"), ("mysql", "sqlite")]


async def _refused(source: str, target: str, text: str) -> None:
    """Both the copy and its dry run are refused, and the source stays usable."""
    for refused in (plan_copy, copy_database):
        with pytest.raises(CopyError, match=text):
            await refused(source, target)


async def test_a_target_with_rows_is_refused(pair: tuple[str, str]) -> None:
    source, target = pair
    async with Client(target) as client:
        await client.publish("jobs", 1)
    await _refused(source, target, r"target\.db is not empty, it has rows in .*channel_messages")
    await add_rows(source)  # it is not guarded


async def test_live_workers_are_refused_by_name(pair: tuple[str, str]) -> None:
    source, target = pair
    async with App(source, worker_id="shop-1"):
        await _refused(
            source, target, r"has live workers: shop-1 \(last heartbeat \d+ s ago\)\. Stop them with SIGTERM"
        )
    assert (await copy_database(source, target)).state == "moved"


@pytest.mark.parametrize("pair", ALL, indirect=True, ids="-to-".join)
async def test_a_worker_that_starts_before_the_source_is_guarded_is_refused(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    async with AsyncExitStack() as stack:

        async def guard_late(database: Database, marker: Marker) -> None:
            if marker.role == "source":
                await stack.enter_async_context(App(source, publisher=publish, worker_id="late"))
            await guard(database, marker)

        monkeypatch.setattr(moving, "guard", guard_late)
        with pytest.raises(CopyError, match="has live workers: late "):
            await copy_database(source, target)
        await sleeper.start()
    async with Client(target) as client:
        await client.publish("jobs", 1)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_a_copy_to_itself_is_refused(backend: str, empty_database: OpenURL, tmp_path: Path) -> None:
    async with empty_database(backend) as url:
        other = url
        if backend == "sqlite":
            (tmp_path / "link.db").symlink_to(tmp_path / "perdure.db")
            other = f"sqlite:///{tmp_path}/link.db"
        await _refused(url, other, "source and target are the same database")


async def test_unknown_schema_versions_are_refused(pair: tuple[str, str]) -> None:
    source, target = pair
    async with open_storage(target) as storage:
        await storage.db().execute("INSERT INTO schema_migrations (version) VALUES ('20990101000000')")
    await _refused(source, target, r"target\.db has the migrations 20990101000000, which this release .* not know")
    await _refused(target, source, r"target\.db has the migrations 20990101000000, which this release .* not know")


async def test_a_database_without_all_migrations_is_refused(pair: tuple[str, str]) -> None:
    source, target = pair
    async with open_storage(source) as storage:
        await storage.db().execute("DELETE FROM schema_migrations WHERE version > '20261118'")
    with pytest.raises(SchemaError, match=r"lacks \d migrations"):
        await copy_database(source, target)
    async with open_storage(target):
        pass
    with pytest.raises(SchemaError, match=r"lacks \d migrations"):
        await copy_database(target, source)


async def test_a_refused_copy_creates_no_target(pair: tuple[str, str], tmp_path: Path) -> None:
    source, target = pair
    async with App(source):
        with pytest.raises(CopyError, match="has live workers"):
            await copy_database(source, target)
    assert not (tmp_path / "target.db").exists()


@pytest.mark.parametrize("backend", ["postgresql", "mysql"])
async def test_a_transaction_that_began_before_the_copy_cannot_write(backend: str, empty_database: OpenURL) -> None:
    """Its snapshot is from a time when there was no marker."""
    async with empty_database(backend) as url, open_storage(url) as storage, _snapshot(url) as execute:
        marker = Marker("1", "source", "copying", "elsewhere", datetime.now(UTC))
        await guard(Database(url, storage), marker)
        table = qualified("system_locks", storage.schema)
        with pytest.raises(Exception, match=r"perdure copies this database to elsewhere|insufficient history"):
            await execute(f"INSERT INTO {table} (lock_name) VALUES ('late')")


async def test_a_role_that_cannot_read_the_marker_is_told_why_it_cannot_write(empty_database: OpenURL) -> None:
    async with empty_database("postgresql") as url, open_storage(url) as storage:
        await guard(Database(url, storage), Marker("1", "source", "copying", "elsewhere", datetime.now(UTC)))
        postgres = await asyncpg.connect(url)
        try:
            await postgres.execute("BEGIN; CREATE ROLE late_writer; GRANT USAGE ON SCHEMA perdure TO late_writer")
            await postgres.execute("GRANT INSERT ON perdure.system_locks TO late_writer; SET ROLE late_writer")
            with pytest.raises(asyncpg.PostgresError, match="perdure copies this database to elsewhere"):
                await postgres.execute("INSERT INTO perdure.system_locks (lock_name) VALUES ('late')")
        finally:
            await postgres.close()  # which rolls back


@asynccontextmanager
async def _snapshot(url: str) -> AsyncIterator[Callable[[str], Awaitable[object]]]:
    """Open a transaction that sees the database as it is now, and has not used any table."""
    if url.startswith("mysql"):
        async with connect_mysql(url) as connection:
            await fetch_mysql(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await fetch_mysql(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            yield lambda text: fetch_mysql(connection, text)
    else:
        postgres = await asyncpg.connect(url)
        try:
            await postgres.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await postgres.fetch("SELECT 1")
            yield postgres.execute
        finally:
            await postgres.close()


async def test_a_source_whose_guard_was_removed_is_not_marked_as_moved(pair: tuple[str, str]) -> None:
    async with open_storage(pair[0]) as storage:
        database = Database(pair[0], storage)
        marker = Marker("1", "source", "copying", "elsewhere", datetime.now(UTC))
        await guard(database, marker)
        with pytest.raises(CopyError, match="another process has begun to copy"):
            await guard(database, replace(marker, id="2"))
        await release(database)
        with pytest.raises(CopyError, match="was aborted by another process"):
            await mark_moved(database, marker)


async def test_columns_of_others_are_refused(pair: tuple[str, str]) -> None:
    source, target = pair
    async with open_storage(source) as storage:
        await storage.db().execute("ALTER TABLE system_locks ADD COLUMN colour TEXT")
    with pytest.raises(CopyError, match="the columns of system_locks differ between source and target: colour"):
        await copy_database(source, target)


async def test_databases_in_memory_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="in memory"):
        await copy_database(pair[0], "sqlite:///:memory:")


async def test_another_target_is_refused_until_the_copy_is_aborted(pair: tuple[str, str], tmp_path: Path) -> None:
    source, target = pair
    await _interrupted(source, target)
    other = f"sqlite:///{tmp_path}/other.db"
    await _refused(source, other, r"is being copied to sqlite:///.*target\.db since .*: name that target, or undo it")
    await _refused(target, other, r"target\.db is the incomplete target of a copy from")
    await abort_copy(source)
    await _refused(source, target, "has rows of a copy that was aborted at its source only")
    assert (await copy_database(source, other)).state == "moved"


async def test_another_target_is_refused_after_the_move(pair: tuple[str, str], tmp_path: Path) -> None:
    source, target = pair
    await copy_database(source, target)
    other = tmp_path / "other.db"
    with pytest.raises(CopyError, match=r"was moved to sqlite:///.*target\.db at .*: name that target$"):
        await copy_database(source, f"sqlite:///{other}")
    assert not other.exists()


@pytest.mark.parametrize("pair", ALL, indirect=True, ids="-to-".join)
async def test_an_aborted_copy_leaves_a_usable_source_and_an_empty_target(pair: tuple[str, str]) -> None:
    source, target = pair
    await add_rows(source)
    await _interrupted(source, target)
    assert (await abort_copy(source, target)).state == "aborted"
    assert await empty_tables(target) == [each.name for each in (await plan_copy(source, target)).tables]
    async with Client(source) as client, Client(target) as other:
        await client.publish("jobs", 1)
        await other.publish("jobs", 1)


async def test_a_moved_source_is_released_only_by_force(pair: tuple[str, str]) -> None:
    source, target = pair
    await copy_database(source, target)
    with pytest.raises(CopyError, match=r"was moved to sqlite:///.*target\.db at .*executed twice"):
        await abort_copy(source)
    await abort_copy(source, force=True)
    async with App(source, publisher=publish):
        await sleeper.start()


async def _interrupted(source: str, target: str) -> None:
    class _StopError(Exception):
        pass

    def stop(_: object) -> None:
        raise _StopError

    if "schema_version" in await empty_tables(source):
        await add_rows(source)
    with pytest.raises(_StopError):
        await copy_database(source, target, report=stop, batch_rows=1)


def test_places_show_no_password() -> None:
    url = "postgresql://ann:s%40cret@db.example.com:5432/shop?sslmode=require&schema=work&password=x"
    assert place_of(url) == "postgresql://db.example.com:5432/shop?schema=work"
