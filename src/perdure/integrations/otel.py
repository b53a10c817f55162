"""Traces and metrics with OpenTelemetry: `App(interceptors=[OpenTelemetry()], metrics=OpenTelemetryMetrics())`.

The context of a trace travels in the headers of a run. So all executions of a run belong to the trace of its start,
whichever workers make them, and nothing has to be stored between them:

    start order                     producer, where the run is started
      process order                 consumer, on the first worker, until the run waits
        charge                      internal, one for each attempt of an activity
        start invoice               producer, a child or another run that the body starts
          process invoice
      process order                 consumer, on another worker, linked to the event that resumed the run

Names and attributes follow the conventions for messaging where they fit: a start sends a message to the workers, and an
execution processes it. Replay makes no spans, because interceptors are not called for steps that are recorded.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import TracebackType

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics as otel_metrics
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import Setter, TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise ImportError('OpenTelemetry needs the package opentelemetry-api: pip install "perdure[otel]"') from error

from perdure.engine.replay.context import ActivityInfo
from perdure.interceptors import Execution, Interceptor, Send, Start
from perdure.metrics import CATALOGUE, Metric
from perdure.model import headers as limits

log = logging.getLogger("perdure.engine")

SYSTEM = "perdure"
Attributes = dict[str, str | int | bool]
Around = AbstractContextManager[object]

_NO_SPAN = nullcontext()


class OpenTelemetry(Interceptor):
    """Makes spans of starts, messages, executions of runs and attempts of activities.

    - `tracer_provider`: where the spans go (default: the global one).
    - `propagator`: how the context of a trace becomes headers (default: the global one, which by default writes
      `traceparent`, `tracestate` and `baggage`).

    Use it in every process that starts or executes runs: a run that is started without it begins a new trace with each
    of its executions. If the sampler drops an execution, it is not asked about the attempts in it, which have no spans.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        self._tracer = trace.get_tracer("perdure", tracer_provider=tracer_provider)
        self._propagator = propagator or propagate.get_global_textmap()
        self._fields = frozenset(self._propagator.fields)
        self._warned = False

    def start(self, start: Start) -> Around:
        """Make a span of a start; the run's executions become its children."""
        attributes = _messaging("send", "start", start.workflow)
        attributes["perdure.workflow"], attributes["perdure.start.kind"] = start.workflow, start.kind
        if start.run_id is not None:
            attributes["messaging.message.id"] = attributes["perdure.run.id"] = start.run_id
        return _Ending(self._sent(f"start {start.workflow}", attributes, start.headers))

    def send(self, send: Send) -> Around:
        """Make a span of a message or event; executions that it resumes are linked to it."""
        attributes = _messaging("send", "send", send.name)
        attributes["perdure.message.kind"] = send.kind
        if send.to is not None:
            attributes["perdure.run.id"] = send.to
        return _Ending(self._sent(f"send {send.name}", attributes, send.headers))

    def _sent(self, name: str, attributes: Attributes, headers: dict[str, str]) -> Span:
        """Start a span in the current trace, or else in that of the headers, and put it into the headers."""
        current, links = contexts.get_current(), list[Link]()
        if headers:
            inherited = self._extracted(headers)
            sender = _span_in(inherited)
            if not _is_traced(current):
                current = trace.set_span_in_context(trace.get_current_span(inherited), current or inherited)
            elif sender.is_valid and sender.trace_id != _span_in(current).trace_id:
                links.append(Link(sender))
        span = self._tracer.start_span(name, current, SpanKind.PRODUCER, attributes, links)
        for field in self._fields:
            headers.pop(field, None)
        fields = dict[str, str]()
        self._propagator.inject(fields, trace.set_span_in_context(span, current), _INTO_HEADERS)
        if not _has_room(headers, fields):
            fields = self._fitting(name, headers, fields)
        headers.update(fields)
        return span

    def _fitting(self, name: str, headers: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
        """Return the fields that fit into the headers, the shortest first: a trace must not refuse a start."""
        found, left = dict[str, str](), list[str]()
        for field, value in sorted(fields.items(), key=lambda item: len(item[1])):
            if _has_room(headers, {**found, field: value}):
                found[field] = value
            else:
                left.append(field)
        if not self._warned:
            self._warned = True
            log.warning(
                "%s: the headers of the run have no room for %s, so the trace does not continue completely; use fewer "
                "or shorter headers. This is logged once",
                name,
                ", ".join(left),
                extra={"span": name, "headers": left},
            )
        return found

    def execute(self, execution: Execution) -> Around:
        """Make a span of an execution: a child of the start, linked to the message that resumed the run."""
        operation = "compensate" if execution.is_rollback else "process"
        attributes = _messaging("process", operation, execution.workflow)
        attributes["messaging.message.id"] = attributes["perdure.run.id"] = execution.run_id
        attributes["messaging.client.id"] = attributes["perdure.worker.id"] = execution.worker_id
        attributes["perdure.workflow"], attributes["perdure.fence"] = execution.workflow, execution.fence
        attributes["perdure.rollback"] = execution.is_rollback
        started = self._extracted(execution.headers)
        span = self._tracer.start_span(f"{operation} {execution.workflow}", started, SpanKind.CONSUMER, attributes)
        context = trace.set_span_in_context(span, started)
        if span.is_recording():
            return self._recorded(execution, span, context)
        return _Current(span, _Unrecorded(context))

    @contextmanager
    def _recorded(self, execution: Execution, span: Span, context: Context) -> Iterator[None]:
        with _Current(span, context):
            try:
                yield
            finally:
                self._conclude(span, execution)

    def _conclude(self, span: Span, execution: Execution) -> None:
        """Note how an execution ended, and what resumed it."""
        span.set_attribute("perdure.outcome", execution.outcome or "interrupted")
        if execution.error is not None:
            _record(span, execution.error)
        elif execution.outcome == "failed":
            span.set_status(Status(StatusCode.ERROR))
        if execution.woken_by:
            sender = self._extracted(execution.woken_by)
            if _is_traced(sender):
                span.add_link(_span_in(sender))

    def activity(self, attempt: ActivityInfo) -> Around:
        """Make a span of an attempt, a child of the execution; none if the execution is not sampled."""
        context = contexts.get_current()
        if type(context) is _Unrecorded:
            return _NO_SPAN
        attributes: Attributes = {
            "perdure.run.id": attempt.workflow_id,
            "perdure.workflow": attempt.workflow_name,
            "perdure.activity": attempt.activity_name,
            "perdure.step": attempt.step,
            "perdure.attempt": attempt.attempt,
            "perdure.fence": attempt.fence,
        }
        span = self._tracer.start_span(attempt.activity_name, context, attributes=attributes)
        return _Current(span, trace.set_span_in_context(span, context))

    def _extracted(self, headers: Mapping[str, str]) -> Context:
        """Return the context in headers, and nothing of the current one."""
        return self._propagator.extract(headers, Context()) if headers else Context()


class _Unrecorded(Context):
    """The context of an execution that is not sampled. While it is the current one, attempts need no spans."""


class _IntoHeaders(Setter[dict[str, str]]):
    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key] = value


_INTO_HEADERS = _IntoHeaders()


def _has_room(headers: Mapping[str, str], more: Mapping[str, str]) -> bool:
    """Return whether a run or message may have these headers together."""
    texts = [*headers.items(), *more.items()]
    return (
        len(texts) <= limits.COUNT_MAX
        and all(len(value) <= limits.VALUE_MAX for value in more.values())
        and sum(len(name) + len(value) for name, value in texts) <= limits.TOTAL_MAX
    )


def _messaging(kind: str, operation: str, destination: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": kind,
        "messaging.operation.name": operation,
        "messaging.destination.name": destination,
    }


class _Ending:
    """Ends a span, and records the error that passes; an interruption such as a lost lease is none."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            _record(self._span, error)
        self._span.end()


class _Current(_Ending):
    """Makes the context of the span the current one, too."""

    __slots__ = ("_context", "_token")

    def __init__(self, span: Span, context: Context) -> None:
        super().__init__(span)
        self._context = context

    def __enter__(self) -> None:
        self._token = contexts.attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            contexts.detach(self._token)


def _record(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.set_attribute("error.type", type(error).__qualname__)


def _span_in(context: Context) -> trace.SpanContext:
    return trace.get_current_span(context).get_span_context()


def _is_traced(context: Context) -> bool:
    return _span_in(context).is_valid


class OpenTelemetryMetrics:
    """A meter whose metrics OpenTelemetry exports: `App(metrics=OpenTelemetryMetrics())`.

    - `meter_provider`: where they go (default: the global one).

    Names are those of `perdure.metrics`; an exporter for Prometheus must not add suffixes for types and units.
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None) -> None:
        meter = otel_metrics.get_meter("perdure", meter_provider=meter_provider)
        self._record = {metric: _recording(meter, metric) for metric in CATALOGUE}

    def bind(self, metric: Metric, *labels: str) -> Callable[[float], object]:
        """Return the function for one series; see `perdure.metrics.Meter`."""
        return partial(self._record[metric], attributes=dict(zip(metric.labels, labels, strict=True)))


def _recording(meter: otel_metrics.Meter, metric: Metric) -> Callable[..., None]:
    match metric.kind:
        case "counter":
            return meter.create_counter(metric.name, description=metric.help).add
        case "gauge":
            return meter.create_gauge(metric.name, description=metric.help).set
        case "histogram":
            buckets = list(metric.buckets)
            return meter.create_histogram(
                metric.name, description=metric.help, explicit_bucket_boundaries_advisory=buckets
            ).record
