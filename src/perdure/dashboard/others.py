"""The smaller pages: failures of one cause, waits, channels, groups, schedules and the outbox."""

from typing import Any

from perdure.dashboard.failures import failed_runs, failed_step
from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.dashboard.run import NOTES
from perdure.dashboard.values import parse
from perdure.engine.api.reading import wait_info
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.http.api import path_of
from perdure.http.problems import Problem
from perdure.model.limits import NAME_MAX
from perdure.model.records import ListInstancesOptions, OutboxStatus
from perdure.model.schedules import tick_id
from perdure.model.states import WAITING

WAITING_MAX = 1000  # waiting runs that are read, those that were started last
EXAMPLES = 3
MESSAGES = 50
MEMBERS = 200


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
    """Return what runs wait for, by kind and name, and the messages of a channel or the members of a group."""
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
        "channel": await _channel(dashboard, visit.value("channel").strip()),
        "group": await _group(dashboard, visit.value("group").strip()),
    }
    return Page("waits.html", "Waits", document)


async def _channel(dashboard: Dashboard, name: str) -> dict[str, Any] | None:
    if not name or len(name) > NAME_MAX:
        return None
    storage = dashboard.storage
    mode = await storage.get_channel_mode(name)
    waiting = await storage.get_channel_subscribers_waiting(name, limit=MEMBERS)
    messages = await storage.get_pending_channel_messages(name, limit=MESSAGES)
    return {
        "name": name,
        "mode": None if mode is None else mode.value,
        "waiting": [{"id": each.instance_id, "until": each.timeout_at} for each in waiting],
        "messages": [
            {
                "id": each.id,
                "at": each.published_at,
                "data": dashboard.redact(
                    parse(each.data) if each.data_type != "binary" else each.data_binary, "message"
                ),
            }
            for each in messages
        ],
        "messages_max": MESSAGES,
    }


async def _group(dashboard: Dashboard, name: str) -> dict[str, Any] | None:
    if not name or len(name) > NAME_MAX:
        return None
    return {"name": name, "members": await dashboard.storage.get_group_members(name, limit=MEMBERS), "most": MEMBERS}


async def schedules(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the scheduled workflows that this process knows, with their last and next ticks."""
    found = []
    for name, each in sorted(WORKFLOWS.items()):
        if each.schedule is None:
            continue
        last, following = each.schedule.last_before(visit.now), each.schedule.next_after(visit.now)
        (row,) = await dashboard.storage.get_instances([tick_id(name, last)])
        found.append(
            {
                "workflow": name,
                "cron": each.schedule.expression,
                "last_at": last,
                "last_run": None
                if row is None
                else {"id": row.instance_id, "status": row.status.value, "workflow": row.workflow_name},
                "next_at": following,
            }
        )
    return Page("schedules.html", "Schedules", {"schedules": found})


async def outbox(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the events of the outbox, oldest first."""
    state = visit.value("state") or OutboxStatus.PENDING.value
    if state not in [each.value for each in OutboxStatus]:
        raise Problem(422, f"{state!r} is not a state of an event", parameter="state")
    events = await dashboard.storage.list_outbox_events(state, MESSAGES, after=visit.value("after") or None)
    document = {
        "state": state,
        "states": {"pending": "pending", "published": "published", "invalid": "parked"},
        "events": [
            {
                "id": each.event_id,
                "type": each.event_type,
                "source": each.event_source,
                "created_at": each.created_at,
                "published_at": each.published_at,
                "retries": each.retry_count,
                "error": dashboard.redact(each.last_error or "", "error"),
            }
            for each in events
        ],
        "next_after": events[-1].event_id if len(events) == MESSAGES else None,
    }
    return Page("outbox.html", "Outbox", document, {"note": NOTES.get(visit.value("note"), "")})
