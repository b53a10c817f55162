"""The settings of a worker, as the App checked them."""

from collections.abc import Mapping
from dataclasses import dataclass

from perdure.engine.execution.clock import Clock
from perdure.engine.interception import Interception
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.worker.retention import Retention
from perdure.metrics import Meter


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker executes and how much of it at once; see `App` for the meaning of each setting."""

    worker_id: str
    workflows: Mapping[str, WorkflowDefinition]
    lease_sec: float
    max_runs: int
    max_cached_runs: int
    max_activities: int
    max_threads: int
    transaction_sec: float | None  # None where a transaction does not block all other writers
    retention: Retention | None
    clock: Clock
    interception: Interception | None = None  # None if there are no interceptors
    meter: Meter | None = None  # None if nothing is measured
