"""Metrics: what each of them counts, on a real worker, as Prometheus reads it."""

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from perdure import (
    App,
    Client,
    OutboxEvent,
    Retry,
    WorkflowFailedError,
    activity,
    connection,
    metrics,
    send_event,
    wait_event,
    workflow,
)
from perdure.engine.worker import gauges
from perdure.engine.worker.metering import Claims
from perdure.errors import ConfigurationError, DatabaseUnavailableError
from perdure.integrations.otel import OpenTelemetryMetrics
from perdure.integrations.prometheus import Prometheus
from perdure.metrics import CATALOGUE
from perdure.model.records import HistoryEvent
from tests.conftest import BackendDatabase
from tests.engine.waiting import row_of, until, waiting
from tests.support.storages import Database


@pytest.fixture
async def database(backend_database: BackendDatabase) -> Any:
    async with backend_database("sqlite") as database:
        yield database


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the gauges all the time."""
    monkeypatch.setattr(gauges, "SAMPLE_SEC", 0.01)


class Page:
    """What Prometheus reads."""

    def __init__(self) -> None:
        self.metrics = Prometheus(CollectorRegistry())

    def __call__(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.metrics.render()[0].decode()):
            for sample in family.samples:
                if sample.name == name and {**sample.labels, **labels} == sample.labels:
                    return sample.value
        return None


@pytest.fixture
def page() -> Page:
    return Page()


attempts = 0


@activity(retry=Retry(attempts=2, initial=0.001))
async def metered_flaky() -> None:
    global attempts
    attempts += 1
    if attempts % 2:
        raise ValueError("reset")


@activity(retry=Retry(attempts=1))
async def metered_broken() -> None:
    raise ValueError("broken")


@activity(transactional=True)
async def metered_transaction() -> None:
    connection()


@workflow
async def metered_order() -> None:
    await metered_flaky()
    await metered_transaction()


@workflow
async def metered_failure() -> None:
    await metered_broken()


@workflow
async def metered_wait() -> None:
    await wait_event("metered-event")


async def test_runs_and_steps_are_counted(database: Database, page: Page) -> None:
    async with App(database.url, metrics=page.metrics) as app:
        await metered_order()
        with pytest.raises(WorkflowFailedError):
            await metered_failure()
        run = await metered_wait.options(id="waits").start()
        await waiting(app, "waits")
        await run.cancel()
        await until(lambda: page("perdure_runs_finished_total", workflow="metered_wait", state="cancelled") == 1)
    assert page("perdure_runs_started_total", workflow="metered_order") == 1
    assert page("perdure_runs_finished_total", workflow="metered_order", state="completed") == 1
    assert page("perdure_runs_finished_total", workflow="metered_failure", state="failed") == 1
    assert page("perdure_run_duration_seconds_count", workflow="metered_order", state="completed") == 1
    assert page("perdure_step_duration_seconds_count", activity="metered_flaky") == 1
    assert page("perdure_step_duration_seconds_count", activity="metered_transaction") == 1
    assert page("perdure_step_duration_seconds_count", activity="metered_broken") is None
    assert page("perdure_activity_retries_total", activity="metered_flaky") == 1
    assert page("perdure_activity_failures_total", activity="metered_broken") == 1
    for kind in ("journals", "waits", "starts"):
        assert page("perdure_commit_duration_seconds_count", kind=kind)
        assert page("perdure_commit_batch_size_sum", kind=kind)


async def test_gauges_show_the_worker_and_the_work_in_the_database(database: Database, page: Page) -> None:
    async def publish(event: OutboxEvent) -> None:
        raise ConnectionError("the broker is down")

    async with Client(database.url):  # no worker serves this run, so it stays due
        await metered_wait.options(id="due").start()
    async with App(database.url, metrics=page.metrics, workflows=[metered_order], publisher=publish, max_runs=7):
        await send_event("metered-news", 1)
        await until(lambda: page("perdure_due_runs") == 1 and (page("perdure_due_lag_seconds", kind="runs") or 0) > 0)
        await until(lambda: (page("perdure_due_lag_seconds", kind="outbox") or 0) > 0)
        await until(lambda: page("perdure_outbox_pending") == 1)
        assert page("perdure_due_lag_seconds", kind="timers") == 0
        assert page("perdure_run_slots") == 7
        assert page("perdure_runs_executing") == 0
        assert page("perdure_activities_max") == 200
        assert page("perdure_background_task_up", task="work loop") == 1
        assert page("perdure_background_task_failures", task="work loop") == 0
        assert page("perdure_stuck_runs") == 0
        assert (page("perdure_sampled_timestamp_seconds") or 0) > 1e9


async def test_gauge_of_a_background_task_is_0_while_the_task_does_not_run(database: Database, page: Page) -> None:
    async with App(database.url, metrics=page.metrics, workflows=[metered_order]) as app:
        sampler = app._worker._sampler
        assert sampler is not None
        task = sampler._supervisor.watch("a task that has failed")
        try:
            for up in (True, False):
                task.alive = up
                sampler._sample_worker()
                assert page("perdure_background_task_up", task=task.name) == int(up)
        finally:
            task.end()


async def test_gauges_grow_old_while_the_database_does_not_answer(
    database: Database, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    class Unavailable:
        async def find_resumable_workflows(self, limit: int) -> list[object]:
            raise DatabaseUnavailableError("the server is down")

    async with App(database.url, metrics=page.metrics) as app:
        await until(lambda: (page("perdure_sampled_timestamp_seconds") or 0) > 0)
        sampler = app._worker._sampler
        assert sampler is not None
        sampler._storage = Unavailable()  # type: ignore[assignment]
        await until(lambda: "the database is unavailable" in caplog.text)
        before = page("perdure_sampled_timestamp_seconds")
        page.metrics.bind(metrics.SLOTS)(-1)
        await until(lambda: page("perdure_run_slots") != -1)  # the gauges of the worker are still set
        assert page("perdure_sampled_timestamp_seconds") == before


async def test_failed_runs_are_counted_from_0(database: Database, page: Page) -> None:
    async with App(database.url, metrics=page.metrics):
        await metered_order()
    for state, count in (("completed", 1), ("failed", 0), ("cancelled", 0)):
        assert page("perdure_runs_finished_total", workflow="metered_order", state=state) == count
    lines = page.metrics.render()[0].decode().splitlines()
    assert len([line for line in lines if line.startswith("perdure_runs_finished_total{")]) == 3


async def test_stuck_runs_and_claims_are_counted(database: Database, page: Page) -> None:
    async with Client(database.url) as client:
        await metered_wait.options(id="changed").start()
        await client._storage.append_history(_unknown_row("changed"))
    async with App(database.url, metrics=page.metrics):
        await until(lambda: page("perdure_stuck_runs") == 1)
        assert page("perdure_run_stuck_total", workflow="metered_wait") == 1
        assert page("perdure_claims_total", result="made") == 1


def _unknown_row(run: str) -> Any:
    return HistoryEvent(run, "1:charge", "ActivityCompleted", b"null")


async def test_pool_of_a_server_is_measured(backend_database: BackendDatabase, page: Page) -> None:
    async with backend_database("postgresql") as database, App(database.url, metrics=page.metrics):
        await until(lambda: (page("perdure_pool_connections_max") or 0) >= 1)
        assert page("perdure_pool_connections_used") is not None


async def test_program_keeps_its_hooks(database: Database, page: Page) -> None:
    seen: list[str] = []
    async with App(database.url, metrics=page.metrics, hooks=[lambda event: seen.append(type(event).__name__)]):
        await metered_order()
    assert seen.count("StepCompleted") == 2


async def test_same_metrics_go_to_opentelemetry(database: Database) -> None:
    reader = InMemoryMetricReader()
    async with App(database.url, metrics=OpenTelemetryMetrics(meter_provider=MeterProvider([reader]))):
        await metered_order()
        await asyncio.sleep(0)
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert found["perdure_runs_finished_total"].data.data_points[0].attributes == {
        "workflow": "metered_order",
        "state": "completed",
    }
    assert {"perdure_step_duration_seconds", "perdure_run_slots"} <= set(found)


async def test_page_is_an_asgi_app(page: Page) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await page.metrics({"type": "http", "method": "GET"}, receive, send)
    assert sent[0]["status"] == 200
    assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/plain")
    assert b"# HELP perdure_leases_lost_total" in sent[1]["body"]
    await page.metrics({"type": "http", "method": "POST"}, receive, send)
    assert sent[2]["status"] == 405
    with pytest.raises(RuntimeError, match="HTTP requests only"):
        await page.metrics({"type": "websocket"}, receive, send)


def test_every_metric_has_a_name_by_the_conventions() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(names) == len(set(names)) >= 20
    for metric in CATALOGUE:
        assert metric.name.startswith("perdure_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert set(metric.labels) <= {"workflow", "state", "activity", "kind", "result", "task"}
        assert metric.help.endswith(".") or ":" in metric.help


@pytest.mark.parametrize("given", [True, object(), "prometheus"])
def test_wrong_meter_is_refused_at_construction(given: Any) -> None:
    with pytest.raises(TypeError, match=r"App\(metrics=\)"):
        App("sqlite:///:memory:", metrics=given)


def test_second_object_for_a_registry_is_refused() -> None:
    registry = CollectorRegistry()
    Prometheus(registry)
    with pytest.raises(ConfigurationError, match="use one Prometheus object for all Apps"):
        Prometheus(registry)
    Prometheus(CollectorRegistry())


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "perdure.integrations.prometheus")
    with pytest.raises(ImportError, match=r'pip install "perdure\[prometheus\]"'):
        import perdure.integrations.prometheus  # noqa: F401


@activity
async def metered_gate() -> None:
    await asyncio.Event().wait()


@workflow
async def metered_endless() -> None:
    await metered_gate()


async def test_lost_lease_is_counted(database: Database, page: Page) -> None:
    async with App(database.url, metrics=page.metrics, lease=1.5) as app:
        run = await metered_endless.options(id="lost").start()
        await until(lambda: page("perdure_activities_executing") == 1)
        row = await row_of(run)
        await app._storage.release_lock("lost", row.locked_by or "")
        lease = await app._storage.try_acquire_lock("lost", "thief", 60)
        assert lease is not None
        await until(lambda: page("perdure_leases_lost_total") == 1)
        await app._storage.release_lock("lost", "thief", lease=lease)
        await run.cancel()


def test_claims_that_another_worker_won_are_wasted(page: Page) -> None:
    claims = Claims(page.metrics)
    claims.count(5, 5)
    claims.count(4, 1)
    assert page("perdure_claims_total", result="made") == 6
    assert page("perdure_claims_total", result="wasted") == 3
