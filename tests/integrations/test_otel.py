"""Traces: one connected tree for each run, whichever workers execute it, and no span twice."""

import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from perdure import (
    App,
    Client,
    Retry,
    WorkflowFailedError,
    activity,
    recur,
    run_headers,
    send_event,
    wait_event,
    workflow,
)
from perdure.integrations.otel import OpenTelemetry
from perdure.testing import TestApp
from tests.engine.waiting import waiting


class Traces:
    """The spans that were made, in memory."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.provider = TracerProvider(sampler)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("program")
        self.otel = OpenTelemetry(tracer_provider=self.provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def tree(self) -> list[Any]:
        """The names of all spans as nested lists, in the order of their beginnings."""
        return [self._below(span) for span in self.spans if span.parent is None]

    def _below(self, span: ReadableSpan) -> Any:
        below = [self._below(each) for each in self.spans if each.parent and each.parent.span_id == _id(span)]
        return [span.name, *below] if below else span.name


class Nothing(Sampler):
    """Samples nothing, and keeps the names of the spans that it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *_: Any, **__: Any) -> SamplingResult:
        self.asked.append(name)
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "nothing"


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def about(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {})[name]


def about_or_none(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(name)


@pytest.fixture
def traces() -> Traces:
    return Traces()


@activity
async def traced_charge() -> str:
    return run_headers()["traceparent"]


@activity
def traced_in_thread() -> int:
    return trace.get_current_span().get_span_context().span_id


@workflow
async def traced_order() -> str:
    await traced_charge()
    event = await wait_event("traced-shipped")
    await traced_charge()
    return event.headers.get("traceparent", "")


@workflow
async def traced_child() -> int:
    return await traced_in_thread()


@workflow
async def traced_parent() -> None:
    await traced_child()
    await traced_child.options(id="started-by-parent").start()
    await send_event("traced-shipped", 1)


attempts = 0


@activity(retry=Retry(attempts=2, initial=0.001))
async def traced_flaky() -> None:
    global attempts
    attempts += 1
    if attempts % 2:
        raise ValueError("connection reset")


@workflow
async def traced_retry() -> None:
    await traced_flaky()


@activity(retry=Retry(attempts=1))
async def traced_broken() -> None:
    raise KeyError("no such order")


@workflow
async def traced_failure() -> None:
    await traced_broken()


@traced_charge.compensation
async def traced_refund(*, result: str | None) -> None: ...


@workflow
async def traced_undone() -> None:
    await traced_charge()
    await traced_broken()


@workflow
async def traced_loop(left: int) -> None:
    if left:
        recur(left - 1)


async def test_run_on_two_workers_is_one_connected_tree(tmp_path: Path, traces: Traces) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with traces.tracer.start_as_current_span("request"):
        async with Client(url, interceptors=[traces.otel]):
            await traced_order.options(id="order-1").start()
    async with App(url, worker_id="first", interceptors=[traces.otel]) as app:
        await waiting(app, "order-1")
    async with App(url, worker_id="second", interceptors=[traces.otel]) as app:
        with traces.tracer.start_as_current_span("webhook"):
            await app.send_event("traced-shipped", 1)
        sender = await app.get("order-1").result()
    assert traces.tree() == [
        [
            "request",
            [
                "start traced_order",
                ["process traced_order", "traced_charge"],
                ["process traced_order", "traced_charge"],
            ],
        ],
        ["webhook", "send traced-shipped"],
    ]
    first, second = traces.named("process traced_order")
    assert (about(first, "perdure.worker.id"), about(second, "perdure.worker.id")) == ("first", "second")
    assert (about(first, "perdure.outcome"), about(second, "perdure.outcome")) == ("suspended", "completed")
    (sent,) = traces.named("send traced-shipped")
    assert [link.context.span_id for link in second.links] == [_id(sent)]
    assert f"{_id(sent):016x}" in sender
    (start,) = traces.named("start traced_order")
    assert (start.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert {about(span, "messaging.message.id") for span in (start, first, second)} == {"order-1"}


async def test_children_and_starts_in_a_body_continue_the_trace(traces: Traces) -> None:
    async with TestApp(interceptors=[traces.otel]) as app:
        await traced_parent()
        await app.get("started-by-parent").result()
    (parent,) = traces.tree()
    assert parent[0] == "start traced_parent"
    inside = [name for execution in parent[1:] for name in execution[1:]]
    child = ["start traced_child", ["process traced_child", "traced_in_thread"]]
    assert inside == [child, child, "send traced-shipped"]
    assert len({span.context.trace_id for span in traces.spans if span.context}) == 1
    assert {about(span, "perdure.start.kind") for span in traces.named("start traced_child")} == {"child", "start"}


async def test_activity_runs_inside_its_span_also_in_a_thread(traces: Traces) -> None:
    async with TestApp(interceptors=[traces.otel]):
        found = await traced_child()
    (attempt,) = traces.named("traced_in_thread")
    assert found == _id(attempt)


async def test_each_attempt_has_a_span_and_errors_are_recorded(traces: Traces) -> None:
    async with TestApp(interceptors=[traces.otel]):
        await traced_retry()
        with pytest.raises(WorkflowFailedError):
            await traced_failure()
    first, second = traces.named("traced_flaky")
    assert (about(first, "perdure.attempt"), about(second, "perdure.attempt")) == (1, 2)
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert first.status.description == "ValueError: connection reset"
    assert [event.name for event in first.events] == ["exception"]
    (failed,) = traces.named("process traced_failure")
    assert failed.status.status_code is StatusCode.ERROR
    assert (about(failed, "perdure.outcome"), about(failed, "error.type")) == ("failed", "KeyError")
    (succeeded,) = traces.named("process traced_retry")
    assert succeeded.status.status_code is StatusCode.UNSET


async def test_rollback_is_an_execution_of_its_own_kind(traces: Traces) -> None:
    async with TestApp(interceptors=[traces.otel]):
        with pytest.raises(WorkflowFailedError):
            await traced_undone()
    (rollback,) = [span for span in traces.spans if about_or_none(span, "perdure.rollback")]
    assert rollback.name == "compensate traced_undone"
    (refund,) = traces.named("traced_refund")
    assert refund.parent is not None
    assert refund.parent.span_id == _id(rollback)
    assert {about(span, "perdure.rollback") for span in traces.named("process traced_undone")} == {False}


async def test_generations_of_a_run_are_in_its_trace(traces: Traces) -> None:
    async with TestApp(interceptors=[traces.otel]):
        await traced_loop(2)
    assert traces.tree() == [["start traced_loop", *["process traced_loop"] * 3]]


async def test_retry_of_a_failed_run_continues_its_trace(traces: Traces) -> None:
    async with TestApp(interceptors=[traces.otel]) as app:
        run = await traced_failure.options(id="failed").start()
        with pytest.raises(WorkflowFailedError):
            await run.result()
        again = await app.retry("failed")
        with pytest.raises(WorkflowFailedError):
            await again.result()
    execution = ["process traced_failure", "traced_broken"]
    assert traces.tree() == [["start traced_failure", execution, ["start traced_failure", execution]]]


async def test_run_that_was_started_without_tracing_is_traced_by_its_worker(tmp_path: Path, traces: Traces) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Client(url):
        await traced_loop.options(id="untraced").start(0)
    with traces.tracer.start_as_current_span("deployment"):  # no parent of the runs that its worker executes
        async with App(url, interceptors=[traces.otel]) as app:
            await app.get("untraced").result()
    assert traces.tree() == ["deployment", "process traced_loop"]


async def test_baggage_travels_with_the_run(traces: Traces) -> None:
    @activity
    async def traced_baggage() -> object:
        return baggage.get_baggage("tenant")

    @workflow
    async def traced_with_baggage() -> object:
        return await traced_baggage()

    async with TestApp(interceptors=[traces.otel]):
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        try:
            assert await traced_with_baggage() == "acme"
        finally:
            context.detach(token)


async def test_spans_follow_the_conventions_for_messaging(traces: Traces) -> None:
    async with TestApp(interceptors=[traces.otel]):
        await traced_parent()
        with pytest.raises(WorkflowFailedError):
            await traced_undone()
    types = {"start": "send", "send": "send", "process": "process", "compensate": "process"}
    found = [span for span in traces.spans if about_or_none(span, "messaging.system") == "perdure"]
    assert {span.name.split(" ")[0] for span in found} == set(types)
    for span in found:
        operation = about(span, "messaging.operation.name")
        assert span.name == f"{operation} {about(span, 'messaging.destination.name')}"
        assert about(span, "messaging.operation.type") == types[str(operation)]
        assert span.kind is (SpanKind.CONSUMER if types[str(operation)] == "process" else SpanKind.PRODUCER)


async def test_trace_that_is_not_sampled_is_passed_on_without_spans_of_attempts() -> None:
    sampler = Nothing()
    traces = Traces(sampler)
    async with TestApp(interceptors=[traces.otel]) as app:
        order = await traced_order.options(id="order-1").start()
        await waiting(app, "order-1")
        parent = await traced_parent.start()
        await parent.result()
        runs = [parent, app.get("started-by-parent")]
        inside = [(await run.info()).headers["traceparent"] for run in runs] + [await order.result()]
    assert {(trace_id, int(flags, 16) & 1) for _, trace_id, _, flags in (each.split("-") for each in inside)} == {
        (inside[0].split("-")[1], 0)
    }
    assert set(sampler.asked) == {
        *("start traced_order", "process traced_order", "start traced_parent", "process traced_parent"),
        *("start traced_child", "process traced_child", "send traced-shipped"),
    }
    assert traces.spans == []


@workflow
async def traced_with_headers() -> int:
    return len(run_headers())


@workflow
async def traced_with_headers_in_child() -> int:
    return await traced_with_headers()


@pytest.mark.parametrize(("count", "length", "stored"), [(31, 1, 32), (32, 1, 32), (2, 8100, 3)])
async def test_headers_without_room_for_the_trace_stop_no_run(
    traces: Traces, caplog: pytest.LogCaptureFixture, count: int, length: int, stored: int
) -> None:
    headers = {f"h{number}": "x" * length for number in range(count)}
    bag = context.attach(baggage.set_baggage("tenant", "y" * 200))
    try:
        async with TestApp(interceptors=[traces.otel]):
            for _ in range(2):
                assert await traced_with_headers_in_child.options(headers=headers)() == stored
    finally:
        context.detach(bag)
    (warning,) = [each.getMessage() for each in caplog.records if "have no room for" in each.getMessage()]
    assert "baggage" in warning
    assert ("traceparent" in warning) == (count == 32)
    assert len(traces.named("process traced_with_headers")) == 2


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "perdure.integrations.otel")
    with pytest.raises(ImportError, match=r'pip install "perdure\[otel\]"'):
        import perdure.integrations.otel  # noqa: F401
