"""Children, independent runs, recur, retries and groups, on every database."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta

import pytest

from perdure import (
    App,
    EngineError,
    Retention,
    Retry,
    StepStatus,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    join_group,
    leave_group,
    receive,
    recur,
    send_to_group,
    sleep,
    subscribe,
    timeout,
    wait_event,
    workflow,
)
from perdure.engine.execution.children import notify_parent, was_cancelled
from perdure.engine.history.records import Parent
from perdure.model.records import HistoryEventType
from perdure.storage.stores import shift_clock
from tests.engine.waiting import status_of, until
from tests.support.storages import Database, storage_of

DAY = timedelta(days=1)
ONCE = Retry(attempts=1)

SOON = timedelta(seconds=60)
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@activity(retry=Retry(attempts=1))
async def note(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@note.compensation
async def erase(what: str, *, result: str | None) -> None:
    done.append(f"undo {what}")


@workflow(name="families.child")
async def child(what: str) -> str:
    return await note(what)


@workflow(name="families.sleeper")
async def sleeper(what: str) -> None:
    await note(what)
    await sleep(timedelta(days=1))


@workflow(name="families.parent")
async def parent(names: list[str]) -> list[str]:
    return list(await asyncio.gather(*(child(name) for name in names)))


@workflow(name="families.careful_parent")
async def careful_parent() -> str:
    try:
        await child("bad")
    except WorkflowFailedError as error:
        return f"{type(error.__cause__).__name__} {error.__cause__}"
    return "well"


@workflow(name="families.impatient")
async def impatient() -> str:
    branch = asyncio.create_task(sleeper("long"))
    await wait_event("families.enough")
    branch.cancel()
    await asyncio.wait([branch])
    return "gave up" if branch.cancelled() else "waited"


@workflow(name="families.waiting")
async def waiting() -> None:
    await note("mine")
    await sleeper("theirs")


@workflow(name="families.forgetful")
async def forgetful() -> str:
    asyncio.get_running_loop().create_task(_start_and_forget())
    await sleep(0.01)
    return "gone"


async def _start_and_forget() -> None:
    await sleeper("forgotten")


@workflow(name="families.starter")
async def starter(count: int) -> list[str]:
    return [(await child.options(id=f"started-{number}").start(f"n{number}")).id for number in range(count)]


@workflow(name="families.countdown")
async def countdown(left: int, seen: list[str]) -> list[str]:
    seen = [*seen, await note(f"at {left}")]
    if left:
        recur(left - 1, seen)
    return seen


@workflow(name="families.recurring_child")
async def recurring_child(left: int) -> str:
    if left:
        recur(left - 1)
    return "end of the line"


@workflow(name="families.grandparent")
async def grandparent() -> str:
    return await recurring_child(3)


@workflow(name="families.member")
async def member(group: str, stays: bool) -> str:
    await subscribe("mail", "direct")
    await join_group(group)
    if not stays:
        await leave_group(group)
    await note("joined")
    return str((await receive("mail", timeout=timedelta(minutes=1) if stays else timedelta(seconds=1.2))).data)


@workflow(name="families.caller")
async def caller(group: str) -> int:
    return await send_to_group(group, "mail", "hello")


@pytest.mark.call("compose")
@pytest.mark.behaviour("children")
async def test_workflow_called_in_a_body_is_a_child(database: Database) -> None:
    async with App(database.url) as app:
        handle = await parent.options(id="family").start(["a", "b", "c"])
        assert await handle.result(SOON) == ["A", "B", "C"]
        assert sorted(done) == ["a", "b", "c"]
        ids = sorted([run.id async for run in app.runs(workflow="families.child")])
        assert ids == ["family/1.1", "family/2.1", "family/3.1"]


@pytest.mark.behaviour("children")
async def test_error_of_a_child_reaches_its_parent(database: Database) -> None:
    async with App(database.url):
        assert await (await careful_parent.start()).result(SOON) == "ValueError bad"


@pytest.mark.behaviour("children")
async def test_children_of_a_cancelled_branch_are_cancelled_and_compensated(database: Database) -> None:
    async with App(database.url) as app:
        handle = await impatient.options(id="parent").start()
        await until(lambda: done == ["long"])
        await app.send_event("families.enough", None, to="parent")
        assert await handle.result(SOON) == "gave up"
        (left,) = [run async for run in app.runs(workflow="families.sleeper")]
        assert left.status is WorkflowStatus.CANCELLED
        assert done == ["long", "undo long"]


@pytest.mark.behaviour("children")
async def test_children_of_a_cancelled_parent_are_cancelled_first(database: Database) -> None:
    async with App(database.url) as app:
        handle = await waiting.start()
        await until(lambda: "theirs" in done)
        await status_of(handle, WorkflowStatus.WAITING_FOR_MESSAGE)
        await handle.cancel()
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        assert done == ["mine", "theirs", "undo theirs", "undo mine"]
        (left,) = [run async for run in app.runs(workflow="families.sleeper")]
        assert left.status is WorkflowStatus.CANCELLED


@pytest.mark.behaviour("children")
async def test_children_are_cancelled_when_their_parent_ends(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await forgetful.start()).result(SOON) == "gone"
        (left,) = [run async for run in app.runs(workflow="families.sleeper")]
        assert left.status is WorkflowStatus.CANCELLED


@pytest.mark.call("compose")
async def test_start_in_a_body_creates_an_independent_run(database: Database) -> None:
    async with App(database.url) as app:
        handle = await starter.start(3)
        ids = await handle.result(SOON)
        assert ids == [f"started-{number}" for number in range(3)]
        assert [await app.get(id).result(SOON) for id in ids] == ["N0", "N1", "N2"]


@pytest.mark.call("long life")
async def test_recur_keeps_the_id_and_starts_with_an_empty_history(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        handle = await countdown.options(id="countdown").start(3, [])
        assert await handle.result(SOON) == ["AT 3", "AT 2", "AT 1", "AT 0"]
        assert [event.step async for event in handle.history()] == ["1:note!", "1:note"]
        generations = [f"countdown~{number}" for number in (1, 2, 3)]
        assert [(await app.get(id).info()).status for id in generations] == [WorkflowStatus.RECURRED] * 3


@pytest.mark.call("long life")
async def test_child_that_recurs_returns_its_last_result_to_the_parent(database: Database) -> None:
    async with App(database.url):
        assert await (await grandparent.start()).result(SOON) == "end of the line"


@pytest.mark.call("groups")
async def test_message_to_a_group_reaches_its_current_members(database: Database) -> None:
    async with App(database.url):
        handles = [await member.start("all", stays) for stays in (True, True, False)]
        await until(lambda: done.count("joined") == 3)
        assert await (await caller.start("all")).result(SOON) == 2
        assert [await handle.result(SOON) for handle in handles[:2]] == ["hello", "hello"]
        with pytest.raises(WorkflowFailedError):
            await handles[2].result(SOON)


@activity(retry=Retry(attempts=1))
async def remark(what: str) -> None:
    """Nothing to undo."""
    done.append(what)
    if what == "bad":
        raise ValueError(what)


@workflow(name="families.twice")
async def twice(price: int) -> int:
    await remark("first")
    await remark("bad" if "mended" not in done else "good")
    return price


@pytest.mark.call("run")
@pytest.mark.behaviour("retry")
async def test_retry_creates_a_new_run_from_the_start_or_a_step(database: Database) -> None:
    async with App(database.url) as app:
        handle = await twice.options(id="again").start(7)
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        done[:] = ["mended"]
        second = await app.retry("again", from_step="2:remark")
        assert second.id == "again~r1"
        assert await second.result(SOON) == 7
        assert done == ["mended", "good"]
        assert (await handle.info()).status is WorkflowStatus.FAILED
        done[:] = ["mended"]
        with pytest.raises(EngineError, match="no step"):
            await app.retry("again", from_step="9:remark")
        third = await app.retry("again")
        assert third.id == "again~r2"
        assert await third.result(SOON) == 7
        assert done == ["mended", "first", "good"]


@activity(retry=Retry(attempts=3, initial=timedelta(milliseconds=1)))
async def insist() -> str:
    done.append("insist")
    if done.count("insist") < 6:
        raise ConnectionError("no answer")
    return "heard"


@activity
async def meanwhile() -> None:
    while "insist" not in done:  # noqa: ASYNC110 - the other branch sets nothing
        await asyncio.sleep(0.001)
    done.append("meanwhile")


@workflow(name="families.insisting")
async def insisting() -> str:
    heard, _ = await asyncio.gather(insist(), meanwhile())
    return heard


async def test_retry_from_a_failed_step_gives_it_all_attempts_again(database: Database) -> None:
    async with App(database.url) as app:
        handle = await insisting.options(id="deaf").start()
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        (failed,) = [step for step in await handle.steps() if step.status is StepStatus.FAILED]
        assert (failed.attempts, done.count("insist")) == (3, 3)
        again = await app.retry("deaf", from_step=failed.id)
        assert await again.result(SOON) == "heard"
        (heard,) = [step for step in await again.steps() if step.id == failed.id]
        assert (heard.attempts, done.count("insist")) == (3, 6)


@workflow(name="families.paying")
async def paying(what: str) -> str:
    return await note(what)


@paying.compensation
async def pay_back(what: str, *, result: str) -> None:
    done.append(f"pay back {result}")


@workflow(name="families.spender")
async def spender(ends: str) -> None:
    await note("before")
    await paying("rent")
    if ends == "bad":
        await note("bad")


@pytest.mark.call("saga")
@pytest.mark.behaviour("children")
async def test_completed_child_is_compensated_when_its_parent_fails_later(database: Database) -> None:
    async with App(database.url):
        with pytest.raises(WorkflowFailedError):
            await (await spender.start("bad")).result(SOON)
        assert done == ["before", "rent", "bad", "pay back RENT", "undo before"]
        done.clear()
        await (await spender.start("well")).result(SOON)
        assert done == ["before", "rent"]


@workflow(name="families.late_failure")
async def late_failure() -> None:
    await paying("rent")
    await wait_event("families.fail")
    await note("bad")


async def test_child_is_compensated_although_retention_removed_it(database: Database) -> None:
    async with App(database.url) as app:
        handle = await late_failure.options(id="parent").start()
        async with asyncio.timeout(20):
            while HistoryEventType.CHANNEL_MESSAGE_RECEIVED not in [row.kind async for row in handle.history()]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await status_of(handle, WorkflowStatus.WAITING_FOR_MESSAGE)
        shift_clock(storage_of(app), timedelta(days=2))
        assert (await app.sweep(Retention(finished=timedelta(days=1)))).finished == 1
        shift_clock(storage_of(app), timedelta(0))
        await app.send_event("families.fail", None)
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        assert done == ["rent", "bad", "pay back RENT"]


@activity(retry=Retry(attempts=1))
async def stuck_note(what: str) -> str:
    done.append(what)
    await asyncio.Event().wait()
    return what


@stuck_note.compensation
async def unstick(what: str, *, result: str | None) -> None:
    done.append(f"undo {what} {result}")


@workflow(name="families.torn")
async def torn() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_wait_for(stuck_note("slow")))
        group.create_task(_fail_when_told())


async def _wait_for(step: Awaitable[str]) -> None:
    await step


async def _fail_when_told() -> None:
    await wait_event("families.tear")
    raise ValueError("torn")


async def test_branch_that_was_cancelled_halfway_is_compensated(database: Database) -> None:
    async with App(database.url) as app:
        handle = await torn.start()
        await until(lambda: done == ["slow"])
        await app.send_event("families.tear", None, to=handle.id)
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        assert done == ["slow", "undo slow None"]


@workflow(name="families.dynasty")
async def dynasty(left: int, heard: list[str]) -> list[str]:
    heard = [*heard, await child(f"of {left}")]
    try:
        async with timeout(0.2):
            await sleeper(f"late {left}")
    except TimeoutError:
        pass
    if left:
        recur(left - 1, heard)
    return heard


async def test_children_are_new_runs_after_recur(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await dynasty.options(id="house").start(2, [])).result(SOON) == ["OF 2", "OF 1", "OF 0"]
        ids = {run.id async for run in app.runs(workflow="families.child")}
        assert ids == {"house/1", "house~1/1", "house~2/1"}


@activity(retry=ONCE)
async def grow(what: str) -> None:
    done.append(what)


@grow.compensation
async def shrink(what: str, *, result: None) -> None:
    done.append(f"undo {what}")


@workflow(name="children.growing_child")
async def growing_child(generation: int) -> None:
    await grow(f"growing_child {generation}")
    await sleep(DAY)


@activity
async def grown() -> None:
    await until(lambda: done == ["growing_child 1"])


@workflow(name="children.recurring")
async def recurring(generation: int) -> str:
    if generation == 1:
        asyncio.get_running_loop().create_task(_raise_child(generation))
        await grown()
        recur(2)
    return "end"


async def _raise_child(generation: int) -> None:
    await growing_child(generation)


@pytest.mark.behaviour("children")
async def test_children_are_cancelled_when_their_parent_recurs(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await recurring.start(1)).result(SOON) == "end"
        (left,) = [run async for run in app.runs(workflow="children.growing_child")]
        assert left.status is WorkflowStatus.CANCELLED
        assert done == ["growing_child 1", "undo growing_child 1"]


async def test_end_of_a_child_is_sent_once(memory: Database) -> None:
    storage = await memory.storage()
    for _ in range(2):
        await notify_parent(storage, Parent("parent", "~end/0/1"), was_cancelled("no longer wanted"), "child")
    messages = await storage.get_pending_channel_messages("~end/0/1:parent")
    assert len(messages) == 1
