"""Where the family went wrong, as far as an engine can: the numbers are those of the list of pitfalls."""

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    WorkflowStatus,
    activity,
    publish,
    receive,
    send_event,
    send_to,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.engine.bodies import version
from tests.engine.waiting import row_of, stuck_runs, until, waiting
from tests.storages import Database, storage_of

SOON = timedelta(seconds=30)
SHORT = timedelta(seconds=1)

seen: list[Any] = []
gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    gates.clear()


async def messages(storage: SQLStorage, channel: str) -> int:
    return len(await storage.get_pending_channel_messages(channel))


@activity
async def note(what: str) -> str:
    seen.append(what)
    return what


@activity
async def gated(gate: str) -> str:
    seen.append(gate)
    await gates[gate].wait()
    return gate


@workflow(name="pitfalls.simple")
async def simple(what: str) -> str:
    return await note(what)


@workflow(name="pitfalls.gated")
async def behind_a_gate(gate: str) -> str:
    return await gated(gate)


@workflow(name="pitfalls.sleeping")
async def sleeping(seconds: float) -> str:
    await sleep(seconds)
    return await note("awake")


@workflow(name="pitfalls.waiting")
async def waits_for(kind: str) -> Any:
    return (await wait_event(kind)).data


@workflow(name="pitfalls.listening")
async def listening(channel: str, count: int) -> list[Any]:
    await subscribe(channel)
    return [(await receive(channel)).data for _ in range(count)]


# Ownership.


async def test_w15_hints_for_a_run_that_is_driven_here_start_no_second_driver(database: Database) -> None:
    async with App(database.url) as app:
        handle = await behind_a_gate.start("one")
        for _ in range(5):
            app._worker.wake()
            await app.publish("noise", 1)
            await asyncio.sleep(0.03)
        gates["one"].set()
        assert await handle.result(SOON) == "one"
    assert seen == ["one"]


async def test_w26_an_activity_longer_than_its_lease_runs_once(shared: Database) -> None:
    lease = timedelta(seconds=0.6)
    async with App(shared.url, lease=lease), App(shared.url, lease=lease):
        handle = await behind_a_gate.start("long")
        asyncio.get_running_loop().call_later(1.8, gates["long"].set)
        assert await handle.result(SOON) == "long"
    assert seen == ["long"]


async def test_w48_a_start_is_never_overtaken_by_another_worker(shared: Database) -> None:
    async with App(shared.url), App(shared.url) as second:
        handles = await asyncio.gather(*(simple.start(str(n)) for n in range(60)))
        second._worker.wake()
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == [str(n) for n in range(60)]
    assert set(Counter(seen).values()) == {1}


async def test_w51_nothing_is_locked_after_a_shutdown_and_what_finished_is_recorded(shared: Database) -> None:
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


# Messages.


async def test_w5_a_message_sent_while_a_run_is_about_to_wait_is_not_lost(database: Database) -> None:
    async with App(database.url) as app:
        handles = await asyncio.gather(*(waits_for.options(id=f"w{n}").start("ready") for n in range(30)))
        await asyncio.gather(*(app.send_event("ready", n, to=f"w{n}") for n in range(30)))
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == list(range(30))


async def test_w6_many_publishers_at_once_and_no_message_is_skipped(database: Database) -> None:
    async with App(database.url) as app:
        handles = [await listening.options(id=f"l{n}").start("news", 30) for n in range(3)]
        await waiting(app, *(handle.id for handle in handles))
        await asyncio.gather(*(app.publish("news", number) for number in range(30)))
        found = [await handle.result(SOON) for handle in handles]
    assert sorted(found[0]) == list(range(30))
    assert found == [found[0]] * 3


async def test_w9_a_message_of_another_process_wakes_its_receiver(shared: Database) -> None:
    async with App(shared.url) as app:
        handle = await waits_for.options(id="a").start("call")
        await waiting(app, "a")
        async with Client(shared.url) as other:
            sent = time.monotonic()
            await other.send_event("call", 7)
            assert await app.get(handle.id).result(SOON) == 7
            assert time.monotonic() - sent < 3


async def test_w16_a_message_for_a_run_that_has_ended_changes_nothing(database: Database) -> None:
    async with App(database.url) as app:
        await waits_for.options(id="a").start("once")
        await app.send_event("once", 1, to="a")
        assert await app.get("a").result(SOON) == 1
        before = await row_of(app, "a")
        await app.send_event("once", 2, to="a")
        await app.send_event("once", 3)
        await app._storage.deliver_pending()
        assert await app._storage.get_history_count("a") == 1
        assert await row_of(app, "a") == before


@workflow(name="pitfalls.sending")
async def sending() -> str:
    await subscribe("inbox")
    await publish("out", 1)
    await send_to("somebody", "mail", 2)
    await send_event("told", 3)
    await wait_event("first")
    await publish("out", 4)
    await wait_event("second")
    return "done"


async def test_w19_no_side_effect_is_repeated_by_a_replay(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await app._storage.create_instance(WorkflowInstance("somebody", "pitfalls.somebody"))
        handle = await sending.options(id="a").start()
        await waiting(app, "a")
        await app.send_event("first", None, to="a")
        await app.send_event("second", None, to="a")
        assert await handle.result(SOON) == "done"
        assert [await messages(storage_of(app), each) for each in ("out", "mail:somebody", "told")] == [2, 1, 1]


async def test_w22_an_event_sent_to_one_run_is_seen_by_no_other(database: Database) -> None:
    async with App(database.url) as app:
        await waits_for.options(id="a").start("for.one")
        await waits_for.options(id="b").start("for.one")
        await waiting(app, "a", "b")
        await app.send_event("for.one", "a's", to="a")
        assert await app.get("a").result(SOON) == "a's"
        assert (await app.get("b").info()).status is WorkflowStatus.WAITING_FOR_MESSAGE
        await app.send_event("for.one", "everybody's")
        assert await app.get("b").result(SOON) == "everybody's"


@workflow(name="pitfalls.anything")
async def anything(count: int) -> list[str]:
    await subscribe("mixed")
    found = [repr((await receive("mixed")).data) for _ in range(count)]
    await wait_event("go")
    return found


async def test_w41_bytes_lists_and_scalars_arrive_as_they_are_and_poison_no_replay(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await anything.options(id="a").start(5)
        await waiting(app, "a")
        await app._storage.publish_to_channel("mixed", b"\x00\xff{", binary=True)
        for data in ([1, 2], 7, None, "text"):
            await app.publish("mixed", data)
        await app.send_event("go", None, to="a")
        assert await app.get("a").result(SOON) == [repr(b"\x00\xff{"), "[1, 2]", "7", "None", "'text'"]


@workflow(name="pitfalls.stamped")
async def stamped() -> datetime | None:
    await subscribe("stamps")
    return (await receive("stamps")).published_at


async def test_w49_a_message_says_when_it_was_published(database: Database) -> None:
    async with App(database.url) as app:
        await stamped.options(id="a").start()
        await waiting(app, "a")
        await app.publish("stamps", 1)
        found = await app.get("a").result(SOON)
        assert abs(datetime.now(UTC) - datetime.fromisoformat(found)) < timedelta(minutes=1)


@activity
async def shouting(number: int) -> int:
    await publish("shouts", number)
    return number


@workflow(name="pitfalls.shouting")
async def shouted(number: int) -> int:
    return await shouting(number)


async def test_w39_activities_that_send_do_not_wait_for_each_others_connections(shared: Database) -> None:
    async with App(shared.url) as app:
        handles = await asyncio.gather(*(shouted.start(n) for n in range(60)))
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == list(range(60))
        assert await messages(storage_of(app), "shouts") == 60


# Timers.


async def _slept(database: Database) -> None:
    """A run whose timer is due, and no worker anywhere."""
    async with App(database.url, workflows=[sleeping]) as app:
        await sleeping.options(id="a").start(1.1)
        await waiting(app, "a")
    storage = await database.storage()

    async def is_due() -> bool:
        return bool(await storage.find_expired_timers())

    await until(is_due)
    assert await storage.fire_timers([("a", "1:timer")]) == [True]


async def test_w10_a_crash_after_a_timer_fired_does_not_strand_its_run(shared: Database) -> None:
    await _slept(shared)
    storage = await shared.storage()
    assert await storage.try_acquire_lock("a", "dead#0", 0.1) is not None  # took it, and died
    async with App(shared.url, lease=SHORT) as app:
        assert await app.get("a").result(SOON) == "awake"
        assert [event.step async for event in app.history("a")] == ["1:timer", "2:note"]
    assert seen == ["awake"]


async def test_w28_a_sleep_is_not_cut_to_whole_seconds(database: Database) -> None:
    async with App(database.url):
        began = time.monotonic()
        handle = await sleeping.start(1.25)
        assert await handle.result(SOON) == "awake"
        assert 1.25 <= time.monotonic() - began < 2.5


async def test_w32_one_slow_run_delays_no_other(shared: Database) -> None:
    async with App(shared.url, max_runs=50) as app:
        handles = [await behind_a_gate.start("slow"), *[await sleeping.start(1.1) for _ in range(10)]]
        for handle in handles[1:]:
            assert await handle.result(SOON) == "awake"
        assert (await app.get(handles[0].id).info()).status is WorkflowStatus.RUNNING
        gates["slow"].set()
        assert await handles[0].result(SOON) == "slow"


# Resumption.


async def test_w31_runs_that_nobody_here_knows_block_no_one(shared: Database) -> None:
    storage = await shared.storage()
    known = WorkflowInstance("known", simple.name, b'{"what":"mine"}', owner_service="perdure")
    strangers = [replace(known, instance_id=f"s{n:03}", workflow_name="pitfalls.nobody's") for n in range(150)]
    family = [replace(known, instance_id=f"f{n:03}") for n in range(150)]
    await storage.create_instances([*strangers, *family])
    await storage.db().execute("UPDATE workflow_instances SET framework = 'python' WHERE instance_id LIKE 'f%'")
    await storage.create_instance(known)
    async with App(shared.url, workflows=[simple]) as app:
        assert await app.get("known").result(timedelta(seconds=5)) == "mine"
        assert await stuck_runs(app) == []
        for id in ("s000", "s149", "f000", "f149"):
            row = await app._storage.get_instance(id)
            assert row is not None
            assert (row.status, row.lock_token) == (WorkflowStatus.RUNNING, 0)
    assert seen == ["mine"]


async def _before() -> str:
    await sleep(1.1)
    return await note("old")


async def _after() -> str:
    await note("new")
    return await note("newer")


async def test_w47_changed_code_is_run_by_no_way_of_resuming(shared: Database) -> None:
    """Neither by a timer, nor by a lease that ran out, nor by looking again."""
    old, new = (version(function, "pitfalls.versions") for function in (_before, _after))
    async with App(shared.url, workflows=[old]) as app:
        await old.options(id="a").start()
        await waiting(app, "a")
    async with App(shared.url, workflows=[new], lease=SHORT) as app:

        async def tried_twice() -> bool:
            return "#2" in ((await row_of(app, "a")).locked_by or "")

        await until(tried_twice)
        assert [each.id for each in await stuck_runs(app)] == ["a"]
    assert seen == []
    async with App(shared.url, workflows=[old], lease=SHORT) as app:
        assert await app.get("a").result(SOON) == "old"


@dataclass
class Receipt:
    number: int
    total: float


@activity
async def pay(number: int) -> Receipt:
    seen.append(number)
    return Receipt(number, number / 2)


@activity
async def count() -> int:
    return 3


@workflow(name="pitfalls.typed")
async def typed() -> list[Any]:
    receipt, number = await pay(5), await count()
    await wait_event("go")
    return [type(receipt).__name__, receipt.total + number, type(number).__name__]


async def test_w50_results_have_their_types_after_a_suspension(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await typed.options(id="a").start()
        await waiting(app, "a")
        await app.send_event("go", None)
        assert await app.get("a").result(SOON) == ["Receipt", 5.5, "int"]
    assert seen == [5]


async def test_w14_a_finished_run_is_never_taken_up_again(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await simple.options(id="a").start("once")).result(SOON) == "once"
        assert await app._storage.acquire_locks(["a"], "anybody", 5) == [None]
        app._worker.wake()
        assert await (await simple.options(id="b").start("twice")).result(SOON) == "twice"
        assert await (await simple.options(id="a").start("once")).result(SOON) == "once"
    assert seen == ["once", "twice"]
