"""What operators look at: filters as text, why a run does not continue, trees of runs, workers, the outbox, schedules.

The command line is built on it, and so is anything else that shows runs to people. Functions take an open `Client`.
Nothing here writes, except `start_by_name` and `requeue_event`.
"""

from perdure.inspection.documents import (
    event_document,
    history_document,
    run_document,
    schedule_document,
    step_document,
    tree_document,
    worker_document,
)
from perdure.inspection.filters import FilterError, RunFilter, parse_filter
from perdure.inspection.outbox import list_events, requeue_event
from perdure.inspection.reasons import Reason, explain
from perdure.inspection.schedules import ScheduleInfo, list_schedules
from perdure.inspection.starts import start_by_name
from perdure.inspection.trees import RunTree, read_tree
from perdure.inspection.workers import WorkerInfo, list_workers

__all__ = [
    "FilterError",
    "Reason",
    "RunFilter",
    "RunTree",
    "ScheduleInfo",
    "WorkerInfo",
    "event_document",
    "explain",
    "history_document",
    "list_events",
    "list_schedules",
    "list_workers",
    "parse_filter",
    "read_tree",
    "requeue_event",
    "run_document",
    "schedule_document",
    "start_by_name",
    "step_document",
    "tree_document",
    "worker_document",
]
