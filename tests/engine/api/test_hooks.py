"""Hooks: each event with its fields, after the commit, and never on replay."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError
from datetime import UTC, timedelta
from typing import Any, TypeVar

import pytest

from perdure import (
    App,
    Retry,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    connection,
    publish,
    recur,
    sleep,
    wait_event,
    workflow,
)
from perdure import hooks as events
from perdure.hooks import (
    CompensationCompleted,
    CompensationFailed,
    HookEvent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRecurred,
    RunResumed,
    RunStarted,
    RunStuck,
    RunWaiting,
    StepCompleted,
    StepFailed,
    StepRetrying,
)
from tests.conftest import BackendDatabase
from tests.engine.parcels import PARCEL, packed
from tests.engine.versions import version
from tests.engine.waiting import stuck_runs, until, waiting
from tests.support.storages import Database

TWICE = Retry(attempts=2, initial=timedelta(milliseconds=5))
done: list[str] = []
ENDS: dict[type[HookEvent], WorkflowStatus] = {
    RunCompleted: WorkflowStatus.COMPLETED,
    RunFailed: WorkflowStatus.FAILED,
    RunCancelled: WorkflowStatus.CANCELLED,
}
seen: list[Any] = []

SOON = timedelta(seconds=60)
QUICK = Retry(attempts=2, initial=timedelta(milliseconds=5))
ONCE = Retry(attempts=1)
E = TypeVar("E", bound=HookEvent)


def of(found: list[HookEvent], kind: type[E]) -> list[E]:
    return [event for event in found if isinstance(event, kind)]


@pytest.mark.parametrize("hook", [None, "print", 3, [print]], ids=repr)
def test_hook_that_is_not_callable_is_refused(hook: Any) -> None:
    with pytest.raises(TypeError, match="hooks"):
        App("sqlite:///:memory:", hooks=[hook])


def test_every_event_is_a_frozen_class_that_is_exported() -> None:
    kinds = {kind.__name__ for kind in HookEvent.__subclasses__()}
    assert {*kinds, "HookEvent", "Hook"} == set(events.__all__)
    event = RunStarted("a", "order", None)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        event.run_id = "b"  # type: ignore[misc]


@activity(name="hooks.book", retry=QUICK)
async def book(what: str) -> str:
    return what


@book.compensation(retry=QUICK)
async def unbook(what: str, *, result: str) -> None:
    if what == "hotel":
        raise OSError("no answer")


@activity(retry=QUICK)
async def pay() -> None:
    raise ValueError("card declined")


@activity(transactional=True, retry=ONCE)
async def note() -> None:
    assert connection() is not None


@workflow(name="hooks.trip")
async def trip() -> None:
    await book("flight")
    await book("hotel")
    await note()
    await publish("hooks.news", 1)
    await pay()


async def test_hooks_get_each_step_retry_and_compensation_of_a_failed_saga(database: Database) -> None:
    found: list[HookEvent] = []
    async with App(database.url, hooks=[found.append]):
        with pytest.raises(WorkflowFailedError):
            await (await trip.options(id="a").start()).result(SOON)
        await until(lambda: bool(of(found, RunFailed)))
    assert [type(event) for event in found] == [
        RunStarted,
        *[StepCompleted] * 4,
        StepRetrying,
        StepFailed,
        StepRetrying,
        CompensationFailed,
        CompensationCompleted,
        RunFailed,
    ]
    for event in found:
        assert (event.run_id, event.workflow, event.at.tzinfo) == ("a", "hooks.trip", UTC)
    assert [event.at for event in found] == sorted(event.at for event in found)
    completed = [(each.step, each.activity, each.attempt) for each in of(found, StepCompleted)]
    assert completed == [
        ("1:hooks.book", "hooks.book", 1),
        ("2:hooks.book", "hooks.book", 1),
        ("3:note", "note", 1),
        ("4:publish", "publish", 1),
    ]
    assert all(each.duration > timedelta(0) for each in of(found, StepCompleted))
    retry, undo_retry = of(found, StepRetrying)
    assert (retry.step, retry.activity, retry.attempt, retry.max_attempts) == ("5:pay", "pay", 1, 2)
    assert (retry.error_type, retry.error_message) == ("builtins.ValueError", "card declined")
    assert timedelta(0) < retry.retry_in < timedelta(seconds=1)
    assert (undo_retry.step, undo_retry.activity) == ("undo:2:hooks.book", "unbook")
    (failed,) = of(found, StepFailed)
    assert (failed.step, failed.attempt, failed.error_message) == ("5:pay", 2, "card declined")
    (undone,) = of(found, CompensationCompleted)
    assert (undone.step, undone.activity, undone.attempt) == ("1:hooks.book", "unbook", 1)
    (kept,) = of(found, CompensationFailed)
    assert (kept.step, kept.activity, kept.attempt, kept.error_message) == ("2:hooks.book", "unbook", 2, "no answer")
    (end,) = of(found, RunFailed)
    assert (end.error_type, end.error_message) == ("builtins.ValueError", "card declined")
    assert (end.step, end.attempts) == ("5:pay", 2)
    assert end.duration > timedelta(0)


@workflow(name="hooks.paying")
async def paying() -> None:
    await pay()


async def test_retry_hook_is_called_after_the_commit(shared: Database) -> None:
    peer = await shared.storage()
    counts: list[int] = []
    pending: list[HookEvent] = []

    async with App(shared.url, hooks=[pending.append]) as app:
        records = app._storage.append_histories

        async def counted(*args: Any, **options: Any) -> Any:
            counts.append(len(of(pending, StepRetrying)))  # before this commit
            return await records(*args, **options)

        app._storage.append_histories = counted  # type: ignore[method-assign]
        with pytest.raises(WorkflowFailedError):
            await (await paying.options(id="a").start()).result(SOON)
    assert counts == [0, 1]
    assert len(of(pending, StepRetrying)) == 1
    assert await peer.get_history_count("a") == 3


@workflow(name="hooks.counting")
async def counting(left: int) -> int:
    if left:
        recur(left - 1)
    await asyncio.gather(wait_event("hooks.go"), sleep(0.01))
    return left


async def test_hooks_of_a_run_that_recurs_waits_and_resumes(shared: Database) -> None:
    found: list[HookEvent] = []
    async with App(shared.url, max_cached_runs=0, hooks=[found.append]) as app:
        handle = await counting.options(id="a").start(1)
        await waiting(app, "a")
        await app.send_event("hooks.go", None)
        await handle.result(SOON)
    assert [type(event) for event in found] == [
        RunStarted,
        RunRecurred,
        RunStarted,
        RunWaiting,
        RunResumed,
        RunCompleted,
    ]
    (waits,) = of(found, RunWaiting)
    assert any("wait_event" in step for step in waits.steps)


async def test_cancel_hook_gets_the_reason(shared: Database) -> None:
    found: list[HookEvent] = []
    async with App(shared.url, hooks=[found.append]) as app:
        handle = await counting.options(id="a").start(0)
        await waiting(app, "a")
        await handle.cancel("changed my mind")
        await until(lambda: bool(of(found, RunCancelled)))
        assert (await handle.info()).status is WorkflowStatus.CANCELLED
    assert of(found, RunCancelled)[0].reason == "changed my mind"


async def before() -> None:
    await book("flight")
    await wait_event("hooks.go")


async def after() -> None:
    await wait_event("hooks.go")


async def test_stuck_hook_gets_reason_tries_and_pause(shared: Database) -> None:
    found: list[HookEvent] = []
    old, new = version(before, "hooks.changing"), version(after, "hooks.changing")
    async with App(shared.url, workflows=[old]) as app:
        await old.options(id="a").start()
        await waiting(app, "a")
        await app.send_event("hooks.go", None)
    async with App(shared.url, workflows=[new], hooks=[found.append]) as app:
        await until(lambda: bool(of(found, RunStuck)))
        assert [each.id for each in await stuck_runs(app)] == ["a"]  # the hook was called after the commit
    stuck = of(found, RunStuck)[0]
    assert stuck.reason.startswith(
        "NonDeterminismError: run 'a' (hooks.changing): the history continues with 1:hooks.book"
    )
    assert (stuck.tries, stuck.retry_in) == (1, timedelta(seconds=1))


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()
    seen.clear()


@pytest.fixture
async def sqlite(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """A database that two apps can open."""
    async with backend_database("sqlite") as database:
        yield database


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@activity(retry=TWICE)
async def flaky() -> None:
    done.append("flaky")
    if done.count("flaky") == 1:
        raise ValueError("once")


@workflow(name="hooks.observed")
async def observed(ends: str) -> None:
    await flaky()
    await wait_event("hooks.go")
    await shout(ends)


@pytest.mark.call("observe")
@pytest.mark.parametrize("end", ENDS)
async def test_every_hook_is_called_after_its_commit(database: Database, end: type[HookEvent]) -> None:
    events: list[type[HookEvent]] = []
    seen: list[WorkflowStatus] = []

    async def hook(event: HookEvent) -> None:
        events.append(type(event))
        if type(event) in ENDS:
            seen.append((await app.get(event.run_id).info()).status)

    async with App(database.url, max_cached_runs=0, hooks=[hook]) as app:
        handle = await observed.start("bad" if end is RunFailed else "good")
        await waiting(app, handle.id)
        if end is RunCancelled:
            await handle.cancel()
        else:
            await app.send_event("hooks.go", None, to=handle.id)
        await until(lambda: end in events)
    before = [RunStarted, StepRetrying, RunWaiting, *([] if end is RunCancelled else [RunResumed])]
    assert [kind for kind in events if kind not in (StepCompleted, StepFailed, end)] == before
    assert events.count(StepCompleted) >= 1
    assert events.count(end) == 1
    assert seen == [ENDS[end]]


@activity(retry=ONCE)
async def record(what: object) -> None:
    seen.append(what)


@activity(retry=ONCE)
def threaded(number: int) -> list[Any]:
    return [number * 2, threading.current_thread() is threading.main_thread(), activity_info().attempt]


@workflow(name="hooks.threaded")
async def in_a_thread() -> list[Any]:
    return await threaded(21)


@workflow(name="hooks.echo")
async def echo(value: int) -> int:
    await record(value)
    return value


@pytest.mark.call("observe")
async def test_hooks_are_not_called_on_replay(sqlite: Database) -> None:
    events: list[tuple[type[HookEvent], object]] = []

    async def slowly(event: HookEvent) -> None:
        await asyncio.sleep(0)
        events.append((type(event), getattr(event, "step", None)))

    async with App(sqlite.url, max_cached_runs=0, hooks=[slowly]) as app:
        handle = await packed.options(id="a").start(PARCEL)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        await handle.result(SOON)
    assert events[0] == (RunStarted, None)
    assert Counter(events)[StepCompleted, "1:pack"] == 1
    ends = [kind for kind, _ in events if kind is not StepCompleted]
    assert ends == [RunStarted, RunWaiting, RunResumed, RunCompleted]


@pytest.mark.call("observe")
async def test_step_hook_is_called_after_the_commit(sqlite: Database) -> None:
    counts: list[int] = []
    peer = await sqlite.storage()

    async def look(event: HookEvent) -> None:
        if isinstance(event, StepCompleted):
            counts.append(await peer.get_history_count(event.run_id))

    async with App(sqlite.url, hooks=[look]):
        await (await in_a_thread.start()).result(SOON)
    assert counts == [1]


@pytest.mark.call("observe")
async def test_error_in_a_hook_is_logged_and_ignored(memory: Database, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: HookEvent) -> None:
        raise ValueError("a hook's own trouble")

    async def broken_later(event: HookEvent) -> None:
        raise ValueError("a hook's own trouble")

    async with App(memory.url, hooks=[broken, broken_later]):
        assert await (await echo.start(1)).result(SOON) == 1
    failures = [record for record in caplog.records if record.message.startswith("hook ")]
    assert len(failures) >= 4
    assert all(record.exc_info for record in failures)
