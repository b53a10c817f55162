"""What people may rely on, promise by promise: the numbers are those of the engine's page."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    OutsideWorkflowError,
    Retry,
    RunEvicted,
    Workflow,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    publish,
    receive,
    send_event,
    send_to,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.database.backends.postgres import PostgresBackend
from perdure.database.backends.sqlite import SQLiteBackend
from perdure.engine.execution.clock import steady
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.execution.journal import Entry, Journal, appending
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.errors import CommitUnknownError, LeaseLostError, StorageError
from perdure.hooks import Hook, RunCompleted
from perdure.model.records import HistoryEvent, HistoryEventType, Lease, WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.conftest import BackendDatabase
from tests.engine.bodies import version
from tests.engine.waiting import row_of, stuck_runs, until, waiting
from tests.storages import Database, storage_of

ROOT = Path(__file__).parents[2]
SOON = timedelta(seconds=30)
SHORT = timedelta(seconds=1)
LONG = Retry(attempts=3, initial=timedelta(seconds=1.3), factor=1, jitter=0)
BRIEF = Retry(attempts=3, initial=timedelta(seconds=0.9), factor=1, jitter=0)

seen: list[Any] = []
gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    gates.clear()


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


def entered(gate: str) -> Callable[[], bool]:
    return lambda: any(each[0] == gate for each in seen)


def let(*names: str) -> None:
    for name in names:
        gates[name].set()


@activity
async def note(what: str) -> str:
    seen.append(what)
    return what


@activity
async def gated(gate: str) -> str:
    """Says that it began, and goes on when it is let."""
    info = activity_info()
    seen.append((gate, info.attempt, info.idempotency_key))
    try:
        await gates[gate].wait()
    except asyncio.CancelledError:
        seen.append((f"{gate} cancelled", info.attempt, info.idempotency_key))
        raise
    return gate


@workflow(name="promises.approved")
async def approved(what: str) -> str:
    first = await note(what)
    event = await wait_event("go", timeout=timedelta(minutes=5))
    return f"{first} {event.data} {await note('after')}"


@workflow(name="promises.gated")
async def two_gates(first: str, second: str) -> list[str]:
    return [await gated(first), await gated(second)]


# 1. Once recorded, never again.


@activity(retry=LONG)
async def late() -> int:
    info = activity_info()
    seen.append((info.attempt, info.idempotency_key))
    if info.attempt < 2:
        raise ValueError("not yet")
    return info.attempt


@activity(retry=BRIEF)
async def soon() -> int:
    info = activity_info()
    seen.append((info.attempt, info.idempotency_key))
    if info.attempt < 2:
        raise ValueError("not yet")
    return info.attempt


@workflow(name="promises.late")
async def retried_late() -> int:
    return await late()


@workflow(name="promises.soon")
async def retried_soon() -> int:
    return await soon()


async def test_p1_a_recorded_activity_never_runs_again(shared: Database) -> None:
    async with App(shared.url, max_cached_runs=0) as app:
        await approved.options(id="a").start("once")
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_MESSAGE
    async with App(shared.url, max_cached_runs=0) as app:
        await app.send_event("go", "on")
        assert await app.get("a").result(SOON) == "once on after"
    assert seen == ["once", "after"]


async def test_p1_an_interrupted_activity_runs_again_under_the_same_key(shared: Database) -> None:
    async with App(shared.url, drain_timeout=timedelta(0)) as app:
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
    let("one", "two")
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == ["one", "two"]
    key = "a::1:gated"
    assert seen == [("one", 1, key), ("one cancelled", 1, key), ("one", 1, key), ("two", 1, "a::2:gated")]


async def test_p1_attempts_are_counted_across_workers_and_a_long_back_off_frees_them(shared: Database) -> None:
    async with App(shared.url) as app:
        await retried_late.options(id="a").start()
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_TIMER
        assert (await row_of(app, "a")).locked_by is None
        assert await rows(app, "a") == ["1:late#1"]
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == 2
        assert await rows(app, "a") == ["1:late#1", "1:late#1~", "1:late"]
    assert seen == [(1, "a::1:late"), (2, "a::1:late")]


async def test_p1_an_attempt_before_a_short_back_off_is_counted_as_well(shared: Database) -> None:
    async with App(shared.url) as app:
        await retried_soon.options(id="a").start()

        async def recorded() -> bool:
            return await rows(app, "a") == ["1:soon#1"]

        await until(recorded)
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == 2
        assert await rows(app, "a") == ["1:soon#1", "1:soon"]
    assert seen == [(1, "a::1:soon"), (2, "a::1:soon")]


def test_p1_the_back_off_grows_and_varies() -> None:
    retry = Retry(attempts=9, initial=timedelta(seconds=1), maximum=timedelta(seconds=20))
    pauses = [retry.pause(attempt, ValueError()) or 0 for attempt in range(1, 9)]
    assert all(2 ** (n - 1) * 0.8 <= pause <= 2 ** (n - 1) for n, pause in enumerate(pauses[:5], 1))
    assert all(16 <= pause <= 20 for pause in pauses[5:])
    assert len({retry.pause(1, ValueError()) for _ in range(20)}) > 10
    assert retry.pause(9, ValueError()) is None


# 2. One driver.


@activity
async def blocking(seconds: float) -> int:
    seen.append("began")
    time.sleep(seconds)
    seen.append("ended")
    return activity_info().fence


@workflow(name="promises.blocking")
async def blocked(seconds: float) -> int:
    return await blocking(seconds)


@contextmanager
def _standing_by(url: str, taken: list[object]) -> Iterator[None]:
    """An app on the same database, in a thread of its own: as another process it goes on while this loop is blocked."""
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


async def test_p2_an_activity_that_blocks_the_loop_loses_no_lease(shared: Database) -> None:
    taken: list[object] = []
    with _standing_by(shared.url, taken):
        async with App(shared.url, lease=SHORT, workflows=[blocked]):
            handle = await blocked.start(2.5)
            assert await handle.result(SOON) == 1  # the first lease
    assert seen == ["began", "ended"]
    assert not taken


async def test_p2_no_activity_starts_after_the_local_deadline(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        gates["two"].set()
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
        app._worker.executor.tasks["a"].run.deadline = time.monotonic()
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


async def test_p2_the_local_deadline_is_counted_from_before_the_renewal(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, held = await database.storage(), Held()
    lease = await storage.create_instance(WorkflowInstance("a", "w"), worker_id="me", timeout_sec=5)
    assert lease is not None
    refresh = storage.refresh_locks

    async def slow(leases: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
        answer = await refresh(leases, timeout_sec)
        await asyncio.sleep(0.2)
        return answer

    monkeypatch.setattr(storage, "refresh_locks", slow)
    heartbeat = Heartbeat(lambda: nullcontext(storage), "me", 10, lambda _: None)
    heartbeat.hold(lease, held)
    await heartbeat._renew(storage)
    assert 0 < held.deadline <= steady() + 10 - 0.2


async def test_p2_a_lost_lease_ends_the_runs_tasks_and_the_loser_writes_nothing(database: Database) -> None:
    async with App(database.url, lease=SHORT, max_cached_runs=0) as app:
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
        lease = await steal(storage_of(app), "a")
        await until(entered("one cancelled"), 2)
        await until(lambda: "a" not in app._worker.executor.tasks)
        assert await rows(app, "a") == []
        row = await row_of(app, "a")
        assert (row.locked_by, row.lock_token) == ("thief", lease.token)
        let("one", "two")
        await app._storage.release_lock("a", "thief", lease=lease)
        assert await app.get("a").result(SOON) == ["one", "two"]


async def test_p2_a_worker_cut_off_learns_it_from_its_refused_write(database: Database) -> None:
    """The heartbeat did not tell it yet: what its activity found is dropped, what the other recorded counts."""
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


# 3. Crash anywhere.


@activity
async def fatal() -> int:
    if os.environ.get("PERDURE_TEST_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    seen.append("survived")
    return activity_info().attempt


@workflow(name="promises.fatal")
async def crashing() -> str:
    await note("before")
    return f"{await fatal()} {await note('after')}"


async def _crash(url: str) -> None:
    async with App(url, lease=SHORT):
        await (await crashing.options(id="a").start()).result()


async def test_p3_a_killed_process_loses_nothing_and_costs_a_lease(shared: Database) -> None:
    code = f"import asyncio; from tests.engine.test_promises import _crash; asyncio.run(_crash({shared.url!r}))"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, env={**os.environ, "PERDURE_TEST_DIES": "1"}, stderr=subprocess.DEVNULL
    )
    async with App(shared.url, lease=SHORT) as app:
        assert await child.wait() == -signal.SIGKILL
        died = time.monotonic()
        assert await app.get("a").result(SOON) == "1 after"
        assert time.monotonic() - died < 1 + 1 + 0.5  # the lease, a second, and a loaded machine
        assert await rows(app, "a") == ["1:note", "2:fatal", "3:note"]
    assert seen == ["survived", "after"]


# 4. No doubles on replay.


@activity(retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def announcing(good_from: int) -> int:
    attempt = activity_info().attempt
    await publish("told", attempt)
    await send_event("told.event", attempt)
    await send_to("listener", "told.direct", attempt)
    if attempt < good_from:
        raise ValueError("after the publish")
    return attempt


@workflow(name="promises.announcing")
async def announced(good_from: int) -> int:
    return await announcing(good_from)


@activity
async def misplaced() -> list[str]:
    refused = []
    for call in (lambda: sleep(1), lambda: wait_event("x"), lambda: receive("x"), lambda: subscribe("x")):
        try:
            await call()
        except OutsideWorkflowError as error:
            refused.append(str(error))
    return refused


@workflow(name="promises.misplaced")
async def misplaced_waits() -> list[str]:
    return await misplaced()


@workflow(name="promises.publishing")
async def publishing() -> str:
    await publish("told", "from the body")
    await wait_event("go")
    return "done"


async def _told(storage: SQLStorage, channel: str) -> list[bytes | None]:
    return [message.data for message in await storage.get_pending_channel_messages(channel)]


async def test_p4_what_an_activity_sends_commits_with_its_result(database: Database) -> None:
    async with App(database.url) as app:
        await app._storage.create_instance(WorkflowInstance("listener", "promises.listener"))
        assert await (await announced.start(2)).result(SOON) == 2
        for channel in ("told", "told.event", "told.direct:listener"):
            assert await _told(storage_of(app), channel) == [b"2"], channel


async def test_p4_an_activity_that_fails_sends_nothing(database: Database) -> None:
    async with App(database.url) as app:
        await app._storage.create_instance(WorkflowInstance("listener", "promises.listener"))
        with pytest.raises(WorkflowFailedError, match="after the publish"):
            await (await announced.start(9)).result(SOON)
        for channel in ("told", "told.event", "told.direct:listener"):
            assert await _told(storage_of(app), channel) == [], channel


async def test_p4_waits_in_an_activity_are_refused(database: Database) -> None:
    async with App(database.url):
        refused = await (await misplaced_waits.start()).result(SOON)
    assert len(refused) == 4
    assert all("in an activity" in each for each in refused)


async def test_p4_a_body_publishes_once_however_often_it_is_replayed(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await publishing.options(id="a").start()
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_MESSAGE
        await app.send_event("go", None)
        assert await app.get("a").result(SOON) == "done"
        assert await _told(storage_of(app), "told") == [b'"from the body"']


# 5. Waiting is a row.


@workflow(name="promises.several")
async def several() -> list[str]:
    """Whoever comes first is noted first; a long sleep and two channels at once."""
    seen.append("entered")
    await subscribe("left")
    await subscribe("right")
    order: list[str] = []

    async def one(channel: str) -> None:
        order.append(f"{channel} {(await receive(channel)).data}")

    async def clock() -> None:
        await sleep(1.4)
        order.append("clock")

    await asyncio.gather(one("left"), one("right"), clock())
    return order


@workflow(name="promises.tidy")
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


@pytest.mark.parametrize("resident", [0, 100])
async def test_p5_of_several_waits_each_is_served_when_it_comes(database: Database, resident: int) -> None:
    async with App(database.url, max_cached_runs=resident) as app:
        handle = await several.options(id="a").start()
        await waiting(app, "a")
        await app.publish("right", 1)

        async def right_came() -> bool:
            return "4.1:receive" in await rows(app, "a")

        await until(right_came)
        await app.publish("left", 2)
        found = await handle.result(SOON)
        told = {"3.1:receive": "left 2", "4.1:receive": "right 1", "5.1:timer": "clock"}
        assert sorted(found) == sorted(told.values())
        assert found == [told[id] for id in (await rows(app, "a"))[2:]]
        entries = seen.count("entered")
        assert entries == 1 if resident else entries > 1


@workflow(name="promises.impatient")
async def impatient() -> str:
    await subscribe("never")
    working = asyncio.ensure_future(gated("working"))
    try:
        await receive("never", timeout=3600)
    except TimeoutError:
        gates["working"].set()
    return await working


async def test_p5_the_time_of_a_wait_beside_a_working_branch_outlives_its_worker(shared: Database) -> None:
    async with App(shared.url, drain_timeout=timedelta(0)) as app:
        handle = await impatient.options(id="impatient").start()

        async def noted() -> bool:
            return any(id.startswith("~until:") for id in await rows(app, "impatient"))

        await until(noted)
        passed = """SET event_data = '{"at": "2020-01-01T00:00:00+00:00"}' WHERE activity_id LIKE '~until:%'"""
        await app._storage.db().execute(f"UPDATE workflow_history {passed}")
    async with App(shared.url) as app:
        assert await app.get(handle.id).result(SOON) == "working"


@pytest.mark.parametrize("resident", [0, 100])
async def test_p5_a_body_put_away_has_no_durable_effect(shared: Database, resident: int) -> None:
    async with App(shared.url, max_cached_runs=resident) as app:
        await tidy.options(id="a").start()
        await waiting(app, "a")
    assert seen == ["CancelledError", "RunEvicted"]
    async with App(shared.url, max_cached_runs=resident) as app:
        assert await rows(app, "a") == []
        await app.send_event("go", None, to="a")
        assert await app.get("a").result(SOON) == "done"
    assert "tidied" not in seen


async def test_p5_a_copy_in_memory_that_another_worker_overtook_catches_up(shared: Database) -> None:
    """Parked here, driven on by a second app to its next wait, and taken up here again with the rows in between."""
    async with App(shared.url) as here:
        await several.options(id="a").start()
        await waiting(here, "a")
        parked = here._worker.executor.cache.runs["a"]
        here._worker.slots.most = 0  # takes nothing for a while
        async with App(shared.url) as there:
            await there.publish("left", 1)
            await until(lambda: "a" in there._worker.executor.cache.runs)
        here._worker.slots.most = 1000
        await here.publish("right", 2)
        assert sorted(await here.get("a").result(SOON)) == ["clock", "left 1", "right 2"]
        assert parked.body.done
    assert seen.count("entered") == 2


# 6. The disk only where it matters.


@activity
async def look_back() -> int:
    """How much of this run another connection sees."""
    storage: SQLStorage = gates_storage[0]
    return await storage.get_history_count(activity_info().workflow_id)


gates_storage: list[SQLStorage] = []


@workflow(name="promises.looking_back")
async def looking_back() -> list[int]:
    found = [await look_back()]
    found += await asyncio.gather(look_back(), look_back())
    found += [await look_back() for _ in range(3)]
    return found


async def test_p6_an_activity_starts_when_all_before_it_is_stored(database: Database) -> None:
    async with App(database.url) as app:
        gates_storage[:] = [storage_of(app) if database.backend == "memory" else await database.storage()]
        for run in [await looking_back.start() for _ in range(20)]:
            first, left, right, *rest = await run.result(SOON)
            assert first == 0
            assert {left, right} <= {1, 2}
            assert rest == [3, 4, 5]


async def _leased(storage: SQLStorage, id: str) -> Lease:
    lease = await storage.create_instance(WorkflowInstance(id, "wf"), worker_id="w", timeout_sec=60)
    assert lease is not None
    return lease


def _event(id: str, number: int) -> HistoryEvent:
    return HistoryEvent(id, f"{number}:step", HistoryEventType.ACTIVITY_COMPLETED, b"1")


async def _stored(storage: SQLStorage, id: str) -> list[str]:
    return [event.activity_id for event in (await storage.get_history_paginated(id))[0]]


async def test_p6_a_refused_write_drops_all_later_ones_of_its_run_and_of_no_other(storage: SQLStorage) -> None:
    records: GroupCommit[Entry, int] = GroupCommit(appending(storage))
    lost, kept = [Journal(records, await _leased(storage, id), 0) for id in ("lost", "kept")]
    stored: list[str] = []
    lost.record(_event("lost", 1), lambda: stored.append("lost 1"))
    await lost.durable()
    lease = await steal(storage, "lost")
    for number in range(2, 6):
        lost.record(_event("lost", number), lambda: stored.append("never"))
        kept.record(_event("kept", number), lambda: stored.append("kept"))
    await kept.durable()
    with pytest.raises(LeaseLostError):
        await lost.durable()
    await storage.release_lock("lost", "thief", lease=lease)
    lost.record(_event("lost", 6), lambda: stored.append("never"))
    with pytest.raises(LeaseLostError):
        await lost.durable()
    assert await _stored(storage, "lost") == ["1:step"]
    assert await _stored(storage, "kept") == [f"{number}:step" for number in range(2, 6)]
    assert stored == ["lost 1", *["kept"] * 4]


async def test_p6_after_a_lost_answer_nothing_later_is_sent_until_it_is_known(storage: SQLStorage) -> None:
    sent: list[list[str]] = []
    plain = storage.append_histories

    async def losing(items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        sent.append([event.activity_id for event, _ in items])
        answer = await plain(items)
        if len(sent) < 3:
            raise CommitUnknownError("the answer was lost")
        return answer

    storage.append_histories = losing  # type: ignore[method-assign]
    journal = Journal(GroupCommit(appending(storage)), await _leased(storage, "a"), 0)
    journal.record(_event("a", 1), lambda: None)
    await asyncio.sleep(0)  # it is on its way
    journal.record(_event("a", 2), lambda: None)
    await journal.durable()
    assert sent == [["1:step"], ["1:step"], ["1:step"], ["2:step"]]
    assert await _stored(storage, "a") == ["1:step", "2:step"]


# 8. Idle costs nearly nothing.

IDLE_SEC = 10.5  # a whole round of looks and beats


class Statements:
    """Counts what is sent to each database: by the drivers, or by the server itself."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._counts: Counter[str] = Counter()
        connect, dial = SQLiteBackend._connect, PostgresBackend._dial

        def traced(backend: SQLiteBackend) -> Any:
            connection = connect(backend)
            connection.set_trace_callback(lambda _: self._counts.update(["sqlite"]))
            return connection

        async def logged(backend: PostgresBackend) -> Any:
            connection = await dial(backend)
            connection.add_query_logger(lambda _: self._counts.update(["postgresql"]))
            return connection

        patch.setattr(SQLiteBackend, "_connect", traced)
        patch.setattr(PostgresBackend, "_dial", logged)

    async def sent(self, database: Database) -> int:
        """So far; asking MySQL is a statement as well, which is taken off."""
        if database.backend != "mysql":
            return self._counts[database.backend]
        storage = database._storages[0]
        self._counts["mysql"] += 1
        return int((await storage.db().fetch("SHOW GLOBAL STATUS LIKE 'Questions'"))[0][1]) - self._counts["mysql"]


async def test_p8_an_idle_app_hardly_asks(backend_database: BackendDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"sqlite": 1.0, "postgresql": 1.0, "mysql": 2.0}
    counted = Statements(monkeypatch)
    async with AsyncExitStack() as stack:
        databases = [await stack.enter_async_context(backend_database(backend)) for backend in limits]
        for database in databases:
            app = await stack.enter_async_context(App(database.url))
            await approved.options(id="a").start("parked")
            await waiting(app, "a")
        await asyncio.sleep(1)  # the hints of the starts have been followed
        before = [await counted.sent(database) for database in databases]
        assert all(before)
        began = time.monotonic()
        await asyncio.sleep(IDLE_SEC)
        after = [await counted.sent(database) for database in databases]
        spent = time.monotonic() - began
    rates = {each.backend: (b - a) / spent for each, a, b in zip(databases, before, after, strict=True)}
    assert all(0 < rates[backend] <= limit for backend, limit in limits.items()), rates


async def test_p8_one_query_a_second_covers_all_results_that_are_waited_for(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(shared.url, workflows=[]), Client(shared.url) as client:
        handles = [await approved.options(id=f"a{n}").start("nobody runs it") for n in range(30)]
        asked: list[int] = []
        plain = client._storage.get_instances

        async def counting(ids: Sequence[str]) -> list[WorkflowInstance | None]:
            asked.append(len(ids))
            return await plain(ids)

        monkeypatch.setattr(client._storage, "get_instances", counting)
        waiters = [asyncio.create_task(handle.result(timedelta(seconds=2.2))) for handle in handles]
        ended = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(each, TimeoutError) for each in ended)
        assert 1 <= len(asked) <= 3
        assert max(asked) == 30


# 9. One bad run stops nobody.


async def changing_before() -> str:
    await note("before")
    return str((await wait_event("go")).data)


async def changing_after() -> str:
    await gated("another step")
    return str((await wait_event("go")).data)


def _version(function: Callable[[], Any], max_tries: int | None = None) -> Workflow[..., Any]:
    made: Workflow[..., Any] = version(function, "promises.changing", max_tries)
    return made


async def _stuck(app: App) -> list[str]:
    return [each.id for each in await stuck_runs(app)]


async def test_p9_a_run_of_changed_code_waits_for_code_that_fits(shared: Database) -> None:
    async with App(shared.url, workflows=[_version(changing_before)]) as app:
        await _version(changing_before).options(id="a").start()
        await waiting(app, "a")
    async with App(shared.url, workflows=[_version(changing_after), approved], lease=SHORT) as app:
        await app.send_event("go", "went on")

        async def is_stuck() -> bool:
            return await _stuck(app) == ["a"]

        await until(is_stuck)
        row = await row_of(app, "a")
        assert row.status is WorkflowStatus.RUNNING
        assert row.locked_by == "~put-off#1"
        why = (await app.get("a").info()).stuck
        assert why is not None
        assert why.reason.startswith("NonDeterminismError: run 'a' (promises.changing): the history")
        other = await approved.start("others go on")
        await waiting(app, other.id)
        await app.send_event("go", "too", to=other.id)
        assert await other.result(SOON) == "others go on too after"
        assert await rows(app, "a") == ["1:note", "2:wait_event"]
    assert not entered("another step")()
    async with App(shared.url, workflows=[_version(changing_before)], lease=SHORT) as app:
        assert await app.get("a").result(SOON) == "went on"
        assert await _stuck(app) == []


async def test_p9_each_try_without_progress_is_counted_and_max_tries_ends_it(database: Database) -> None:
    async with App(database.url, workflows=[_version(changing_after, max_tries=2)], lease=SHORT) as app:
        await app._storage.create_instance(WorkflowInstance("a", "promises.changing", owner_service="perdure"))
        await app._storage.append_history(_event("a", 7))
        with pytest.raises(WorkflowFailedError, match="7:step"):
            await app.get("a").result(SOON)
        assert (await app.get("a").info()).status is WorkflowStatus.FAILED


async def test_p9_a_row_that_cannot_be_read_puts_its_run_off(database: Database) -> None:
    async with App(database.url, workflows=[looking_back, approved], lease=SHORT) as app:
        await app._storage.create_instance(WorkflowInstance("bad", looking_back.name, owner_service="perdure"))
        bad = HistoryEvent("bad", "1:look_back", HistoryEventType.ACTIVITY_COMPLETED, b'"not a number"')
        await app._storage.append_history(bad)
        good = await approved.options(id="good").start("good")

        async def is_stuck() -> bool:
            return await _stuck(app) == ["bad"]

        await until(is_stuck)
        await waiting(app, "good")
        await app.send_event("go", "on", to="good")
        assert await good.result(SOON) == "good on after"
        assert (await app.get("bad").info()).status is WorkflowStatus.RUNNING


async def test_p9_workflows_that_are_unknown_here_are_left_alone(shared: Database) -> None:
    async with App(shared.url, workflows=[two_gates], lease=SHORT) as app:
        await approved.options(id="a").start("elsewhere")
        let("one", "two")
        assert await (await two_gates.start("one", "two")).result(SOON) == ["one", "two"]
        row = await row_of(app, "a")
        assert (row.status, row.locked_by, row.lock_token) == (WorkflowStatus.RUNNING, None, 0)
        assert await _stuck(app) == []


async def test_p9_a_worker_that_died_under_a_run_counts_as_a_try(database: Database) -> None:
    gates["two"].set()
    async with App(database.url, lease=SHORT, workflows=[two_gates], worker_id="me") as app:
        instance = WorkflowInstance("a", two_gates.name, b'{"first":"one","second":"two"}', owner_service="perdure")
        await app._storage.create_instance(instance, worker_id="dead#1", timeout_sec=0.2)
        await until(entered("one"))
        assert (await row_of(app, "a")).locked_by == "me#2"
        gates["one"].set()
        assert await app.get("a").result(SOON) == ["one", "two"]


# 10. Shutdown drains.


async def test_p10_a_running_activity_finishes_and_the_next_app_goes_on_at_once(shared: Database) -> None:
    async with App(shared.url) as app:
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
        asyncio.get_running_loop().call_later(0.2, gates["one"].set)
    assert not entered("two")()
    gates["two"].set()
    async with App(shared.url) as app:
        row = await row_of(app, "a")
        began = time.monotonic()
        assert await app.get("a").result(SOON) == ["one", "two"]
        assert time.monotonic() - began < 2  # and not when the lease of 15 s is over
        assert row.lock_token >= 1
    assert [each[0] for each in seen] == ["one", "two"]


async def test_p10_what_does_not_finish_in_time_is_handed_over_at_once(shared: Database) -> None:
    began = time.monotonic()
    async with App(shared.url, drain_timeout=timedelta(seconds=0.3)):
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
    let("one", "two")
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == ["one", "two"]
    assert time.monotonic() - began < 5
    assert [each[0] for each in seen] == ["one", "one cancelled", "one", "two"]


async def test_p10_parked_and_short_sleepers_do_not_hold_the_door(shared: Database) -> None:
    async with App(shared.url) as app:
        await approved.options(id="a").start("parked")
        await retried_late.options(id="b").start()
        await waiting(app, "a")
        await waiting(app, "b")
        began = time.monotonic()
    assert time.monotonic() - began < 2


# Many, and long.


@activity
async def double(number: int) -> int:
    seen.append(number)
    return number * 2


@workflow(name="promises.small")
async def small(number: int) -> int:
    return await double(await double(number))


@workflow(name="promises.steps")
async def steps(count: int) -> int:
    total = 0
    for number in range(count):
        total += await double(number)
    await wait_event("go")
    return total


@workflow(name="promises.sleeper")
async def sleeper(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


async def test_many_1000_workflows_at_a_time_on_one_app(database: Database) -> None:
    async with App(database.url):
        handles = await asyncio.gather(*(small.start(number) for number in range(1000)))
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == [4 * n for n in range(1000)]
    assert len(seen) == 2000


async def test_many_two_apps_share_200_workflows(shared: Database) -> None:
    done: Counter[int] = Counter()

    def counting(app: int) -> Hook:
        return lambda event: done.update([app] if isinstance(event, RunCompleted) else [])

    async with Client(shared.url):
        handles = await asyncio.gather(*(small.start(number) for number in range(200)))
    options: dict[str, Any] = {"workflows": [small], "max_runs": 20}
    async with App(shared.url, hooks=[counting(1)], **options), App(shared.url, hooks=[counting(2)], **options) as app:
        found = await asyncio.gather(*(app.get(handle.id).result(SOON) for handle in handles))
    assert found == [4 * number for number in range(200)]
    assert len(seen) == 400
    assert done.total() == 200
    assert min(done[1], done[2]) > 0


async def test_long_histories_replay(shared: Database) -> None:
    """PERDURE_TEST_STEPS=10000 is the long form."""
    count = int(os.environ.get("PERDURE_TEST_STEPS", "2500"))
    async with App(shared.url, max_cached_runs=0) as app:
        handle = await steps.start(count)
        await until(lambda: len(seen) == count, 100)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        assert await handle.result(SOON) == count * (count - 1)
    assert len(seen) == count


async def test_many_sleepers_all_wake(shared: Database) -> None:
    """All asleep at once, and all due at once. PERDURE_TEST_SLEEPERS=10000 is the long form."""
    count = int(os.environ.get("PERDURE_TEST_SLEEPERS", "2000" if shared.backend == "sqlite" else "600"))
    async with App(shared.url) as app:
        handles = await asyncio.gather(*(sleeper.start(3600) for _ in range(count)))
        sql = app._storage.db()

        async def all_asleep() -> bool:
            asleep = "SELECT count(*) FROM workflow_instances WHERE status = 'waiting_for_timer'"
            return bool((await sql.fetch(asleep))[0][0] == count)

        await until(all_asleep, 100)
        await sql.execute("UPDATE workflow_timer_subscriptions SET expires_at = created_at")  # the hour has passed
        app._worker.wake()
        found = await asyncio.gather(*(handle.result(SOON * 4) for handle in handles))
        assert found == ["awake"] * count
        assert not await stuck_runs(app)
