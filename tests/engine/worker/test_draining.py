"""A worker that stops drains: activities finish or are handed over, and leases are released."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Client, Retry, activity, activity_info, wait_event, workflow
from tests.engine.gates import approved, entered, gates, open_gates, seen, two_gates
from tests.engine.gates import forget as forget_gates
from tests.engine.waiting import row_of, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
ENDLESS = timedelta(minutes=10)  # longer than a test may take
LONG = Retry(attempts=3, initial=timedelta(seconds=1.3), factor=1, jitter=0)


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_gates()


@activity(retry=LONG)
async def late() -> int:
    info = activity_info()
    seen.append((info.attempt, info.idempotency_key))
    if info.attempt < 2:
        raise ValueError("not yet")
    return info.attempt


@workflow(name="draining.late")
async def retried_late() -> int:
    return await late()


@pytest.mark.guarantee(10)
async def test_running_activity_finishes_and_the_next_app_resumes_at_once(shared: Database) -> None:
    async with App(shared.url, lease=ENDLESS) as app:
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
        asyncio.get_running_loop().call_later(0.2, gates["one"].set)
    assert not entered("two")()
    gates["two"].set()
    async with App(shared.url) as app:
        row = await row_of(app, "a")
        assert await app.get("a").result(SOON) == ["one", "two"]  # and not when the lease is over
        assert row.lock_token >= 1
    assert [each[0] for each in seen] == ["one", "two"]


@pytest.mark.guarantee(10)
async def test_activity_that_does_not_finish_in_time_is_handed_over_at_once(shared: Database) -> None:
    async with App(shared.url, drain_timeout=timedelta(seconds=0.3), lease=ENDLESS):
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
    open_gates("one", "two")
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == ["one", "two"]  # and not when the lease is over
    assert [each[0] for each in seen] == ["one", "one cancelled", "one", "two"]


@pytest.mark.guarantee(10)
async def test_waiting_runs_do_not_delay_shutdown(shared: Database) -> None:
    async with App(shared.url, drain_timeout=ENDLESS) as app:
        await approved.options(id="a").start("parked")
        await retried_late.options(id="b").start()
        await waiting(app, "a")
        await waiting(app, "b")


@activity
async def hold(gate: str) -> str:
    seen.append(gate)
    await gates[gate].wait()
    return gate


@workflow(name="draining.hold")
async def behind_a_gate(gate: str) -> str:
    return await hold(gate)


@workflow(name="draining.waiting")
async def waits_for(kind: str) -> Any:
    return (await wait_event(kind)).data


@pytest.mark.pitfall(51)
async def test_shutdown_releases_all_leases_and_records_finished_activities(shared: Database) -> None:
    async with App(shared.url) as app:
        handles = [await behind_a_gate.start(gate) for gate in "abc"]
        await waiting(app, (await waits_for.start("never")).id)
        await until(lambda: len(seen) == 3)
        for gate in "abc":
            asyncio.get_running_loop().call_later(0.1, gates[gate].set)
    async with Client(shared.url) as client:
        assert all(run.worker is None for run in [run async for run in client.runs()])
        for handle in handles:
            assert await client._storage.get_history_count(handle.id) == 1
    async with App(shared.url) as app:
        assert [await app.get(handle.id).result(SOON) for handle in handles] == ["a", "b", "c"]
    assert sorted(seen) == ["a", "b", "c"]
