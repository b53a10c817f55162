"""The upgrade check: a sample of the live runs of a database against the code of this process."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import App, Client, RunHandle, now, wait_event, workflow
from perdure.engine.history.records import Completed, row_of
from perdure.engine.replay.definitions import COMPENSATIONS, WORKFLOWS
from perdure.errors import ConfigurationError, SchemaError, StorageError
from perdure.model.records import FRAMEWORK, WorkflowInstance
from perdure.storage.stores import open_read_only, shift_clock
from perdure.testing import (
    Checked,
    History,
    UpgradeProblem,
    UpgradeReport,
    check_upgrade,
    export_histories,
    replay,
    upgrade,
)
from tests.engine.waiting import until
from tests.support.databases import connect_mysql
from tests.support.storages import Database
from tests.testing.orders import Order, changed, hide, notify, order, reserve
from tests.testing.stories import ANN, STORIES, waiting


async def _other_step(given: Order) -> str:
    now()
    await reserve(given.id)
    await notify("new")
    return ""


async def _number_instead(given: int) -> None:
    await notify(str(given))


async def test_runs_that_would_continue_are_ok(everywhere: Database) -> None:
    async with App(everywhere.url) as app:
        for story in STORIES.values():  # all but one of these have ended
            await story.run(app, f"order-{story.status}")
        await waiting(app, "another")
    report = await check_upgrade(everywhere.url, workflows=[order])
    assert report == UpgradeReport({"kit.order": Checked(2, 2)})
    assert report.ok
    assert str(report) == "2 runs replayed: no problem found\n  kit.order: 2 of 2 runs"


async def test_runs_that_would_be_stuck_are_reported_with_the_step_and_both_sides(everywhere: Database) -> None:
    async with App(everywhere.url) as app:
        await waiting(app, "order-1")
    report = await check_upgrade(everywhere.url, workflows=[changed(_other_step)])
    (problem,) = report.problems
    assert not report.ok
    assert (problem.run_id, problem.workflow, problem.step) == ("order-1", "kit.order", "3:kit.charge")
    assert str(report).splitlines() == [
        "1 run replayed: 1 would be stuck",
        "  kit.order: 1 of 1 runs",
        "stuck:",
        "  kit.order order-1 at 3:kit.charge:",
        "      the history has 3:kit.charge (ActivityCompleted)",
        "      the code waits for 3:kit.notify",
    ]


async def test_value_that_does_not_fit_the_code_is_reported(reference: Database) -> None:
    async with App(reference.url) as app:
        await waiting(app, "order-1")
    (problem,) = (await check_upgrade(reference.url, workflows=[changed(_number_instead)])).problems
    assert problem.error.startswith("SerializationError: ")
    assert str(problem).startswith("kit.order order-1: SerializationError: ")


async def test_workflow_that_is_not_defined_is_reported(everywhere: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(everywhere.url) as app:
        await waiting(app, "order-1")
        await STORIES["recurred"].run(app, "counter-1")
    monkeypatch.delitem(WORKFLOWS, "kit.order")
    monkeypatch.delitem(WORKFLOWS, "kit.counter")
    report = await check_upgrade(everywhere.url)
    assert report == UpgradeReport(unknown={"kit.order": 1})
    assert not report.ok
    assert str(report) == "no runs to replay\nnot defined in this process:\n  kit.order: 0 of 1 runs"


async def test_rollback_needs_its_compensations(everywhere: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(everywhere.url) as app:
        await waiting(app, "order-1")
    async with Client(everywhere.url) as client:
        await client.cancel("order-1")
    assert (await check_upgrade(everywhere.url, workflows=[changed(_other_step)])).ok, "the body is not replayed"
    monkeypatch.delitem(COMPENSATIONS, "kit.reserve")
    (problem,) = (await check_upgrade(everywhere.url, workflows=[order])).problems
    assert str(problem).startswith(
        "kit.order order-1 at 2:kit.reserve: no compensation for 'kit.reserve' is registered"
    )


@workflow(name="kit.stations")
async def stations() -> None:
    await wait_event("kit.first")
    await wait_event("kit.second")


async def _stations_changed() -> None:
    await wait_event("kit.other")


async def test_sample_has_runs_from_every_place_in_the_code(everywhere: Database) -> None:
    async with App(everywhere.url) as app:
        (ahead, *others) = [await stations.options(id=f"run-{number}").start() for number in range(8)]
        for run in (ahead, *others):
            await until(lambda run=run: _waits_for(run, "kit.first"))  # type: ignore[misc]
        await app.send_event("kit.first", None, to=ahead.id)
        await until(lambda: _waits_for(ahead, "kit.second"))
    code = workflow(name="kit.stations.changed")(_stations_changed)
    code.name = stations.name
    report = await check_upgrade(everywhere.url, workflows=[code], sample=2)
    assert report.checked == {"kit.stations": Checked(2, 8)}
    assert [problem.run_id for problem in report.problems] == [ahead.id]


async def _waits_for(run: RunHandle[Any], event: str) -> bool:
    return any(wait.name == event for wait in (await run.info()).waiting_for)


async def test_sample_has_old_runs_besides_new_ones(everywhere: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = await everywhere.storage()
    shift_clock(storage, -timedelta(days=40))
    old = WorkflowInstance("old", "kit.stations", framework=FRAMEWORK)
    await storage.create_instance(old, events=[row_of("old", Completed("1:gone"))])
    shift_clock(storage, timedelta(0))
    for number in range(10):
        await storage.create_instance(WorkflowInstance(f"new-{number}", "kit.stations", framework=FRAMEWORK))
    monkeypatch.setattr(upgrade, "CANDIDATES", 3)
    report = await check_upgrade(everywhere.url, workflows=[stations], sample=3)
    assert report.checked == {"kit.stations": Checked(3, 11)}
    assert [problem.run_id for problem in report.problems] == ["old"]


async def test_sample_of_nothing_is_refused(reference: Database) -> None:
    async with App(reference.url) as app:
        await waiting(app, "order-1")
    with pytest.raises(ValueError, match="sample= must be at least 1, not 0"):
        await check_upgrade(reference.url, workflows=[order], sample=0)


def test_report_says_that_a_count_is_a_limit() -> None:
    problem = UpgradeProblem("a", "pay", "", "", "", "no compensation")
    report = UpgradeReport({"pay": Checked(20, 10_000)}, (problem,), {"old": 3})
    assert str(report).splitlines() == [
        "20 runs replayed: 1 would be stuck",
        "  pay: 20 of 10,000 or more runs",
        "stuck:",
        "  pay a: no compensation",
        "not defined in this process:",
        "  old: 0 of 3 runs",
    ]


async def test_histories_of_a_sample_are_exported(everywhere: Database, tmp_path: Path) -> None:
    async with App(everywhere.url) as app:
        await waiting(app, "order-1")
        await waiting(app, "order-2")
        await STORIES["recurred"].run(app, "counter-1")
    paths = await export_histories(everywhere.url, tmp_path / "histories", redact=hide)
    assert [path.name for path in paths] == ["kit.order-1.json", "kit.order-2.json"]
    for path in paths:
        assert ANN not in path.read_text()
        assert replay(order, History.load(path)).next == ["wait_event kit.packed"]
    (path,) = await export_histories(everywhere.url, tmp_path / "one", workflows=[order], sample=1)
    assert ANN in path.read_text()


# Nothing is written.


async def test_storage_that_was_opened_read_only_refuses_to_write(database: Database) -> None:
    if database.backend == "memory":
        return
    await database.storage()
    async with open_read_only(database.url) as storage:
        with pytest.raises(StorageError):
            await storage.create_instance(WorkflowInstance("a", "b", framework=FRAMEWORK))
        with pytest.raises(StorageError):
            async with storage.transaction():
                await storage.publish_to_channel("news", b"1")
        assert await storage.get_instance("a") is None
        assert await storage.list_workflow_names() == []


async def test_empty_database_stays_empty(fresh_postgres_db: str, fresh_mysql_db: str, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
    for url in (fresh_postgres_db, fresh_mysql_db, f"sqlite:///{path}"):
        for _ in range(2):
            with pytest.raises(SchemaError, match="has no tables of perdure"):
                await check_upgrade(url)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []


async def test_file_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"new\.db does not exist: correct the path"):
        await check_upgrade(f"sqlite:///{tmp_path}/new.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", ["postgresql", "mysql"])
async def test_role_that_may_only_read_is_enough(backend: str, backend_database: Any) -> None:
    async with backend_database(backend) as database:
        async with App(database.url) as app:
            await waiting(app, "order-1")
        async with _reader(database) as url:
            report = await check_upgrade(url, workflows=[order])
        assert report.checked == {"kit.order": Checked(1, 1)}


@asynccontextmanager
async def _reader(database: Database) -> AsyncIterator[str]:
    """Yield the URL of a role that may read the tables and nothing else."""
    parts = urlsplit(database.url)
    name, place = parts.path.strip("/"), parts.netloc.rpartition("@")[2]
    if database.backend == "mysql":
        async with connect_mysql(database.url) as connection, connection.cursor() as cursor:
            await cursor.execute("CREATE OR REPLACE USER kit_reader IDENTIFIED BY 'secret'")
            await cursor.execute(f"GRANT SELECT ON {name}.* TO kit_reader")
            yield f"mysql://kit_reader:secret@{place}/{name}"
            await cursor.execute("DROP USER kit_reader")
        return
    storage = await database.storage()
    await storage.db().execute("CREATE ROLE kit_reader LOGIN PASSWORD 'secret'")
    await storage.db().execute("GRANT USAGE ON SCHEMA perdure TO kit_reader")
    await storage.db().execute("GRANT SELECT ON ALL TABLES IN SCHEMA perdure TO kit_reader")
    yield f"postgresql://kit_reader:secret@{place}/{name}?{parts.query}"
    await storage.db().execute("DROP OWNED BY kit_reader")
    await storage.db().execute("DROP ROLE kit_reader")
