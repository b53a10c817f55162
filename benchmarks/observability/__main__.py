"""Measure what metrics and traces add to a step: `python -m benchmarks.observability`.

Each round executes workflows of ten steps, 100 at a time, once with each setting of the app, in one process. With
`--one-run` a round is a single run for each setting, whose steps follow one another and wait for the commit of each;
rounds are short and many, because each takes as long as the disk does. The percentages compare with "off" of the same
round. The spans of a trace go to a `BatchSpanProcessor` whose exporter drops them. A run of ten steps has twelve spans:
its start, its execution and ten attempts. The last two lines are what the OpenTelemetry SDK takes alone: for a span of
each attempt that the program makes itself, and for a span in a loop.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import set_span_in_context
from prometheus_client import CollectorRegistry

from benchmarks.databases import fresh_database, server_for
from benchmarks.engine.measures import Figures, cpu_sec, steps, ten_steps, throughput
from perdure import ActivityInfo, App
from perdure.integrations.otel import OpenTelemetry, OpenTelemetryMetrics
from perdure.integrations.prometheus import Prometheus
from perdure.interceptors import Interceptor

Settings = dict[str, Any]  # of the App

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


@contextmanager
def measured() -> Iterator[Settings]:
    yield {"metrics": Prometheus(CollectorRegistry())}


@contextmanager
def measured_by_otel() -> Iterator[Settings]:
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    try:
        yield {"metrics": OpenTelemetryMetrics(meter_provider=provider)}
    finally:
        provider.shutdown()


@contextmanager
def traced(share: float) -> Iterator[Settings]:
    with exporting(share) as provider:
        yield {"interceptors": [OpenTelemetry(tracer_provider=provider)]}


@contextmanager
def measured_and_traced() -> Iterator[Settings]:
    with measured() as metrics, traced(1) as traces:
        yield {**metrics, **traces}


class BareSpans(Interceptor):
    """Makes a span of each attempt and nothing else, which is the least that the SDK takes inside a program."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("perdure")
        self._parent = set_span_in_context(self._tracer.start_span("process"))

    def activity(self, attempt: ActivityInfo) -> AbstractContextManager[None]:
        self._tracer.start_span("add", self._parent, attributes=ATTRIBUTES).end()
        return nullcontext()


@contextmanager
def with_bare_spans() -> Iterator[Settings]:
    with exporting(1) as provider:
        yield {"interceptors": [BareSpans(provider)]}


SIDES: dict[str, Callable[[], AbstractContextManager[Settings]]] = {
    "off": lambda: nullcontext({}),
    "Prometheus metrics": measured,
    "OpenTelemetry metrics": measured_by_otel,
    "traces, none sampled": partial(traced, 0),
    "traces, 10 % sampled": partial(traced, 0.1),
    "traces, all": partial(traced, 1),
    "Prometheus, all traces": measured_and_traced,
    "a bare span per step": with_bare_spans,
}


Found = dict[str, list[Figures]]  # the rounds of each setting


def many_runs(rounds: int, size: int, database: str, server: str) -> Found:
    """Measure workflows of ten steps, 100 at a time."""

    async def play(side: str) -> Figures:
        async with fresh_database(database, server) as url:
            gc.collect()
            with SIDES[side]() as settings:
                return await throughput(ten_steps, 10, **settings)(url, size)

    for side in SIDES:
        asyncio.run(play(side))  # loads code and fills caches
    found: Found = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in rotated(number):
            found[side].append(asyncio.run(play(side)))
    return found


async def single_runs(rounds: int, size: int, database: str, server: str) -> Found:
    """Measure a single run of so many steps, in an App for each setting."""

    async def play(turns: "Turns", settings_of: Callable[[], AbstractContextManager[Settings]]) -> None:
        async with fresh_database(database, server) as url:
            with settings_of() as settings:
                async with App(url, **settings):
                    while (turn := await turns.get()) is not None:
                        turn.set_result(await single_run(size))

    all_turns: dict[str, Turns] = {side: asyncio.Queue() for side in SIDES}
    found: Found = {side: [] for side in SIDES}
    async with asyncio.TaskGroup() as group:
        for side, turns in all_turns.items():
            group.create_task(play(turns, SIDES[side]))
        for number in range(-1, rounds):  # the first loads code and fills caches
            for side in rotated(number):
                turn = asyncio.get_running_loop().create_future()
                all_turns[side].put_nowait(turn)
                figures = await turn
                if number >= 0:
                    found[side].append(figures)
        for turns in all_turns.values():
            turns.put_nowait(None)
    return found


Turns = asyncio.Queue[asyncio.Future[Figures] | None]  # None after the last


async def single_run(size: int) -> Figures:
    """Return the steps per second and the CPU time of a step of one run."""
    began, cpu = time.perf_counter(), cpu_sec()
    await (await steps.start(size)).result()
    seconds, cpu = time.perf_counter() - began, cpu_sec() - cpu
    return {"value": size / seconds, "cpu_us": cpu / size * 1e6}


def rotated(number: int) -> list[str]:
    """Return the settings in the order of a round."""
    first = number % len(SIDES)
    return [*SIDES][first:] + [*SIDES][:first]


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
    parser.add_argument("--rounds", type=int, metavar="N", help="of each setting (default: 15; with --one-run 150)")
    parser.add_argument("--size", type=int, metavar="N", help="steps of a round (default: 3000; with --one-run 30)")
    parser.add_argument("--one-run", action="store_true", help="measure a single run instead of 100 at a time")
    parser.add_argument("--database", choices=("sqlite", "postgresql", "mysql"), default="sqlite")
    options = parser.parse_args(arguments)
    with server_for(options.database) as server:
        if options.one_run:
            found = asyncio.run(single_runs(options.rounds or 150, options.size or 30, options.database, server))
        else:
            found = many_runs(options.rounds or 15, options.size or 3000, options.database, server)
    report(found)


def report(found: Found) -> None:
    """Print the medians of the rounds."""
    print(f"{'':24}{'CPU per step':>14}{'more CPU':>12}{'steps/s':>10}{'fewer steps':>14}")
    for side, rounds in found.items():
        cpu, speed = (median(each[figure] for each in rounds) for figure in ("cpu_us", "value"))
        pairs = list(zip(rounds, found["off"], strict=True))
        more = median(each["cpu_us"] / base["cpu_us"] - 1 for each, base in pairs)
        fewer = median(1 - each["value"] / base["value"] for each, base in pairs)
        print(f"{side:24}{cpu:11.1f} µs{more:12.1%}{speed:10,.0f}{fewer:14.1%}")
    print(f"{'a span in a loop':24}{median(span_us() for _ in range(5)):11.1f} µs")


if __name__ == "__main__":
    main()
