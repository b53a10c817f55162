"""The first page: how many runs are in which state, what fails, what is slow, what waits, and who works."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from perdure.dashboard import charts
from perdure.dashboard.failures import FailureGroup, failure_groups
from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.dashboard.workers import workers_of
from perdure.engine.api.queries import COUNT_MAX
from perdure.engine.api.reading import read_runs
from perdure.engine.api.run_info import RunInfo
from perdure.model.records import EndedInstance, ListInstancesOptions, OutboxStatus
from perdure.model.states import WAITING, WorkflowStatus
from perdure.storage.contract import Storage
from perdure.views.why import explain

S = WorkflowStatus
SHOWN = {
    "running": (S.RUNNING,),
    "waiting": tuple(sorted(WAITING)),
    "compensating": (S.COMPENSATING,),
    "failed": (S.FAILED,),
    "cancelled": (S.CANCELLED,),
    "completed": (S.COMPLETED,),
}
ENDED_PAGES, ENDED_PAGE = 2, 1000
DAY = timedelta(days=1)
STUCK_SHOWN, STUCK_MAX = 5, 100  # on the page, and counted


async def overview(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the overview."""
    now = visit.now
    # Two halves that take about as long, on two connections: others remain for a worker.
    (ended, since, operation), (counts, (groups, more), stuck) = await asyncio.gather(
        _past(dashboard, now), _now(dashboard, now)
    )
    buckets = charts.bucketed(ended, now, since)
    document: dict[str, Any] = {
        "counts": counts,
        "count_max": COUNT_MAX,
        "failures": [replace(each, message=dashboard.redact(each.message, "error")) for each in groups],
        "failures_may_be_more": more,
        "slowest": _by_workflow(ended),
        "ended": {"since": since, "runs": len(ended)},
        "stuck": [
            {
                "id": run.id,
                "workflow": run.workflow,
                "since": run.stuck.since if run.stuck else run.updated_at,
                "reason": dashboard.redact(run.stuck.reason if run.stuck else "", "reason"),
                "next_retry_at": run.stuck.next_retry_at if run.stuck else None,
            }
            for run in stuck
        ],
        **operation,
    }
    counting = ("workers", "ended", "timers_due_at", "oldest_waiting")  # what they say changes all the time
    marker = {key: value for key, value in document.items() if key not in counting}
    marker["alive"] = [each["alive"] for each in document["workers"]]
    marker["oldest_waiting"] = document["oldest_waiting"] and document["oldest_waiting"]["id"]
    shown = {"buckets": buckets, "stuck_max": STUCK_MAX, "stuck_shown": STUCK_SHOWN}
    return Page("overview.html", "Overview", document, shown, marker)


async def _past(dashboard: Dashboard, now: datetime) -> tuple[list[EndedInstance], datetime, dict[str, Any]]:
    """Return runs that ended, since when none is missing, and what workers are behind with."""
    storage = dashboard.storage
    ended, since = await _ended(storage, now)
    operation = {
        "oldest_due": await _oldest_due(storage),
        "oldest_waiting": await _oldest_waiting(dashboard, now),
        "workers": await workers_of(dashboard),
        "timers_due_at": await storage.next_due_at(),
        "outbox": await _outbox(dashboard),
    }
    return ended, since, operation


async def _now(
    dashboard: Dashboard, now: datetime
) -> tuple[dict[str, int], tuple[list[FailureGroup], bool], tuple[RunInfo, ...]]:
    """Return the number of runs in each state, failures by cause and whether there may be more, and stuck runs."""
    counts = {
        name: await dashboard.storage.count_instances(ListInstancesOptions(statuses=states), limit=COUNT_MAX)
        for name, states in SHOWN.items()
    }
    groups = await failure_groups(dashboard.storage, now)
    return counts, groups, (await dashboard.client.runs(stuck=True).page(STUCK_MAX + 1, payloads=False)).runs


async def _ended(storage: Storage, now: datetime) -> tuple[list[EndedInstance], datetime]:
    """Return runs that ended in the last day, the last first, and since when none is missing."""
    found: list[EndedInstance] = []
    before = None
    for _ in range(ENDED_PAGES):
        page = await storage.list_ended(ENDED_PAGE, before=before)
        found += [each for each in page if now - each.ended_at <= DAY]
        if len(page) < ENDED_PAGE or now - page[-1].ended_at > DAY:
            return found, now - DAY
        before = (page[-1].ended_at, page[-1].instance_id)
    return found, found[-1].ended_at


def _by_workflow(ended: list[EndedInstance]) -> list[dict[str, Any]]:
    """Return how long the runs of each workflow took, the slowest first."""
    by_name: dict[str, list[EndedInstance]] = {}
    for each in ended:
        by_name.setdefault(each.workflow_name, []).append(each)
    found: list[dict[str, Any]] = []
    for name, runs in by_name.items():
        times = [(each.ended_at - each.started_at).total_seconds() for each in runs]
        slowest = max(runs, key=lambda each: each.ended_at - each.started_at)
        found.append(
            {
                "workflow": name,
                "runs": len(runs),
                "failed": sum(each.status is S.FAILED for each in runs),
                "half_sec": charts.percentile(times, 0.5),
                "most_sec": charts.percentile(times, 0.95),
                "longest_sec": max(times),
                "longest_run": slowest.instance_id,
            }
        )
    return sorted(found, key=lambda each: each["most_sec"], reverse=True)[:10]


async def _oldest_due(storage: Storage) -> dict[str, Any] | None:
    """Return the run that has waited longest for a worker."""
    for found in await storage.find_resumable_workflows(1):
        row = await storage.get_instance(found.instance_id)
        if row is not None:
            since = row.updated_at if row.locked_by is None else row.lock_expires_at
            lost = row.locked_by is not None
            return {"id": row.instance_id, "workflow": row.workflow_name, "since": since, "lease_expired": lost}
    return None


async def _oldest_waiting(dashboard: Dashboard, now: datetime) -> dict[str, Any] | None:
    """Return the waiting run that was started first, and what it waits for."""
    administration = dashboard.administration
    if administration is None:
        return None
    ids = await administration.surveys.oldest_in(sorted(WAITING))
    rows = [row for row in await dashboard.storage.get_instances(ids) if row is not None and row.status in WAITING]
    if not rows:
        return None
    (run,) = await read_runs(dashboard.storage, [min(rows, key=lambda row: (row.started_at or now, row.instance_id))])
    reason = dashboard.redact(explain(run, now).sentence, "reason")
    return {"id": run.id, "workflow": run.workflow, "started_at": run.started_at, "reason": reason}


async def _outbox(dashboard: Dashboard) -> dict[str, Any] | None:
    """Return since when the oldest event waits to be published, and how many are pending and parked."""
    administration = dashboard.administration
    if administration is None:
        return None
    surveys = administration.surveys
    oldest = await surveys.list_outbox(OutboxStatus.PENDING, 1)
    return {
        "oldest_pending_at": oldest[0].created_at if oldest else None,
        "pending": await surveys.count_outbox(OutboxStatus.PENDING, COUNT_MAX),
        "parked": await surveys.count_outbox(OutboxStatus.INVALID, COUNT_MAX),
    }
