"""The page of workers: who is alive, since when, and which workflows each one executes."""

import json
from datetime import datetime
from typing import Any

from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.engine.worker.owners import is_backed_off, worker_of
from perdure.engine.worker.stuck import is_live
from perdure.model.records import ListInstancesOptions
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

RUNS_MAX = 200  # running runs whose workers are counted, those that were started last


async def workers_of(storage: Storage, now: datetime) -> list[dict[str, Any]]:
    """Return the workers with the age of their heartbeats."""
    found = []
    for worker in await storage.list_workers():
        try:
            about = json.loads(worker.info or b"{}")
        except ValueError:
            about = {}
        known = about.get("workflows") if isinstance(about, dict) else None
        found.append(
            {
                "id": worker.worker_id,
                "started_at": worker.started_at,
                "beat_at": worker.beat_at,
                "alive": is_live(worker, now),
                "lease_sec": about.get("lease_sec") if isinstance(about, dict) else None,
                "workflows": known if isinstance(known, list) else None,
            }
        )
    return found


async def workers(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the page of workers."""
    storage = dashboard.storage
    found = await workers_of(storage, visit.now)
    page = await storage.list_instances(
        ListInstancesOptions(limit=RUNS_MAX, status_filter=WorkflowStatus.RUNNING, payloads=False)
    )
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in page.instances:
        if row.locked_by is not None and not is_backed_off(row.locked_by):
            entry = {"id": row.instance_id, "workflow": row.workflow_name, "lease_expires_at": row.lock_expires_at}
            runs.setdefault(worker_of(row.locked_by), []).append(entry)
    known = {each["id"] for each in found}
    document: dict[str, Any] = {
        "workers": [{**each, "runs": runs.get(each["id"], [])} for each in found],
        "gone": [{"id": name, "runs": held} for name, held in runs.items() if name not in known],
        "runs_read": len(page.instances),
        "more": page.has_more,
    }
    marker = [(each["id"], each["alive"], [run["id"] for run in each["runs"]]) for each in document["workers"]]
    return Page("workers.html", "Workers", document, marker=marker)
