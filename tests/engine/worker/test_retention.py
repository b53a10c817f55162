"""Retention deletes what has ended when it is old enough, and nothing else, on every database."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    Retry,
    RunNotFoundError,
    Workflow,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    receive,
    recur,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.worker import retention as retaining
from perdure.engine.worker.retention import BATCH, Retention, Swept, sweep, sweep_for_ever
from perdure.engine.worker.waiting import end_tasks
from perdure.errors import DatabaseUnavailableError
from perdure.model.records import OutboxEvent, WorkflowInstance
from perdure.storage.stores import SQLStorage, shift_clock
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
DAY = timedelta(days=1)
NOW = timedelta(0)  # runs are driven by this clock only: their worker set its own when it began
MONTH = Retention(finished=30 * DAY, messages=7 * DAY, outbox=7 * DAY)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@activity(retry=Retry(attempts=1))
async def twice(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number * 2


@workflow(name="retention.doubled")
async def doubled(number: int) -> int:
    return await twice(number)


@workflow(name="retention.counting")
async def counting(left: int) -> int:
    await twice(left)
    if left:
        recur(left - 1)
    return left


@workflow(name="retention.patient")
async def patient() -> str:
    await subscribe("news")
    await wait_event("retention.go")
    return str((await receive("news")).data)


async def ended(storage: SQLStorage, count: int) -> None:
    """Runs that ended two months ago."""
    then = datetime.now(UTC) - 60 * DAY
    for first in range(0, count, 100):
        old = [
            WorkflowInstance(
                f"old-{number}", "retention.old", status=WorkflowStatus.COMPLETED, started_at=then, updated_at=then
            )
            for number in range(first, min(first + 100, count))
        ]
        assert await storage.create_instances(old) == [None] * len(old)


async def left(client: Client) -> int:
    return await client.runs(workflow="retention.old").count()


# The policy.


@pytest.mark.parametrize("field", ["finished", "messages", "outbox", "every", "message_ids"])
@pytest.mark.parametrize("value", [timedelta(0), -DAY, 0, "7 days", 40_000 * DAY])
def test_invalid_policy_is_refused_by_the_constructor(field: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"Retention\({field}=\) must be "):
        Retention(**{field: value})


def test_policy_without_an_interval_is_refused() -> None:
    with pytest.raises(TypeError, match="every"):
        Retention(every=None)  # type: ignore[arg-type]


async def test_nothing_is_deleted_by_default(database: Database) -> None:
    async with App(database.url, workflows=[doubled]) as app:
        await (await doubled.options(id="four").start(4)).result(SOON)
        await app.publish("news", "old")
        shift_clock(storage_of(app), 1000 * DAY)
        for dry_run in (True, False):
            assert await app.sweep(Retention(), dry_run=dry_run) == Swept(0, 0, 0, dry_run)
        assert await app.get("four").result(SOON) == 8
        assert len(await app._storage.get_pending_channel_messages("news")) == 1


# What goes.


@pytest.mark.call("run")
async def test_runs_are_deleted_with_all_their_rows(database: Database) -> None:
    async with App(database.url, workflows=[doubled, counting, patient]) as app:
        await (await doubled.options(id="four").start(4)).result(SOON)
        with pytest.raises(WorkflowFailedError):
            await (await doubled.options(id="failed").start(-1)).result(SOON)
        await (await counting.options(id="counted").start(2)).result(SOON)
        waiting = await patient.options(id="patient").start()
        await until(lambda: _is(app, "patient", WorkflowStatus.WAITING_FOR_MESSAGE))
        assert await app._storage.get_archived_history("counted~1")

        shift_clock(storage_of(app), 29 * DAY)
        assert await app.sweep(MONTH, dry_run=True) == Swept(0, None, 0, dry_run=True)
        assert (await app.sweep(MONTH)).finished == 0
        shift_clock(storage_of(app), 31 * DAY)
        assert await app.sweep(MONTH, dry_run=True) == Swept(5, None, 0, dry_run=True)
        assert (await app.get("four").info()).status is WorkflowStatus.COMPLETED
        assert (await app.sweep(MONTH)).finished == 5
        assert await app.sweep(MONTH, dry_run=True) == Swept(0, None, 0, dry_run=True)

        for id in ("four", "failed", "counted", "counted~1", "counted~2"):
            with pytest.raises(RunNotFoundError):
                await app.get(id).info()
        assert await app._storage.get_archived_history("counted~1") == []
        assert await app._storage.get_history_count("four") == 0
        shift_clock(storage_of(app), NOW)
        assert await (await doubled.options(id="four", if_exists="error").start(5)).result(SOON) == 10
        assert (await waiting.info()).status is WorkflowStatus.WAITING_FOR_MESSAGE


async def test_age_is_counted_from_the_end_of_a_run(storage: SQLStorage) -> None:
    await ended(storage, 1)
    long = WorkflowInstance("long", "w", status=WorkflowStatus.FAILED, started_at=datetime.now(UTC) - 60 * DAY)
    await storage.create_instance(long)
    for dry_run in (True, False):
        assert (await sweep(storage, MONTH, dry_run=dry_run)).finished == 1
    assert await storage.get_instance("long") is not None


async def _is(app: App, id: str, status: WorkflowStatus) -> bool:
    return (await app.get(id).info()).status is status


async def test_messages_are_deleted_unless_a_subscriber_needs_them(database: Database) -> None:
    async with App(database.url, workflows=[patient]) as app:
        handle = await patient.options(id="patient").start()
        await until(lambda: _is(app, "patient", WorkflowStatus.WAITING_FOR_MESSAGE))
        await app.publish("news", "you are waited for")
        await app.publish("rumours", "nobody listens")
        shift_clock(storage_of(app), 8 * DAY)
        assert (await app.sweep(MONTH)).messages == 1
        shift_clock(storage_of(app), NOW)
        await app.send_event("retention.go", None)
        assert await handle.result(SOON) == "you are waited for"
        shift_clock(storage_of(app), 8 * DAY)
        assert (await app.sweep(MONTH)).messages == 2  # that one and the event: needed no longer
        assert await app._storage.get_pending_channel_messages("news") == []


@workflow(name="retention.later")
async def later() -> str:
    await wait_event("retention.go")
    return str((await wait_event("retention.note")).data)


async def test_message_to_a_run_is_kept_until_the_run_takes_it(database: Database) -> None:
    async with App(database.url, workflows=[later]) as app:
        handle = await later.options(id="later").start()
        await until(lambda: _is(app, "later", WorkflowStatus.WAITING_FOR_MESSAGE))
        await app.send_event("retention.note", "kept", to="later")
        shift_clock(storage_of(app), 8 * DAY)
        assert (await app.sweep(MONTH)).messages == 0
        shift_clock(storage_of(app), NOW)
        await app.send_event("retention.go", None)
        assert await handle.result(SOON) == "kept"
        shift_clock(storage_of(app), 8 * DAY)
        assert (await app.sweep(MONTH)).messages == 2


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_message_ids_are_known_for_a_week_after_their_messages_are_deleted(
    backend: str, backend_database: Any
) -> None:
    """By default: brokers deliver a message again long after a short retention has deleted it."""
    policy = Retention(messages=DAY)
    async with backend_database(backend) as database, App(database.url, workflows=[]) as app:
        stored = app._storage.get_pending_channel_messages
        await app.send_event("paid", 1, source="bank", id="e-1")
        shift_clock(storage_of(app), 6 * DAY)
        assert (await app.sweep(policy)).messages == 1
        await app.send_event("paid", 1, source="bank", id="e-1")
        assert await stored("paid") == []
        shift_clock(storage_of(app), 8 * DAY)
        assert (await app.sweep(policy)).messages == 0
        await app.send_event("paid", 1, source="bank", id="e-1")
        assert len(await stored("paid")) == 1


@pytest.mark.parametrize(
    ("policy", "known", "unknown"),
    [
        (Retention(messages=DAY, message_ids=3 * DAY), 2, 4),
        (Retention(messages=DAY, message_ids=1), 0.5, 2),  # not shorter than messages
        (Retention(messages=30 * DAY), 29, 31),
        (Retention(messages=DAY, message_ids=None), 20_000, None),
    ],
)
async def test_message_ids_are_known_for_the_longer_of_two_times(
    database: Database, policy: Retention, known: float, unknown: float | None
) -> None:
    async with App(database.url, workflows=[]) as app:

        async def is_known(days: float) -> bool:
            """Return whether the event, sent again after a sweep, changes nothing."""
            shift_clock(storage_of(app), days * DAY)
            await app.sweep(policy)
            before = await app._storage.get_pending_channel_messages("paid")
            await app.send_event("paid", 1, source="bank", id="e-1")
            return await app._storage.get_pending_channel_messages("paid") == before

        assert not await is_known(0)
        assert await is_known(known)
        assert unknown is None or not await is_known(unknown)


async def test_message_ids_are_remembered_as_long_as_messages(database: Database) -> None:
    async with App(database.url, workflows=[]) as app:
        stored = app._storage.get_pending_channel_messages
        for _ in range(2):
            await app.send_event("paid", 1, source="bank", id="e-1")
        assert len(await stored("paid")) == 1
        shift_clock(storage_of(app), 6 * DAY)
        await app.sweep(MONTH)
        await app.send_event("paid", 1, source="bank", id="e-1")
        assert len(await stored("paid")) == 1
        shift_clock(storage_of(app), 8 * DAY)
        assert (await app.sweep(MONTH)).messages == 1
        await app.send_event("paid", 1, source="bank", id="e-1")
        assert len(await stored("paid")) == 1


async def test_published_events_are_deleted_from_the_outbox(storage: SQLStorage) -> None:
    for number in range(BATCH + 3):
        await storage.add_outbox_event(OutboxEvent(f"e-{number}", "paid", "bank", b"{}"))
    for number in range(BATCH + 1):
        await storage.mark_outbox_event_sent(f"e-{number}")
    shift_clock(storage, 8 * DAY)
    await storage.mark_outbox_event_sent(f"e-{BATCH + 1}")
    assert await sweep(storage, MONTH, dry_run=True) == Swept(0, None, BATCH + 1, dry_run=True)
    assert await sweep(storage, MONTH) == Swept(0, 0, BATCH + 1, dry_run=False)
    assert [event.event_id for event in await storage.list_outbox_events()] == [f"e-{BATCH + 1}", f"e-{BATCH + 2}"]


async def test_sweep_is_logged_in_one_line(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with App(database.url, workflows=[]) as app:
        await ended(storage_of(app), 3)
        with caplog.at_level(logging.INFO, "perdure.engine"):
            await app.sweep(MONTH)
    (line,) = [record for record in caplog.records if record.message.startswith("the retention sweep removed")]
    counts = {name: getattr(line, name) for name in ("finished", "messages", "outbox", "dry_run")}
    assert line.message == "the retention sweep removed 3 finished runs, 0 messages and 0 outbox events"
    assert counts == {"finished": 3, "messages": 0, "outbox": 0, "dry_run": False}


# How it goes.


async def test_sweep_deletes_in_batches_and_lets_others_work(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(database.url, workflows=[doubled]) as app:
        await ended(storage_of(app), 2 * BATCH + 50)
        counts: list[int] = []
        between: list[int] = []
        delete = app._storage.delete_instances

        async def counted(older_than: timedelta, limit: int = 0) -> int:
            counts.append(await delete(older_than, limit))
            return counts[-1]

        async def work(_: float) -> None:
            await (await doubled.start(1)).result(SOON)
            between.append(len(counts))

        monkeypatch.setattr(app._storage, "delete_instances", counted)
        monkeypatch.setattr(retaining, "_rest", work)
        swept = await app.sweep(MONTH)
        assert counts == [BATCH, BATCH, 50]
        assert swept.finished == 2 * BATCH + 50
        assert between == [1, 2]  # a whole run in either pause


async def test_interrupted_sweep_is_resumed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(database.url, workflows=[]) as app:
        await ended(storage_of(app), 2 * BATCH)
        with monkeypatch.context() as patched:
            patched.setattr(retaining, "PAUSE_SEC", 60)
            sweeping = asyncio.create_task(app.sweep(MONTH))
            await until(lambda: _are_left(app, BATCH))
            sweeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sweeping
        assert await left(app) == BATCH
        assert (await app.sweep(MONTH)).finished == BATCH


async def test_worker_sweeps_periodically(database: Database) -> None:
    async with App(database.url, workflows=[], retention=Retention(30 * DAY, every=timedelta(seconds=0.1))) as app:
        for _ in range(2):
            await ended(storage_of(app), 3)
            await until(lambda: _are_left(app, 0))


async def _are_left(client: Client, count: int) -> bool:
    return await left(client) == count


@pytest.mark.behaviour("background tasks")
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_only_one_of_many_workers_sweeps(
    backend: str, backend_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is kept for the interval, so a second worker asks once and does nothing; after that it is its turn."""
    monkeypatch.setattr(retaining, "SOON_SEC", 0.01)
    swept: list[str] = []
    async with backend_database(backend) as database:
        asked = {"a": asyncio.Event(), "b": asyncio.Event()}
        tasks = []
        for name in asked:
            storage = await database.storage()
            watch(storage, name, swept, asked, monkeypatch)
            tasks.append(asyncio.create_task(sweep_for_ever(storage, MONTH, name)))
        async with asyncio.timeout(20):
            for event in asked.values():
                await event.wait()
        await end_tasks(tasks)
        assert len(swept) == 1
        shift_clock(storage, timedelta(hours=1, seconds=1))
        watch(storage, "c", swept, asked | {"c": (third := asyncio.Event())}, monkeypatch)
        later = asyncio.create_task(sweep_for_ever(storage, MONTH, "c"))
        async with asyncio.timeout(20):
            await third.wait()
        await end_tasks([later])
        assert swept[1:] == ["c"]


def watch(
    storage: SQLStorage, name: str, swept: list[str], asked: dict[str, asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Note who got the lock, and that it was asked for."""
    acquire = type(storage).try_acquire_system_lock

    async def watched(lock_name: str, worker_id: str, timeout_sec: float) -> Any:
        lease = await acquire(storage, lock_name, worker_id, timeout_sec)
        swept.extend([name] if lease is not None else [])
        asked[name].set()
        return lease

    monkeypatch.setattr(storage, "try_acquire_system_lock", watched)


async def test_database_error_does_not_end_the_sweeper(
    storage: SQLStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retaining, "SOON_SEC", 0.01)
    monkeypatch.setattr(retaining, "AGAIN_SEC", 0.01)
    await ended(storage, 1)
    delete = storage.delete_instances

    async def refuse(older_than: timedelta, limit: int = 0) -> int:
        monkeypatch.setattr(storage, "delete_instances", delete)
        raise DatabaseUnavailableError("gone for a moment")

    monkeypatch.setattr(storage, "delete_instances", refuse)
    sweeping = asyncio.create_task(sweep_for_ever(storage, MONTH, "w"))
    await until(lambda: _gone(storage))
    await end_tasks([sweeping])
    assert [record.message for record in caplog.records if "the retention sweep failed" in record.message]


async def _gone(storage: SQLStorage) -> bool:
    return await storage.get_instance("old-0") is None


# Scheduled runs.


@pytest.fixture
def yearly() -> Iterator[Workflow[[], None]]:
    """A tick of it is hours to a year old."""
    month = (datetime.now(UTC) - 3 * DAY).month

    @workflow(name="retention.yearly", cron=f"0 0 1 {month} *")
    async def tick() -> None:
        return None

    yield tick
    del WORKFLOWS["retention.yearly"]


async def test_tick_whose_run_may_be_deleted_is_not_started_again(
    database: Database, yearly: Workflow[[], None]
) -> None:
    kept = Retention(finished=timedelta(hours=1))
    async with App(database.url, workflows=[yearly, doubled], retention=kept) as app:
        await (await doubled.start(1)).result(SOON)
        async with Looks(app) as looks:
            await looks.done()
        assert [run async for run in app.runs(workflow="retention.yearly")] == []
    async with App(database.url, workflows=[yearly], retention=Retention(finished=400 * DAY)) as app:
        await until(lambda: _ran(app))


async def _ran(app: App) -> bool:
    return len([run async for run in app.runs(workflow="retention.yearly")]) == 1


class Looks:
    """Waits until the worker has looked for work again."""

    def __init__(self, app: App) -> None:
        self._loop = app._worker.work_loop
        self._wake = app._worker.wake
        self._looked = asyncio.Event()

    async def __aenter__(self) -> "Looks":
        look = self._loop.look

        async def looking() -> float:
            delay = await look()
            self._looked.set()
            return delay

        self._loop.look = looking  # type: ignore[method-assign]
        return self

    async def done(self) -> None:
        self._wake()
        async with asyncio.timeout(20):
            await self._looked.wait()

    async def __aexit__(self, *_: object) -> None:
        del self._loop.look
