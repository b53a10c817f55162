"""The page of workers: who is alive, since when, and which workflows each one executes."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.engine.api.run_info import RunInfo
from perdure.engine.worker.owners import is_backed_off, worker_of
from perdure.inspection import WorkerInfo, list_workers
from perdure.model.administration import HeldLease
from perdure.model.limits import PAGE_MAX
from perdure.views.why import Details

LEASES_MAX = PAGE_MAX  # leases that are read, those that expire first
SHOWN = 10


async def workers_of(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return the workers with the age of their heartbeats, and what they hold."""
    held, _ = await held_by(dashboard)
    return [_entry(worker, held) for worker in await list_workers(dashboard.client)]


def _entry(worker: WorkerInfo, held: Mapping[str, Sequence[HeldLease]]) -> dict[str, Any]:
    return {
        "id": worker.id,
        "started_at": worker.started_at,
        "beat_at": worker.beat_at,
        "alive": worker.is_live,
        "lease_sec": worker.lease_sec,
        "workflows": worker.workflows,
        **lease_facts(held.get(worker.id, ())),
    }


async def held_by(dashboard: Dashboard) -> tuple[dict[str, list[HeldLease]], bool]:
    """Return the leases of each worker, and whether there are more than were read."""
    administration = dashboard.administration
    if administration is None:
        return {}, False
    found = await administration.surveys.list_leases(LEASES_MAX)
    leases: dict[str, list[HeldLease]] = {}
    for lease in found:
        if not is_backed_off(lease.locked_by):
            leases.setdefault(worker_of(lease.locked_by), []).append(lease)
    return leases, len(found) == LEASES_MAX


def holder_of(run: RunInfo, workers: Sequence[WorkerInfo]) -> Details:
    """Return what the workers say of the one that holds a run: whether it is silent, or has left."""
    if run.worker is None:
        return Details()
    found = next((each for each in workers if each.id == run.worker), None)
    if found is None:
        return Details(has_left=True)
    return Details(silent_since=None if found.is_live else found.beat_at)


def lease_facts(leases: Sequence[HeldLease]) -> dict[str, Any]:
    """Return how many runs a worker holds, since when the oldest of them, and some of their ids."""
    since = [lease.locked_at for lease in leases if lease.locked_at is not None]
    return {
        "leases": len(leases),
        "oldest_lease_at": min(since, default=None),
        "runs": [{"id": lease.instance_id, "workflow": lease.workflow_name} for lease in leases[:SHOWN]],
    }


async def workers(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the page of workers."""
    held, more = await held_by(dashboard)
    found = await list_workers(dashboard.client)
    known = {worker.id for worker in found}
    document: dict[str, Any] = {
        "workers": [_entry(worker, held) for worker in found],
        "gone": [{"id": name, **lease_facts(leases)} for name, leases in held.items() if name not in known],
        "leases_read": LEASES_MAX,
        "more": more,
    }
    marker = [[each["id"], each.get("alive"), each["runs"]] for each in (*document["workers"], *document["gone"])]
    return Page("workers.html", "Workers", document, marker=marker)
