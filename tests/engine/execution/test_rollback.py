"""Sagas: a run that fails or is cancelled is compensated in reverse order, whatever crashes meanwhile."""

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import (
    App,
    Retry,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    sleep,
    workflow,
)
from perdure.errors import EngineError, WorkflowNotCancellableError
from tests.engine.waiting import status_of, until
from tests.support.storages import Database

SOON = timedelta(seconds=60)
QUICK = Retry(attempts=3, initial=timedelta(milliseconds=5))
done: list[str] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()
    gates.clear()
    thread_may_end.clear()


@activity
async def book(what: str, price: float) -> str:
    done.append(f"book {what}")
    return f"{what}-1"


@book.compensation(retry=QUICK)
async def unbook(what: str, *, result: str) -> None:
    done.append(f"unbook {what} {result}")


@activity(retry=Retry(attempts=1))
async def refuse() -> None:
    raise ValueError("full")


@activity
async def stubborn(what: str) -> str:
    done.append(f"do {what}")
    return what


@stubborn.compensation(retry=QUICK)
async def keep(what: str, *, result: str) -> None:
    done.append(f"try to undo {what}")
    raise ValueError("will not go")


@activity
async def slow(what: str) -> str:
    done.append(f"begin {what}")
    await gates.setdefault(what, asyncio.Event()).wait()
    return f"{what}-1"


@slow.compensation
async def unslow(what: str, *, result: str | None) -> None:
    done.append(f"undo {what} {result}")


@activity
async def careful(what: str) -> str:
    done.append(f"begin {what} {activity_info().idempotency_key}")
    if len(done) == 1:
        await asyncio.Event().wait()
    return f"{what}-{len(done)}"


@careful.compensation
async def uncareful(what: str, *, result: str) -> None:
    done.append(f"undo {result}")


@workflow(name="sagas.trip")
async def trip(ends: str) -> str:
    await book("flight", 100.0)
    await asyncio.gather(book("hotel", 50.0), book("car", 20.0))
    if ends == "fail":
        await refuse()
    if ends == "wait":
        await sleep(timedelta(days=1))
    return "booked"


@trip.on_failure
async def apologise(ends: str, *, error: str) -> None:
    done.append(f"sorry: {error}")


@workflow(name="sagas.stubborn")
async def stubborn_trip() -> None:
    await book("flight", 1.0)
    await stubborn("hotel")
    await refuse()


@workflow(name="sagas.slow")
async def slow_trip() -> None:
    await book("flight", 1.0)
    await slow("hotel")


@workflow(name="sagas.careful")
async def careful_trip() -> None:
    await careful("hotel")


@pytest.mark.call("saga")
async def test_failed_run_is_compensated_in_reverse_order_then_on_failure_runs(database: Database) -> None:
    async with App(database.url):
        handle = await trip.start("fail")
        with pytest.raises(WorkflowFailedError) as caught:
            await handle.result(SOON)
        assert isinstance(caught.value.__cause__, ValueError)
        booked = [what.split()[1] for what in done if what.startswith("book")]
        undone = [what for what in done if what.startswith("unbook")]
        assert sorted(booked) == ["car", "flight", "hotel"]
        assert len(undone) == 3
        assert undone[-1] == "unbook flight flight-1"
        assert done[-1] == "sorry: full"
        assert (await handle.info()).status is WorkflowStatus.FAILED
        kinds = [event.kind async for event in handle.history()]
        assert kinds.count("CompensationExecuted") == 3


async def test_completed_run_runs_no_compensation(database: Database) -> None:
    async with App(database.url):
        assert await (await trip.start("well")).result(SOON) == "booked"
        assert not [what for what in done if what.startswith("unbook")]


@pytest.mark.call("saga")
async def test_failing_compensation_is_retried_then_reported_and_the_others_still_run(database: Database) -> None:
    async with App(database.url):
        handle = await stubborn_trip.start()
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        assert done.count("try to undo hotel") == 3
        assert done[-1] == "unbook flight flight-1"
        kinds = [event.kind async for event in handle.history()]
        assert kinds.count("CompensationFailed") == 1


@pytest.mark.call("run")
async def test_cancel_with_a_reason_compensates_a_waiting_run(database: Database) -> None:
    async with App(database.url) as app:
        handle = await trip.options(id="cancelled").start("wait")
        await status_of(handle, WorkflowStatus.WAITING_FOR_TIMER)
        await handle.cancel("changed my mind")
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        assert done[-1] == "sorry: changed my mind"
        assert [what for what in done if what.startswith("unbook")][-1] == "unbook flight flight-1"
        with pytest.raises(WorkflowNotCancellableError):
            await app.cancel("cancelled")


@pytest.mark.behaviour("cancel")
async def test_cancel_compensates_an_activity_without_outcome_with_result_none(database: Database) -> None:
    async with App(database.url):
        handle = await slow_trip.start()
        await until(lambda: "begin hotel" in done)
        asked = asyncio.get_running_loop().time()
        await handle.cancel()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        assert asyncio.get_running_loop().time() - asked < 3
        assert done == ["book flight", "begin hotel", "undo hotel None", "unbook flight flight-1"]


@activity
async def held(what: str) -> None:
    done.append(f"do {what}")


@held.compensation
async def hold(what: str, *, result: None) -> None:
    done.append(f"undo {what}")
    await gates.setdefault(what, asyncio.Event()).wait()


@workflow(name="sagas.held")
async def held_trip() -> None:
    await held("hotel")
    await refuse()


async def test_run_cancelled_during_its_rollback_ends_as_cancelled(database: Database) -> None:
    async with App(database.url):
        handle = await held_trip.start()
        await until(lambda: "undo hotel" in done)
        await handle.cancel("too late to fail")
        gates["hotel"].set()
        with pytest.raises(WorkflowCancelledError, match="too late to fail"):
            await handle.result(SOON)
        assert done == ["do hotel", "undo hotel"]


@pytest.mark.behaviour("cancel")
async def test_cancel_completes_an_activity_whose_compensation_needs_its_result(database: Database) -> None:
    async with App(database.url):
        handle = await careful_trip.start()
        await until(lambda: len(done) == 1)
        await handle.cancel()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        first, second, undo = done
        assert first == second  # the same key
        assert undo == "undo hotel-2"


@pytest.mark.call("run")
@pytest.mark.parametrize("resident", [0, 10])
async def test_timeout_of_start_is_a_deadline(database: Database, resident: int) -> None:
    async with App(database.url, max_cached_runs=resident):
        waiting = await trip.options(timeout=timedelta(seconds=3)).start("wait")
        working = await slow_trip.options(timeout=timedelta(seconds=3)).start()
        for handle in (waiting, working):
            with pytest.raises(WorkflowCancelledError):
                await handle.result(SOON)
        assert "undo hotel None" in done
        assert done.count("unbook flight flight-1") == 2
        assert "sorry: timeout exceeded" in done


thread_may_end = threading.Event()


@activity(retry=Retry(attempts=1))
def in_a_thread(what: str) -> str:
    done.append(f"begin {what}")
    assert thread_may_end.wait(SOON.total_seconds())
    done.append(f"end {what}")
    return what


@in_a_thread.compensation
async def out_of_a_thread(what: str, *, result: str | None) -> None:
    done.append(f"undo {what}")


@workflow(name="sagas.threaded")
async def threaded() -> None:
    await in_a_thread("work")


@pytest.mark.behaviour("cancel")
async def test_cancel_waits_for_a_thread(database: Database) -> None:
    async with App(database.url) as app:
        handle = await threaded.start()
        await until(lambda: "begin work" in done)
        await handle.cancel()
        await until(lambda: app._worker.executor.tasks[handle.id].lost)
        assert done == ["begin work"]
        thread_may_end.set()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        assert done == ["begin work", "end work", "undo work"]


@activity(retry=Retry(attempts=1))
async def pay() -> str:
    if "mended" not in done:
        raise ValueError("no money")
    return "paid"


@activity
async def look() -> None:
    done.append("look")


@workflow(name="sagas.shop")
async def shop(kind: str) -> str:
    await look()
    await (book("table", 1.0) if kind == "undone" else stubborn("table"))
    return await pay()


@pytest.mark.parametrize(("kind", "step"), [("undone", "2:book"), ("undo failed", "2:stubborn")])
async def test_retry_does_not_replay_compensated_steps(database: Database, kind: str, step: str) -> None:
    """Otherwise the run would end as "paid" with nothing booked."""
    async with App(database.url) as app:
        handle = await shop.options(id="shop").start(kind)
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        done[:] = ["mended"]
        with pytest.raises(
            EngineError, match=f"'{step}' comes before it and was compensated .* retry from '{step}', or from the"
        ):
            await app.retry("shop", from_step="3:pay")
        again = await app.retry("shop", from_step=step)
        assert await again.result(SOON) == "paid"
        assert done == ["mended", "book table" if kind == "undone" else "do table"]
        done[:] = ["mended"]
        assert await (await app.retry("shop")).result(SOON) == "paid"
        assert done == ["mended", "look", "book table" if kind == "undone" else "do table"]


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@activity
async def step(what: str) -> None:
    done.append(what)


@step.compensation
async def unstep(what: str, *, result: None) -> None:
    done.append(f"undo {what}")
    if what == "b":
        await gates.setdefault(what, asyncio.Event()).wait()


@workflow(name="rollback.steps")
async def steps() -> None:
    for what in "abc":
        await step(what)
    await shout("bad")


@pytest.mark.call("saga")
async def test_rollback_resumes_where_another_worker_stopped(shared: Database) -> None:
    async with App(shared.url, drain_timeout=timedelta(0)):
        handle = await steps.options(id="steps").start()
        await until(lambda: "undo b" in done)
    gates["b"].set()
    async with App(shared.url) as app:
        with pytest.raises(WorkflowFailedError):
            await app.get(handle.id).result(SOON)
    assert done == ["a", "b", "c", "bad", "undo c", "undo b", "undo b", "undo a"]
