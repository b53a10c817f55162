"""A waiting run is stored in the database; the copy in a worker's memory is only a cache."""

import asyncio
from datetime import timedelta

import pytest

from perdure import App, Client, RunEvicted, receive, sleep, subscribe, wait_event, workflow
from tests.engine.gates import forget as forget_gates
from tests.engine.gates import gated, gates, note, seen
from tests.engine.waiting import move_clock, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_gates()


async def rows(app: Client, id: str) -> list[str]:
    return [event.step async for event in app.history(id)]


@workflow(name="waiting_runs.several")
async def several() -> list[str]:
    """Record the order in which the waits end; a long sleep and two channels at once."""
    seen.append("entered")
    await subscribe("left")
    await subscribe("right")
    order: list[str] = []

    async def one(channel: str) -> None:
        order.append(f"{channel} {(await receive(channel)).data}")

    async def clock() -> None:
        await sleep(3600)
        order.append("clock")

    await asyncio.gather(one("left"), one("right"), clock())
    return order


@workflow(name="waiting_runs.tidy")
async def tidy() -> str:
    try:
        await wait_event("go")
    except BaseException as error:
        seen.append(type(error).__name__)
        try:
            await note("tidied")
        except RunEvicted:
            seen.append("RunEvicted")
            raise
    return "done"


@pytest.mark.call("channels")
@pytest.mark.guarantee(5)
@pytest.mark.parametrize("resident", [0, 100])
async def test_concurrent_waits_are_served_in_the_order_of_their_events(database: Database, resident: int) -> None:
    async with App(database.url, max_cached_runs=resident) as app:
        handle = await several.options(id="a").start()
        await waiting(app, "a")
        await app.publish("right", 1)

        async def right_came() -> bool:
            return "4.1:receive" in await rows(app, "a")

        await until(right_came)
        await app.publish("left", 2)

        async def left_came() -> bool:
            return "3.1:receive" in await rows(app, "a")

        await until(left_came)
        await move_clock(app, timedelta(hours=2))
        found = await handle.result(SOON)
        expected = {"3.1:receive": "left 2", "4.1:receive": "right 1", "5.1:timer": "clock"}
        assert sorted(found) == sorted(expected.values())
        assert found == [expected[id] for id in (await rows(app, "a"))[2:]]
        entries = seen.count("entered")
        assert entries == 1 if resident else entries > 1


@workflow(name="waiting_runs.impatient")
async def impatient() -> str:
    await subscribe("never")
    working = asyncio.ensure_future(gated("working"))
    try:
        await receive("never", timeout=3600)
    except TimeoutError:
        gates["working"].set()
    return await working


@pytest.mark.guarantee(5)
async def test_timeout_of_a_wait_beside_a_running_activity_survives_its_worker(shared: Database) -> None:
    async with App(shared.url, drain_timeout=timedelta(0)) as app:
        handle = await impatient.options(id="impatient").start()

        async def noted() -> bool:
            return any(id.startswith("~until:") for id in await rows(app, "impatient"))

        await until(noted)
        passed = """SET event_data = '{"at": "2020-01-01T00:00:00+00:00"}' WHERE activity_id LIKE '~until:%'"""
        await app._storage.db().execute(f"UPDATE workflow_history {passed}")
    async with App(shared.url) as app:
        assert await app.get(handle.id).result(SOON) == "working"


@pytest.mark.guarantee(5)
@pytest.mark.parametrize("resident", [0, 100])
async def test_evicted_body_has_no_durable_effect(shared: Database, resident: int) -> None:
    async with App(shared.url, max_cached_runs=resident) as app:
        await tidy.options(id="a").start()
        await waiting(app, "a")
    assert seen == ["CancelledError", "RunEvicted"]
    async with App(shared.url, max_cached_runs=resident) as app:
        assert await rows(app, "a") == []
        await app.send_event("go", None, to="a")
        assert await app.get("a").result(SOON) == "done"
    assert "tidied" not in seen


@pytest.mark.guarantee(5)
async def test_cached_run_catches_up_after_another_worker_resumed_it(shared: Database) -> None:
    """Parked here, driven on by a second app to its next wait, and taken up here again with the rows in between."""
    async with App(shared.url) as here:
        await several.options(id="a").start()
        await until(lambda: "a" in here._worker.executor.cache.runs)
        parked = here._worker.executor.cache.runs["a"]
        here._worker.slots.most = 0  # takes nothing for now
        await until(lambda: not here._worker.slots.taken)  # nor does a search that had begun
        async with App(shared.url) as there:
            await there.publish("left", 1)
            await until(lambda: "a" in there._worker.executor.cache.runs)
        here._worker.slots.most = 1000
        await here.publish("right", 2)
        await move_clock(here, timedelta(hours=2))
        assert sorted(await here.get("a").result(SOON)) == ["clock", "left 1", "right 2"]
        assert parked.replayer.done
    assert seen.count("entered") == 2
