"""The metrics of an `App(metrics=…)`: their names, labels and meaning, and what receives their values.

Names follow the conventions of Prometheus. Labels have few values: names of workflows and activities, and fixed words;
never ids of runs. `perdure.integrations.prometheus` and `perdure.integrations.otel` have meters for their libraries; a
program can write one of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["CATALOGUE", "Meter", "Metric"]

QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEPS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
RUNS = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0, 30 * 86400.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: a counter that grows, a gauge that is set, or a histogram of observed values.

    - `name`: the whole name, with unit; a counter ends in `_total`.
    - `help`: what it measures.
    - `labels`: the names of its labels.
    - `buckets`: the upper bounds of a histogram's buckets.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Meter(Protocol):
    """What receives the values of metrics. Its functions must be quick, must not raise, and may be called anywhere."""

    def bind(self, metric: Metric, *labels: str) -> Callable[[float], object]:
        """Return the function for one series: it adds to a counter, sets a gauge, or observes a histogram's value.

        The labels are in the order of `Metric.labels`. The engine keeps the function, and calls it with each value.
        """


RUNS_STARTED = Metric(
    "counter", "perdure_runs_started_total", "Runs that a worker began to execute for the first time.", ("workflow",)
)
RUNS_FINISHED = Metric(
    "counter",
    "perdure_runs_finished_total",
    "Runs that ended on this worker. state: completed, failed or cancelled.",
    ("workflow", "state"),
)
RUN_DURATION = Metric(
    "histogram",
    "perdure_run_duration_seconds",
    "Time from the start of a run to its end, waits included.",
    ("workflow", "state"),
    RUNS,
)
RUNS_STUCK = Metric(
    "counter", "perdure_run_stuck_total", "Tries of runs that ended without progress and with back-off.", ("workflow",)
)
STEP_DURATION = Metric(
    "histogram", "perdure_step_duration_seconds", "Duration of successful attempts of activities.", ("activity",), STEPS
)
RETRIES = Metric(
    "counter", "perdure_activity_retries_total", "Failed attempts of activities that are retried.", ("activity",)
)
FAILURES = Metric("counter", "perdure_activity_failures_total", "Activities whose last attempt failed.", ("activity",))
COMMIT_DURATION = Metric(
    "histogram",
    "perdure_commit_duration_seconds",
    "Duration of group commits. kind: journals (steps and ends of runs), waits or starts.",
    ("kind",),
    QUICK,
)
COMMIT_SIZE = Metric("histogram", "perdure_commit_batch_size", "Writes in one group commit.", ("kind",), SIZES)
CLAIMS = Metric(
    "counter",
    "perdure_claims_total",
    "Attempts to lease a due run. result: made, or wasted because another worker leased it first.",
    ("result",),
)
LEASES_LOST = Metric(
    "counter", "perdure_leases_lost_total", "Leases that this worker lost while it executed the run.", ()
)
EXECUTING = Metric("gauge", "perdure_runs_executing", "Runs that this worker holds a lease on.")
SLOTS_USED = Metric("gauge", "perdure_run_slots_used", "Slots for runs whose code may execute, in use.")
SLOTS = Metric("gauge", "perdure_run_slots", "Slots for runs whose code may execute: App(max_runs=).")
CACHED = Metric("gauge", "perdure_runs_cached", "Waiting runs in memory.")
ACTIVITIES = Metric("gauge", "perdure_activities_executing", "Attempts of activities that execute now.")
ACTIVITIES_MAX = Metric("gauge", "perdure_activities_max", "Maximum of these: App(max_activities=).")
POOL_USED = Metric("gauge", "perdure_pool_connections_used", "Connections of the database pool in use; not on SQLite.")
POOL_MAX = Metric("gauge", "perdure_pool_connections_max", "Maximum size of the database pool; not on SQLite.")
TASK_UP = Metric(
    "gauge", "perdure_background_task_up", "1 while a background task runs, 0 while it waits for a restart.", ("task",)
)
TASK_FAILURES = Metric(
    "gauge", "perdure_background_task_failures", "Failures of a background task in a row.", ("task",)
)
DUE_RUNS = Metric("gauge", "perdure_due_runs", "Due runs in the database that no worker has leased; at most 1000.")
STUCK_RUNS = Metric("gauge", "perdure_stuck_runs", "Stuck runs in the database; at most 1000.")
DUE_LAG = Metric(
    "gauge",
    "perdure_due_lag_seconds",
    "For how long the oldest due work has been waiting, 0 if nothing is due. kind: runs, timers or outbox.",
    ("kind",),
)
OUTBOX_PENDING = Metric("gauge", "perdure_outbox_pending", "Events in the outbox that are not published; at most 100.")
SAMPLED_AT = Metric(
    "gauge", "perdure_sampled_timestamp_seconds", "When the gauges were last set, as a Unix time by the local clock."
)

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics of perdure; a meter that needs to know its metrics beforehand reads them here."""
