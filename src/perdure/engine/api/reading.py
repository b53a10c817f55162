"""Reading runs: convert storage rows to `RunInfo`, with a fixed number of statements per page."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.engine.api.history_rows import rows_of, state_of
from perdure.engine.api.run_info import ErrorInfo, RunInfo, WaitInfo, WaitKind
from perdure.engine.api.stuck import stuck_info
from perdure.engine.api.values import CANCELLED, arguments_of, error_of, result_of, shown
from perdure.engine.history import ids
from perdure.engine.history.records import (
    Completed,
    Deadline,
    Parent,
    Record,
    RunCancelled,
    RunFailed,
    record_of,
)
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.worker.owners import is_backed_off, tries_of, worker_of
from perdure.engine.worker.stuck import UNSERVED, served_names, unclaimed_for
from perdure.model import headers, names
from perdure.model.envelopes import is_encoded
from perdure.model.records import RegisteredWait, StuckInstance, WorkflowInstance
from perdure.model.states import RESUMABLE, TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage

LIFE = (ids.PARENT, ids.DEADLINE, ids.RUN_FAILED, ids.RUN_CANCELLED)  # rows about the run as a whole
Life = dict[str, Record]
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


async def read_runs(storage: Storage, found: Sequence[WorkflowInstance], *, whole: bool = False) -> list[RunInfo]:
    """Return the public view of at most a page of runs; with `whole`, also their states and children."""
    run_ids = [row.instance_id for row in found]
    life: dict[str, Life] = {id: {} for id in run_ids}
    for event in await storage.get_events(run_ids, LIFE):
        life[event.instance_id][event.activity_id] = record_of(event)
    going = [row.instance_id for row in found if row.status not in TERMINAL]
    waits: dict[str, list[RegisteredWait]] = {id: [] for id in run_ids}
    for wait in await storage.get_waits(going):
        waits[wait.instance_id].append(wait)
    stuck = dict(zip(going, await storage.get_stuck(going), strict=True))
    now, served = _LONG_AGO, None
    if any(row.status in RESUMABLE for row in found):
        now = await storage.now()
        if any(unclaimed_for(row, now) >= UNSERVED for row in found):
            served = await served_names(storage)
    runs = []
    for row in found:
        id = row.instance_id
        more = (await state_of(storage, row), await _children(storage, row)) if whole else (None, None)
        runs.append(_run(row, life[id], waits[id], stuck.get(id), now, served, *more))
    return runs


async def _children(storage: Storage, run: WorkflowInstance) -> tuple[str, ...]:
    found: list[str] = []
    async for row in rows_of(storage, run):
        record = record_of(row)
        if isinstance(record, Completed) and ids.name_of(record.step) == ids.CHILD and not is_encoded(record.result):
            found.append(str(json.loads(record.result)))
    return tuple(found)


def _run(
    row: WorkflowInstance,
    life: Life,
    waits: Sequence[RegisteredWait],
    stuck: StuckInstance | None,
    now: datetime,
    served: Any,
    state: Any,
    started: tuple[str, ...] | None,
) -> RunInfo:
    ended = row.status in TERMINAL
    parent, deadline = life.get(ids.PARENT), life.get(ids.DEADLINE)
    leased = row.locked_by is not None and not is_backed_off(row.locked_by)
    why = None if ended else stuck_info(row, stuck, now, served)
    return RunInfo(
        id=row.instance_id,
        workflow=row.workflow_name,
        status=row.status,
        input=arguments_of(WORKFLOWS.get(row.workflow_name), row.input_data),
        result=result_of(WORKFLOWS.get(row.workflow_name), row.output_data),
        error=_error_of(row, life),
        state=state,
        started_at=row.started_at or _LONG_AGO,
        updated_at=row.updated_at or _LONG_AGO,
        finished_at=row.updated_at if ended else None,
        deadline=deadline.ends_at if isinstance(deadline, Deadline) else None,
        parent=parent.run_id if isinstance(parent, Parent) else None,
        children=started,
        previous=row.continued_from,
        waiting_for=_waiting(row.instance_id, waits),
        worker=worker_of(row.locked_by) if row.locked_by is not None and leased else None,
        lease_expires_at=row.lock_expires_at if leased else None,
        attempts=0 if ended else stuck.tries if stuck is not None else tries_of(row.locked_by),
        stuck=why,
        headers=headers.decode(row.headers),
    )


def _error_of(row: WorkflowInstance, life: Life) -> ErrorInfo | None:
    """Return the error with which a run ended or will end after its compensations; a cancellation takes precedence."""
    if row.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.COMPENSATING):
        return None
    cancelled, failed = life.get(ids.RUN_CANCELLED), life.get(ids.RUN_FAILED)
    if isinstance(cancelled, RunCancelled):
        return ErrorInfo(CANCELLED, shown(cancelled.reason))
    return error_of(failed.failure) if isinstance(failed, RunFailed) else None


def _waiting(id: str, waits: Sequence[RegisteredWait]) -> tuple[WaitInfo, ...]:
    """Return what a run waits for, each wait once: a wait for an event has two rows, one for events to this run."""
    found: dict[str, WaitInfo] = {}
    for wait in waits:
        step = ids.step_of(wait.activity_id)
        if wait.activity_id != ids.EXPIRED and step not in found:
            found[step] = wait_info(id, wait)
    return tuple(found[step] for step in sorted(found))


def wait_info(run_id: str, wait: RegisteredWait) -> WaitInfo:
    """Return the public view of a wait."""
    step = ids.step_of(wait.activity_id)
    if wait.activity_id == ids.BEGIN:
        return WaitInfo(WaitKind.START, "start", wait.until)
    if wait.channel is None:
        retry = ids.split_pause(wait.activity_id) is not None
        return WaitInfo(WaitKind.RETRY if retry else WaitKind.TIMER, step, wait.until)
    name = ids.name_of(step)
    if name.startswith(ids.CHILD_END):
        return WaitInfo(WaitKind.CHILD, name.removeprefix(ids.CHILD_END), wait.until)
    kind = WaitKind.EVENT if name == "wait_event" else WaitKind.CHANNEL
    return WaitInfo(kind, names.public(wait.channel.removesuffix(f":{run_id}")), wait.until)
