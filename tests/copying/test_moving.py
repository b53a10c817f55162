"""A whole database moves to another kind of database, and its runs continue there."""

import pytest

from perdure import App
from perdure.copying import Progress, abort_copy, batches, copy_database, plan_copy, writing
from perdure.errors import CopyError, StorageError
from perdure.storage.stores import open_storage
from tests.copying.rows import add_rows, assert_counters_continue, empty_tables, fill_empty_tables
from tests.copying.work import begin, finish

PAIRS = [("sqlite", "postgresql"), ("postgresql", "mysql"), ("mysql", "sqlite")]


@pytest.mark.parametrize("pair", PAIRS, indirect=True, ids="-to-".join)
async def test_every_row_moves_and_runs_continue(pair: tuple[str, str]) -> None:
    source, target = pair
    await begin(source)
    await add_rows(source)
    await fill_empty_tables(source)
    assert await empty_tables(source) == []
    planned = await plan_copy(source, target)
    seen: list[Progress] = []
    report = await copy_database(source, target, report=seen.append, batch_rows=3)
    assert (report.state, [each.name for each in report.tables]) == ("moved", [each.name for each in planned.tables])
    assert [each.rows for each in report.tables] == [each.rows for each in planned.tables]
    assert (seen[-1].phase, seen[-1].done) == ("compare", seen[-1].total)
    await assert_counters_continue(source, target)
    with pytest.raises(StorageError, match=r"perdure moved this database to .*: use it there"):
        await begin(source)
    await finish(target)
    for repeated in (copy_database, plan_copy):
        again = await repeated(source, target)
        assert (again.state, again.since, again.tables) == ("moved", report.since, ())


async def test_opening_an_app_on_a_moved_database_says_where_it_is(pair: tuple[str, str]) -> None:
    source, target = pair
    await copy_database(source, target)
    with pytest.raises(StorageError, match=r"perdure moved this database to .*target\.db at .* UTC: use it there"):
        async with App(source):
            pass


async def test_large_values_are_written_one_by_one(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = pair
    monkeypatch.setattr(batches, "BATCH_BYTES", 100)
    monkeypatch.setattr(writing, "BATCH_BYTES", 100)
    monkeypatch.setattr(writing, "LARGE", 50)
    await add_rows(source)
    assert (await copy_database(source, target)).state == "moved"


@pytest.mark.parametrize("pair", PAIRS[:1], indirect=True, ids="-to-".join)
async def test_a_row_that_the_target_rejects_is_named(pair: tuple[str, str]) -> None:
    source, target = pair
    await add_rows(source)
    async with open_storage(source) as storage:
        await storage.db().execute("UPDATE workflow_instances SET input_data = 'x' || char(0) WHERE instance_id = 'z'")
    with pytest.raises(CopyError, match=r"rejects the row \['z'\] of workflow_instances: PostgreSQL cannot store"):
        await copy_database(source, target)
    await abort_copy(source, target)
    async with open_storage(source) as storage:
        await storage.db().execute("UPDATE workflow_instances SET input_data = '1' WHERE instance_id = 'z'")
    assert (await copy_database(source, target)).state == "moved"


@pytest.mark.parametrize("pair", PAIRS[:1], indirect=True, ids="-to-".join)
async def test_an_invalid_value_is_named(pair: tuple[str, str]) -> None:
    source, target = pair
    await add_rows(source)
    async with open_storage(source) as storage:
        await storage.db().execute("UPDATE system_locks SET locked_at = 'yesterday'")
    with pytest.raises(
        CopyError, match=r"system_locks \['sweep'\] of sqlite://.* has an invalid locked_at: .*yesterday"
    ):
        await copy_database(source, target)
