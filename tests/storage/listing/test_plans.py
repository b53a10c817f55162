"""A page without a text filter is read from an index, in order, and no other row is read."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.database.dialects.mysql import literal
from perdure.database.statements import Call
from perdure.model.records import ListInstancesOptions
from perdure.model.states import WorkflowStatus
from perdure.storage.listing import S, _rows, _search
from perdure.storage.stores import SQLStorage

ROWS = 2000
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOKEN = f"{(NOON + timedelta(seconds=100)).isoformat(timespec='microseconds')}||i-1000"
LATE, EARLY = NOON + timedelta(seconds=150), NOON + timedelta(seconds=50)

PAGES: dict[str, dict[str, Any]] = {
    "first": {},
    "next": {"page_token": TOKEN},
    "common": {"status_filter": WorkflowStatus.COMPLETED},
    "rare": {"status_filter": WorkflowStatus.FAILED},
    "next_common": {"status_filter": WorkflowStatus.COMPLETED, "page_token": TOKEN},
    "since": {"started_after": EARLY},
    "until": {"started_before": EARLY},
    "between": {"started_after": EARLY, "started_before": LATE},
    "next_between": {"started_after": EARLY, "started_before": LATE, "page_token": TOKEN},
    "next_common_between": {
        "status_filter": WorkflowStatus.COMPLETED,
        "started_after": EARLY,
        "started_before": LATE,
        "page_token": TOKEN,
    },
    "others": {"framework": "go"},
}


async def seed(storage: SQLStorage) -> None:
    """Ten rows a second; a hundredth failed, and long ago; a tenth is another framework's."""
    await storage.db().execute(
        "INSERT INTO workflow_definitions (workflow_name, source_hash, source_code) VALUES ('wf', '', '')"
    )
    for start in range(0, ROWS, 500):
        await storage.db().execute(
            "INSERT INTO workflow_instances (instance_id, workflow_name, source_hash, owner_service, framework, "
            f"status, started_at, input_data) VALUES {', '.join(map(row, range(start, start + 500)))}"
        )
    if storage._backend.driver.name == "mysql":
        await storage.db().fetch("ANALYZE TABLE workflow_instances")
    else:
        await storage.db().execute("ANALYZE workflow_instances")


def row(n: int) -> str:
    at = (NOON + timedelta(seconds=n // 10)).replace(tzinfo=None).isoformat(" ", "microseconds")
    status = "failed" if n < ROWS // 100 else "completed"
    return f"('i-{n}', 'wf', '', '', '{'perdure' if n % 10 else 'go'}', '{status}', '{at}', '{{}}')"


def page(storage: SQLStorage, options: dict[str, Any]) -> Call:
    search = _search(ListInstancesOptions(**options), storage._backend.driver)
    return next(_rows(search, search.framework or "", search.statuses[0]))


async def plan(storage: SQLStorage, call: Call) -> str:
    """How the database goes about it; for MySQL what it has read, because its plans do not say."""
    driver = storage._backend.driver
    (part,) = driver.parts(call.statement)
    args = [driver.bind(call.params[name]) for name in part.names]
    if driver.name == "sqlite":
        return "\n".join(str(row[3]) for row in await storage.db().fetch(f"EXPLAIN QUERY PLAN {part.text}", *args))
    async with storage.transaction() as conn:
        if driver.name == "postgresql":
            await conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")  # as the backend has it
            await conn.execute(f"PREPARE page AS {part.text}")
            rows = await conn.fetch(f"EXPLAIN EXECUTE page({', '.join(['NULL'] * len(args))})")
            await conn.execute("DEALLOCATE page")
            return "\n".join(str(row[0]) for row in rows)
        status = "SHOW SESSION STATUS LIKE 'Handler_read%'"
        twice = [dict(await conn.fetch(status)), dict(await conn.fetch(status))]  # asking reads, too
        await conn.fetch(part.text % {name: literal(value) for name, value in call.params.items()})
        found = dict(await conn.fetch(status))
    asked = {name: int(twice[1][name]) - int(twice[0][name]) for name in found}
    read = {name: count for name in found if (count := int(found[name]) - int(twice[1][name]) - asked[name])}
    wanted = int(str(call.params["limit"]))
    served = (
        set(read) <= {"Handler_read_key", "Handler_read_prev", "Handler_read_next"} and sum(read.values()) <= wanted + 1
    )
    return f"{'SEARCH' if served else 'SCAN'} {read}"


@pytest.mark.pitfall(35)
async def test_pages_are_served_by_an_index(storage: SQLStorage) -> None:
    await seed(storage)
    for name, options in PAGES.items():
        found = await plan(storage, page(storage, options))
        index = "idx_instances_listing_status" if "status_filter" in options else "idx_instances_listing"
        if storage._backend.driver.name == "postgresql":
            assert f"Index Scan Backward using {index} on" in found, name
            assert "Sort" not in found, name
            assert "Filter" not in found, name
        elif storage._backend.driver.name == "sqlite":
            assert found.startswith(f"SEARCH workflow_instances USING INDEX {index} (framework=?"), name
            assert "TEMP B-TREE" not in found, name
            assert ("(started_at,instance_id)<(?,?)" in found) == ("page_token" in options), name
        else:
            assert found.startswith("SEARCH"), f"{name}: {found}"


@pytest.mark.pitfall(35)
async def test_framework_is_looked_up_in_an_index_only(storage: SQLStorage) -> None:
    await seed(storage)
    found = await plan(storage, Call(S.framework, {"framework": "go", "limit": 1}))
    assert "Index Only Scan" in found or found.startswith("SEARCH"), found


@pytest.mark.parametrize("options", PAGES.values(), ids=PAGES)
async def test_listed_page_has_the_expected_instances(storage: SQLStorage, options: dict[str, Any]) -> None:
    await seed(storage)
    result = await storage.list_instances(ListInstancesOptions(limit=7, **options))
    assert [found.instance_id for found in result.instances] == expected(options)[:7]


def expected(options: dict[str, Any]) -> list[str]:
    rows = [(NOON + timedelta(seconds=n // 10), f"i-{n}", n) for n in range(ROWS)]
    if "page_token" in options:
        rows = [found for found in rows if found[:2] < (NOON + timedelta(seconds=100), "i-1000")]
    rows = [found for found in rows if options.get("started_after", found[0] - timedelta(1)) < found[0]]
    rows = [found for found in rows if found[0] < options.get("started_before", found[0] + timedelta(1))]
    rows = [found for found in rows if (found[2] % 10 == 0) == ("framework" in options)]
    if "status_filter" in options:
        failed = options["status_filter"] is WorkflowStatus.FAILED
        rows = [found for found in rows if (found[2] < ROWS // 100) == failed]
    return [found[1] for found in sorted(rows, reverse=True)]
