"""The vocabulary of workflows: a test for each call that is shown nowhere else; docs/guarantees.md has the map."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    Retry,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    now,
    publish,
    receive,
    send_event,
    set_state,
    sleep,
    sleep_until,
    subscribe,
    timeout,
    unsubscribe,
    wait_event,
    workflow,
)
from perdure.errors import NotSubscribedError
from perdure.hooks import (
    HookEvent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    RunWaiting,
    StepCompleted,
    StepFailed,
    StepRetrying,
)
from tests.engine.waiting import row_of, status_of, until, waiting
from tests.storages import Database

SOON = timedelta(seconds=20)
DAY = timedelta(days=1)
TWICE = Retry(attempts=2, initial=timedelta(milliseconds=5))
done: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()
    gates.clear()


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@workflow(name="vocabulary.shouter")
async def shouter(what: str) -> str:
    set_state({"about to shout": what})
    return await shout(what)


@workflow(name="vocabulary.sleeper")
async def sleeper(what: str) -> None:
    set_state(what)
    await sleep(DAY)


# run


async def test_row_run_get_and_list(database: Database) -> None:
    async with App(database.url) as app:
        for what in ("one", "two", "bad"):
            await shouter.options(id=what).start(what)
        waits = await sleeper.options(id="long").start("long")
        assert [await app.get(what).result(SOON) for what in ("one", "two")] == ["ONE", "TWO"]
        with pytest.raises(WorkflowFailedError):
            await app.get("bad").result(SOON)
        await status_of(waits, WorkflowStatus.WAITING_FOR_TIMER)

        async def listed(**filters: Any) -> set[str]:
            return {run.id async for run in app.runs(**filters)}

        assert await listed() == {"one", "two", "bad", "long"}
        assert await listed(workflow="vocabulary.shouter") == {"one", "two", "bad"}
        assert await listed(status=WorkflowStatus.FAILED) == {"bad"}
        assert await listed(where={"what": "two"}, workflow=shouter) == {"two"}
        moment = datetime.now(UTC)
        assert await listed(started_before=moment - DAY) == await listed(started_after=moment + DAY) == set()
        first = await app.runs().page(3)
        rest = await app.runs().page(3, first.next_token)
        assert [len(first.runs), len(rest.runs)] == [3, 1]
        assert rest.next_token is None


async def test_row_run_client_does_the_same_without_running(shared: Database) -> None:
    async with Client(shared.url) as client:
        good, bad = await shouter.options(id="good").start("good"), await shouter.start("bad")
        later = await shouter.options(after=DAY).start("later")
        assert (await good.info()).status is WorkflowStatus.RUNNING
        assert (await row_of(good)).locked_by is None
        assert [event async for event in good.history()] == []
        with pytest.raises(TimeoutError):
            await good.result(0.05)
        await later.cancel("not needed")
        assert (await later.info()).status is WorkflowStatus.COMPENSATING  # whoever drives it will undo it
        assert done == []
        async with App(shared.url, workflows=[shouter]):
            assert await client.get("good").result(SOON) == "GOOD"
            assert await good.state() == {"about to shout": "good"}
            with pytest.raises(WorkflowCancelledError):
                await later.result(SOON)
            with pytest.raises(WorkflowFailedError):
                await bad.result(SOON)
            assert (await client.retry(bad.id)).id == f"{bad.id}~r1"
            assert len([run async for run in client.runs(workflow="vocabulary.shouter")]) == 4


# compose


@workflow(name="vocabulary.composed")
async def composed() -> list[str]:
    queue: asyncio.Queue[str] = asyncio.Queue(1)
    lock = asyncio.Lock()

    async def produce(whats: str) -> None:
        for what in whats:
            await queue.put(await shout(what))

    async def guarded(what: str) -> str:
        async with lock:
            return await shout(what)

    said = list(await asyncio.gather(shout("a"), shouter("b"), guarded("c"), guarded("d")))
    async with asyncio.TaskGroup() as group:
        group.create_task(produce("ef"))
        said += [await queue.get(), await queue.get()]
    branches = {asyncio.create_task(sleep(DAY)), asyncio.create_task(_told())}
    first, others = await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    for branch in others:
        branch.cancel()
    return [*said, *(str(branch.result()) for branch in first)]


async def _told() -> str:
    return str((await wait_event("vocabulary.tell")).data)


@pytest.mark.parametrize("resident", [0, 10])
async def test_row_compose_gather_wait_queues_and_locks(database: Database, resident: int) -> None:
    async with App(database.url, max_cached_runs=resident) as app:
        handle = await composed.start()
        await until(lambda: len(done) == 6)
        await waiting(app, handle.id)
        await app.send_event("vocabulary.tell", "g", to=handle.id)
        assert await handle.result(SOON) == ["A", "B", "C", "D", "E", "F", "g"]
        assert sorted(done) == list("abcdef")


# time


@workflow(name="vocabulary.times")
async def times() -> list[str]:
    began, found = now(), []
    await sleep_until(began + timedelta(seconds=1.2))
    found.append("on time" if now() - began >= timedelta(seconds=1.2) else "early")
    await sleep_until(began)  # long over
    try:
        async with timeout(timedelta(seconds=0.05)):
            await sleep(DAY)
    except TimeoutError:
        found.append("too long")
    try:
        await sleep_until(datetime(2026, 1, 1))
    except ValueError:
        found.append("in which zone?")
    return found


async def test_row_time_sleep_until_and_timeout(database: Database) -> None:
    async with App(database.url, max_cached_runs=0):
        assert await (await times.start()).result(SOON) == ["on time", "too long", "in which zone?"]


# events


@workflow(name="vocabulary.asker")
async def asker() -> list[object]:
    event = await wait_event("vocabulary.answered", data=dict[str, datetime])
    again = await wait_event("vocabulary.answered", timeout=DAY)
    return [event.type, event.data["at"], event.id, event.source, event.subject, again.data]


@workflow(name="vocabulary.answerer")
async def answerer(to: str) -> None:
    data = {"at": datetime(2026, 1, 2, tzinfo=UTC)}
    for _ in range(2):  # one that has an id is stored once
        await send_event("vocabulary.answered", data, to=to, id="e-1", source="/desk", subject="lamp")


async def test_row_events_data_and_attributes_sent_by_a_body_and_by_an_app(database: Database) -> None:
    async with App(database.url) as app:
        handle = await asker.options(id="asker").start()
        await (await answerer.start("asker")).result(SOON)
        await app.send_event("vocabulary.answered", "from outside", to="asker")
        assert await handle.result(SOON) == [
            "vocabulary.answered",
            "2026-01-02T00:00:00Z",
            "e-1",
            "/desk",
            "lamp",
            "from outside",
        ]


# channels


@workflow(name="vocabulary.reader")
async def reader() -> list[object]:
    found: list[object] = []
    await subscribe("vocabulary.news")
    try:
        await receive("vocabulary.news", timeout=0)
    except TimeoutError:
        found.append("nothing yet")
    await shout("ready")
    message = await receive("vocabulary.news", timeout=DAY)
    found += [message.data, dict(message.metadata)]
    await unsubscribe("vocabulary.news")
    try:
        await receive("vocabulary.news")
    except NotSubscribedError:
        found.append("no longer")
    return found


@workflow(name="vocabulary.writer")
async def writer() -> None:
    await publish("vocabulary.news", {"n": 1}, metadata={"by": "writer"})


async def test_row_channels_publish_with_metadata_receive_with_timeout_unsubscribe(database: Database) -> None:
    async with App(database.url):
        handle = await reader.start()
        await until(lambda: done == ["ready"])
        await (await writer.start()).result(SOON)
        assert await handle.result(SOON) == ["nothing yet", {"n": 1}, {"by": "writer"}, "no longer"]


# saga


@activity
async def step(what: str) -> None:
    done.append(what)


@step.compensation
async def unstep(what: str, *, result: None) -> None:
    done.append(f"undo {what}")
    if what == "b":
        await gates.setdefault(what, asyncio.Event()).wait()


@workflow(name="vocabulary.steps")
async def steps() -> None:
    for what in "abc":
        await step(what)
    await shout("bad")


async def test_row_saga_undoing_goes_on_where_another_worker_stopped(shared: Database) -> None:
    async with App(shared.url, drain_timeout=timedelta(0)):
        handle = await steps.options(id="steps").start()
        await until(lambda: "undo b" in done)
    gates["b"].set()
    async with App(shared.url) as app:
        with pytest.raises(WorkflowFailedError):
            await app.get(handle.id).result(SOON)
    assert done == ["a", "b", "c", "bad", "undo c", "undo b", "undo b", "undo a"]


# limits

together = [0, 0]


@activity(retry=Retry(attempts=1))
def in_a_thread() -> str:
    together[0] += 1
    together[1] = max(together)
    time.sleep(0.02)
    together[0] -= 1
    return threading.current_thread().name


@workflow(name="vocabulary.threads")
async def in_threads(count: int) -> list[str]:
    return list(await asyncio.gather(*(in_a_thread() for _ in range(count))))


async def test_row_limits_threads(database: Database) -> None:
    together[:] = [0, 0]
    async with App(database.url, max_threads=2):
        names = await (await in_threads.start(8)).result(SOON)
    assert len(set(names)) == 2
    assert together == [0, 2]


async def test_row_limits_workflows_are_all_that_an_app_runs(shared: Database) -> None:
    async with App(shared.url, workflows=[in_threads]):
        other = await shouter.start("other")
        await (await in_threads.start(1)).result(SOON)
        assert done == []
        async with App(shared.url, workflows=[shouter]):
            assert await other.result(SOON) == "OTHER"


async def test_row_limits_set_state_is_peeked_at(database: Database) -> None:
    async with App(database.url):
        handle = await sleeper.start("asleep")
        await status_of(handle, WorkflowStatus.WAITING_FOR_TIMER)
        assert await handle.state() == "asleep"
        ended = await shouter.start("a")
        await ended.result(SOON)
        assert await ended.state() == {"about to shout": "a"}


# observe


@activity(retry=TWICE)
async def flaky() -> None:
    done.append("flaky")
    if done.count("flaky") == 1:
        raise ValueError("once")


@workflow(name="vocabulary.observed")
async def observed(ends: str) -> None:
    await flaky()
    await wait_event("vocabulary.go")
    await shout(ends)


ENDS: dict[type[HookEvent], WorkflowStatus] = {
    RunCompleted: WorkflowStatus.COMPLETED,
    RunFailed: WorkflowStatus.FAILED,
    RunCancelled: WorkflowStatus.CANCELLED,
}


@pytest.mark.parametrize("end", ENDS)
async def test_row_observe_every_hook_after_its_commit(database: Database, end: type[HookEvent]) -> None:
    told: list[type[HookEvent]] = []
    seen: list[WorkflowStatus] = []

    async def hook(event: HookEvent) -> None:
        told.append(type(event))
        if type(event) in ENDS:
            seen.append((await app.get(event.run_id).info()).status)

    async with App(database.url, max_cached_runs=0, hooks=[hook]) as app:
        handle = await observed.start("bad" if end is RunFailed else "good")
        await waiting(app, handle.id)
        if end is RunCancelled:
            await handle.cancel()
        else:
            await app.send_event("vocabulary.go", None, to=handle.id)
        await until(lambda: end in told)
    before = [RunStarted, StepRetrying, RunWaiting, *([] if end is RunCancelled else [RunResumed])]
    assert [kind for kind in told if kind not in (StepCompleted, StepFailed, end)] == before
    assert told.count(StepCompleted) >= 1
    assert told.count(end) == 1
    assert seen == [ENDS[end]]
