"""Runs, steps and the rest as JSON objects: the stable form that `-o json` prints, which docs/cli.md describes.

Fields are added, never renamed or removed. Times are ISO 8601 in UTC.

The documents of `perdure.http` have the same fields, but are encoded by the type hints of the workflows, and described
by OpenAPI. Here no code of workflows is needed, and all times have the same length.
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.engine.api.run_info import ErrorInfo, RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.engine.api.values import shown
from perdure.engine.history.codec import encode
from perdure.errors import SerializationError
from perdure.inspection.schedules import ScheduleInfo
from perdure.inspection.trees import RunTree
from perdure.inspection.workers import WorkerInfo
from perdure.model.envelopes import Unreadable, unreadable
from perdure.model.records import OutboxEvent

Document = dict[str, Any]


def run_document(run: RunInfo) -> Document:
    """Return a run; `state` and `children` are null in the results of a query."""
    stuck = run.stuck
    return {
        "id": run.id,
        "workflow": run.workflow,
        "status": run.status.value,
        "input": plain(run.input),
        "result": plain(run.result),
        "error": _error(run.error),
        "state": plain(run.state),
        "started_at": stamp(run.started_at),
        "updated_at": stamp(run.updated_at),
        "finished_at": stamp(run.finished_at),
        "deadline": stamp(run.deadline),
        "parent": run.parent,
        "children": None if run.children is None else list(run.children),
        "previous": run.previous,
        "waiting_for": [
            {"kind": wait.kind.value, "name": wait.name, "until": stamp(wait.until)} for wait in run.waiting_for
        ],
        "worker": run.worker,
        "lease_expires_at": stamp(run.lease_expires_at),
        "attempts": run.attempts,
        "stuck": None
        if stuck is None
        else {"reason": stuck.reason, "since": stamp(stuck.since), "next_retry_at": stamp(stuck.next_retry_at)},
    }


def step_document(step: StepInfo) -> Document:
    """Return a step."""
    return {
        "id": step.id,
        "name": step.name,
        "kind": step.kind.value,
        "status": step.status.value,
        "attempts": step.attempts,
        "input": plain(step.input),
        "result": plain(step.result),
        "error": _error(step.error),
        "started_at": stamp(step.started_at),
        "finished_at": stamp(step.finished_at),
        "child": step.child,
    }


def history_document(entry: HistoryEntry) -> Document:
    """Return an entry of a history; bytes are in base64."""
    return {
        "id": entry.id,
        "step": entry.step,
        "kind": entry.kind,
        "at": stamp(entry.at),
        "data": plain(entry.data),
    }


def tree_document(tree: RunTree) -> Document:
    """Return a run with its steps; a step that called a child has the tree of that run as `run`."""
    return {
        **run_document(tree.run),
        "steps": [
            {**step_document(step), "run": None if child is None else tree_document(child)}
            for step, child in tree.steps
        ],
        "is_cut": tree.is_cut,
    }


def worker_document(worker: WorkerInfo) -> Document:
    """Return a worker."""
    return {
        "id": worker.id,
        "is_live": worker.is_live,
        "started_at": stamp(worker.started_at),
        "beat_at": stamp(worker.beat_at),
        "workflows": None if worker.workflows is None else list(worker.workflows),
        "lease_sec": worker.lease_sec,
    }


def event_document(event: OutboxEvent) -> Document:
    """Return an event of the outbox."""
    data = event.event_data_binary if event.event_data is None else event.event_data
    return {
        "id": event.event_id,
        "type": event.event_type,
        "source": event.event_source,
        "status": str(event.status),
        "attempts": event.retry_count,
        "last_error": event.last_error and shown(event.last_error),
        "created_at": stamp(event.created_at),
        "published_at": stamp(event.published_at),
        "data": _payload(data, event.data_type),
    }


def schedule_document(schedule: ScheduleInfo) -> Document:
    """Return a scheduled workflow."""
    return {
        "workflow": schedule.workflow,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "next_at": stamp(schedule.next_at),
        "last_at": stamp(schedule.last_at),
        "last_run": schedule.last_run,
        "last_status": None if schedule.last_status is None else schedule.last_status.value,
    }


def stamp(moment: datetime | None) -> str | None:
    """Return a time in UTC as ISO 8601 with microseconds, so that texts sort like times."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain(value: object) -> Any:
    """Return a value as plain JSON values; text that describes it if it has no such form or is unreadable."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Unreadable):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    try:
        return json.loads(encode(value))
    except SerializationError:
        return repr(value)


def _error(error: ErrorInfo | None) -> Document | None:
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "traceback": error.traceback}


def _payload(data: bytes | None, kind: str) -> Any:
    if (hidden := unreadable(data)) is not None:
        return plain(hidden)
    if data is None or kind != "json":
        return plain(data)
    try:
        return json.loads(data)
    except ValueError:
        return plain(data)
