"""Failed runs in groups: one bad deployment is one line with a count, not a thousand lines."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from perdure.engine.api.values import error_of
from perdure.engine.history import ids
from perdure.engine.history.records import RunFailed, record_of
from perdure.model.records import HistoryEventType, ListInstancesOptions, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

WITHIN = timedelta(hours=24)
RUNS_MAX = 500  # failed runs that are read, those that were started last
GROUPS_MAX = 20
MESSAGE_MAX = 300

_VARYING = (
    (re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"), "…"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "…"),
    (re.compile(r"'[^'\n]{0,200}'|\"[^\"\n]{0,200}\""), "'…'"),
    (re.compile(r"\b(?=[\w-]*\d)[\w-]+(?:\.\d+)?"), "#"),
)


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A failed run with its error."""

    id: str
    workflow: str
    at: datetime
    type: str
    message: str

    @property
    def fingerprint(self) -> str:
        """Return what runs that failed for the same cause have in common."""
        parts = (self.workflow, self.type, normalised(self.message))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed runs of the same cause. `step` is that of the last one."""

    fingerprint: str
    workflow: str
    type: str
    message: str
    count: int
    first_at: datetime
    last_at: datetime
    last_run: str
    step: str | None
    runs: tuple[str, ...]


def normalised(message: str) -> str:
    """Return a message without what differs from run to run: numbers, ids, quoted values."""
    text = " ".join(message.split())
    for pattern, mark in _VARYING:
        text = pattern.sub(mark, text)
    return text[:MESSAGE_MAX]


async def failed_runs(storage: Storage, now: datetime) -> tuple[list[FailedRun], bool]:
    """Return the runs that failed in the last 24 hours, and whether there may be more than were read."""
    options = ListInstancesOptions(limit=RUNS_MAX, status_filter=WorkflowStatus.FAILED, payloads=False)
    page = await storage.list_instances(options)
    rows = [row for row in page.instances if row.updated_at is not None and now - row.updated_at <= WITHIN]
    errors = await _errors(storage, rows)
    found = [
        FailedRun(row.instance_id, row.workflow_name, row.updated_at or now, *errors.get(row.instance_id, ("", "")))
        for row in rows
    ]
    return sorted(found, key=lambda each: each.at, reverse=True), page.has_more


async def _errors(storage: Storage, rows: Sequence[WorkflowInstance]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    if rows:
        for event in await storage.get_events([row.instance_id for row in rows], [ids.RUN_FAILED]):
            record = record_of(event)
            error = error_of(record.failure if isinstance(record, RunFailed) else {})
            found[event.instance_id] = (error.type or "error", error.message)
    return found


async def failure_groups(storage: Storage, now: datetime) -> tuple[list[FailureGroup], bool]:
    """Return the failures of the last 24 hours by cause, the latest first, and whether there may be more."""
    runs, more = await failed_runs(storage, now)
    by_cause: dict[str, list[FailedRun]] = {}
    for run in runs:
        by_cause.setdefault(run.fingerprint, []).append(run)
    groups = []
    for fingerprint, members in list(by_cause.items())[:GROUPS_MAX]:
        last = members[0]
        groups.append(
            FailureGroup(
                fingerprint,
                last.workflow,
                last.type,
                last.message[:MESSAGE_MAX],
                len(members),
                members[-1].at,
                last.at,
                last.id,
                await failed_step(storage, last.id),
                tuple(each.id for each in members),
            )
        )
    return groups, more


async def failed_step(storage: Storage, run_id: str) -> str | None:
    """Return the step that failed last, or None if the body itself raised the error."""
    event = await storage.get_last_event(run_id, HistoryEventType.ACTIVITY_FAILED)
    return None if event is None or event.activity_id.startswith(ids.OWN) else ids.step_of(event.activity_id)
