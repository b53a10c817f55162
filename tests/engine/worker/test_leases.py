"""Only one worker at a time executes a run, and a worker that lost its lease writes nothing."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import pytest

from perdure import App, Client, activity, activity_info, wait_event, workflow
from perdure.engine.execution.clock import steady
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.model.records import HistoryEvent, HistoryEventType, Lease, WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.engine.gates import entered, gated, gates, note, open_gates, seen, two_gates
from tests.engine.gates import forget as forget_gates
from tests.engine.waiting import row_of, until, waiting
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_gates()


async def rows(app: Client, id: str) -> list[str]:
    return [event.step async for event in app.history(id)]


async def steal(storage: SQLStorage, id: str, seconds: float = 60) -> Lease:
    """What happens to a worker that was stopped for too long."""
    row = await storage.get_instance(id)
    assert row is not None
    assert row.locked_by is not None
    await storage.release_lock(id, row.locked_by)
    lease = await storage.try_acquire_lock(id, "thief", seconds)
    assert lease is not None
    return lease


@activity
async def blocking(seconds: float) -> int:
    seen.append("began")
    time.sleep(seconds)
    seen.append("ended")
    return activity_info().fence


@workflow(name="leases.blocking")
async def blocked(seconds: float) -> int:
    return await blocking(seconds)


@contextmanager
def _standing_by(url: str, taken: list[object]) -> Iterator[None]:
    """An app on the same database, in its own thread: like another process, it continues while this loop is blocked."""
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def stand_by() -> None:
        async with App(url, lease=SHORT, workflows=[blocked], hooks=[taken.append]):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(stand_by(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.mark.call("run")
@pytest.mark.guarantee(2)
async def test_activity_that_blocks_the_event_loop_keeps_its_lease(shared: Database) -> None:
    taken: list[object] = []
    with _standing_by(shared.url, taken):
        async with App(shared.url, lease=SHORT, workflows=[blocked]):
            handle = await blocked.start(1.8)
            assert await handle.result(SOON) == 1  # the first lease
    assert seen == ["began", "ended"]
    assert not taken


@pytest.mark.guarantee(2)
async def test_no_activity_starts_after_the_local_deadline(database: Database) -> None:
    async with App(database.url, max_cached_runs=0, lease=timedelta(hours=1)) as app:
        gates["two"].set()
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
        executor = app._worker.executor
        executor._heartbeat.drop(executor.tasks["a"].lease)  # or a renewal may move the deadline
        executor.tasks["a"].run.deadline = time.monotonic()
        gates["one"].set()
        await until(lambda: "a" not in app._worker.executor.tasks)
        assert not entered("two")()
        row = await row_of(app, "a")
        assert row.locked_by is not None
        await app._storage.release_lock("a", row.locked_by)  # as its expiry would
        assert await app.get("a").result(SOON) == ["one", "two"]
        assert [each[0] for each in seen] == ["one", "two"]


@dataclass
class Held:
    deadline: float = 0.0
    at_work = True


@pytest.mark.guarantee(2)
async def test_local_deadline_is_counted_from_before_the_renewal(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, held = await database.storage(), Held()
    lease = await storage.create_instance(WorkflowInstance("a", "w"), worker_id="me", timeout_sec=5)
    assert lease is not None
    refresh, asked = storage.refresh_locks, list[float]()

    async def timed(leases: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
        asked.append(steady())
        answer = await refresh(leases, timeout_sec)
        await until(lambda: steady() > asked[0] + 0.001)
        return answer

    monkeypatch.setattr(storage, "refresh_locks", timed)
    heartbeat = Heartbeat(lambda: nullcontext(storage), "me", 10, lambda _: None)
    heartbeat.hold(lease, held)
    await heartbeat._renew(storage)
    assert 0 < held.deadline <= asked[0] + 10


@pytest.mark.guarantee(2)
async def test_worker_that_lost_its_lease_ends_the_tasks_and_writes_nothing(database: Database) -> None:
    async with App(database.url, lease=SHORT, max_cached_runs=0) as app:
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
        lease = await steal(storage_of(app), "a")
        await until(entered("one cancelled"), 2)
        await until(lambda: "a" not in app._worker.executor.tasks)
        assert await rows(app, "a") == []
        row = await row_of(app, "a")
        assert (row.locked_by, row.lock_token) == ("thief", lease.token)
        open_gates("one", "two")
        await app._storage.release_lock("a", "thief", lease=lease)
        assert await app.get("a").result(SOON) == ["one", "two"]


@pytest.mark.guarantee(2)
async def test_disconnected_worker_detects_the_lost_lease_by_its_rejected_write(database: Database) -> None:
    """The heartbeat has not noticed it yet: its activity's result is dropped, and that of the other worker counts."""
    async with App(database.url, max_cached_runs=0) as app:
        gates["two"].set()
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
        lease = await steal(storage_of(app), "a")
        gates["one"].set()
        await until(lambda: "a" not in app._worker.executor.tasks)
        assert await rows(app, "a") == []
        assert not entered("two")()
        event = HistoryEvent("a", "1:gated", HistoryEventType.ACTIVITY_COMPLETED, b'"theirs"')
        await app._storage.append_history(event, lease=lease)
        await app._storage.release_lock("a", "thief", lease=lease)
        assert await app.get("a").result(SOON) == ["theirs", "two"]


@activity
async def hold(gate: str) -> str:
    seen.append(gate)
    await gates[gate].wait()
    return gate


@workflow(name="leases.simple")
async def simple(what: str) -> str:
    return await note(what)


@workflow(name="leases.hold")
async def behind_a_gate(gate: str) -> str:
    return await hold(gate)


@workflow(name="leases.waits_first")
async def gated_after_an_event(gate: str) -> str:
    await wait_event("go")
    return await gated(gate)


async def test_run_that_resumes_from_memory_is_stopped_when_its_lease_is_lost(database: Database) -> None:
    async with App(database.url, lease=SHORT) as app:
        await gated_after_an_event.options(id="a").start("one")
        await waiting(app, "a")
        await app.send_event("go", None, to="a")
        await until(entered("one"))
        await steal(storage_of(app), "a")
        await until(entered("one cancelled"))


@activity
async def clean_up_slowly(gate: str) -> None:
    try:
        await hold(gate)
    except asyncio.CancelledError:
        seen.append("cancelled")
        await gates["clean up"].wait()
        seen.append("cleaned up")
        raise


@workflow(name="leases.clean_up")
async def cleaning_up(gate: str) -> None:
    await clean_up_slowly(gate)


async def test_lease_that_is_found_lost_twice_cancels_the_run_once(database: Database) -> None:
    async with App(database.url) as app:
        await cleaning_up.options(id="a").start("one")
        await until(lambda: seen == ["one"])
        await steal(storage_of(app), "a")
        executor = app._worker.executor
        lease = executor.tasks["a"].lease
        executor.lose(lease)
        await until(lambda: "cancelled" in seen)
        executor.lose(lease)
        await asyncio.sleep(0)  # a second cancellation would now interrupt the clean-up
        gates["clean up"].set()
        await until(lambda: "a" not in executor.tasks)
    assert seen == ["one", "cancelled", "cleaned up"]


@pytest.mark.pitfall(15)
async def test_wake_ups_for_an_executing_run_do_not_execute_it_twice(database: Database) -> None:
    async with App(database.url) as app:
        handle = await behind_a_gate.start("one")
        for _ in range(5):
            app._worker.wake()
            await app.publish("noise", 1)
            await asyncio.sleep(0.03)
        gates["one"].set()
        assert await handle.result(SOON) == "one"
    assert seen == ["one"]


@pytest.mark.pitfall(26)
async def test_activity_longer_than_its_lease_executes_once(shared: Database) -> None:
    lease = timedelta(seconds=0.6)
    async with App(shared.url, lease=lease), App(shared.url, lease=lease):
        handle = await behind_a_gate.start("long")
        asyncio.get_running_loop().call_later(1.8, gates["long"].set)
        assert await handle.result(SOON) == "long"
    assert seen == ["long"]


@pytest.mark.pitfall(48)
async def test_new_run_is_not_claimed_by_another_worker_during_start(shared: Database) -> None:
    async with App(shared.url), App(shared.url) as second:
        handles = await asyncio.gather(*(simple.start(str(n)) for n in range(60)))
        second._worker.wake()
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == [str(n) for n in range(60)]
    assert set(Counter(seen).values()) == {1}
