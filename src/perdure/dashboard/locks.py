"""What is held, and by whom: the leases of runs, and the locks of background tasks."""

from datetime import datetime
from typing import Any

from perdure.dashboard.pages import Dashboard, Page, Visit, place_of, token_of
from perdure.engine.worker.owners import is_backed_off, tries_of, worker_of
from perdure.engine.worker.stuck import is_live
from perdure.model.administration import HeldLease
from perdure.model.limits import PAGE_MAX

PAGE = 50
READ_MAX = PAGE_MAX  # leases among which those of one worker are found


async def locks(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the leases, the one that expires first before the others, and the system locks."""
    surveys, worker, after = dashboard.administered("list of locks").surveys, visit.value("worker"), place_of(visit)
    read = await surveys.list_leases(READ_MAX if worker else PAGE + 1, after=after)
    found = [each for each in read if not worker or worker_of(each.locked_by) == worker]
    more = len(read) == READ_MAX if worker else len(read) > PAGE
    shown = found if worker else found[:PAGE]
    live = {each.worker_id: is_live(each, visit.now) for each in await dashboard.storage.list_workers()}
    last = read[-1] if worker and read else shown[-1] if shown else None
    document: dict[str, Any] = {
        "worker": worker,
        "leases": [lease_document(each, visit.now, live) for each in shown],
        "next_after": token_of(last.expires_at, last.instance_id) if more and last is not None else None,
        "system_locks": [
            {
                "name": each.lock_name,
                "holder": each.locked_by,
                "alive": live.get(each.locked_by or ""),
                "since": each.locked_at,
                "until": each.expires_at,
                "expired": each.expires_at is None or each.expires_at <= visit.now,
            }
            for each in await surveys.list_system_locks()
        ],
    }
    keys = ("run", "holder", "expired", "alive")
    marker = [[each[key] for key in keys] for each in document["leases"]]
    marker += [[each["name"], each["holder"], each["expired"], each["alive"]] for each in document["system_locks"]]
    return Page("locks.html", "Locks", document, marker=marker)


def lease_document(lease: HeldLease, now: datetime, live: dict[str, bool]) -> dict[str, Any]:
    """Return a lease as JSON has it. A run in back-off is held by no worker."""
    backed_off = is_backed_off(lease.locked_by)
    holder = None if backed_off else worker_of(lease.locked_by)
    return {
        "run": lease.instance_id,
        "workflow": lease.workflow_name,
        "status": lease.status.value,
        "holder": holder,
        "alive": None if holder is None else live.get(holder, False),
        "back_off": backed_off,
        "attempts": tries_of(lease.locked_by),
        "since": lease.locked_at,
        "until": lease.expires_at,
        "expired": lease.expires_at <= now,
    }
