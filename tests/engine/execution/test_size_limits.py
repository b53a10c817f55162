"""Values and durations that are too large raise an error at the call, and leave no run stuck."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Retry,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    receive,
    set_state,
    sleep,
    sleep_until,
    subscribe,
    timeout,
    uuid4,
    wait_event,
    workflow,
)
from perdure.engine.replay import values
from perdure.errors import LimitError
from perdure.model.limits import PAYLOAD_MAX, SPAN_MAX
from tests.engine.random_bodies import live, replayed
from tests.engine.versions import version
from tests.engine.waiting import stuck_runs, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
MEGABYTE = 1024 * 1024
FOREVER = timedelta.max

seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@activity(name="limits.store")
async def store(data: str, size: int = 0) -> str:
    seen.append(("store", len(data)))
    return "r" * size


@store.compensation
async def remove(data: str, size: int, *, result: str) -> None:
    seen.append(("remove", len(data), len(result)))


@activity
async def echo(text: str) -> str:
    return text


@workflow(name="limits.shows")
async def shows(size: int) -> str:
    try:
        set_state("x" * size)
    except LimitError as error:
        await echo("goes on")
        return str(error)
    return await echo("shown")


async def test_state_that_is_too_large_raises_in_the_body(shared: Database) -> None:
    async with App(shared.url, max_cached_runs=0) as app:
        answer = await (await shows.start(PAYLOAD_MAX)).result(SOON)
        assert "the value of set_state() has 8388610 bytes" in answer
        handle = await shows.start(values.STATE_MAX - 2)
        assert await handle.result(SOON) == "shown"
        assert len(await handle.state()) == values.STATE_MAX - 2
        assert not await stuck_runs(app)


def test_too_many_values_for_a_row_raise_in_the_body_and_in_its_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "STATE_MAX", 1000)

    async def takes() -> int:
        count = 0
        try:
            while True:
                uuid4()
                count += 1
        except LimitError:
            await echo("x")
        return count

    made = version(takes, "limits.takes")
    history = live(made)
    assert len(history.rows) == 1
    assert len(history.rows[0].event_data or b"") < 1064
    again = replayed(made, b"{}", history.rows)
    assert again.snapshots[-1] == history.snapshots[-1]


@workflow(name="limits.stores")
async def stores(size: int, result: int, fails: bool = False) -> str:
    await echo("a step with a result of its own")
    try:
        await store("x" * size, result)
    except LimitError as error:
        return str(error)
    if fails:
        raise ValueError("undo it")
    return "stored"


async def test_arguments_too_large_for_a_compensation_are_refused_before_the_activity_runs(shared: Database) -> None:
    async with App(shared.url) as app:
        answer = await (await stores.start(PAYLOAD_MAX, 0)).result(SOON)
        assert "the arguments of limits.store, which has a compensation," in answer
        assert seen == []
        assert not await stuck_runs(app)


async def test_large_input_and_result_together_do_not_prevent_compensation(shared: Database) -> None:
    async with App(shared.url) as app:
        handle = await stores.start(5 * MEGABYTE, 5 * MEGABYTE, True)
        with pytest.raises(WorkflowFailedError, match="undo it"):
            await handle.result(SOON)
        assert (await handle.info()).status is WorkflowStatus.FAILED
        assert seen == [("store", 5 * MEGABYTE), ("remove", 5 * MEGABYTE, 5 * MEGABYTE)]
        assert not await stuck_runs(app)


@workflow(name="limits.child")
async def child(size: int) -> str:
    return "x" * size


@workflow(name="limits.parent")
async def parent(size: int) -> int | str:
    try:
        return len(await child(size))
    except WorkflowFailedError as error:
        return str(error)


async def test_child_result_too_large_for_its_parent_fails_the_child(shared: Database) -> None:
    async with App(shared.url) as app:
        answer = await (await parent.start(PAYLOAD_MAX - 10)).result(SOON)
        assert "the result of a child workflow, in the message to its parent, has" in str(answer)
        assert await (await parent.start(PAYLOAD_MAX - 1000)).result(SOON) == PAYLOAD_MAX - 1000
        assert not await stuck_runs(app)


# Times.


async def _event() -> None:
    await wait_event("go", timeout=FOREVER)


async def _event_where() -> None:
    await wait_event("go", where={"a": 1}, timeout=FOREVER)


async def _event_infinite() -> None:
    await wait_event("go", timeout=float("inf"))


async def _received() -> None:
    await subscribe("mail")
    await receive("mail", timeout=FOREVER)


async def _timed() -> None:
    async with timeout(FOREVER):
        await wait_event("go")


PATIENT: list[Callable[[], Awaitable[None]]] = [_event, _event_where, _event_infinite, _received, _timed]


@workflow(name="limits.patient")
async def patient(which: int) -> str:
    await PATIENT[which]()
    return "came"


async def test_timeout_of_more_than_a_hundred_years_is_none(shared: Database) -> None:
    async with App(shared.url, max_cached_runs=0) as app:
        handles = [await patient.start(which) for which in range(len(PATIENT))]
        await waiting(app, *(handle.id for handle in handles))
        for handle in handles:
            await app.send_event("go", {"a": 1}, to=handle.id)
        await app.publish("mail", 1)
        assert [await handle.result(SOON) for handle in handles] == ["came"] * len(PATIENT)
        assert not await stuck_runs(app)


async def _sleeps_too_long() -> None:
    await sleep(timedelta(days=36526))


async def _sleeps_for_ever() -> None:
    await sleep(float("inf"))


async def _sleeps_until_the_end() -> None:
    await sleep_until(datetime.max.replace(tzinfo=UTC))


async def _sleeps_for_nothing() -> None:
    await sleep(float("nan"))


SLEEPS: list[Callable[[], Awaitable[None]]] = [
    _sleeps_too_long,
    _sleeps_for_ever,
    _sleeps_until_the_end,
    _sleeps_for_nothing,
]


@workflow(name="limits.sleeps")
async def sleeps(which: int) -> str:
    try:
        await SLEEPS[which]()
    except ValueError as error:
        return str(error)
    return "slept"


async def test_sleep_of_more_than_a_hundred_years_raises_in_the_body(shared: Database) -> None:
    async with App(shared.url) as app:
        answer = [await (await sleeps.start(which)).result(SOON) for which in range(len(SLEEPS))]
        assert all("100 years" in each for each in answer[:3])
        assert "not nan" in answer[3]
        assert not await stuck_runs(app)


async def test_deadline_of_more_than_a_hundred_years_is_refused_at_the_start(shared: Database) -> None:
    async with App(shared.url) as app:
        with pytest.raises(ValueError, match=r"options\(timeout=\) must be at most 100 years"):
            shows.options(timeout=FOREVER)
        with pytest.raises(ValueError, match=r"options\(after=\) must be at most 100 years"):
            shows.options(after=FOREVER)
        assert await (await shows.options(timeout=timedelta(days=36525)).start(1)).result(SOON) == "shown"
        assert await app.runs().count() == 1


@workflow(name="limits.waits")
async def waits(type: str) -> str:
    try:
        await wait_event(type, timeout=0)
    except LimitError as error:
        return str(error)
    except TimeoutError:
        return "waited"
    return "got an event"


@pytest.mark.parametrize("type", ["e" * 150, ":" * 90])
async def test_event_type_that_is_too_long_raises_in_the_body(shared: Database, type: str) -> None:
    async with App(shared.url) as app:
        answer = await (await waits.options(id="r" * 200).start(type)).result(SOON)
        assert "use a shorter" in answer or "must have 1 to 255 characters" in answer
        assert await (await waits.start("e" * 150)).result(SOON) == "waited"
        with pytest.raises(LimitError):
            await app.send_event(type, 1, to="r" * 200)
        assert not await stuck_runs(app)


@activity(retry=Retry(attempts=2, initial=SPAN_MAX, maximum=SPAN_MAX))
async def fails() -> None:
    seen.append("tried")
    raise ValueError("no")


@workflow(name="limits.retried")
async def retried() -> None:
    await fails()


async def test_back_off_of_more_than_a_hundred_years_leaves_no_run_stuck(shared: Database) -> None:
    async with App(shared.url) as app:
        handle = await retried.start()
        assert await waiting(app, handle.id) is WorkflowStatus.WAITING_FOR_TIMER
        assert not await stuck_runs(app)
    assert seen == ["tried"]
