"""Interceptors: around starts, messages, executions and activities, outside the body and never on replay."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    ActivityInfo,
    App,
    Client,
    Retry,
    SyncClient,
    WorkflowFailedError,
    activity,
    connection,
    recur,
    send_event,
    wait_event,
    workflow,
)
from perdure.engine.interception import interception_of
from perdure.engine.starting import start_tick
from perdure.engine.worker.activities import Activities
from perdure.engine.worker.hooks import Hooks
from perdure.errors import LimitError
from perdure.interceptors import Execution, Interceptor, Send, Start
from perdure.model.schedules import tick_id
from perdure.testing import TestApp
from tests.engine.gates import entered, forget, gates, two_gates
from tests.engine.versions import version
from tests.engine.waiting import row_of, stuck_runs, until, waiting
from tests.support.storages import Database

TENANT: ContextVar[str] = ContextVar("tenant", default="none")
ONCE = Retry(attempts=1)


class Recording(Interceptor):
    """Notes everything that happens, and adds a header to each start and message."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.seen: list[str] = []
        self.executions: list[Execution] = []

    @contextmanager
    def start(self, start: Start) -> Iterator[None]:
        self.seen.append(f"{self.name}start {start.kind} {start.workflow} {sorted(start.headers)}")
        start.headers[f"from{self.name}"] = "interceptor"
        try:
            yield
        finally:
            self.seen.append(f"{self.name}started")

    @contextmanager
    def send(self, send: Send) -> Iterator[None]:
        self.seen.append(f"{self.name}send {send.kind} {send.name} {send.to} {sorted(send.headers)}")
        send.headers["sent"] = "yes"
        yield

    @contextmanager
    def execute(self, execution: Execution) -> Iterator[None]:
        self.seen.append(f"{self.name}execute {execution.workflow}")
        self.executions.append(execution)
        token = TENANT.set(execution.headers.get("tenant", "none"))
        try:
            yield
        finally:
            TENANT.reset(token)
            self.seen.append(f"{self.name}executed {execution.outcome}")

    @contextmanager
    def activity(self, attempt: ActivityInfo) -> Iterator[None]:
        self.seen.append(f"{self.name}attempt {attempt.step}#{attempt.attempt} {sorted(attempt.headers)}")
        yield


tries = 0


@activity(retry=Retry(attempts=2, initial=0.001))
async def tenant_of() -> str:
    return TENANT.get()


@activity
def tenant_in_thread() -> str:
    return TENANT.get()


@activity(retry=Retry(attempts=2, initial=0.001))
async def failing_once() -> int:
    global tries
    tries += 1
    if tries == 1:
        raise ValueError("once")
    return tries


@workflow
async def intercepted_order() -> list[str]:
    return [await tenant_of(), await tenant_in_thread()]


@workflow
async def intercepted_retries() -> int:
    return await failing_once()


@workflow
async def intercepted_parent() -> None:
    await intercepted_order()
    await intercepted_order.options(id="started-in-body").start()
    await send_event("intercepted-news", 1)


@workflow
async def intercepted_wait() -> dict[str, str]:
    event = await wait_event("intercepted-news")
    return dict(event.headers)


@workflow
async def intercepted_loop(left: int) -> None:
    if left:
        recur(left - 1)


@activity
async def charge_intercepted() -> None: ...


@charge_intercepted.compensation
async def refund_intercepted() -> None: ...


@workflow
async def intercepted_saga() -> None:
    await charge_intercepted()
    raise ValueError("no stock")


@activity(transactional=True)
async def intercepted_transaction() -> str:
    connection()
    return TENANT.get()


@workflow
async def intercepted_transactional() -> str:
    return await intercepted_transaction()


async def test_interceptors_are_around_a_start_its_execution_and_its_attempts(database: Database) -> None:
    seen = Recording()
    async with App(database.url, interceptors=[seen]):
        run = await intercepted_order.options(headers={"tenant": "acme"}).start()
        assert await run.result() == ["acme", "acme"]
        assert (await run.info()).headers == {"tenant": "acme", "from": "interceptor"}
    headers = "['from', 'tenant']"
    assert seen.seen[0] == "start start intercepted_order ['tenant']"
    seen.seen.remove("started")  # the execution may begin before start() returns
    assert seen.seen[1:] == [
        "execute intercepted_order",
        f"attempt 1:tenant_of#1 {headers}",
        f"attempt 2:tenant_in_thread#1 {headers}",
        "executed completed",
    ]
    (execution,) = seen.executions
    assert (execution.run_id, execution.fence, execution.is_rollback) == (run.id, 1, False)


async def test_each_attempt_of_a_retry_is_intercepted() -> None:
    global tries
    tries, seen = 0, Recording()
    async with TestApp(interceptors=[seen]):
        assert await intercepted_retries() == 2
    assert [each for each in seen.seen if each.startswith("attempt")] == [
        "attempt 1:failing_once#1 ['from']",
        "attempt 1:failing_once#2 ['from']",
    ]


async def test_children_starts_in_a_body_and_events_are_intercepted_once(database: Database) -> None:
    seen = Recording()
    async with App(database.url, max_cached_runs=0, interceptors=[seen]) as app:
        waits = await intercepted_wait.options(id="waits").start()
        await waiting(app, "waits")
        await intercepted_parent.options(id="parent").start()
        await app.get("parent").result()
        await app.get("started-in-body").result()
        assert await waits.result() == {"from": "interceptor", "sent": "yes"}
    starts = sorted(each for each in seen.seen if each.startswith(("start ", "send ")))
    assert starts == [
        "send event intercepted-news None ['from']",
        "start child intercepted_order ['from']",
        "start start intercepted_order ['from']",
        "start start intercepted_parent []",
        "start start intercepted_wait []",
    ]
    woken = [each.woken_by for each in seen.executions if each.workflow == "intercepted_wait" and each.woken_by]
    assert woken == [{"from": "interceptor", "sent": "yes"}]


async def test_replay_calls_no_interceptor_of_starts_or_activities_again(shared: Database) -> None:
    seen = Recording()

    @workflow
    async def intercepted_resume() -> str:
        tenant = await tenant_of()
        await wait_event("intercepted-resume")
        return tenant

    async with App(shared.url, interceptors=[seen]) as app:
        await intercepted_resume.options(id="resumed").start()
        await waiting(app, "resumed")
    before = list(seen.seen)
    async with App(shared.url, interceptors=[seen]) as app:
        await app.send_event("intercepted-resume", 1)
        await app.get("resumed").result()
    later = seen.seen[len(before) :]
    assert later == [
        "send event intercepted-resume None []",
        "execute intercepted_resume",
        "executed completed",
    ]
    assert [each.fence for each in seen.executions] == sorted({each.fence for each in seen.executions})


async def test_each_generation_and_the_rollback_are_executions_of_their_own() -> None:
    seen = Recording()
    async with TestApp(interceptors=[seen]):
        await intercepted_loop.start(2)
        await intercepted_loop.options(id="loop").start(2)
        saga = await intercepted_saga.start()
        with pytest.raises(WorkflowFailedError):
            await saga.result()
        await (await intercepted_loop.options(id="loop").start(2)).result()
    of_saga = [each for each in seen.executions if each.run_id == saga.id]
    assert [(each.outcome, each.is_rollback, repr(each.error)) for each in of_saga] == [
        ("compensating", False, "ValueError('no stock')"),
        ("failed", True, "None"),
    ]
    of_loop = [each.outcome for each in seen.executions if each.run_id == "loop"]
    assert of_loop == ["recurred", "recurred", "completed"]
    assert "attempt 1:charge_intercepted#1 ['from']" in seen.seen
    assert sum(each.startswith("attempt") for each in seen.seen) == 2


async def test_transactional_activity_sees_what_interceptors_set(memory: Database) -> None:
    async with App(memory.url, interceptors=[Recording()]):
        run = await intercepted_transactional.options(headers={"tenant": "acme"}).start()
        assert await run.result() == "acme"


async def test_first_interceptor_is_outermost() -> None:
    first, second = Recording("1-"), Recording("2-")
    first.seen = second.seen
    async with TestApp(interceptors=[first, second]):
        await intercepted_loop(0)
    starts = [each for each in second.seen if "start" in each]
    assert starts == [
        "1-start start intercepted_loop []",
        "2-start start intercepted_loop ['from1-']",
        "2-started",
        "1-started",
    ]


async def test_start_in_a_transaction_of_the_caller_is_intercepted(tmp_path: Path) -> None:
    seen = Recording()
    async with Client(f"sqlite:///{tmp_path / 'runs.db'}", interceptors=[seen]) as client:
        own = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        intercepted_loop.options(id="in", in_transaction=own).start_sync(0)
        own.execute("COMMIT")
        own.close()
        assert (await client.get("in").info()).headers == {"from": "interceptor"}
    assert seen.seen == ["start start intercepted_loop []", "started"]


async def test_retry_is_intercepted_and_keeps_the_headers() -> None:
    seen = Recording()
    async with TestApp(interceptors=[seen]) as app:
        saga = await intercepted_saga.options(id="retried", headers={"tenant": "acme"}).start()
        with pytest.raises(WorkflowFailedError):
            await saga.result()
        await app.retry("retried")
    assert "start retry intercepted_saga ['from', 'tenant']" in seen.seen


async def test_tick_is_intercepted_by_the_worker_that_starts_it(database: Database) -> None:
    async def ticking() -> None: ...

    intercepted_tick = version(ticking, "intercepted_tick")
    seen = Recording()
    id = tick_id("intercepted_tick", datetime(2020, 1, 1, tzinfo=UTC))
    async with Client(database.url) as client:
        for _ in range(2):
            await start_tick(client._storage, intercepted_tick, id, interception_of([seen]))
        assert (await row_of(client, id)).headers == b'{"from": "interceptor"}'
    assert seen.seen == ["start cron intercepted_tick []", "started"]


# Mistakes.


class Refusing(Interceptor):
    """Raises around one kind of work."""

    def __init__(self, what: str) -> None:
        self.what, self.calls = what, 0

    def _refuse(self, what: str) -> AbstractContextManager[None]:
        if self.what == what:
            self.calls += 1
            raise PermissionError(f"no tenant for this {what}")
        return _nothing()

    def start(self, start: Start) -> AbstractContextManager[None]:
        return self._refuse("start")

    def execute(self, execution: Execution) -> AbstractContextManager[None]:
        return self._refuse("execution")

    def activity(self, attempt: ActivityInfo) -> AbstractContextManager[None]:
        return self._refuse("attempt")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


async def test_start_that_an_interceptor_refuses_raises_and_stores_nothing() -> None:
    async with TestApp(interceptors=[Refusing("start")]) as app:
        with pytest.raises(PermissionError, match="no tenant"):
            await intercepted_order.start()
        assert await app.runs(workflow="intercepted_order").count() == 0


async def test_attempt_that_an_interceptor_refuses_fails_and_is_retried() -> None:
    refusing = Refusing("attempt")
    async with TestApp(interceptors=[refusing]):
        with pytest.raises(WorkflowFailedError, match="no tenant for this attempt"):
            await intercepted_order()
    assert refusing.calls == 2


async def test_run_whose_execution_an_interceptor_refuses_is_stuck_with_the_reason(database: Database) -> None:
    async with App(database.url, interceptors=[Refusing("execution")]) as app:
        await intercepted_order.start()
        await until(lambda: _is_stuck(app))
        (run,) = await stuck_runs(app)
        assert run.stuck is not None
        assert "no tenant for this execution" in run.stuck.reason


async def _is_stuck(app: App) -> bool:
    return bool(await stuck_runs(app))


class Swallowing(Interceptor):
    """Suppresses every exception of an activity, which no interceptor may."""

    @contextmanager
    def activity(self, attempt: ActivityInfo) -> Iterator[None]:
        try:
            yield
        except ValueError:
            return


@activity(retry=ONCE)
async def always_failing() -> None:
    raise ValueError("lost?")


@workflow
async def intercepted_failure() -> str:
    try:
        await always_failing()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


class Late(Interceptor):
    """Raises when an execution has ended."""

    @contextmanager
    def execute(self, execution: Execution) -> Iterator[None]:
        yield
        raise PermissionError(f"too late for {execution.outcome}")


async def test_error_of_an_interceptor_after_an_execution_changes_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(database.url, interceptors=[Late()]) as app:
        run = await intercepted_wait.options(id="late").start()
        await waiting(app, "late")
        await app.send_event("intercepted-news", 1, to="late")
        await run.result(60)
        await until(lambda: "too late for completed" in caplog.text)
        assert await stuck_runs(app) == []
    assert "too late for suspended" in caplog.text
    assert "lost its lease" not in caplog.text


async def test_interceptor_cannot_suppress_the_error_of_an_activity() -> None:
    async with TestApp(interceptors=[Swallowing()]):
        found = await intercepted_failure()
    assert found.startswith("EngineError: an interceptor suppressed ValueError: lost?")


class Wrong(Interceptor):
    def start(self, start: Start) -> AbstractContextManager[None]:
        start.headers["size"] = "x" * 10_000
        return _nothing()


async def test_headers_of_an_interceptor_are_checked() -> None:
    async with TestApp(interceptors=[Wrong()]):
        with pytest.raises(LimitError, match="the header 'size' in the start of intercepted_order"):
            await intercepted_order.start()


@pytest.mark.parametrize("given", [object(), "otel", [print], [Interceptor]])
def test_wrong_interceptors_are_refused_at_construction(given: Any) -> None:
    with pytest.raises(TypeError, match="interceptors="):
        App("sqlite:///:memory:", interceptors=given)


class Undecorated(Interceptor):
    def start(self, start: Start) -> Any:
        yield


class Awaited(Interceptor):
    async def execute(self, execution: Execution) -> None:  # type: ignore[override]
        pass


class Iterated(Interceptor):
    async def activity(self, activity: ActivityInfo) -> Any:  # type: ignore[override]
        yield


@pytest.mark.parametrize("given", [Undecorated(), Awaited(), Iterated()])
def test_interceptor_that_returns_no_context_manager_is_refused(given: Interceptor) -> None:
    with pytest.raises(TypeError, match="must return a context manager: write `def` and decorate it with"):
        App("sqlite:///:memory:", interceptors=[given])


async def test_error_of_an_inner_interceptor_closes_the_outer_one() -> None:
    left: list[str] = []

    class Outer(Interceptor):
        @contextmanager
        def start(self, start: Start) -> Iterator[None]:
            try:
                yield
            finally:
                left.append("outer")

    async with TestApp(interceptors=[Outer(), Refusing("start")]):
        with pytest.raises(PermissionError):
            await intercepted_order.start()
    assert left == ["outer"]


# Blocking programs.


class FromThread(Interceptor):
    """Takes the tenant from the context of the calling thread."""

    @contextmanager
    def start(self, start: Start) -> Iterator[None]:
        start.headers["tenant"] = TENANT.get()
        yield

    @contextmanager
    def send(self, send: Send) -> Iterator[None]:
        send.headers["tenant"] = TENANT.get()
        yield


def test_interceptors_of_a_blocking_client_run_in_the_thread_of_the_caller(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    token = TENANT.set("acme")
    with SyncClient(url, interceptors=[FromThread()]) as client:
        started = intercepted_wait.start_sync()
        assert started.info().headers == {"tenant": "acme"}
        client.send_event("intercepted-news", 1, to=started.id)
        own = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        own.execute("BEGIN IMMEDIATE")
        inside = intercepted_wait.options(in_transaction=own).start_sync()
        own.execute("COMMIT")
        own.close()
        assert inside.info().headers == {"tenant": "acme"}
    TENANT.reset(token)

    async def execute() -> dict[str, str]:
        async with App(url) as app:
            result: dict[str, str] = await app.get(started.id).result()
            return result

    assert asyncio.run(execute()) == {"tenant": "acme"}


async def test_app_without_interceptors_and_metrics_uses_no_wrapper(memory: Database) -> None:
    async with App(memory.url) as app:
        worker = app._worker
        assert worker.executor.interception is None
        assert type(worker.host.activities) is Activities
        assert worker.host.execute.__func__ is Activities.execute  # type: ignore[attr-defined]
        assert type(app._hooks) is Hooks
        assert "metrics" not in {task.name for task in (await app.health()).tasks}


async def test_interceptor_of_starts_alone_does_not_wrap_activities(memory: Database) -> None:
    async with App(memory.url, interceptors=[Wrong()]) as app:
        assert type(app._worker.host.activities) is Activities


async def test_execution_that_a_stopping_worker_ends_is_released(shared: Database) -> None:
    forget()
    recording = Recording()
    async with App(shared.url, interceptors=[recording]) as app:
        run = await two_gates.options(id="released").start("one", "two")
        await until(entered("one"))

        async def finish_while_draining() -> None:
            await until(lambda: app._worker.executor.stopping)
            gates["one"].set()

        finishing = asyncio.create_task(finish_while_draining())
    await finishing
    assert [execution.outcome for execution in recording.executions] == ["released"]
    assert not entered("two")()
    async with Client(shared.url) as client:
        assert (await row_of(client, run.id)).locked_by is None
        assert await stuck_runs(client) == []
    gates["two"].set()
    async with App(shared.url, interceptors=[recording]) as app:
        assert await app.get("released").result(20) == ["one", "two"]
    assert [execution.outcome for execution in recording.executions] == ["released", "completed"]
