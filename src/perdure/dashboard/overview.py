"""The first page: how many runs are in which state, what fails, what is slow, what waits, and who works."""

from datetime import datetime, timedelta
from typing import Any

from perdure.dashboard import charts
from perdure.dashboard.failures import failure_groups
from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.dashboard.workers import workers_of
from perdure.engine.api.queries import COUNT_MAX
from perdure.model.records import EndedInstance, ListInstancesOptions, OutboxStatus
from perdure.model.states import WAITING, WorkflowStatus
from perdure.storage.contract import Storage

S = WorkflowStatus
SHOWN = {
    "running": (S.RUNNING,),
    "waiting": tuple(sorted(WAITING)),
    "compensating": (S.COMPENSATING,),
    "failed": (S.FAILED,),
    "cancelled": (S.CANCELLED,),
    "completed": (S.COMPLETED,),
}
ENDED_PAGES, ENDED_PAGE = 3, 1000
DAY = timedelta(days=1)
STUCK_MAX = 5


async def overview(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the overview."""
    storage, now = dashboard.storage, visit.now
    counts = {
        name: await storage.count_instances(ListInstancesOptions(statuses=states), limit=COUNT_MAX)
        for name, states in SHOWN.items()
    }
    ended, since = await _ended(storage, now)
    buckets = charts.bucketed(ended, now, since)
    groups, more = await failure_groups(storage, now)
    stuck = (await dashboard.client.runs(stuck=True).page(STUCK_MAX + 1, payloads=False)).runs
    document: dict[str, Any] = {
        "counts": counts,
        "count_max": COUNT_MAX,
        "failures": groups,
        "failures_may_be_more": more,
        "slowest": _by_workflow(ended),
        "ended": {"since": since, "runs": len(ended)},
        "oldest_due": await _oldest_due(storage),
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
        "workers": await workers_of(storage, now),
        "timers_due_at": await storage.next_due_at(),
        "outbox": await _outbox(storage),
    }
    marker = {key: value for key, value in document.items() if key not in ("workers", "ended", "timers_due_at")}
    marker["alive"] = [each["alive"] for each in document["workers"]]
    return Page("overview.html", "Overview", document, {"buckets": buckets, "stuck_max": STUCK_MAX}, marker)


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


async def _outbox(storage: Storage) -> dict[str, Any]:
    """Return since when the oldest event waits to be published, and how many are parked."""
    pending = await storage.list_outbox_events(OutboxStatus.PENDING, 1)
    parked = await storage.list_outbox_events(OutboxStatus.INVALID, 100)
    return {
        "oldest_pending_at": pending[0].created_at if pending else None,
        "parked": len(parked),
        "parked_max": 100,
    }
