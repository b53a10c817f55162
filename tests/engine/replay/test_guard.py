"""Any exception or endless loop in user code is a failure of its own run: the worker and all other runs continue."""

import asyncio
import gc
import logging
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    ActivityError,
    App,
    Client,
    HistoryEntry,
    NotDurableError,
    Retry,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    connection,
    now,
    recur,
    sleep,
    wait_event,
    workflow,
)
from perdure.engine.replay import loop as body_loop
from perdure.engine.replay.guard import came_by_signal, outcome_of
from perdure.engine.replay.replayer import Replayer
from perdure.hooks import HookEvent
from perdure.model import limits
from perdure.model.records import HistoryEventType
from tests.conftest import BackendDatabase
from tests.engine.random_bodies import live, taken
from tests.engine.versions import version
from tests.engine.waiting import row_of, stuck_runs, until, waiting
from tests.support.storages import Database

ROOT = Path(__file__).parents[3]
SOON = timedelta(seconds=60)
ONCE = Retry(attempts=1)

seen: list[Any] = []
gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    gates.clear()


class UnusualError(BaseException):
    """An error that derives from `BaseException` only."""


def leave(how: str) -> None:
    """End in a way that most code does not expect."""
    if how == "sys.exit":
        sys.exit(3)
    if how == "group":
        raise BaseExceptionGroup("several", [SystemExit(1), ValueError("and this")])
    kinds = {"interrupt": KeyboardInterrupt, "generator": GeneratorExit, "cancelled": asyncio.CancelledError}
    raise kinds.get(how, UnusualError)(how)


WAYS = {
    "sys.exit": "builtins.SystemExit",
    "interrupt": "builtins.KeyboardInterrupt",
    "generator": "builtins.GeneratorExit",
    "cancelled": "asyncio.exceptions.CancelledError",
    "group": "builtins.BaseExceptionGroup",
    "rude": "tests.engine.replay.test_guard.UnusualError",
}


@activity
async def leave_async(how: str) -> None:
    await asyncio.sleep(0)
    leave(how)


@activity
def leave_plain(how: str) -> None:
    leave(how)


@activity(transactional=True)
async def leave_in_transaction(how: str) -> None:
    assert connection() is not None
    await asyncio.sleep(0)
    leave(how)


@activity(transactional=True)
def leave_plain_in_transaction(how: str) -> None:
    leave(how)


@activity(name="guard.work")
async def work(label: str) -> str:
    seen.append(label)
    return label


ACTIVITIES: dict[str, Any] = {
    "async": leave_async,
    "plain": leave_plain,
    "transactional": leave_in_transaction,
    "plain transactional": leave_plain_in_transaction,
}


@workflow(name="guard.calls")
async def calls(kind: str, how: str) -> str:
    try:
        await ACTIVITIES[kind](how)
    except ActivityError as error:
        return error.error_type
    return "nothing happened"


@workflow(name="guard.leaves")
async def leaves(how: str) -> None:
    await work("before")
    leave(how)


@workflow(name="guard.gated")
async def gated(gate: str) -> str:
    await work(gate)
    event = await wait_event("go")
    return f"{gate} {event.data}"


@asynccontextmanager
async def beside(url: str, **options: Any) -> AsyncIterator[App]:
    """An app with a run that has begun before whatever happens, and must still come to its end after it."""
    async with App(url, **options) as app:
        other = await gated.options(id="other").start("other")
        await waiting(app, "other")
        yield app
        await app.send_event("go", "on", to="other")
        assert await other.result(SOON) == "other on"
        assert not await stuck_runs(app)


@pytest.mark.guarantee(9)
@pytest.mark.parametrize("kind", ACTIVITIES)
async def test_any_exception_in_an_activity_is_a_failed_attempt_with_its_type(database: Database, kind: str) -> None:
    async with beside(database.url):
        for how, error_type in WAYS.items():
            assert await (await calls.start(kind, how)).result(SOON) == error_type


@pytest.mark.guarantee(9)
@pytest.mark.parametrize("how", WAYS)
async def test_any_exception_in_a_body_fails_its_run_with_its_type(database: Database, how: str) -> None:
    async with beside(database.url) as app:
        handle = await leaves.options(id="bad").start(how)
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        (failure,) = [event.data async for event in app.history("bad") if _is_failure(event)]
        own = "perdure.errors.WorkflowCancelledError"  # as a task that raises CancelledError is a cancelled one
        assert failure["error_type"] == (own if how == "cancelled" else WAYS[how])
        assert (await handle.info()).status is WorkflowStatus.FAILED
    assert seen == ["other", "before"]


def _is_failure(entry: HistoryEntry) -> bool:
    return entry.kind == HistoryEventType.WORKFLOW_FAILED


@activity(retry=ONCE)
async def exit_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(len, ()))
        group.create_task(_exit())


async def _exit() -> None:
    sys.exit(4)


@workflow(name="guard.exits_in_a_group")
async def exits_in_a_group() -> None:
    await exit_in_a_group()


async def test_sys_exit_in_a_task_that_an_activity_started_fails_the_attempt(database: Database) -> None:
    async with beside(database.url):
        with pytest.raises(WorkflowFailedError, match="unhandled errors in a TaskGroup") as caught:
            await (await exits_in_a_group.start()).result(SOON)
        assert "SystemExit: 4" in caught.value.__cause__.stack_trace  # type: ignore[union-attr]
    assert asyncio.get_running_loop().get_task_factory() is None


@workflow(name="guard.branches")
async def branches(how: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(sleep(3600))
        group.create_task(_later(how))


async def _later(how: str) -> None:
    await work("branch")
    leave(how)


@pytest.mark.parametrize("how", ["sys.exit", "interrupt", "rude"])
async def test_any_exception_in_a_branch_fails_the_run(shared: Database, how: str) -> None:
    async with beside(shared.url):
        with pytest.raises(WorkflowFailedError):
            await (await branches.start(how)).result(SOON)


# Undoing, handlers and hooks.


@activity(name="guard.book")
async def book(what: str) -> str:
    return what


@book.compensation(retry=ONCE)
async def unbook(what: str) -> None:
    seen.append(f"undo {what}")
    leave(what)


@workflow(name="guard.undone")
async def undone(ways: list[str]) -> None:
    for how in ways:
        await book(how)
    raise ValueError("undo all of that")


@undone.on_failure
async def handle_failure(ways: list[str], error: str) -> None:
    seen.append(error)
    leave("sys.exit")


@pytest.mark.guarantee(9)
async def test_any_exception_in_a_compensation_or_handler_lets_the_others_run(database: Database) -> None:
    ways = list(WAYS)
    async with beside(database.url) as app:
        handle = await undone.options(id="bad").start(ways)
        with pytest.raises(WorkflowFailedError, match="undo all of that"):
            await handle.result(SOON)
        rows = [event async for event in app.history("bad")]
    assert seen == ["other", *(f"undo {how}" for how in reversed(ways)), "undo all of that"]
    failed = [row.data for row in rows if row.kind == "CompensationFailed"]
    assert [each["error_type"] for each in failed] == list(reversed(WAYS.values()))
    (handled,) = [row.data for row in rows if row.step == "~on_failure"]
    assert handled["error_type"] == "builtins.SystemExit"


@pytest.mark.guarantee(9)
@pytest.mark.parametrize("how", WAYS)
async def test_any_exception_in_a_hook_is_logged(
    database: Database, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(event: HookEvent) -> None:
        leave(how)

    async def later(event: HookEvent) -> None:
        await asyncio.sleep(0)
        leave(how)

    async with beside(database.url, hooks=[plain, later]):
        assert await (await calls.start("plain", "rude")).result(SOON) == WAYS["rude"]
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any("plain failed on RunStarted" in text for text in messages)
    assert any("later failed on RunStarted" in text for text in messages)


# Signals.


def test_real_interrupt_is_distinguished_from_a_raised_one() -> None:
    def caught(code: Callable[[], object]) -> BaseException:
        try:
            code()
        except BaseException as error:
            return error
        raise AssertionError("nothing was raised")

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        assert came_by_signal(caught(lambda: signal.raise_signal(signal.SIGINT)))
        assert came_by_signal(caught(lambda: signal.raise_signal(signal.SIGTERM)))
        assert not came_by_signal(caught(lambda: leave("interrupt")))
        assert not came_by_signal(caught(lambda: leave("sys.exit")))
        assert not came_by_signal(caught(lambda: leave("rude")))
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


PROGRAM = """
import asyncio, os, signal, sys, time
from perdure import App, activity, workflow

@activity
async def block() -> None:
    print("blocking", flush=True)
    for _ in range(600):  # not one sleep, which a signal does not end that comes just before it
        time.sleep(0.1)

@workflow
async def blocked() -> None:
    await block()

async def main() -> None:
    async with App(sys.argv[1]):
        await (await blocked.start()).result()

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins with another
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""


@pytest.mark.guarantee(9)
def test_ctrl_c_in_an_activity_that_blocks_the_loop_still_stops_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/a.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "blocking\n"
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert program.returncode not in (0, None)


# recur() in a task group.


@workflow(name="guard.recurs")
async def recurs(count: int, errors: bool = False) -> str:
    if count == 3:
        return "third"
    async with asyncio.TaskGroup() as group:
        group.create_task(sleep(3600))
        group.create_task(_recur(count))
        if errors:
            group.create_task(_fail(count))
    return "not here"


async def _recur(count: int) -> None:
    try:
        await work(f"generation {count}")
    finally:
        recur(count + 1)


async def _fail(count: int) -> None:
    try:
        await sleep(3600)
    finally:
        raise ValueError(f"of {count}")


async def test_recur_in_a_task_group_continues_the_run(database: Database) -> None:
    async with beside(database.url):
        assert await (await recurs.options(id="again").start(0)).result(SOON) == "third"
    assert seen == ["other", "generation 0", "generation 1", "generation 2"]


async def test_errors_beside_recur_in_a_task_group_fail_the_run(database: Database) -> None:
    async with beside(database.url):
        handle = await recurs.options(id="again").start(0, True)
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(SOON)
        assert "ValueError: of 0" in getattr(caught.value.__cause__, "stack_trace", "")


# Bodies that spin.


@workflow(name="guard.spins")
async def spins(how: str) -> None:
    await work("before")
    if how == "sleep":
        while not gates["never"].is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)  # here it spins
    loop = asyncio.get_running_loop()

    def ping() -> None:
        loop.call_soon(pong)

    def pong() -> None:
        loop.call_soon(ping)

    ping()
    await asyncio.Event().wait()


@pytest.mark.guarantee(9)
@pytest.mark.parametrize("how", ["sleep", "callbacks"])
async def test_spinning_body_is_stuck_with_its_source_line_and_blocks_no_other_run(
    database: Database, how: str
) -> None:
    async with App(database.url) as app:
        other = await gated.options(id="other").start("other")
        await waiting(app, "other")
        await spins.options(id="bad").start(how)

        async def is_stuck() -> bool:
            return [each.id for each in await stuck_runs(app)] == ["bad"]

        await until(is_stuck)
        (stuck,) = [run.stuck for run in await stuck_runs(app)]
        assert stuck is not None
        assert stuck.reason.startswith("NotDurableError: the body spins at ")
        assert "test_guard.py:" in stuck.reason
        assert ("spins" in stuck.reason) or ("ping" in stuck.reason) or ("pong" in stuck.reason)
        await app.send_event("go", "on", to="other")
        assert await other.result(SOON) == "other on"
        assert (await row_of(app, "bad")).status is WorkflowStatus.RUNNING


def test_error_names_the_line_where_the_body_spins() -> None:
    async def spinning() -> None:
        await _poll()

    with pytest.raises(NotDurableError) as caught:
        live(version(spinning, "guard.spinning"))
    line = _poll.__code__.co_firstlineno + 2
    assert f"{__file__}:{line} in _poll" in str(caught.value)


async def _poll() -> None:
    while True:  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_twenty_thousand_branches_do_not_count_as_spinning() -> None:
    async def many() -> int:
        async def branch(number: int) -> int:
            for _ in range(3):
                await asyncio.sleep(0)
            return number

        return sum(await asyncio.gather(*(branch(number) for number in range(20_000))))

    history = live(version(many, "guard.many"))
    assert history.body.outcome() == (sum(range(20_000)), None)
    assert body_loop.BUDGET > 10 * limits.STEPS_MAX


# Bodies that do not let go.


async def swallows_in_a_loop() -> None:
    while True:
        try:  # noqa: SIM105
            await work("x")
        except:  # noqa: E722
            pass


async def swallows_and_sleeps() -> None:
    while True:
        try:
            now()
            await asyncio.sleep(60)
        except:  # noqa: E722
            continue


async def swallows_and_yields() -> None:
    evicted = False
    while True:
        try:
            await (asyncio.sleep(0) if evicted else wait_event("never"))
        except:  # noqa: E722
            evicted = True


async def swallows_with_a_timeout() -> None:
    while True:
        try:
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        except:  # noqa: E722
            pass


async def swallows_in_branches() -> None:
    await asyncio.gather(swallows_in_a_loop(), swallows_and_sleeps(), swallows_and_yields())


async def swallows_in_a_helper() -> None:
    await swallows_and_sleeps()


async def swallows_in_a_helper_of_a_helper() -> None:
    await swallows_in_a_helper()


STUBBORN = [
    swallows_in_a_loop,
    swallows_and_sleeps,
    swallows_and_yields,
    swallows_with_a_timeout,
    swallows_in_branches,
    swallows_in_a_helper,
    swallows_in_a_helper_of_a_helper,
]


@pytest.mark.guarantee(9)
@pytest.mark.parametrize("function", STUBBORN)
def test_body_that_swallows_its_eviction_is_abandoned(
    function: Callable[[], Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    body = live(version(function, "guard.swallows")).body
    body.evict()
    body.evict()
    assert not taken(body)
    del body
    gc.collect()
    assert not complaints
    assert not seen  # no activity ran, neither durably nor as an ordinary function
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "run run-1 (guard.swallows)" in warning


def test_body_that_swallows_its_eviction_a_few_times_ends_without_a_log_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def tidy() -> None:
        for _ in range(20):
            try:
                await work("x")
            except BaseException:
                seen.append("caught")

    live(version(tidy, "guard.tidy")).body.evict()
    assert seen == ["caught"] * 20
    assert not caplog.records


def test_all_tasks_of_a_large_body_are_cancelled_when_it_is_evicted(caplog: pytest.LogCaptureFixture) -> None:
    count = 5000

    async def many() -> None:
        async def branch() -> None:
            try:
                async with asyncio.timeout(60):
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        await asyncio.gather(*(branch() for _ in range(count)))

    live(version(many, "guard.large")).body.evict()
    assert seen == ["cancelled"] * count
    assert not caplog.records


def test_error_of_a_body_that_is_closed_by_force_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails_when_closed() -> None:
        while True:
            try:
                await work("x")
            except GeneratorExit:
                raise ValueError("the clean-up failed") from None
            except BaseException:
                continue

    live(version(fails_when_closed, "guard.fails_when_closed")).body.evict()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "run run-1 (guard.fails_when_closed)" in record.getMessage()
    assert "ValueError('the clean-up failed')" in record.getMessage()


@workflow(name="guard.stubborn")
async def stubborn() -> None:
    while True:
        try:  # noqa: SIM105
            await wait_event("never")
        except:  # noqa: E722
            pass


async def test_run_that_swallows_its_eviction_does_not_keep_the_app_from_closing(
    shared: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(shared.url) as app:
        await stubborn.options(id="stubborn").start()
        await waiting(app, "stubborn")
        async with asyncio.timeout(10):
            await app.__aexit__(None, None, None)
            await app.__aenter__()
    assert any("run stubborn (guard.stubborn)" in record.getMessage() for record in caplog.records)


# Copies in memory.


async def test_cached_run_that_was_cancelled_or_recurred_is_evicted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """23: a parked run that was cancelled, or whose generation is over."""
    evicted: list[Replayer] = []
    evict = Replayer.evict

    def counted(body: Replayer) -> None:
        evicted.append(body)
        evict(body)

    monkeypatch.setattr(Replayer, "evict", counted)
    async with App(database.url) as app:
        await gated.options(id="one").start("one")
        await until(lambda: "one" in app._worker.executor.cache.runs)
        parked = app._worker.executor.cache.runs["one"].replayer
        await app.cancel("one")
        await until(lambda: parked in evicted)
        await gated.options(id="two").start("two")
        await until(lambda: "two" in app._worker.executor.cache.runs)
        parked = app._worker.executor.cache.runs["two"].replayer
        row = await row_of(app, "two")
        app._worker.executor.take_up(type(row)("two", gated.name, row.input_data, continued_from="two~1")).evict()
        assert parked in evicted


# Deadlocks, and cancellations at the wrong moment.


async def test_run_cancelled_while_it_is_claimed_is_not_a_mismatch(
    shared: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """28."""
    async with Client(shared.url) as client:
        await gated.options(id="a").start("other")
        async with App(shared.url, workflows=[]) as app:
            pages = app._storage.get_history_paginated

            async def late(*args: Any) -> Any:
                monkeypatch.setattr(app._storage, "get_history_paginated", pages)
                await client.cancel("a", "changed my mind")
                return await pages(*args)

            monkeypatch.setattr(app._storage, "get_history_paginated", late)
            app._served[gated.name] = gated
            app._worker.wake()

            async def is_cancelled() -> bool:
                return (await client.get("a").info()).status is WorkflowStatus.CANCELLED

            await until(is_cancelled)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_deadlock_in_a_transaction_of_a_run_is_retried_at_once(
    shared: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """28."""
    from perdure import publish
    from perdure.errors import TransactionConflictError

    async def publishing() -> str:
        await publish("news", 1)
        return "told"

    made = version(publishing, "guard.publishing")
    async with App(shared.url, workflows=[made]) as app:
        plain = app._storage.publish_to_channel
        left = [1, 2, 3]

        async def unlucky(*args: Any, **options: Any) -> Any:
            if left:
                left.pop()
                raise TransactionConflictError("the database aborted this transaction")
            return await plain(*args, **options)

        monkeypatch.setattr(app._storage, "publish_to_channel", unlucky)
        assert await (await made.start()).result(SOON) == "told"
    assert not left
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# What is left behind.


async def test_closed_mysql_storage_leaves_no_background_task(backend_database: BackendDatabase) -> None:
    """The task that ends the query of a cancelled caller has ended."""
    async with backend_database("mysql") as database:
        storage = await database.storage()
        before = asyncio.all_tasks()
        slow = asyncio.create_task(storage.db().fetch("SELECT SLEEP(5)"))
        await until(lambda: storage._backend._pool._size > len(storage._backend._pool._idle))  # type: ignore[attr-defined]
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert asyncio.all_tasks() > before  # it kills the query
        await storage.close()
        assert asyncio.all_tasks() == before


async def test_code_that_is_cancelled_before_it_starts_is_not_called() -> None:
    """A coroutine that was made but never awaited would be reported as a RuntimeWarning."""
    called: list[str] = []

    async def code() -> None:
        called.append("code")

    def call() -> Any:
        called.append("call")
        return code()

    task = asyncio.create_task(outcome_of(call))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert called == []
