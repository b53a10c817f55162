"""Scheduled (cron) workflows of this process, with their ticks."""

from dataclasses import dataclass
from datetime import datetime

from perdure.engine.api.client import Client, storage_of
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.model.schedules import tick_id
from perdure.model.states import WorkflowStatus


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A scheduled workflow.

    - `workflow`, `cron`, `zone`: its name, its cron expression, and the time zone of that.
    - `next_at`, `last_at`: the next and the last tick, whether a run was started for it or not.
    - `last_run`, `last_status`: the run of the last tick; None if there is none.
    """

    workflow: str
    cron: str
    zone: str
    next_at: datetime
    last_at: datetime
    last_run: str | None
    last_status: WorkflowStatus | None


async def list_schedules(client: Client) -> list[ScheduleInfo]:
    """Return the scheduled workflows that are defined in this process, the next tick first.

    Schedules are part of the code, so import the modules that define your workflows first.
    """
    storage = storage_of(client)
    now = await storage.now()
    found: list[ScheduleInfo] = []
    for workflow in WORKFLOWS.values():
        if (schedule := workflow.schedule) is None:
            continue
        last = schedule.last_before(now)
        row = await storage.get_instance(tick_id(workflow.name, last))
        run = (None, None) if row is None else (row.instance_id, row.status)
        next_at = schedule.next_after(now)
        found.append(ScheduleInfo(workflow.name, schedule.expression, schedule.zone, next_at, last, *run))
    return sorted(found, key=lambda each: (each.next_at, each.workflow))
