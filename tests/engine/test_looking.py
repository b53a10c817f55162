"""Looking at runs: handles, steps, queries, what is done to all runs of a query, and health."""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import (
    App,
    EngineError,
    Retry,
    RunHandle,
    RunInfo,
    RunNotFoundError,
    StepInfo,
    StepKind,
    StepStatus,
    WaitKind,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    now,
    publish,
    receive,
    recur,
    send_event,
    send_to,
    set_state,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.worker import stuck
from perdure.errors import InvalidPageTokenError, LimitError, RunExistsError, WorkflowNotCancellableError
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage, shift_clock
from tests.engine.waiting import until, waiting
from tests.storages import Database, storage_of

SOON = 20
DAY = timedelta(days=1)
undone: list[str] = []


@pytest.fixture(autouse=True)
def clear() -> None:
    undone.clear()


@dataclass(frozen=True)
class Order:
    id: str
    price: Decimal


@activity
async def price_of(order: Order) -> Decimal:
    return order.price


@activity(name="looking.reserve")
async def reserve(order: Order) -> str:
    return f"reserved {order.id}"


@reserve.compensation
async def release(order: Order, result: str | None) -> None:
    undone.append(order.id)


@activity(retry=Retry(attempts=3, initial=timedelta(milliseconds=1)), name="looking.flaky")
async def flaky(fails: int) -> str:
    from perdure import activity_info

    if activity_info().attempt <= fails:
        raise ValueError(f"attempt {activity_info().attempt}")
    return "at last"


@workflow(name="looking.child")
async def child(order: Order) -> Decimal:
    if order.id == "bad":
        raise ValueError("bad order")
    return await price_of(order)


@workflow(name="looking.whole")
async def whole(order: Order, fails: int = 0) -> Decimal:
    now()
    set_state({"phase": "begun"})
    await reserve(order)
    await flaky(fails)
    price = await child(order)
    await subscribe("looking.news")
    await publish("looking.others", 1)
    await sleep(0.001)
    await receive("looking.news", timeout=0.001 if order.id == "quick" else None)
    event = await wait_event("looking.go", timeout=DAY)
    return price + Decimal(event.data)


@workflow(name="looking.simple")
async def simple(text: str) -> str:
    if text == "bad":
        raise ValueError("it is bad")
    if text == "wait":
        await wait_event("looking.go")
    return text.upper()


@workflow(name="looking.looped")
async def looped(left: int) -> str:
    if left:
        recur(left - 1)
    return "over"


# A run.


async def waits_for(handle: RunHandle[Any], name: str) -> None:
    """Until a run waits for this alone."""

    async def is_there() -> bool:
        return [each.name for each in (await handle.info()).waiting_for] == [name]

    await until(is_there)


async def test_info_tells_all_of_a_run_in_typed_values(database: Database) -> None:
    order = Order("o-1", Decimal("9.50"))
    async with App(database.url, worker_id="me") as app:
        handle = await whole.options(id="a", timeout=DAY).start(order)
        await waits_for(handle, "looking.news")
        info = await handle.info()
        assert (info.id, info.workflow) == ("a", "looking.whole")
        assert info.status is WorkflowStatus.WAITING_FOR_TIMER  # of its deadline
        assert info.input == {"order": order}
        assert (info.result, info.error, info.state) == (None, None, {"phase": "begun"})
        assert (info.finished_at, info.worker, info.lease_expires_at, info.stuck) == (None, None, None, None)
        assert info.deadline is not None
        assert abs(info.deadline - info.started_at - DAY) < timedelta(seconds=5)
        (only,) = info.waiting_for
        assert (only.kind, only.name, only.until) == (WaitKind.CHANNEL, "looking.news", None)
        assert info.children == ("a/4",)
        below = await app.get("a/4").info()
        assert (below.parent, below.result, below.status) == ("a", Decimal("9.50"), WorkflowStatus.COMPLETED)
        await app.publish("looking.news", "hello")
        await waits_for(handle, "looking.go")
        (only,) = (await handle.info()).waiting_for
        assert only.kind is WaitKind.EVENT
        assert only.until is not None
        assert only.until > info.started_at + timedelta(hours=23)
        await app.send_event("looking.go", "0.50", to="a")
        assert await handle.result(SOON) == Decimal("10.00")
        info = await handle.info()
        assert (info.result, info.status, info.waiting_for) == (Decimal("10.00"), WorkflowStatus.COMPLETED, ())
        assert info.finished_at is not None
        assert info.started_at <= info.updated_at == info.finished_at
        with pytest.raises(AttributeError):
            info.id = "b"  # type: ignore[misc]


async def test_info_of_a_run_whose_workflow_is_not_defined_here_is_plain_json(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(database.url):
        handle = await child.options(id="a").start(Order("o", Decimal(3)))
        await handle.result(SOON)
        monkeypatch.delitem(WORKFLOWS, "looking.child")
        info = await handle.info()
        assert (info.input, info.result) == ({"order": {"id": "o", "price": "3"}}, "3")


async def test_the_error_of_a_run(database: Database) -> None:
    async with App(database.url) as app:
        bad = await simple.options(id="bad").start("bad")
        with pytest.raises(WorkflowFailedError):
            await bad.result(SOON)
        error = (await bad.info()).error
        assert error is not None
        assert (error.type, error.message) == ("builtins.ValueError", "it is bad")
        assert "in simple" in error.traceback
        await (waits := await simple.options(id="waits").start("wait")).cancel("enough")
        with pytest.raises(WorkflowCancelledError):
            await waits.result(SOON)
        error = (await waits.info()).error
        assert error is not None
        assert (error.type, error.message) == ("perdure.errors.WorkflowCancelledError", "enough")
        found = {run.id: run.error async for run in app.runs(workflow=simple)}
        assert found["bad"] == (await bad.info()).error
        assert found["waits"] == error


async def test_a_run_that_recurred_names_the_run_before(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await looped.options(id="a").start(2)).result(SOON) == "over"
        info = await app.get("a").info()
        assert (info.previous, info.input) == ("a~2", {"left": 0})
        assert (await app.get("a~2").info()).status is WorkflowStatus.RECURRED


async def test_a_run_that_is_executed_names_its_worker(database: Database) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    @activity
    async def long() -> None:
        begun.set()
        await over.wait()

    @workflow(name="looking.long")
    async def held() -> None:
        await long()

    async with App(database.url, worker_id="me") as app:
        handle = await held.start()
        await begun.wait()
        info = await handle.info()
        assert (info.worker, info.status, info.attempts) == ("me", WorkflowStatus.RUNNING, 0)
        assert info.lease_expires_at is not None
        over.set()
        await handle.result(SOON)
        assert (await handle.info()).worker is None
        assert (await app.health()).oldest_due_sec is None


async def test_a_run_that_starts_later_waits_for_its_start(database: Database) -> None:
    async with App(database.url, workflows=[]):
        (only,) = (await (await simple.options(after=DAY).start("x")).info()).waiting_for
        assert (only.kind, only.name) == (WaitKind.START, "start")


async def test_result_takes_seconds_or_a_timedelta(database: Database) -> None:
    async with App(database.url, workflows=[]):
        handle = await simple.options(after=DAY).start("x")
        for span in (0.01, timedelta(milliseconds=10)):
            with pytest.raises(TimeoutError):
                await handle.result(timeout=span)


async def test_a_run_that_does_not_exist(database: Database) -> None:
    async with App(database.url) as app:
        handle = app.get("nobody")
        for ask in (handle.result, handle.info, handle.steps, handle.cancel):
            with pytest.raises(RunNotFoundError, match="run 'nobody' does not exist"):
                await ask()


# Steps.


def named(steps: list[StepInfo]) -> dict[str, StepInfo]:
    return {f"{step.kind}:{step.name}": step for step in steps}


async def test_steps_tell_what_a_run_did_and_waits_for(database: Database) -> None:
    order = Order("o-1", Decimal("9.50"))
    async with App(database.url) as app:
        handle = await whole.options(id="a").start(order, 2)
        await waits_for(handle, "looking.news")
        steps = named(await handle.steps())
        assert steps["activity:looking.reserve"].result == "reserved o-1"
        assert steps["activity:looking.reserve"].input == {"order": order}
        assert steps["activity:looking.reserve"].started_at is not None
        assert steps["activity:looking.flaky"].attempts == 3
        assert (steps["activity:looking.flaky"].result, steps["activity:looking.flaky"].error) == ("at last", None)
        found = steps["child:looking.child"]
        assert (found.status, found.result, found.input) == (StepStatus.COMPLETED, Decimal("9.50"), {"order": order})
        assert steps["value:value"].status is StepStatus.COMPLETED
        assert steps["subscription:subscribe"].status is StepStatus.COMPLETED
        assert steps["send:publish"].status is StepStatus.COMPLETED
        assert steps["timer:timer"].finished_at is not None
        assert steps["channel:receive"].status is StepStatus.WAITING
        await app.publish("looking.news", {"n": 1})
        await app.send_event("looking.go", "1", to="a")
        await handle.result(SOON)
        steps = named(await handle.steps())
        assert (steps["channel:receive"].status, steps["channel:receive"].result) == (StepStatus.COMPLETED, {"n": 1})
        assert steps["event:wait_event"].result == "1"
        assert {step.status for step in steps.values()} == {StepStatus.COMPLETED}


async def test_steps_of_a_run_that_failed_and_was_compensated(database: Database) -> None:
    async with App(database.url):
        handle = await whole.start(Order("bad", Decimal(1)))
        with pytest.raises(WorkflowFailedError):
            await handle.result(SOON)
        steps = named(await handle.steps())
        failed = steps["child:looking.child"]
        assert (failed.status, failed.error and failed.error.message) == (StepStatus.FAILED, "bad order")
        assert steps["compensation:looking.reserve"].status is StepStatus.COMPLETED
        assert undone == ["bad"]


async def test_steps_that_failed_or_are_between_attempts(database: Database) -> None:
    @activity(retry=Retry(attempts=2, initial=timedelta(hours=1)))
    async def later() -> None:
        raise KeyError("no")

    @workflow(name="looking.retrying")
    async def retrying() -> None:
        await later()

    async with App(database.url) as app:
        handle = await retrying.options(id="a").start()
        await waiting(app, "a")
        (step,) = await handle.steps()
        assert (step.name, step.kind, step.status, step.attempts) == (
            "later",
            StepKind.ACTIVITY,
            StepStatus.RETRYING,
            2,
        )
        assert step.error is not None
        assert (step.error.type, step.error.message) == ("builtins.KeyError", "'no'")
        (only,) = (await handle.info()).waiting_for
        assert (only.kind, only.name) == (WaitKind.RETRY, "1:later")
        timed = await whole.start(Order("quick", Decimal(1)))
        with pytest.raises(WorkflowFailedError):
            await timed.result(SOON)
        step = named(await timed.steps())["channel:receive"]
        assert (step.status, step.error and step.error.type) == (StepStatus.FAILED, "TimeoutError")


async def test_history_is_decoded(database: Database) -> None:
    async with App(database.url):
        handle = await child.start(Order("o", Decimal(2)))
        await handle.result(SOON)
        (entry,) = [entry async for entry in handle.history()]
        assert (entry.step, entry.kind, entry.data) == ("1:price_of", "ActivityCompleted", "2")
        assert entry.at is not None
        assert is_dataclass(entry)


# Queries.


async def fill(storage: SQLStorage, count: int, **fields: Any) -> None:
    start = datetime.now(UTC) - DAY
    for first in range(0, count, 1000):
        rows = [
            WorkflowInstance(
                f"i-{n:05}",
                "looking.simple",
                b'{"text": "%d"}' % (n % 10),
                started_at=start + timedelta(milliseconds=n),
                **fields,
            )
            for n in range(first, min(first + 1000, count))
        ]
        assert set(await storage.create_instances(rows)) == {None}


async def test_ten_thousand_runs_are_paged_counted_and_read_with_few_statements(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 10_500
    async with App(database.url, workflows=[]) as client:
        storage = storage_of(client)
        await fill(storage, total, status=WorkflowStatus.WAITING_FOR_EVENT)
        assert await client.runs().count() == 10_000
        assert await client.runs().count(limit=20_000) == total
        assert await client.runs(workflow="looking.simple", where={"text": "3"}).count() == total // 10
        calls: Counter[str] = Counter()
        for name in ("_read", "_scan"):
            plain = getattr(storage, name)

            def counted(operation: Any, *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
                calls[operation.__name__] += 1
                return plain(operation, *args, **kwargs)

            monkeypatch.setattr(storage, name, counted)
        seen = [run.id async for run in client.runs(workflow=simple)]
        assert seen == [f"i-{n:05}" for n in reversed(range(total))]
        pages = total // 100 + 1
        assert calls["_page"] in (pages, pages - 1)
        assert sum(calls.values()) <= 5 * pages, calls


async def test_a_query_by_workflow_status_time_and_input(database: Database) -> None:
    async with App(database.url) as app:
        for text in ("one", "two", "bad"):
            with pytest.raises(WorkflowFailedError) if text == "bad" else _nothing():
                await (await simple.options(id=text).start(text)).result(SOON)
        await (await child.options(id="other").start(Order("o", Decimal(1)))).result(SOON)

        async def found(**filters: Any) -> set[str]:
            return {run.id async for run in app.runs(**filters)}

        assert await found() == {"one", "two", "bad", "other"}
        assert await found(workflow=simple) == await found(workflow="looking.simple") == {"one", "two", "bad"}
        assert await found(workflow="looking") == set()  # a whole name
        assert await found(status="failed") == await found(status=WorkflowStatus.FAILED) == {"bad"}
        assert await found(workflow=simple, status="completed", where={"text": "two"}) == {"two"}
        moment = datetime.now(UTC)
        assert await found(started_before=moment - DAY) == await found(started_after=moment + DAY) == set()
        assert await found(started_after=moment - DAY, where={"order.id": "o"}) == {"other"}
        first = await app.runs(workflow=simple, status="failed").first()
        assert isinstance(first, RunInfo)
        assert (first.id, first.input, first.children, first.state) == ("bad", {"text": "bad"}, None, None)
        assert await app.runs(status="cancelled").first() is None


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


async def test_what_a_query_refuses(database: Database) -> None:
    async with App(database.url, workflows=[]) as client:
        with pytest.raises(ValueError, match=r"runs\(status=\) is one of 'running', .*, not 'finished'"):
            client.runs(status="finished")
        naive = datetime(2026, 1, 1)
        for name in ("started_after", "started_before"):
            with pytest.raises(ValueError, match=rf"runs\({name}=\) must have a time zone"):
                client.runs(**{name: naive})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"runs\(where=\) reads the input of every run.*give workflow="):
            client.runs(where={"text": "x"})
        with pytest.raises(LimitError):
            client.runs(where={"text": []}, status="failed")  # type: ignore[dict-item]
        for token in ("", "rubbish", "2026-01-01||", "W251bGxd"):
            for stuck_ones in (False, True):
                with pytest.raises(InvalidPageTokenError):
                    await client.runs(stuck=stuck_ones).page(5, token)
        for limit in (0, 1001, True):
            with pytest.raises(ValueError, match="a page has 1 to 1000 runs"):
                await client.runs().page(limit)


# All runs of a query.


async def test_all_runs_of_a_query_are_cancelled(database: Database) -> None:
    async with App(database.url) as app:
        for n in range(3):
            await simple.options(id=f"w{n}").start("wait")
            await waiting(app, f"w{n}")
        await (await simple.options(id="x").start("x")).result(SOON)
        query = app.runs(workflow=simple)
        dry = await query.cancel("all of them", dry_run=True)
        assert (dry.done, dry.skipped, dry.failed, dry.dry_run) == (3, 1, {}, True)
        assert await app.runs(status="waiting_for_message").count() == 3
        done = await query.cancel("all of them")
        assert (done.done, done.skipped, done.failed, done.dry_run) == (3, 1, {}, False)
        for n in range(3):
            with pytest.raises(WorkflowCancelledError, match="all of them"):
                await app.get(f"w{n}").result(SOON)


async def test_all_runs_of_a_query_are_retried(database: Database) -> None:
    async with App(database.url) as app:
        for n in range(3):
            with pytest.raises(WorkflowFailedError):
                await (await simple.options(id=f"bad-{n}").start("bad")).result(SOON)
        query = app.runs(workflow=simple, started_before=await app._storage.now())
        assert (await query.retry(dry_run=True)).done == 3
        assert (await query.retry()).done == 3
        for n in range(3):
            with pytest.raises(WorkflowFailedError):
                await app.get(f"bad-{n}~r1").result(SOON)


async def test_all_ended_runs_of_a_query_are_deleted_with_their_histories(database: Database) -> None:
    async with App(database.url) as app:
        await fill(storage_of(app), 250, status=WorkflowStatus.COMPLETED)
        await (await child.options(id="o").start(Order("o", Decimal(1)))).result(SOON)
        await simple.options(id="waits").start("wait")
        dry = await app.runs().delete(dry_run=True)
        assert (dry.done, dry.skipped) == (251, 1)
        assert await app.runs().count() == 252
        assert await app._storage.get_history_count("o") == 1
        done = await app.runs().delete()
        assert (done.done, done.skipped, done.failed) == (251, 1, {})
        assert [run.id async for run in app.runs()] == ["waits"]
        assert await app._storage.get_history_count("o") == 0


async def test_what_failed_is_named_with_its_reason(database: Database) -> None:
    async with App(database.url, workflows=[]) as client:
        storage = client._storage
        await storage.create_instance(WorkflowInstance("a~1", "looking.looped", status=WorkflowStatus.RECURRED))
        await storage.create_instance(WorkflowInstance("a", "looking.looped", continued_from="a~1"))
        done = await client.runs(workflow=looped).delete()
        assert (done.done, done.skipped) == (0, 1)
        assert "continues from it" in done.failed["a~1"]


# Other frameworks.


async def test_runs_of_another_framework_cannot_be_changed_here(database: Database) -> None:
    async with App(database.url, workflows=[]) as app:
        for id, status in (("theirs", WorkflowStatus.RUNNING), ("failed", WorkflowStatus.FAILED)):
            await app._storage.create_instance(
                WorkflowInstance(id, "looking.simple", b'{"text": "x"}', status=status), source_code=""
            )
        await app._storage.db().execute("UPDATE workflow_instances SET framework = 'python'")
        for change in (app.cancel("theirs"), app.retry("failed")):
            with pytest.raises(EngineError, match="belongs to the framework 'python'"):
                await change
        with pytest.raises(RunExistsError):
            await simple.options(id="theirs").start("x")
        assert (await app.get("theirs").info()).status is WorkflowStatus.RUNNING
        assert [run async for run in app.runs()] == []


async def test_a_run_that_has_ended_is_not_cancelled(database: Database) -> None:
    async with App(database.url) as app:
        await (await simple.options(id="x").start("x")).result(SOON)
        with pytest.raises(WorkflowNotCancellableError):
            await app.cancel("x")


# What is sent to a run.


@activity(retry=Retry(attempts=1), name="looking.sends")
async def sends(to: str, how: str) -> str:
    try:
        await (send_event("looking.go", 1, to=to) if how == "event" else send_to(to, "looking.news", 1))
    except RunNotFoundError as error:
        return f"refused: {error}"
    return "sent"


@workflow(name="looking.sender")
async def sender(to: str, how: str) -> list[str]:
    told = [await sends(to, how)]
    try:
        await (send_event("looking.go", 1, to=to) if how == "event" else send_to(to, "looking.news", 1))
        told.append("sent")
    except RunNotFoundError as error:
        told.append(f"refused: {error}")
    await wait_event("looking.end")
    return told


@pytest.mark.parametrize("how", ["event", "message"])
async def test_what_is_sent_to_a_run_that_does_not_exist_is_refused(database: Database, how: str) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        for send in (
            app.send_event("looking.go", 1, to="nobody"),
            app.send_to("nobody", "looking.news", 1),
            send_event("looking.go", 1, to="nobody"),
        ):
            with pytest.raises(RunNotFoundError, match="run 'nobody' does not exist"):
                await send
        handle = await sender.options(id="sender").start("nobody", how)
        await waiting(app, "sender")
        await app.send_event("looking.end", None, to="sender")  # the body is replayed
        refused = "refused: run 'nobody' does not exist: check the id, and whether retention has removed it"
        assert await handle.result(SOON) == [refused, refused]


async def test_what_is_sent_to_a_run_that_has_ended_is_dropped(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "perdure.engine")
    async with App(database.url) as app:
        await (await simple.options(id="x").start("x")).result(SOON)
        await app.send_event("looking.go", 1, to="x")
        assert "a message to run x (looking.simple) was dropped: the run is completed" in caplog.messages
        assert await app._storage.get_pending_channel_messages("looking.go:x") == []


# Waiting in vain.


async def test_result_warns_once_if_no_live_worker_serves_the_workflow(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck, "WARN_SEC", 0.05)

    def warnings() -> list[str]:
        return [text for text in caplog.messages if "no live worker serves its workflow" in text]

    async with App(database.url, workflows=[child]) as app:
        handle = await simple.options(id="x").start("x")
        with pytest.raises(TimeoutError):
            await handle.result(0.5)
        (text,) = warnings()
        assert text.startswith("run x (looking.simple) has not ended after 0.05 s")
        served = await child.options(after=DAY).start(Order("o", Decimal(1)))
        with pytest.raises(TimeoutError):
            await served.result(0.3)
        assert len(warnings()) == 1
        assert app.worker_id


# Health.


async def test_health_tells_how_late_work_is(database: Database) -> None:
    async with App(database.url, workflows=[]) as app:
        health = await app.health()
        assert (health.ok, health.database, health.migrations, health.oldest_due_sec) == (True, True, True, None)
        assert health.tasks
        await simple.start("x")
        shift_clock(storage_of(app), timedelta(seconds=90))
        oldest = (await app.health()).oldest_due_sec
        assert oldest is not None
        assert 80 < oldest < 120


async def test_health_tells_of_missing_migrations(database: Database) -> None:
    async with App(database.url, workflows=[]) as client:
        ledger = "schema_migrations WHERE version = '20261117000000'"
        await client._storage.db().execute(f"DELETE FROM {ledger}")
        try:
            health = await client.health()
            assert (health.ok, health.database, health.migrations) == (False, True, False)
        finally:
            await client._storage.db().execute("INSERT INTO schema_migrations (version) VALUES ('20261117000000')")
