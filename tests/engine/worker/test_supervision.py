"""Background tasks that fail are logged, restarted and reported. Closing an App ends all waits for results."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Client, ClosedError, EngineError, Retention, activity, wait_event, workflow
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.worker import relay, supervision
from perdure.engine.worker.results import Results
from perdure.engine.worker.supervision import Supervised, Supervisor
from perdure.errors import DatabaseUnavailableError, StorageError
from perdure.model.records import OutboxEvent
from tests.engine.waiting import until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart at once."""
    monkeypatch.setattr(supervision, "FIRST_SEC", 0.01)
    monkeypatch.setattr(supervision, "LONGEST_SEC", 0.02)


@activity
async def echo(text: str) -> str:
    return text


@workflow(name="supervision.says")
async def says(text: str) -> str:
    return await echo(text)


@workflow(name="supervision.waits")
async def waits() -> str:
    return str((await wait_event("go")).data)


class Broken(Exception):
    """An error that no code expects."""


def failing(call: Callable[..., Any], times: int) -> tuple[Callable[..., Any], list[int]]:
    """A method that raises an unexpected error so often, and then works."""
    left = [times]

    async def method(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise Broken("on purpose")
        return await call(*args, **options)

    return method, left


def errors(caplog: pytest.LogCaptureFixture, task: str) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.levelno == logging.ERROR and f"task '{task}'" in each.getMessage()]


# Each of them.


async def test_work_loop_is_restarted(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(database.url) as app:
        await waits.options(id="a").start()
        await waiting(app, "a")
        method, left = failing(app._storage.next_work_at, 3)
        monkeypatch.setattr(app._storage, "next_work_at", method)
        await app.send_event("go", "on", to="a")
        assert await app.get("a").result(SOON) == "on"
        await until(lambda: left == [0])
        await until(lambda: _health_of(app, "work loop").failures == 0)
        health = await app.health()
        assert health.ok
        assert health.database
        (found,) = [each for each in health.tasks if each.name == "work loop"]
        assert (found.alive, found.restarts, found.last_error) == (True, 3, "Broken: on purpose")
    logged = errors(caplog, "work loop")
    assert len(logged) == 3
    assert all(record.exc_info is not None for record in logged)


def _health_of(app: Client, name: str) -> supervision.TaskHealth:
    (found,) = [each for each in app._supervisor.tasks() if each.name == name]
    return found


async def test_listener_is_restarted(
    shared: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> AsyncIterator[Any]:
        for _ in "x":
            raise Broken("on purpose")
        yield None

    async with App(shared.url) as app:
        wakeups = app._storage.wakeups
        monkeypatch.setattr(app._storage, "wakeups", broken)
        task = asyncio.create_task(app._worker.listener.run(Supervised("listener")))
        with pytest.raises(Broken):
            await task
        restarted = app._supervisor.start("listener", app._worker.listener.run)
        await until(lambda: len(errors(caplog, "listener")) >= 2)
        monkeypatch.setattr(app._storage, "wakeups", wakeups)
        assert await (await says.start("still here")).result(SOON) == "still here"
        restarted.cancel()


async def test_heartbeat_is_restarted_and_leases_are_kept(
    shared: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from perdure.engine.worker.heartbeat import Heartbeat

    method, left = failing(Heartbeat._renew, 3)

    async def renew(heartbeat: Heartbeat, storage: Any) -> None:
        await method(heartbeat, storage)

    monkeypatch.setattr(Heartbeat, "_renew", renew)
    async with App(shared.url, lease=timedelta(seconds=1)) as app:
        await until(lambda: left == [0])
        await until(lambda: _health_of(app, "heartbeat").failures == 0)
        assert _health_of(app, "heartbeat").restarts == 3
        assert await (await says.start("still here")).result(SOON) == "still here"
    assert len(errors(caplog, "heartbeat")) == 3


async def test_outage_is_over_although_a_task_that_noticed_it_has_nothing_left_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = Supervisor()
    resting, working = supervisor.watch("resting"), supervisor.watch("working")
    with caplog.at_level("INFO", logger="perdure.engine"):
        for task in (resting, working):
            task.unavailable(OSError("no server"))
        resting.rest()
        working.succeeded()
    assert [record.getMessage().split(" after ")[0] for record in caplog.records[1:]] == [
        "the database is available again"
    ]


async def test_the_poller_for_results_is_restarted(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    method, left = failing(Results._look, 2)

    async def look(results: Results) -> None:
        await method(results)

    async with App(database.url) as app:
        await waits.options(id="a").start()
        await waiting(app, "a")
        monkeypatch.setattr(Results, "_look", look)
        monkeypatch.setattr(Results, "ended", lambda *_: asyncio.sleep(0))  # without this notification it has to query
        asking = asyncio.create_task(app.get("a").result(SOON))
        await until(lambda: left == [0])
        await app.send_event("go", "on", to="a")
        assert await asking == "on"
        assert not [each for each in app._supervisor.tasks() if each.name == "results" and not each.alive]
    assert len(errors(caplog, "results")) == 2


async def test_retention_and_the_relay_are_restarted(
    shared: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from perdure.engine.worker import retention

    monkeypatch.setattr(retention, "SOON_SEC", 0.01)
    published: list[str] = []

    async def publisher(event: OutboxEvent) -> None:
        published.append(event.event_type)

    policy = Retention(finished=timedelta(days=1))
    from perdure.storage.stores import SQLStorage

    acquire, claim = SQLStorage.try_acquire_system_lock, SQLStorage.get_pending_outbox_events
    left = {"lock": 2, "claim": 2}

    async def broken_acquire(self: Any, *args: Any) -> Any:
        if left["lock"]:
            left["lock"] -= 1
            raise Broken("on purpose")
        return await acquire(self, *args)

    async def broken_claim(self: Any, *args: Any, **options: Any) -> Any:
        if left["claim"]:
            left["claim"] -= 1
            raise Broken("on purpose")
        return await claim(self, *args, **options)

    monkeypatch.setattr(SQLStorage, "try_acquire_system_lock", broken_acquire)
    monkeypatch.setattr(SQLStorage, "get_pending_outbox_events", broken_claim)
    async with App(shared.url, retention=policy, publisher=publisher) as app:
        await app.send_event("news", 1)
        await until(lambda: published == ["news"])
        await until(lambda: not left["lock"] and _health_of(app, "retention").failures == 0)
    assert len(errors(caplog, "retention")) == 2
    assert len(errors(caplog, "outbox relay")) == 2


async def test_publisher_may_raise_anything(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "BACK_OFF_MAX_SEC", 0.02)
    monkeypatch.setattr(relay, "BUSY_SEC", 0.02)
    tried: list[str] = []

    async def publisher(event: OutboxEvent) -> None:
        tried.append(event.event_type)
        if len(tried) == 1:
            sys.exit(3)

    async with App(shared.url, publisher=publisher) as app:
        await app.send_event("news", 1)
        await until(lambda: len(tried) == 2)
        assert _health_of(app, "outbox relay").restarts == 0


# Group commits.


class Writer:
    """Writes of many callers, some of which fail."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes = list(outcomes)
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> Sequence[int | StorageError]:
        await self.open.wait()
        self.batches.append(list(items))
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, BaseException):
            raise outcome
        return list(items) if outcome is None else outcome  # type: ignore[return-value]


@pytest.mark.parametrize("outcome", [Broken("on purpose"), SystemExit(3), [1, 2, 3, 4]])
async def test_failed_group_commit_answers_every_caller_and_the_next_one_works(
    outcome: object, caplog: pytest.LogCaptureFixture
) -> None:
    write = Writer(outcome)
    supervisor = Supervisor()
    shared: GroupCommit[int, int] = GroupCommit(write, supervisor.watch("group commit"))
    first, second = asyncio.create_task(shared(1)), asyncio.create_task(shared(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    third = asyncio.create_task(shared(3))  # it waits for the next commit
    await asyncio.sleep(0)
    write.open.set()
    answers = await asyncio.gather(first, second, third, return_exceptions=True)
    assert all(isinstance(each, StorageError) for each in answers[: len(write.batches[0])])
    assert await shared(4) == 4
    if isinstance(outcome, BaseException):
        assert len(errors(caplog, "group commit")) == 1
        assert supervisor.tasks()[0].restarts == 1
        assert supervisor.tasks()[0].failures == 0


async def test_cancelled_caller_of_a_group_commit_does_not_affect_others() -> None:
    """19."""
    write = Writer()
    shared: GroupCommit[int, int] = GroupCommit(write)
    callers = [asyncio.create_task(shared(number)) for number in range(3)]
    await asyncio.sleep(0)
    callers[1].cancel()
    write.open.set()
    answers: list[Any] = await asyncio.gather(*callers, return_exceptions=True)
    assert answers[0] == 0
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[2] == 2


# The supervisor itself.


async def test_task_that_keeps_failing_is_abandoned_and_a_success_resets_the_count() -> None:
    tried: list[int] = []

    async def work(task: Supervised) -> None:
        tried.append(len(tried))
        if len(tried) == supervision.FAILURES_MAX - 1:
            task.succeeded()
        raise Broken("on purpose")

    supervisor = Supervisor()
    task = supervisor.start("work", work)
    with pytest.raises(EngineError, match="background task 'work' failed 10 times in a row: Broken: on purpose"):
        async with asyncio.timeout(10):
            await supervisor.failure()
    assert len(tried) >= 2 * supervision.FAILURES_MAX - 2
    task.cancel()
    await asyncio.wait([task])
    assert supervisor.tasks() == ()


async def test_unexpected_cancelled_error_does_not_end_a_background_task() -> None:
    tried: list[int] = []

    async def work(task: Supervised) -> None:
        tried.append(1)
        if len(tried) < 3:
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    supervisor = Supervisor()
    task = supervisor.start("work", work)
    await until(lambda: len(tried) == 3)
    assert supervisor.tasks()[0].restarts == 2
    task.cancel()
    await asyncio.wait([task])


PROGRAM = """
import asyncio, sys
from perdure import App
from perdure.engine.worker import supervision
from perdure.engine.worker.work_loop import WorkLoop

supervision.FIRST_SEC = supervision.LONGEST_SEC = 0.01

async def broken(self):
    raise KeyError("on purpose")

WorkLoop.look = broken
asyncio.run(App(sys.argv[1]).serve())
"""


def test_serve_raises_if_a_background_task_keeps_failing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/a.db"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "background task 'work loop' failed 10 times in a row: KeyError: 'on purpose'" in ended.stderr


async def test_unavailable_database_does_not_count_as_a_failure_of_a_task(
    shared: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise DatabaseUnavailableError("nobody answers")

    async with App(shared.url) as app:
        asked = app._storage.pending_migrations
        monkeypatch.setattr(app._storage, "next_work_at", away)
        monkeypatch.setattr(app._storage, "pending_migrations", away)
        app._worker.wake()
        await until(lambda: "the database is unavailable, retrying until it answers: nobody answers" in caplog.text)
        health = await app.health()
        assert (health.database, health.ok) == (False, False)
        assert all(each.alive and not each.restarts for each in health.tasks)
        monkeypatch.setattr(app._storage, "pending_migrations", asked)
        assert (await app.health()).ok


async def test_client_reports_its_health(shared: Database) -> None:
    async with Client(shared.url) as client:
        assert (await client.health()).ok


# Cron.


def test_scheduled_workflow_with_a_required_parameter_is_refused_by_the_decorator() -> None:
    async def report(day: str, format: str = "pdf") -> None:
        raise AssertionError("never called")

    with pytest.raises(TypeError, match=r"report is scheduled \(cron=\), .* its parameter 'day' a default"):
        workflow(name="supervision.report", cron="* * * * *")(report)
    assert "supervision.report" not in WORKFLOWS


async def test_tick_that_cannot_be_started_does_not_block_other_ticks(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ticking() -> str:
        return "tick"

    async def bad() -> str:
        return "tick"

    try:
        good_one = workflow(name="supervision.good", cron="* * * * *")(ticking)
        bad_one = workflow(name="supervision.bad", cron="* * * * *")(bad)
    finally:
        for name in ("supervision.good", "supervision.bad"):
            WORKFLOWS.pop(name, None)

    def broken(*_: object) -> bytes:
        raise Broken("on purpose")

    monkeypatch.setattr(type(bad_one.signature), "bind", _only(bad_one.signature, broken))
    async with App(database.url, workflows=[bad_one, good_one, says]) as app:

        async def has_ticked() -> bool:
            return bool([run async for run in app.runs(workflow="supervision.good")])

        await until(has_ticked)
        assert await (await says.start("still here")).result(SOON) == "still here"
        assert (await app.health()).ok
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 1
    assert "the scheduled workflow supervision.bad could not be started" in logged[0]


def _only(signature: Any, instead: Callable[..., bytes]) -> Callable[..., bytes]:
    """A method that does something else for one object."""
    plain = type(signature).bind

    def bind(self: Any, *args: Any) -> bytes:
        return instead() if self is signature else plain(self, *args)

    return bind


# Closing.


@pytest.mark.guarantee(10)
@pytest.mark.parametrize("kind", [App, Client])
async def test_awaited_results_raise_when_the_app_closes(shared: Database, kind: type[Client]) -> None:
    async with Client(shared.url) as other:
        await waits.options(id="a").start()
        async with kind(shared.url) as app:
            asking: list[Awaitable[Any]] = [asyncio.create_task(app.get("a").result()) for _ in range(3)]
            await until(lambda: len(app._results._waiting.get("a", [])) == 3)
        for each in asking:
            with pytest.raises(ClosedError, match="run 'a'"):
                async with asyncio.timeout(5):
                    await each
        with pytest.raises(ClosedError):
            await app.get("a").result()
        assert (await other.get("a").info()).status
