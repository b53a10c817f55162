"""Slots: `max_runs` counts runs that execute code. A run that only waits holds none, so runs cannot deadlock."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from perdure import (
    App,
    Client,
    Retry,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    recur,
    sleep,
    wait_event,
    workflow,
)
from perdure.engine.execution import children
from perdure.engine.execution.interfaces import Drained
from perdure.engine.execution.slots import Slots
from perdure.engine.worker import results
from perdure.model.records import Lease, ListInstancesOptions
from tests.engine.waiting import status_of, stuck_runs, until
from tests.support.storages import Database

SOON = timedelta(seconds=60)
HOURLY = Retry(attempts=10, initial=timedelta(hours=1))
seen: list[str] = []
running = [0, 0]  # now, and at most
gates: dict[str, asyncio.Event] = {}
blocked = threading.Event()


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    running[:] = [0, 0]
    gates.clear()
    blocked.clear()


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


async def at_work(seconds: float) -> None:
    """Execute for some time."""
    running[0] += 1
    running[1] = max(running)
    try:
        await asyncio.sleep(seconds)
    finally:
        running[0] -= 1


@activity
async def work(what: str) -> str:
    await at_work(0.001)
    return what


@activity(name="slots.book")
async def book(what: str) -> str:
    return what


@book.compensation(retry=HOURLY)
async def unbook(what: str, *, result: str | None) -> None:
    seen.append(f"unbook {what} {activity_info().attempt}")
    if not gate("service").is_set():
        raise ConnectionError("the service is dead")


@activity
async def enter(what: str) -> str:
    return what


@enter.compensation
async def leave(what: str, *, result: str | None) -> None:
    seen.append(f"leave {what}")
    await gate(f"leave {what}").wait()


@activity
async def touch(what: str) -> None:
    """Done once its compensation was tried often, quickly, and in vain."""


@touch.compensation(retry=Retry(attempts=100_000, initial=timedelta(milliseconds=1), factor=1.0))
async def untouch(what: str, *, result: None) -> None:
    await at_work(0.02)
    if not gate("touched").is_set():
        raise ConnectionError("not yet")


@activity(retry=Retry(attempts=1))
async def refuse() -> None:
    raise ValueError("full")


@activity
async def hold(name: str) -> None:
    seen.append(f"holds {name}")
    await gate(name).wait()


@activity(retry=Retry(attempts=1_000, initial=timedelta(seconds=0.1), factor=1.0))
async def insist() -> None:
    seen.append("insist")
    if "done" not in seen:
        raise ConnectionError("not yet")


@activity
async def is_done() -> bool:
    return "done" in seen


@activity
async def make_done() -> None:
    seen.append("done")


@activity
def block() -> None:
    seen.append("blocks")
    blocked.wait(60)


@workflow(name="slots.blocking")
async def blocking() -> None:
    await block()


@workflow(name="slots.plain")
async def plain(what: str) -> str:
    return await work(what)


@workflow(name="slots.waiting")
async def waiting() -> None:
    await wait_event("slots.never")


@workflow(name="slots.entered")
async def entered(what: str) -> None:
    await enter(what)
    await wait_event("slots.never")


@workflow(name="slots.holding")
async def holding(name: str) -> None:
    await hold(name)


@workflow(name="slots.racing")
async def racing(what: str) -> str:
    branches = [asyncio.create_task(plain(what)), asyncio.create_task(waiting())]
    done, _ = await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    return str(done.pop().result())


@workflow(name="slots.saga")
async def saga(what: str) -> None:
    await book(what)
    await refuse()


@workflow(name="slots.touching")
async def touching(what: str) -> None:
    await touch(what)
    await refuse()


@workflow(name="slots.with_child")
async def with_child() -> None:
    await waiting()


@workflow(name="slots.leaving")
async def leaving(what: str) -> str:
    branch = asyncio.create_task(entered(what))
    await wait_event("slots.leave")
    assert not branch.done()
    return "left"


@workflow(name="slots.recurring")
async def recurring(left: int) -> str:
    if left:
        branch = asyncio.create_task(waiting())
        await work("on")
        assert not branch.done()
        recur(left - 1)
    return await plain("over")


@workflow(name="slots.polling")
async def polling() -> int:
    branch, looks = asyncio.create_task(plain("child")), 0
    while not branch.done():
        await asyncio.wait([branch], timeout=0.1)
        looks += 1
    return looks


@workflow(name="slots.insisting")
async def insisting() -> None:
    await insist()


@workflow(name="slots.watching")
async def watching() -> None:
    while not await is_done():
        await sleep(0.05)


@workflow(name="slots.doing")
async def doing() -> None:
    await make_done()


@workflow(name="slots.patient_parent")
async def patient_parent(count: int) -> None:
    await asyncio.gather(*(waiting() for _ in range(count)))


def slots(app: App) -> tuple[int, int, int]:
    """Slots taken, runs that wait for one, runs that wait without one."""
    found = app._worker.slots
    return found.taken, found.waiting, found.idle


async def all_free(app: App) -> None:
    """No slot leaked, none was given back twice, and nothing is held for a run that is over."""
    await until(lambda: slots(app) == (0, 0, 0) and not app._worker.executor.tasks)
    assert not app._worker.heartbeat._leases
    assert app._results._watched == {}


# Families.


async def test_parents_that_race_their_children_do_not_deadlock(shared: Database) -> None:
    """Parents end while a child of each still waits."""
    async with App(shared.url, max_runs=5) as app:
        handles = await asyncio.gather(*(racing.start(f"{number}") for number in range(15)))
        found = await asyncio.gather(*(handle.result(SOON) for handle in handles))
        assert found == [f"{number}" for number in range(15)]
        await all_free(app)
    assert running[1] <= 5


async def test_recur_with_unfinished_children_does_not_deadlock(shared: Database) -> None:
    async with App(shared.url, max_runs=1) as app:
        handles = await asyncio.gather(*(recurring.start(2) for _ in range(5)))
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == ["over"] * 5
        await all_free(app)
    assert running[1] == 1


async def test_rollback_waits_for_rollbacks_of_children_without_a_slot(shared: Database) -> None:
    async with App(shared.url, max_runs=1) as app:
        handles = [await with_child.start() for _ in range(5)]
        await until(_all_are(app, "waiting_for_message", 10))
        await asyncio.gather(*(handle.cancel("enough") for handle in handles))
        for handle in handles:
            with pytest.raises(WorkflowCancelledError):
                await handle.result(SOON)
        await all_free(app)


async def test_many_parents_cancelled_at_once_all_end(shared: Database) -> None:
    """Every rollback of a parent waits for that of its child. PERDURE_TEST_FAMILIES=10000 is the long form."""
    count = int(os.environ.get("PERDURE_TEST_FAMILIES", "80" if shared.backend == "sqlite" else "30"))
    seconds = 60 + count / 10
    few = asyncio.Semaphore(100)  # who waits too long for a connection is refused

    async def start() -> str:
        async with few:
            return (await with_child.start()).id

    async def cancel(id: str) -> None:
        async with few:
            await app.cancel(id, "enough")

    async with App(shared.url) as app:
        ids = await asyncio.gather(*(start() for _ in range(count)))
        await until(_all_are(app, "waiting_for_message", 2 * count), seconds)
    async with App(shared.url, max_runs=5) as app:
        began = time.monotonic()
        await asyncio.gather(*map(cancel, ids))
        await until(_all_are(app, "cancelled", 2 * count), seconds)
        print(f"{shared.backend}: {count} families cancelled and ended in {time.monotonic() - began:.1f} s")
        await all_free(app)
        assert not await stuck_runs(app)


def _all_are(app: App, status: str, count: int) -> Callable[[], "asyncio.Future[bool]"]:
    async def look() -> bool:
        found = await app._storage.count_instances(ListInstancesOptions(status_filter=WorkflowStatus(status)))
        await asyncio.sleep(0.05)
        return bool(found == count)

    return lambda: asyncio.ensure_future(look())


async def test_many_children_of_one_parent_are_cancelled_and_awaited(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages, and in several commits."""
    monkeypatch.setattr(children, "TOGETHER_MAX", 20)
    monkeypatch.setattr(results, "PAGE", 30)
    count = 50
    async with App(shared.url, max_runs=20) as app:
        handle = await patient_parent.start(count)
        await until(_all_are(app, "waiting_for_message", count + 1), 60)
        await handle.cancel("enough")
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON * 2)
        await all_free(app)
        assert await _all_are(app, "cancelled", count + 1)()


async def test_children_that_end_in_another_process_are_noticed(shared: Database) -> None:
    async with App(shared.url, workflows=[with_child], max_runs=1) as here:
        handle = await with_child.start()
        async with App(shared.url, workflows=[waiting]):
            await until(_all_are(here, "waiting_for_message", 2))
            await here.cancel(handle.id, "enough")
            with pytest.raises(WorkflowCancelledError):
                await here.get(handle.id).result(SOON)
        await all_free(here)


# Pauses and short timers.


async def test_compensations_between_attempts_hold_no_slot(shared: Database) -> None:
    """As many runs as `max_runs` are in the pause between two attempts of a compensation."""
    async with App(shared.url, max_runs=3) as app:
        for number in range(3):
            await saga.options(id=f"saga-{number}").start(f"{number}")
        await until(lambda: len(seen) == 3)
        handles = [await plain.start(f"{number}") for number in range(10)]
        assert [await handle.result(SOON) for handle in handles] == [f"{number}" for number in range(10)]
        assert (await app.get("saga-0").info()).status is WorkflowStatus.COMPENSATING
        await until(lambda: slots(app) == (0, 0, 3))
        assert not any(task.run.at_work for task in app._worker.executor.tasks.values())
    assert sorted(seen) == ["unbook 0 1", "unbook 1 1", "unbook 2 1"]


async def test_compensations_that_fail_quickly_do_not_starve_other_runs(shared: Database) -> None:
    """There is always one of them that waits for the slot: a run in the database gets its turn all the same."""
    async with App(shared.url, max_runs=1) as app:
        handles = [await touching.start(f"{number}") for number in range(5)]
        for handle in handles:
            await status_of(handle, WorkflowStatus.COMPENSATING)
        await until(lambda: slots(app)[1] > 0)
        assert await (await plain.start("other")).result(SOON) == "other"
        assert await (await racing.start("more")).result(SOON) == "more"
        gate("touched").set()
        for handle in handles:
            with pytest.raises(WorkflowFailedError):
                await handle.result(SOON)
        await all_free(app)
    assert running[1] == 1


async def test_parent_that_polls_its_child_does_not_block_it(shared: Database) -> None:
    """Its timers are so short that it keeps its lease, but not its slot."""
    async with App(shared.url, max_runs=1) as app:
        assert await (await polling.start()).result(SOON) > 0
        await all_free(app)


async def test_short_pause_between_attempts_holds_no_slot(shared: Database) -> None:
    async with App(shared.url, max_runs=1) as app:
        first = await insisting.start()
        await until(lambda: seen.count("insist") > 1)
        await (await doing.start()).result(SOON)
        await first.result(SOON)
        await all_free(app)


async def test_loop_with_short_sleeps_does_not_block_other_runs(shared: Database) -> None:
    async with App(shared.url, max_runs=1) as app:
        first = await watching.start()
        await until(lambda: slots(app) == (0, 0, 0) and first.id in app._worker.executor.tasks)
        watched = app._worker.executor.tasks[first.id].run
        assert watched.at_work  # it hears of a cancel as soon as those that hold a slot
        await (await doing.start()).result(SOON)
        await first.result(SOON)
        await all_free(app)


# Stopping, cancelling and losing leases while a run waits without a slot.


async def test_stopping_worker_hands_over_runs_that_wait_without_a_slot(shared: Database) -> None:
    """At once: nothing of them executes that could be waited for. Attempts continue where they were."""
    minute = timedelta(minutes=1)
    async with asyncio.timeout(30):
        async with App(shared.url, max_runs=2, drain_timeout=minute) as app:
            parent = await leaving.start("a")
            await until(_all_are(app, "waiting_for_message", 2))
            pausing = await saga.start("b")
            await until(lambda: "unbook b 1" in seen)
            await app.send_event("slots.leave", None)
            await until(lambda: "leave a" in seen and slots(app) == (1, 0, 2))
            gate("leave a").set()  # the child may end, and then its parent
            gate("service").set()
        worker = app._worker
        assert (worker.slots.taken, worker.slots.waiting, worker.slots.idle) == (0, 0, 0)
        assert worker.executor.tasks == {}
        async with App(shared.url, max_runs=1) as app:
            assert await app.get(parent.id).result(SOON) == "left"
            with pytest.raises(WorkflowFailedError):
                await app.get(pausing.id).result(SOON)
            await all_free(app)
    assert seen[-1] == "unbook b 2"


async def test_stopping_worker_does_not_wait_for_runs_that_wait_for_a_slot(shared: Database) -> None:
    async with asyncio.timeout(30):
        async with App(shared.url, max_runs=1, drain_timeout=timedelta(minutes=1)) as app:
            polled = await watching.start()
            await until(lambda: slots(app) == (0, 0, 0) and polled.id in app._worker.executor.tasks)
            await holding.start("busy")
            await until(lambda: "holds busy" in seen and slots(app)[1] >= 1)  # the search may queue as well
            asyncio.get_running_loop().call_later(0.2, gate("busy").set)
        assert app._worker.slots.taken == 0
        assert app._worker.executor.tasks == {}
        seen.append("done")
        async with App(shared.url, max_runs=1) as app:
            await app.get(polled.id).result(SOON)
            await all_free(app)


def _is_leased_anew(app: App, lease: Lease) -> bool:
    task = app._worker.executor.tasks.get(lease.instance_id)
    return task is not None and task.lease is not lease


async def test_parent_cancelled_while_it_waits_for_its_children_ends_as_cancelled(shared: Database) -> None:
    async with App(shared.url, max_runs=2) as app:
        parent = await leaving.start("a")
        await until(_all_are(app, "waiting_for_message", 2))
        await app.send_event("slots.leave", None)
        await until(lambda: "leave a" in seen and slots(app) == (1, 0, 1))
        lease = app._worker.executor.tasks[parent.id].lease
        await parent.cancel("after all")
        await until(lambda: _is_leased_anew(app, lease))  # it is undone by now
        await until(lambda: slots(app) == (1, 0, 1))
        gate("leave a").set()
        with pytest.raises(WorkflowCancelledError, match="after all"):
            await parent.result(SOON)
        await all_free(app)


async def test_lease_lost_while_a_run_waits_without_a_slot_leaks_no_slot(shared: Database) -> None:
    """The search finds it: the heartbeat does not beat so soon."""
    async with App(shared.url, max_runs=2, lease=timedelta(minutes=10)) as app:
        handle = await saga.start("a")
        await until(lambda: slots(app) == (0, 0, 1))
        gate("service").set()
        sql = app._storage.db()
        await sql.execute(
            "UPDATE workflow_instances"
            " SET lock_token = lock_token + 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL"
        )
        app._worker.wake()
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        await all_free(app)
    assert seen == ["unbook a 1", "unbook a 2"]


async def test_concurrent_starts_do_not_exceed_the_number_of_slots(shared: Database) -> None:
    async with App(shared.url, max_runs=3) as app:
        handles = await asyncio.gather(*(plain.start(f"{number}") for number in range(50)))
        await asyncio.gather(*(handle.result(SOON) for handle in handles))
        again = await asyncio.gather(
            *(plain.options(id=handles[0].id).start("0") for _ in range(10)), return_exceptions=True
        )
        assert {each.id for each in again if not isinstance(each, BaseException)} == {handles[0].id}
        await all_free(app)
    assert running[1] <= 3


async def test_late_search_leaves_its_slot_to_others(shared: Database) -> None:
    """Another worker took the run that this one had no slot for."""
    async with App(shared.url, max_runs=1) as here:
        await holding.start("busy")
        await until(lambda: "holds busy" in seen)
        other = await plain.start("other")
        await until(lambda: slots(here) == (1, 1, 0))
        async with App(shared.url, workflows=[plain]) as there:
            assert await there.get(other.id).result(SOON) == "other"
        gate("busy").set()
        await all_free(here)


async def test_cancelled_run_with_a_running_thread_does_not_block_the_search(shared: Database) -> None:
    """It can be claimed by others, and is the longest waiting: the worker has to look past it."""
    async with App(shared.url, max_runs=2) as app, Client(shared.url):
        try:
            stuck = await blocking.start()
            await until(lambda: "blocks" in seen)
            await app.cancel(stuck.id)
            await until(lambda: app._worker.executor.awaited == {stuck.id})
            handles = [await plain.start(f"{number}") for number in range(3)]  # by the client: it has to be found
            assert [await handle.result(SOON) for handle in handles] == ["0", "1", "2"]
            assert stuck.id in app._worker.executor.tasks
        finally:
            blocked.set()
        with pytest.raises(WorkflowCancelledError):
            await app.get(stuck.id).result(SOON)
        await all_free(app)


# The counter itself.


async def test_slots_are_granted_in_the_order_of_requests() -> None:
    counter = Slots(1, lambda: None)
    (held,) = counter.reserve(5)
    assert counter.reserve(1) == []
    resting = Slots.reserve(counter, 0)
    assert resting == []
    order: list[int] = []

    async def ask(number: int) -> None:
        await counter.take()
        order.append(number)
        await asyncio.sleep(0)
        counter.release()

    tasks = [asyncio.create_task(ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    held.rest()
    assert counter.reserve(1) == []  # those that wait come first
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert (counter.taken, counter.waiting) == (0, 0)


async def test_search_for_runs_takes_its_turn_for_a_slot() -> None:
    woken: list[str] = []
    counter = Slots(1, lambda: woken.append("woken"))
    (held,) = counter.reserve(1)
    first = asyncio.create_task(counter.take())
    await asyncio.sleep(0)
    granted = counter.queue_search()
    assert counter.queue_search() is granted
    later = asyncio.create_task(counter.take())
    await asyncio.sleep(0)
    held.rest()
    await first
    assert not woken
    counter.release()
    assert woken == ["woken"]
    assert counter.searching is granted
    assert not later.done()
    (slot,) = counter.reserve(1)
    counter.end_search(granted)  # it was used
    assert (counter.taken, counter.waiting) == (1, 1)
    slot.rest()
    await later
    counter.release()
    assert (counter.taken, counter.waiting) == (0, 0)


async def test_search_that_finds_nothing_returns_its_slot() -> None:
    counter = Slots(1, lambda: None)
    (held,) = counter.reserve(1)
    granted = counter.queue_search()
    held.rest()
    assert counter.taken == 1
    counter.end_search(None)  # it was granted after that look had begun
    assert counter.taken == 1
    counter.end_search(granted)
    assert counter.taken == 0


async def test_slot_granted_to_a_run_that_is_being_cancelled_is_not_lost() -> None:
    counter = Slots(1, lambda: None)
    (held,) = counter.reserve(1)
    cancelled, next_one = asyncio.create_task(counter.take()), asyncio.create_task(counter.take())
    await asyncio.sleep(0)
    held.rest()
    cancelled.cancel()
    await next_one
    assert cancelled.cancelled()
    counter.release()
    assert (counter.taken, counter.waiting) == (0, 0)


async def test_run_that_is_cancelled_while_it_waits_for_a_slot_leaves_the_queue() -> None:
    counter = Slots(1, lambda: None)
    (held,) = counter.reserve(1)
    (other,) = [asyncio.create_task(counter.take())]
    await asyncio.sleep(0)
    other.cancel()
    await asyncio.wait([other])
    assert counter.waiting == 0
    held.rest()
    held.rest()  # twice is once
    assert counter.taken == 0


async def test_draining_hands_over_all_runs_that_wait_for_a_slot() -> None:
    counter = Slots(1, lambda: None)
    (held,) = counter.reserve(1)
    (idle,) = Slots(1, lambda: None).reserve(1)
    idle._slots = counter
    idle.held = False
    waits = [
        asyncio.create_task(counter.take()),
        asyncio.create_task(idle.pause(3600)),
        asyncio.create_task(idle.idle(asyncio.get_running_loop().create_future())),
    ]
    await asyncio.sleep(0)
    assert (counter.taken, counter.waiting, counter.idle) == (1, 1, 2)
    counter.drain()
    assert [type(each) for each in await asyncio.gather(*waits, return_exceptions=True)] == [Drained] * 3
    held.rest()
    assert (counter.taken, counter.waiting, counter.idle) == (0, 0, 0)
    assert counter.reserve(1) == []
    with pytest.raises(Drained):
        await held.resume()
