"""Activities: retries, attempts across workers, timeouts, threads and errors."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    ActivityError,
    App,
    Client,
    Retry,
    TerminalError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    workflow,
)
from tests.engine.gates import approved, entered, open_gates, seen, two_gates
from tests.engine.gates import forget as forget_gates
from tests.engine.waiting import row_of, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
LONG = Retry(attempts=3, initial=timedelta(seconds=1.3), factor=1, jitter=0)
BRIEF = Retry(attempts=3, initial=timedelta(seconds=0.9), factor=1, jitter=0)
QUICK = Retry(attempts=3, initial=timedelta(milliseconds=5))
calls: list[str] = []
ONCE = Retry(attempts=1)


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_gates()
    calls.clear()


async def rows(app: Client, id: str) -> list[str]:
    return [event.step async for event in app.history(id)]


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


@workflow(name="activities.late")
async def retried_late() -> int:
    return await late()


@workflow(name="activities.soon")
async def retried_soon() -> int:
    return await soon()


@pytest.mark.guarantee(1)
async def test_recorded_activity_never_executes_again(shared: Database) -> None:
    async with App(shared.url, max_cached_runs=0) as app:
        await approved.options(id="a").start("once")
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_MESSAGE
    async with App(shared.url, max_cached_runs=0) as app:
        await app.send_event("go", "on")
        assert await app.get("a").result(SOON) == "once on after"
    assert seen == ["once", "after"]


@pytest.mark.call("run")
@pytest.mark.guarantee(1)
async def test_interrupted_activity_executes_again_with_the_same_idempotency_key(shared: Database) -> None:
    async with App(shared.url, drain_timeout=timedelta(0)) as app:
        await two_gates.options(id="a").start("one", "two")
        await until(entered("one"))
    open_gates("one", "two")
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == ["one", "two"]
    key = "a::1:gated"
    assert seen == [("one", 1, key), ("one cancelled", 1, key), ("one", 1, key), ("two", 1, "a::2:gated")]


@pytest.mark.guarantee(1)
async def test_attempts_are_counted_across_workers_and_a_long_back_off_releases_the_lease(shared: Database) -> None:
    async with App(shared.url) as app:
        await retried_late.options(id="a").start()
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_TIMER
        assert (await row_of(app, "a")).locked_by is None
        assert await rows(app, "a") == ["1:late#1"]
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == 2
        assert await rows(app, "a") == ["1:late#1", "1:late#1~", "1:late"]
    assert seen == [(1, "a::1:late"), (2, "a::1:late")]


@pytest.mark.guarantee(1)
async def test_attempt_before_a_short_back_off_is_counted_across_workers(shared: Database) -> None:
    async with App(shared.url) as app:
        await retried_soon.options(id="a").start()

        async def recorded() -> bool:
            return await rows(app, "a") == ["1:soon#1"]

        await until(recorded)
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == 2
        assert await rows(app, "a") == ["1:soon#1", "1:soon"]
    assert seen == [(1, "a::1:soon"), (2, "a::1:soon")]


@pytest.mark.guarantee(1)
def test_back_off_grows_and_varies() -> None:
    retry = Retry(attempts=9, initial=timedelta(seconds=1), maximum=timedelta(seconds=20))
    pauses = [retry.pause(attempt, ValueError()) or 0 for attempt in range(1, 9)]
    assert all(2 ** (n - 1) * 0.8 <= pause <= 2 ** (n - 1) for n, pause in enumerate(pauses[:5], 1))
    assert all(16 <= pause <= 20 for pause in pauses[5:])
    assert len({retry.pause(1, ValueError()) for _ in range(20)}) > 10
    assert retry.pause(9, ValueError()) is None


class NoMoneyError(Exception):
    pass


@activity(retry=QUICK)
async def flaky(good_from: int) -> int:
    attempt = activity_info().attempt
    if attempt < good_from:
        raise ValueError(f"attempt {attempt}")
    return attempt


@activity(retry=QUICK)
async def broke() -> None:
    calls.append("broke")
    raise NoMoneyError("none left")


@activity(retry=QUICK)
async def hopeless() -> None:
    calls.append("hopeless")
    raise TerminalError("never again")


@workflow(name="activities.retrying")
async def retrying(good_from: int) -> int:
    return await flaky(good_from)


@workflow(name="activities.failing")
async def failing() -> None:
    await broke()


@workflow(name="activities.catching")
async def catching() -> str:
    try:
        await broke()
    except NoMoneyError as error:
        return str(error)
    return "paid"


@workflow(name="activities.terminal")
async def terminal() -> None:
    await hopeless()


@pytest.mark.guarantee(1)
async def test_failed_attempts_are_retried_and_counted(database: Database) -> None:
    async with App(database.url):
        assert await (await retrying.start(3)).result(SOON) == 3


@pytest.mark.behaviour("errors")
async def test_error_of_an_activity_keeps_its_class(database: Database) -> None:
    async with App(database.url):
        with pytest.raises(WorkflowFailedError) as caught:
            await (await failing.start()).result(SOON)
        assert isinstance(caught.value.__cause__, NoMoneyError)
        assert calls == ["broke"] * 3
        assert await (await catching.start()).result(SOON) == "none left"


@pytest.mark.guarantee(1)
async def test_terminal_error_is_never_retried(database: Database) -> None:
    async with App(database.url):
        with pytest.raises(WorkflowFailedError):
            await (await terminal.start()).result(SOON)
        assert calls == ["hopeless"]


@activity(retry=ONCE)
async def fail_privately() -> None:
    class PrivateError(Exception):
        """No other process could make it."""

    raise PrivateError("nobody knows me")


@workflow(name="activities.private")
async def private() -> list[str]:
    try:
        await fail_privately()
    except ActivityError as error:
        return [error.error_type, str(error), error.stack_trace]
    return []


@pytest.mark.behaviour("errors")
async def test_error_that_cannot_be_rebuilt_is_an_activity_error_with_type_message_and_traceback(
    database: Database,
) -> None:
    async with App(database.url):
        kind, message, trace = await (await private.start()).result(SOON)
        assert "PrivateError" in kind
        assert "nobody knows me" in message
        assert "in fail_privately" in trace


@activity(timeout=timedelta(seconds=0.05), retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def slow() -> None:
    seen.append(activity_info().attempt)
    await asyncio.Event().wait()


@activity(retry=ONCE)
def threaded(number: int) -> list[Any]:
    return [number * 2, threading.current_thread() is threading.main_thread(), activity_info().attempt]


@workflow(name="activities.slow")
async def too_slow() -> str:
    try:
        await slow()
    except TimeoutError:
        return "too slow"
    return "in time"


@workflow(name="activities.threaded")
async def in_a_thread() -> list[Any]:
    return await threaded(21)


@pytest.mark.call("limits")
async def test_activity_timeout_applies_to_each_attempt(memory: Database) -> None:
    async with App(memory.url):
        handle = await too_slow.start()
        assert await handle.result(SOON) == "too slow"
        assert [event.step async for event in handle.history()] == ["1:slow#1", "1:slow"]
    assert seen == [1, 2]


async def test_plain_function_runs_in_a_thread(memory: Database) -> None:
    async with App(memory.url):
        assert await (await in_a_thread.start()).result(SOON) == [42, False, 1]
