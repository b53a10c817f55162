"""Measure what metrics and traces add to a step: `python -m benchmarks.observability`.

Each round executes workflows of ten steps on SQLite, 100 at a time, once with each setting of the app, in one process.
The percentages compare with "off" of the same round. The spans of a trace go to a `BatchSpanProcessor` whose exporter
drops them. A run of ten steps has twelve spans: its start, its execution and ten attempts. The last two lines are what
the OpenTelemetry SDK takes alone: for a span of each attempt that the program makes itself, and for a span in a loop.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import set_span_in_context
from prometheus_client import CollectorRegistry

from benchmarks.databases import fresh_database
from benchmarks.engine.measures import Figures, Play, ten_steps, throughput
from perdure import ActivityInfo
from perdure.integrations.otel import OpenTelemetry, OpenTelemetryMetrics
from perdure.integrations.prometheus import Prometheus
from perdure.interceptors import Interceptor

SPANS = 5000
ATTRIBUTES: dict[str, str | int] = {
    "perdure.run.id": "0f7b9c52e6d84b0c8a55f1d2c3e4f506",
    "perdure.workflow": "ten_steps",
    "perdure.activity": "add",
    "perdure.step": "add:1",
    "perdure.attempt": 1,
    "perdure.fence": 1,
}


class Dropping(SpanExporter):
    """An exporter that costs nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@contextmanager
def exporting(share: float) -> Iterator[TracerProvider]:
    """Yield a provider that samples this share of the traces."""
    provider = TracerProvider(ParentBasedTraceIdRatio(share), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Dropping()))
    try:
        yield provider
    finally:
        provider.shutdown()


async def prometheus(url: str, size: int) -> Figures:
    return await throughput(ten_steps, 10, metrics=Prometheus(CollectorRegistry()))(url, size)


async def otel_metrics(url: str, size: int) -> Figures:
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    try:
        return await throughput(ten_steps, 10, metrics=OpenTelemetryMetrics(meter_provider=provider))(url, size)
    finally:
        provider.shutdown()


class BareSpans(Interceptor):
    """Makes a span of each attempt and nothing else, which is the least that the SDK takes inside a program."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("perdure")
        self._parent = set_span_in_context(self._tracer.start_span("process"))

    def activity(self, attempt: ActivityInfo) -> AbstractContextManager[None]:
        self._tracer.start_span("add", self._parent, attributes=ATTRIBUTES).end()
        return nullcontext()


async def bare_spans(url: str, size: int) -> Figures:
    with exporting(1) as provider:
        return await throughput(ten_steps, 10, interceptors=[BareSpans(provider)])(url, size)


async def traced(share: float, url: str, size: int) -> Figures:
    with exporting(share) as provider:
        return await throughput(ten_steps, 10, interceptors=[OpenTelemetry(tracer_provider=provider)])(url, size)


SIDES: dict[str, Play] = {
    "off": throughput(ten_steps, 10),
    "Prometheus metrics": prometheus,
    "OpenTelemetry metrics": otel_metrics,
    "traces, none sampled": partial(traced, 0),
    "traces, 10 % sampled": partial(traced, 0.1),
    "traces, all": partial(traced, 1),
    "a bare span per step": bare_spans,
}


async def measure(side: str, size: int) -> Figures:
    """Return the steps per second and the CPU time of a step."""
    async with fresh_database("sqlite", "") as url:
        gc.collect()
        return await SIDES[side](url, size)


def span_us() -> float:
    """Return the microseconds of CPU time that the SDK takes for a span."""
    with exporting(1) as provider:
        tracer = provider.get_tracer("perdure")
        parent = set_span_in_context(tracer.start_span("process"))
        began = time.process_time()
        for _ in range(SPANS):
            tracer.start_span("add", parent, attributes=ATTRIBUTES).end()
        return (time.process_time() - began) / SPANS * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians of the rounds."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.observability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="of each setting (default: 15)")
    parser.add_argument("--size", type=int, default=3000, metavar="N", help="steps of a round (default: 3000)")
    options = parser.parse_args(arguments)
    found: dict[str, list[Figures]] = {side: [] for side in SIDES}
    spans = list[float]()
    for side in SIDES:
        asyncio.run(measure(side, options.size))  # loads code and fills caches
    for number in range(options.rounds):
        first = number % len(SIDES)
        for side in [*SIDES][first:] + [*SIDES][:first]:
            found[side].append(asyncio.run(measure(side, options.size)))
        spans.append(span_us())
    print(f"{'':24}{'CPU per step':>14}{'more CPU':>12}{'steps/s':>10}{'fewer steps':>14}")
    for side, rounds in found.items():
        cpu, speed = (median(each[figure] for each in rounds) for figure in ("cpu_us", "value"))
        pairs = list(zip(rounds, found["off"], strict=True))
        more = median(each["cpu_us"] / base["cpu_us"] - 1 for each, base in pairs)
        fewer = median(1 - each["value"] / base["value"] for each, base in pairs)
        print(f"{side:24}{cpu:11.1f} µs{more:12.1%}{speed:10,.0f}{fewer:14.1%}")
    print(f"{'a span in a loop':24}{median(spans):11.1f} µs")


if __name__ == "__main__":
    main()
