"""Look at the tables: listing."""

from dataclasses import replace
from typing import Any

import pytest

from perdure.database.backends.base import Executor
from perdure.errors import LimitError
from perdure.model.records import WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.listing import NOON, SECOND, all_ids, fill, ids, page

IDS = ["B", "a", "Z", "é", "É", "e\u0301", "e", "zz", "ß", "ss", "a b", "a-b", "ab", "a||b", "||", "_", "~", "｡", "😀"]


async def as_framework(sql: Executor, framework: str, *instance_ids: str) -> None:
    """Make the rows look as if another framework had created them."""
    for instance_id in instance_ids:
        await sql.execute(
            f"UPDATE workflow_instances SET framework = '{framework}' WHERE instance_id = '{instance_id}'"
        )


@pytest.mark.parametrize("limit", [1, 2, 5, 18, 19, 20])
async def test_equal_times_are_ordered_by_id_in_code_points(storage: SQLStorage, sql: Executor, limit: int) -> None:
    await fill(storage, *(WorkflowInstance(instance_id, "wf", started_at=NOON) for instance_id in IDS))
    expected = sorted(IDS, reverse=True)
    assert await all_ids(storage, limit=limit) == expected
    await as_framework(sql, "go", *expected[::3])
    await as_framework(sql, "python", *expected[1::3])
    assert await all_ids(storage, limit=limit, framework=None) == expected
    assert await all_ids(storage, limit=limit, framework="python") == expected[1::3]


async def test_instances_of_other_frameworks_are_listed_only_on_request(storage: SQLStorage, sql: Executor) -> None:
    await fill(storage, *(WorkflowInstance(name, "wf", started_at=NOON) for name in ("own", "edda", "romancy")))
    await as_framework(sql, "python", "edda")
    await as_framework(sql, "go", "romancy")
    assert await ids(storage) == ["own"]
    assert await ids(storage, framework="go") == ["romancy"]
    assert await ids(storage, framework="nobody") == []
    assert await ids(storage, framework=None) == ["romancy", "own", "edda"]
    assert await ids(storage, framework=None, instance_id_filter="a") == ["romancy", "edda"]
    for framework in ("", "x" * 51, 7):
        with pytest.raises(LimitError):
            await page(storage, framework=framework)


async def test_filters_are_combined_with_and(storage: SQLStorage, sql: Executor) -> None:
    wanted = WorkflowInstance("order-1", "Shop", b'{"n": 1}', started_at=NOON)
    await fill(
        storage,
        wanted,
        replace(wanted, instance_id="order-2", workflow_name="other"),
        replace(wanted, instance_id="order-3", input_data=b'{"n": 2}'),
        replace(wanted, instance_id="order-4", started_at=NOON - SECOND),
        replace(wanted, instance_id="order-5", started_at=NOON + SECOND),
        replace(wanted, instance_id="order-6", status=WorkflowStatus.FAILED),
        replace(wanted, instance_id="invoice"),
        replace(wanted, instance_id="order-7"),
    )
    await as_framework(sql, "go", "order-7")
    options: dict[str, Any] = {
        "status_filter": WorkflowStatus.RUNNING,
        "workflow_name_filter": "shop",
        "instance_id_filter": "ORDER",
        "started_after": NOON - SECOND,
        "started_before": NOON + SECOND,
        "input_filters": {"n": 1},
    }
    assert await ids(storage, **options) == ["order-1"]
    assert await all_ids(storage, limit=1, framework=None, **options) == ["order-7", "order-1"]
    assert await ids(storage, page_token=f"{NOON.isoformat(timespec='microseconds')}||order-1", **options) == []
