"""What a body may call and what it may not; what surrounds a run: limits, hooks, logs, ids, errors."""

import asyncio
import logging
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from perdure import (
    App,
    Client,
    EngineError,
    NotDurableError,
    NotDurableWarning,
    OutsideWorkflowError,
    PerdureError,
    Retry,
    RunNotFoundError,
    SerializationError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    now,
    sleep,
    wait_event,
    workflow,
)
from perdure.errors import ConfigurationError, LimitError, RunExistsError
from perdure.hooks import HookEvent, RunCompleted, RunResumed, RunStarted, RunWaiting, StepCompleted
from tests.conftest import BackendDatabase
from tests.engine.waiting import waiting
from tests.support.storages import Database

SOON = timedelta(seconds=20)
ONCE = Retry(attempts=1)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@pytest.fixture
async def memory(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """What is the same on every database needs only one."""
    async with backend_database("memory") as database:
        yield database


@pytest.fixture
async def sqlite(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    """A database that two apps can open."""
    async with backend_database("sqlite") as database:
        yield database


@activity(retry=ONCE)
async def note(what: object) -> None:
    seen.append(what)


# What no replay could repeat.


async def _socket() -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def _server() -> None:
    await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


async def _lookup() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def _reader() -> None:
    left, right = socket.socketpair()
    with left, right:
        asyncio.get_running_loop().add_reader(left, lambda: None)


async def _process() -> None:
    await asyncio.create_subprocess_exec("true", stdout=subprocess.DEVNULL)


async def _thread() -> None:
    await asyncio.to_thread(lambda: None)


async def _executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)


async def _from_a_thread() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(lambda: None)


FORBIDDEN = {each.__name__: each for each in (_socket, _server, _lookup, _reader, _process, _thread, _executor)}
FORBIDDEN[_from_a_thread.__name__] = _from_a_thread


@workflow(name="calls.forbidden")
async def forbidden(which: str) -> str:
    try:
        await FORBIDDEN[which]()
    except NotDurableError as error:
        return str(error)
    return "allowed"


@pytest.mark.parametrize("which", FORBIDDEN)
async def test_meaning_own_loop_what_cannot_be_replayed_is_refused_with_the_durable_way(
    memory: Database, which: str
) -> None:
    async with App(memory.url):
        said = await (await forbidden.start(which)).result(SOON)
    assert "could not be replayed" in said
    assert "activity" in said or "event" in said


def test_meaning_own_loop_hidden_calls_are_found_in_the_source() -> None:
    with pytest.warns(NotDurableWarning, match=r"time.time.*perdure.now\(\)"):

        @workflow(name="calls.clock")
        async def clock() -> float:
            return time.time()

    with pytest.raises(NotDurableError, match=r"perdure.now\(\)"):

        @workflow(name="calls.strict_clock", strict=True)
        async def strict_clock() -> datetime:
            return datetime.now(UTC)


# Time is durable.


@workflow(name="calls.timers")
async def timers() -> list[str]:
    found: list[str] = []
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    await asyncio.sleep(0.01)
    found.append("slept")
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        found.append("timeout")
    try:
        await asyncio.wait_for(wait_event("never"), 0.01)
    except TimeoutError:
        found.append("wait_for")
    loop.call_later(0.01, called.set)
    await called.wait()
    found.append("call_later")
    return found


@workflow(name="calls.long_timer")
async def long_timer() -> str:
    await asyncio.sleep(1.2)
    return "slept"


async def test_meaning_own_loop_timers_of_asyncio_are_durable(database: Database) -> None:
    async with App(database.url):
        handle = await timers.start()
        assert await handle.result(SOON) == ["slept", "timeout", "wait_for", "call_later"]
        kinds = [event.kind async for event in handle.history()]
    assert kinds == ["TimerExpired"] * 4


async def test_meaning_own_loop_a_long_asyncio_sleep_outlives_the_app(sqlite: Database) -> None:
    due = time.monotonic() + 1.2
    async with App(sqlite.url) as app:
        await long_timer.options(id="a").start()
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_TIMER
    await asyncio.sleep(due - time.monotonic())
    async with App(sqlite.url) as app:
        began = time.monotonic()
        assert await app.get("a").result(SOON) == "slept"
        assert time.monotonic() - began < 1.1  # it did not begin anew


# Activities.


@activity(timeout=timedelta(seconds=0.05), retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def slow() -> None:
    seen.append(activity_info().attempt)
    await asyncio.sleep(30)


@activity(retry=ONCE)
def threaded(number: int) -> list[Any]:
    return [number * 2, threading.current_thread() is threading.main_thread(), activity_info().attempt]


@activity(retry=ONCE)
async def crowded() -> None:
    running[0] += 1
    running[1] = max(running)
    await asyncio.sleep(0.01)
    running[0] -= 1


running = [0, 0]


@workflow(name="calls.slow")
async def too_slow() -> str:
    try:
        await slow()
    except TimeoutError:
        return "too slow"
    return "in time"


@workflow(name="calls.threaded")
async def in_a_thread() -> list[Any]:
    return await threaded(21)


@workflow(name="calls.crowd")
async def crowd(count: int) -> None:
    await asyncio.gather(*(crowded() for _ in range(count)))


async def test_row_limits_activity_timeout_is_for_each_attempt(memory: Database) -> None:
    async with App(memory.url):
        handle = await too_slow.start()
        assert await handle.result(SOON) == "too slow"
        assert [event.step async for event in handle.history()] == ["1:slow#1", "1:slow"]
    assert seen == [1, 2]


async def test_a_plain_function_runs_in_a_thread(memory: Database) -> None:
    async with App(memory.url):
        assert await (await in_a_thread.start()).result(SOON) == [42, False, 1]


async def test_row_limits_max_activities(memory: Database) -> None:
    running[:] = [0, 0]
    async with App(memory.url, max_activities=3):
        for handle in [await crowd.start(6) for _ in range(3)]:
            await handle.result(SOON)
    assert running == [0, 3]


async def test_row_limits_max_runs(sqlite: Database) -> None:
    running[:] = [0, 0]
    async with App(sqlite.url, max_runs=4):
        handles = await asyncio.gather(*(crowd.start(1) for _ in range(20)))
        await asyncio.gather(*(handle.result(SOON) for handle in handles))
    assert running == [0, 4]


# Outside a workflow.


async def test_outside_a_workflow_an_activity_is_an_ordinary_call() -> None:
    await note("plainly")
    assert seen == ["plainly"]

    @activity
    def sum_of(*numbers: int) -> int:
        return sum(numbers)

    assert await sum_of(1, 2, 3) == 6


async def test_durable_calls_outside_a_workflow_say_so() -> None:
    for call in (lambda: sleep(1), lambda: wait_event("x")):
        with pytest.raises(OutsideWorkflowError, match="outside a workflow"):
            await call()
    with pytest.raises(OutsideWorkflowError):
        now()
    with pytest.raises(OutsideWorkflowError):
        activity_info()
    with pytest.raises(EngineError, match="no App or Client is open"):
        await timers.start()


# Values.


class Colour(Enum):
    RED = "red"


@dataclass
class Parcel:
    id: UUID
    weight: Decimal
    sent_at: datetime
    colour: Colour
    parts: list["Parcel"]
    seal: bytes
    note: str | int | None = None


PARCEL = Parcel(UUID(int=7), Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC), Colour.RED, [], b"\x00\xff", note=3)


@activity(retry=ONCE)
async def pack(parcel: Parcel) -> Parcel:
    seen.append(parcel)
    parcel.parts.append(Parcel(**{**vars(parcel), "parts": []}))
    return parcel


@workflow(name="calls.parcel")
async def packed(parcel: Parcel) -> tuple[Parcel, int]:
    found = await pack(parcel)
    await wait_event("go")
    return found, len(parcel.parts)


async def test_user_values_come_back_as_what_they_were_live_and_replayed(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        handle = await packed.start(PARCEL)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        found, parts = await handle.result(SOON)
    assert found == Parcel(**{**vars(PARCEL), "parts": [PARCEL]})
    assert parts == 0  # the activity had a copy, as it would after a crash
    assert seen == [found]


@workflow(name="calls.argument")
async def odd_argument() -> None:
    await note(object())


@activity(retry=ONCE)
async def odd() -> Any:
    return object()


@activity(retry=ONCE)
async def wrong() -> int:
    return "seven"  # type: ignore[return-value]


@workflow(name="calls.result")
async def odd_result() -> None:
    await odd()


@workflow(name="calls.wrong")
async def wrong_result() -> None:
    await wrong()


@workflow(name="calls.own_result")
async def odd_own_result() -> Any:
    return object()


@pytest.mark.parametrize(
    "odd_one", [odd_argument, odd_result, wrong_result, odd_own_result], ids=lambda each: each.name
)
async def test_what_cannot_be_written_fails_the_run_with_a_clear_error(memory: Database, odd_one: Any) -> None:
    async with App(memory.url):
        with pytest.raises(WorkflowFailedError) as caught:
            await (await odd_one.start()).result(SOON)
    assert isinstance(caught.value.__cause__, SerializationError)
    assert "object" in str(caught.value) or "int" in str(caught.value)


async def test_an_input_that_cannot_be_written_or_does_not_fit_is_refused_at_the_start(memory: Database) -> None:
    async with App(memory.url) as app:
        with pytest.raises(SerializationError):
            await packed.start(object())  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await packed.start()  # type: ignore[call-arg]
        assert await app.runs().count() == 0


# Starting.


@workflow(name="calls.echo")
async def echo(value: int) -> int:
    await note(value)
    return value


async def test_row_run_start_at(database: Database) -> None:
    async with App(database.url):
        at = datetime.now(UTC) + timedelta(seconds=0.5)
        handle = await echo.options(at=at).start(1)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert seen == []
        assert await handle.result(SOON) == 1
        assert datetime.now(UTC) >= at - timedelta(seconds=0.1)
        assert await (await echo.options(at=datetime.now(UTC) - timedelta(days=1)).start(2)).result(SOON) == 2


async def test_what_ids_may_be(memory: Database) -> None:
    async with App(memory.url):
        for good in ("a", "order/A-1", "ä" * 200):
            assert await (await echo.options(id=good).start(1)).result(SOON) == 1
        for bad in ("", " a", "a\n", "a" * 201):
            with pytest.raises(LimitError, match="run id"):
                await echo.options(id=bad).start(1)
        ids = [(await echo.start(1)).id for _ in range(3)]
        assert sorted(ids, key=lambda id: id[:13]) == ids
        assert len(set(ids)) == 3


async def test_meaning_same_id_twice_of_another_workflow_is_refused(memory: Database) -> None:
    async with App(memory.url):
        await echo.options(id="same").start(1)
        with pytest.raises(RunExistsError):
            await too_slow.options(id="same").start()


def test_a_workflow_that_is_not_async_is_refused() -> None:
    with pytest.raises(TypeError, match="async def"):

        @workflow(name="calls.not_async")  # type: ignore[arg-type]
        def not_async() -> None:
            pass


# Looking.


async def test_row_run_result_timeout(memory: Database) -> None:
    async with App(memory.url) as app:
        handle = await packed.start(PARCEL)
        with pytest.raises(TimeoutError):
            await handle.result(0.05)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        await handle.result(SOON)


async def test_a_run_that_is_not_there(memory: Database) -> None:
    async with App(memory.url) as app:
        for ask in (app.get("nobody").result, app.get("nobody").info, app.get("nobody").steps):
            with pytest.raises(RunNotFoundError, match="nobody"):
                await ask()


@pytest.mark.parametrize("url", ["oracle://x", "sqlite://x.db", "", "orders.db"])
async def test_a_wrong_url_is_told_at_once(url: str) -> None:
    for opened in (App, Client):
        with pytest.raises(ConfigurationError, match="URL"):
            async with opened(url):
                pass
    with pytest.raises(EngineError, match="no App or Client is open"):  # nothing was left half open
        await timers.start()


# Hooks and logs.


async def test_row_observe_hooks_are_not_told_on_replay(sqlite: Database) -> None:
    told: list[tuple[type[HookEvent], object]] = []

    async def slowly(event: HookEvent) -> None:
        await asyncio.sleep(0)
        told.append((type(event), getattr(event, "step", None)))

    async with App(sqlite.url, max_cached_runs=0, hooks=[slowly]) as app:
        handle = await packed.options(id="a").start(PARCEL)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        await handle.result(SOON)
    assert told[0] == (RunStarted, None)
    assert Counter(told)[StepCompleted, "1:pack"] == 1
    ends = [kind for kind, _ in told if kind is not StepCompleted]
    assert ends == [RunStarted, RunWaiting, RunResumed, RunCompleted]


async def test_row_observe_hooks_are_told_after_the_commit(sqlite: Database) -> None:
    counts: list[int] = []
    peer = await sqlite.storage()

    async def look(event: HookEvent) -> None:
        if isinstance(event, StepCompleted):
            counts.append(await peer.get_history_count(event.run_id))

    async with App(sqlite.url, hooks=[look]):
        await (await in_a_thread.start()).result(SOON)
    assert counts == [1]


async def test_row_observe_a_hook_that_raises_is_logged(memory: Database, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: HookEvent) -> None:
        raise ValueError("a hook's own trouble")

    async def broken_later(event: HookEvent) -> None:
        raise ValueError("a hook's own trouble")

    async with App(memory.url, hooks=[broken, broken_later]):
        assert await (await echo.start(1)).result(SOON) == 1
    failures = [record for record in caplog.records if record.message.startswith("hook ")]
    assert len(failures) >= 4
    assert all(record.exc_info for record in failures)


@activity(retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def secretive(password: str) -> str:
    raise ValueError("it did not work")


@workflow(name="calls.secretive")
async def keeps_secrets(password: str) -> str:
    try:
        return await secretive(password)
    except ValueError:
        return password


async def test_row_observe_logs_are_structured_and_carry_no_payload(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    async with App(database.url):
        assert await (await keeps_secrets.start("hunter2")).result(SOON) == "hunter2"
    mine = [record for record in caplog.records if record.name.startswith("perdure")]
    events = {vars(record).get("event") for record in mine}
    assert {"RunStarted", "StepRetrying", "StepFailed", "RunCompleted"} <= events
    assert all({"run_id", "workflow"} <= vars(record).keys() for record in mine if record.message.startswith("run "))
    assert not [record for record in mine if "hunter2" in repr(vars(record))]


async def test_every_error_is_perdures(memory: Database) -> None:
    async with App(memory.url) as app:
        with pytest.raises(PerdureError):
            await app.get("nobody").info()
