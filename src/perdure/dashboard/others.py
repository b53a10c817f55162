"""The smaller pages: failures of one cause, waits, and schedules."""

from typing import Any

from perdure.dashboard.failures import failed_runs, failed_step
from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.engine.api.reading import wait_info
from perdure.http.api import path_of
from perdure.http.problems import Problem
from perdure.inspection import list_schedules
from perdure.model.records import ListInstancesOptions
from perdure.model.states import WAITING

WAITING_MAX = 500  # waiting runs that are read, those that were started last
EXAMPLES = 3


async def failure(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the runs that failed for one cause."""
    cause = path_of(visit.request, "fingerprint")
    found, _ = await failed_runs(dashboard.storage, visit.now)
    runs = [each for each in found if each.fingerprint == cause]
    if not runs:
        raise Problem(404, "no run failed for this cause in the last 24 hours")
    document = {
        "fingerprint": cause,
        "workflow": runs[0].workflow,
        "type": runs[0].type,
        "message": dashboard.redact(runs[0].message, "error"),
        "step": await failed_step(dashboard.storage, runs[0].id),
        "runs": [{"id": each.id, "at": each.at, "message": dashboard.redact(each.message, "error")} for each in runs],
    }
    return Page("failure.html", f"{runs[0].type} in {runs[0].workflow}", document)


async def waits(dashboard: Dashboard, visit: Visit) -> Page:
    """Return what runs wait for, by kind and name."""
    storage = dashboard.storage
    page = await storage.list_instances(
        ListInstancesOptions(limit=WAITING_MAX, statuses=tuple(sorted(WAITING)), payloads=False)
    )
    names = {row.instance_id: row.workflow_name for row in page.instances}
    ids, more = list(names), page.has_more
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for wait in await storage.get_waits(ids) if ids else []:
        if wait.activity_id.startswith("~expired"):
            continue
        about = wait_info(wait.instance_id, wait)
        name = about.name if about.kind.value in ("event", "channel", "child") else ""
        key = (about.kind.value, name, names[wait.instance_id])
        entry = groups.setdefault(
            key, {"kind": key[0], "name": name, "workflow": key[2], "runs": set(), "next_at": None}
        )
        entry["runs"].add(wait.instance_id)
        if about.until is not None and (entry["next_at"] is None or about.until < entry["next_at"]):
            entry["next_at"] = about.until
    found = [
        {**each, "runs": len(each["runs"]), "examples": sorted(each["runs"])[:EXAMPLES]} for each in groups.values()
    ]
    found.sort(key=lambda each: (-each["runs"], each["kind"], each["name"]))
    document = {
        "waits": found,
        "runs_read": len(ids),
        "more": more,
    }
    return Page("waits.html", "Waits", document)


async def schedules(dashboard: Dashboard, _: Visit) -> Page:
    """Return the scheduled workflows that this process knows, the next tick first."""
    found = [
        {
            "workflow": each.workflow,
            "cron": each.cron,
            "zone": each.zone,
            "last_at": each.last_at,
            "last_run": None if each.last_status is None else {"id": each.last_run, "status": each.last_status.value},
            "next_at": each.next_at,
        }
        for each in await list_schedules(dashboard.client)
    ]
    return Page("schedules.html", "Schedules", {"schedules": found})
