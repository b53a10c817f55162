"""The page of a run: what it does and why, its timeline, its values, and its relatives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from perdure.bulk import NAME as BULK
from perdure.bulk import progress_of
from perdure.dashboard.audit_page import actions_on
from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.dashboard.source import source_view
from perdure.dashboard.timeline import ROWS_MAX, Part, Phase, Row, Scale, folded, rows_of
from perdure.dashboard.values import parse, plain
from perdure.dashboard.workers import holder_of
from perdure.engine.api.history_rows import archived_rows
from perdure.engine.api.reading import read_runs
from perdure.engine.api.run_info import RunInfo, WaitKind
from perdure.engine.api.step_info import StepInfo, StepKind, StepStatus
from perdure.engine.api.step_reading import steps_of
from perdure.engine.execution.rows import read_pages
from perdure.engine.history import ids
from perdure.engine.history.records import (
    ATTEMPT_FAILED,
    STATE,
    Compensated,
    Completed,
    Failed,
    MessageReceived,
    Started,
    record_of,
)
from perdure.engine.starting import not_found
from perdure.http.api import run_id_of
from perdure.inspection import list_workers
from perdure.inspection.retries import tries_of
from perdure.model.records import HistoryEvent, HistoryEventType, RegisteredWait, WorkflowInstance
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage
from perdure.views.why import Activity, Details, explain

HISTORY_MAX = 20_000  # rows of a history that are read for a timeline
CHILD_HISTORY_MAX = 1_000
CHILDREN_MAX = 50
WAITED_FOR_MAX = 3  # children of which the first lines of the page say what they do
UNDONE = (HistoryEventType.COMPENSATION_EXECUTED, HistoryEventType.COMPENSATION_FAILED)
BUSY = (WorkflowStatus.RUNNING, WorkflowStatus.COMPENSATING)
PAGE = 100

NOTES = {
    "cancelled": "The run is being cancelled: completed steps are compensated first.",
    "retried": "This is the new run.",
    "sent": "The event is stored for the run.",
    "published": "The message is published on its channel.",
    "deleted": "The run is deleted.",
    "requeued": "The event will be published.",
    "bulk": "This run carries out the action, also if this page is closed. If the server stops, the next worker or "
    "dashboard resumes it.",
}


@dataclass(frozen=True, slots=True)
class History:
    """The rows of a history, as far as they were read."""

    rows: Sequence[HistoryEvent]
    more: bool
    steps: Sequence[StepInfo] = field(default=())
    waits: Sequence[RegisteredWait] = field(default=())


async def run(dashboard: Dashboard, visit: Visit) -> Page | Response:
    """Return the page of a run."""
    storage = dashboard.storage
    row = await _row(storage, visit)
    (info,) = await read_runs(storage, [row])
    history = await _history(storage, row, HISTORY_MAX)
    compensated = await _compensated_steps(storage, info.id, history)
    history = await _with_open_children(storage, _with_names(history, compensated))
    failed = _failed_step(info, history)
    why = explain(info, visit.now, await _details(dashboard, info, history, compensated, failed))
    timeline = await _timeline(dashboard, visit, info, history, why.activity)
    chosen = _chosen(dashboard, visit, timeline.rows, history)
    document = {
        "run": _run_document(dashboard, row, info),
        "why": {
            "activity": why.activity.value,
            "sentence": dashboard.redact(why.sentence, "error"),
            "advice": why.advice,
            "since": why.since,
            "until": why.until,
            "children": await _waited_for(dashboard, visit, info, history),
        },
        "input": dashboard.redact(parse(row.input_data), "input"),
        "result": dashboard.redact(parse(row.output_data), "result"),
        "state": dashboard.redact(_state(history), "state"),
        "failed_step": failed,
        "steps": [_step_document(each, dashboard) for each in timeline.shown if not each.members],
        "groups": [_group_document(each) for each in timeline.shown if each.members],
        "steps_in_all": len(timeline.rows),
        "history_more": history.more,
        "lineage": await _lineage(storage, row, info, timeline.rows),
        "step": chosen,
        "actions": await actions_on(dashboard, info.id),
        "source": source_view(
            row,
            history.steps,
            history.rows,
            history.waits,
            is_whole=not history.more,
            is_executed=why.activity is Activity.RUNNING,
            redact=dashboard.redact,
        ),
    }
    shown = {
        "info": info,
        "timeline": timeline,
        "note": NOTES.get(visit.value("note"), ""),
        "progress": progress_of(await dashboard.client.state(info.id)) if info.workflow == BULK else None,
        "called": {each["id"]: each["workflow"] for each in document["lineage"]["children"]},
        "event": await _missing(storage, info),
        "error_trace": dashboard.redact(info.error.traceback, "error") if info.error is not None else "",
        "link": _Links(visit),
        "ended": row.status in TERMINAL,
        "can_retry": row.status in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED),
        "is_left": any(each.kind == "compensation" and each.status == "failed" for each in timeline.rows),
        "is_delayed": any(each.kind is WaitKind.START for each in info.waiting_for),
        **_retries(row, history, failed),
    }
    last = history.rows[-1].id if history.rows else 0
    marker = [info.status.value, last, info.worker, info.attempts, info.stuck is not None, why.activity.value]
    acted = [each["id"] for each in document["actions"]]
    acted += [[each["id"], each["activity"]] for each in document["why"]["children"]]
    return Page("run.html", info.id, document, shown, [*marker, acted, plain(document["lineage"])])


async def _row(storage: Storage, visit: Visit) -> WorkflowInstance:
    id = run_id_of(visit.request)
    row = await storage.get_instance(id)
    if row is None:
        raise not_found(id)
    return row


async def _history(storage: Storage, row: WorkflowInstance, most: int) -> History:
    rows: list[HistoryEvent] = []
    more = False
    if row.status is WorkflowStatus.RECURRED:
        archived = await archived_rows(storage, row.instance_id)
        rows, more = archived[:most], len(archived) > most
    else:
        async for page in read_pages(storage, row.instance_id):
            rows += page
            if len(rows) >= most:
                more = True
                break
    is_ended = row.status in TERMINAL
    waits = [] if is_ended else await storage.get_waits([row.instance_id])
    return History(rows, more, steps_of(row.instance_id, rows, waits, is_ended=is_ended and not more), waits)


async def _with_open_children(storage: Storage, history: History) -> History:
    """Return the history with the workflow and the state of each child that has not ended; its rows have neither."""
    unnamed = (each.child for each in history.steps if each.child is not None and each.name == ids.CHILD)
    asked = list(islice(unnamed, CHILDREN_MAX))
    if not asked:
        return history
    children = {each.instance_id: each for each in await storage.get_instances(asked) if each is not None}

    def described(step: StepInfo) -> StepInfo:
        child = children.get(step.child or "")
        if child is None:
            return step
        is_waiting = step.status is StepStatus.RUNNING and child.status not in BUSY
        return replace(step, name=child.workflow_name, status=StepStatus.WAITING if is_waiting else step.status)

    return replace(history, steps=[described(each) for each in history.steps])


async def _compensated_steps(storage: Storage, id: str, history: History) -> dict[str, tuple[str, str]]:
    """Return, by the ids of compensations, the steps that they undo and the names of their activities."""
    records = (record_of(row) for row in history.rows if row.event_type in UNDONE)
    found = {each.row_id: (each.step, each.activity) for each in records if isinstance(each, Compensated)}
    unnamed = {each.id for each in history.steps if each.kind is StepKind.COMPENSATION} - found.keys()
    if unnamed:  # a failed attempt that is to be repeated has only the id of the stored compensation
        for entry in await storage.get_compensations(id):
            if ids.undo_of(entry.id) in unnamed:
                found[ids.undo_of(entry.id)] = entry.activity_id, entry.activity_name
    return found


def _with_names(history: History, compensated: Mapping[str, tuple[str, str]]) -> History:
    """Return the history with the names of compensations that failed, of which only the last row has one."""

    def named(step: StepInfo) -> StepInfo:
        _, name = compensated.get(step.id, ("", step.name))
        return step if step.name == name else replace(step, name=name)

    return replace(history, steps=[named(each) for each in history.steps]) if compensated else history


async def _details(
    dashboard: Dashboard,
    info: RunInfo,
    history: History,
    compensated: Mapping[str, tuple[str, str]],
    failed_step: str | None,
) -> Details:
    """Return what the first line of the page says besides the state of the run."""
    retried, not_undone, undoing = {}, {}, {}
    for step in history.steps:
        if step.error is None or step.status not in (StepStatus.RETRYING, StepStatus.FAILED):
            continue
        if step.kind is not StepKind.COMPENSATION:
            retried[step.id] = step.error
        elif step.status is StepStatus.FAILED:
            not_undone[compensated.get(step.id, (step.id, ""))[0]] = step.error
        else:
            undoing[compensated.get(step.id, (step.id, ""))[0]] = step.error
    workers = await list_workers(dashboard.client) if info.worker is not None else ()
    holder = holder_of(info, workers)
    doing = failed_step or _open_step(history)
    return replace(holder, step=doing, retried=retried, not_undone=not_undone, undoing=undoing)


async def _waited_for(dashboard: Dashboard, visit: Visit, info: RunInfo, history: History) -> list[dict[str, Any]]:
    """Return some of the children that a run waits for, and what each of them does."""
    if not any(each.kind is WaitKind.CHILD for each in info.waiting_for):
        return []
    open_steps = (each for each in history.steps if each.status in (StepStatus.RUNNING, StepStatus.WAITING))
    asked = list(islice((each.child for each in open_steps if each.child is not None), WAITED_FOR_MAX))
    rows = [each for each in await dashboard.storage.get_instances(asked) if each is not None] if asked else []
    found = []
    for child in await read_runs(dashboard.storage, rows):
        why = explain(child, visit.now)
        sentence = dashboard.redact(why.sentence, "error")
        found.append({"id": child.id, "activity": why.activity.value, "sentence": sentence})
    return found


def _retries(row: WorkflowInstance, history: History, failed_step: str | None) -> dict[str, Any]:
    """Return which steps a retry may begin with, why with none after these, and which it is to begin with."""
    if row.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED):
        return {"retry_steps": [], "no_later_retry": "", "retry_step": None}
    steps, reason = _retry_steps(history)
    last = failed_step if failed_step in steps else steps[-1] if steps and failed_step is not None else None
    first = steps[0] if steps else None  # with which a retry begins also without a step
    return {"retry_steps": steps, "no_later_retry": reason, "retry_step": None if last == first else last}


def _retry_steps(history: History) -> tuple[list[str], str]:
    """Return the steps that a retry may begin with, in the order of their first rows, and why with none after these."""
    records = (record_of(row) for row in history.rows if row.event_type in UNDONE)
    undone = {each.step: each.failure is None for each in records if isinstance(each, Compensated)}
    found: dict[str, None] = {}
    for row in history.rows:
        is_attempt = row.event_type == ATTEMPT_FAILED
        step = ids.split_attempt(row.activity_id)[0] if is_attempt else ids.step_of(row.activity_id)
        if step.startswith(ids.OWN) or not ids.name_of(step):
            continue
        found[step] = None
        reason = _NOT_KEPT.get(ids.name_of(step))
        if step in undone:
            reason = "was compensated" if undone[step] else "was to be compensated"
        if reason is not None:
            return list(found), f"{step} comes before it and {reason}, so a new run must execute {step} itself"
    return list(found), ""


_NOT_KEPT = {"subscribe": "subscribed to a channel", ids.CHILD: "started a child"}


async def _missing(storage: Storage, info: RunInfo) -> dict[str, str]:
    """Return what the form for sending proposes: the first event or message that the run waits for."""
    for wait in info.waiting_for:
        if wait.kind is WaitKind.EVENT:
            return {"kind": "event", "name": wait.name}
        if wait.kind is WaitKind.CHANNEL:
            direct = await storage.get_channel_subscription(info.id, f"{wait.name}:{info.id}")
            return {"kind": "channel" if direct is None else "direct", "name": wait.name}
    return {"kind": "event", "name": ""}


def _failed_step(info: RunInfo, history: History) -> str | None:
    if info.status not in (WorkflowStatus.FAILED, WorkflowStatus.COMPENSATING):
        return None
    for row in reversed(history.rows):
        record = record_of(row)
        if isinstance(record, Failed) and not record.step.startswith("~"):
            return record.step
    return None


def _open_step(history: History) -> str | None:
    open_steps = [each.id for each in history.steps if each.status in (StepStatus.RUNNING, StepStatus.RETRYING)]
    return open_steps[-1] if open_steps else None


def _state(history: History) -> Any:
    for row in reversed(history.rows):
        if row.event_type == STATE:
            found = parse(row.event_data)
            return found.get("state") if isinstance(found, dict) else None
    return None


# The timeline.


@dataclass(frozen=True, slots=True)
class Timeline:
    """The rows of a timeline, those that are shown of them, and the scale."""

    rows: Sequence[Row]
    shown: Sequence[Row]
    scale: Scale
    first: int
    in_all: int
    longest: timedelta


async def _timeline(
    dashboard: Dashboard, visit: Visit, info: RunInfo, history: History, activity: Activity
) -> Timeline:
    until = info.finished_at or visit.now
    rows = rows_of(history.steps, history.rows, info.started_at, until)
    current = _current(info, rows, activity, until)
    opened = visit.request.query_params.getlist("open")
    shown = [*folded(rows, set(opened)), *current]
    shown = await _with_children(dashboard.storage, shown, set(opened), visit.now)
    first = min(visit.number("from"), max(len(shown) - 1, 0))
    scale = Scale([*rows, *current], info.started_at, max([until, *(row.end for row in rows)]))
    longest = max((row.duration for row in shown if row.kind != "value" and not row.inside), default=timedelta(0))
    return Timeline(rows, shown[first : first + ROWS_MAX], scale, first, len(shown), longest)


def _current(info: RunInfo, rows: Sequence[Row], activity: Activity, until: datetime) -> list[Row]:
    """Return a row for what no step of the history says: that a worker executes the run, or that it waits for one."""
    last = max([info.started_at, *(row.end for row in rows if row.status in ("completed", "failed"))])
    since = min(max(info.updated_at, last), until)
    if activity in (Activity.QUEUED, Activity.STUCK):
        name = "waits for a worker" if activity is Activity.QUEUED else "stuck"
        return [Row("now", name, "now", activity.value, (Part(Phase.QUEUE, since, until),))]
    if activity is Activity.RUNNING and info.status is WorkflowStatus.COMPENSATING:
        return [Row("now", f"worker {info.worker}", "now", "compensating", (Part(Phase.UNDO, last, until),))]
    if activity is Activity.RUNNING and not any(row.status in ("running", "retrying") for row in rows):
        return [Row("now", f"worker {info.worker}", "now", "running", (Part(Phase.RUN, last, until),))]
    return []


async def _with_children(storage: Storage, rows: list[Row], opened: set[str], now: datetime) -> list[Row]:
    """Return the rows, with those of each opened child below its own, and those of its opened children."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        if row.child is None or row.child not in opened or len(found) > ROWS_MAX:
            continue
        child = await storage.get_instance(row.child)
        if child is None or child.started_at is None:
            continue
        history = await _history(storage, child, CHILD_HISTORY_MAX)
        until = (child.updated_at or now) if child.status in TERMINAL else now
        inner = folded(rows_of(history.steps, history.rows, child.started_at, until), ())
        asked = [each.child for each in inner if each.child is not None][:CHILDREN_MAX]
        children = await storage.get_instances(asked) if asked else []
        called = {each.instance_id: each.workflow_name for each in children if each is not None}
        below = [
            replace(
                each,
                name=called.get(each.child or "", each.name),
                run=row.child,
                depth=row.depth + 1 + each.depth,
                inside=True,
            )
            for each in inner
        ]
        found += await _with_children(storage, below, opened - {row.child}, now)
    return found


class _Links:
    """Links to the same page with other parameters."""

    def __init__(self, visit: Visit) -> None:
        kept = ("open", "step", "from")
        self._given = [(key, value) for key, value in visit.request.query_params.multi_items() if key in kept]
        self.opened = {value for key, value in self._given if key == "open"}

    def to_step(self, id: str) -> str:
        """Return the link that shows the values of a step."""
        return self._link([*(each for each in self._given if each[0] != "step"), ("step", id)]) + "#step"

    def to_rows(self, first: int) -> str:
        """Return the link to other rows of the timeline."""
        return self._link([*(each for each in self._given if each[0] not in ("from", "step")), ("from", str(first))])

    def toggle(self, id: str) -> str:
        """Return the link that opens or closes a group or a child."""
        rest = [each for each in self._given if each != ("open", id) and each[0] != "from"]
        return self._link(rest if id in self.opened else [*rest, ("open", id)]) + "#timeline"

    def _link(self, pairs: list[tuple[str, str]]) -> str:
        return "?" + urlencode(pairs)


# Values.


def _run_document(dashboard: Dashboard, row: WorkflowInstance, info: RunInfo) -> dict[str, Any]:
    error = info.error
    return {
        "id": info.id,
        "workflow": info.workflow,
        "status": info.status.value,
        "started_at": info.started_at,
        "updated_at": info.updated_at,
        "finished_at": info.finished_at,
        "deadline": info.deadline,
        "headers": dashboard.redact(dict(info.headers), "headers"),
        "worker": info.worker,
        "lease_expires_at": info.lease_expires_at,
        "attempts": info.attempts,
        "source_hash": row.source_hash,
        "error": None if error is None else {"type": error.type, "message": dashboard.redact(error.message, "error")},
        "waiting_for": [{"kind": each.kind.value, "name": each.name, "until": each.until} for each in info.waiting_for],
    }


def _step_document(row: Row, dashboard: Dashboard) -> dict[str, Any]:
    return {
        "id": f"{row.run}/{row.id}" if row.run else row.id,
        "name": row.name,
        "kind": row.kind,
        "status": row.status,
        "attempts": row.attempts,
        "begin": row.begin,
        "begin_is_recorded": row.exact,
        "end": row.end if row.status in ("completed", "failed") else None,
        "child": row.child,
        "error": dashboard.redact(row.error, "error") or None,
    }


def _group_document(row: Row) -> dict[str, Any]:
    """Return several equal steps that the timeline folds into one row."""
    return {"id": row.id, "name": row.name, "kind": row.kind, "steps": row.members, "by_status": row.counts}


def _chosen(dashboard: Dashboard, visit: Visit, rows: Sequence[Row], history: History) -> dict[str, Any] | None:
    """Return the values of the step that the URL names."""
    id = visit.value("step")
    row = next((each for each in rows if each.id == id), None)
    if row is None or row.step is None:
        return None
    where, given, result = f"step {row.name}", None, None
    for event in history.rows:
        record = record_of(event)
        if isinstance(record, Started) and record.step == id:
            given = parse(record.arguments)
        elif isinstance(record, Completed) and record.step == id:
            result = parse(record.result)
        elif isinstance(record, MessageReceived) and record.step == id:
            envelope = parse(event.event_data)
            result = envelope.get("data") if isinstance(envelope, dict) else record.binary
    error = row.step.error
    return {
        **_step_document(row, dashboard),
        "input": dashboard.redact(given, where),
        "has_result": row.status == "completed",
        "result": dashboard.redact(result, where),
        "traceback": dashboard.redact(error.traceback, "error") if error is not None else "",
    }


# Relatives.


async def _lineage(storage: Storage, row: WorkflowInstance, info: RunInfo, rows: Sequence[Row]) -> dict[str, Any]:
    tries = {each.instance_id: each for each in await tries_of(storage, info.id)}
    last = next(reversed(tries), info.id)
    children = [each.child for each in rows if each.child is not None]
    following = _following(info.id) if info.status is WorkflowStatus.RECURRED else ()
    others = [each for each in (info.parent, info.previous, *following) if each is not None]
    asked = list(dict.fromkeys([*others, *children[:CHILDREN_MAX]]))
    found = tries | {each.instance_id: each for each in await storage.get_instances(asked) if each is not None}

    def entry(id: str | None) -> dict[str, str] | None:
        if id is None or id not in found:
            return None
        return {"id": id, "workflow": found[id].workflow_name, "status": found[id].status.value}

    return {
        "parent": entry(info.parent),
        "previous": entry(info.previous),
        "continued_by": next((each for id in following if (each := entry(id)) is not None), None),
        "retries": [each for id in tries if id != info.id and (each := entry(id)) is not None],
        "last_retry": entry(last) if last != info.id else None,
        "children": [each for id in children[:CHILDREN_MAX] if (each := entry(id)) is not None],
        "children_in_all": len(children),
    }


def _following(id: str) -> tuple[str, ...]:
    """Return the ids that the execution after an earlier one may have: the next number, or that of the run itself."""
    own, _, number = id.rpartition("~")
    return (f"{own}~{int(number) + 1}", own) if number.isdecimal() else ()


# The history as it is stored.


async def history(dashboard: Dashboard, visit: Visit) -> Page:
    """Return a page of the history of a run, as it is recorded."""
    row = await _row(dashboard.storage, visit)
    after = visit.number("after", 2**62)
    if row.status is WorkflowStatus.RECURRED:
        rows = await archived_rows(dashboard.storage, row.instance_id)
        rest = [each for each in rows if (each.id or 0) > after]
        found, more = rest[:PAGE], len(rest) > PAGE
    else:
        found, more = await dashboard.storage.get_history_paginated(row.instance_id, after, PAGE)
    entries = [
        {
            "id": each.id,
            "step": each.activity_id,
            "kind": str(each.event_type),
            "at": each.created_at,
            "data": dashboard.redact(
                parse(each.event_data) if each.data_type != "binary" else each.event_data_binary, "history"
            ),
        }
        for each in found
    ]
    document = {"id": row.instance_id, "entries": entries, "next_after": found[-1].id if more else None}
    return Page("history.html", f"History of {row.instance_id}", document)
