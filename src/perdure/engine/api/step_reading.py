"""Reading steps: convert the history of a run to `StepInfo` and `HistoryEntry`."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from perdure.engine.api.history_rows import rows_of
from perdure.engine.api.reading import wait_info
from perdure.engine.api.run_info import ErrorInfo, WaitKind
from perdure.engine.api.step_info import HistoryEntry, StepInfo, StepKind, StepStatus
from perdure.engine.api.values import CANCELLED, arguments_of, error_of, result_of
from perdure.engine.history import ids
from perdure.engine.history.records import (
    AttemptFailed,
    Compensated,
    Completed,
    Failed,
    ForeignRecord,
    MessageReceived,
    Record,
    Started,
    Taken,
    TimerFired,
    WaitTimedOut,
    hidden_in,
    record_of,
)
from perdure.engine.replay.definitions import ACTIVITIES, COMPENSATIONS, WORKFLOWS
from perdure.model.envelopes import Unreadable, unreadable
from perdure.model.records import HistoryEvent, HistoryEventType, RegisteredWait, WorkflowInstance
from perdure.model.states import TERMINAL
from perdure.storage.contract import Storage

PAGE = 1000
_EFFECTS = {
    **dict.fromkeys(("publish", "send_to", "send_event", "send_to_group"), StepKind.SEND),
    **dict.fromkeys(("subscribe", "unsubscribe"), StepKind.SUBSCRIPTION),
    **dict.fromkeys(("join_group", "leave_group"), StepKind.GROUP),
    "start": StepKind.START,
    "cancel": StepKind.CANCEL,
    "child": StepKind.CHILD,
}
_UNFINISHED = (StepStatus.RUNNING, StepStatus.RETRYING, StepStatus.WAITING)
_WAITS = {"wait_event": StepKind.EVENT, "receive": StepKind.CHANNEL, "timer": StepKind.TIMER}


async def read_history(storage: Storage, run: WorkflowInstance) -> AsyncIterator[HistoryEntry]:
    """Yield the entries of a run's history, oldest first."""
    async for row in rows_of(storage, run):
        yield _entry(row)


async def read_history_page(
    storage: Storage, id: str, after_id: int, limit: int | None = None
) -> tuple[list[HistoryEntry], bool]:
    """Return the next entries of a run's history after an entry, and whether there are more."""
    rows, more = await storage.get_history_paginated(id, after_id, limit or PAGE)
    return [_entry(row) for row in rows], more


def _entry(row: HistoryEvent) -> HistoryEntry:
    data = row.event_data_binary if row.data_type == "binary" else json.loads(row.event_data or b"null")
    if (hidden := unreadable(row.event_data) or hidden_in(row)) is not None:
        data = hidden
    return HistoryEntry(row.id, row.activity_id, str(row.event_type), row.created_at, data)


async def read_steps(storage: Storage, run: WorkflowInstance) -> list[StepInfo]:
    """Return the steps of a run: first those that have ended, in the order of their ends."""
    steps = _Steps(run.status in TERMINAL)
    async for row in rows_of(storage, run):
        steps.add(_shown(row), row.created_at)
    await steps.add_children(storage)
    await steps.name_compensations(storage, run.instance_id)
    for wait in await storage.get_waits([run.instance_id]):
        steps.add_wait(run.instance_id, wait)
    return steps.found()


def steps_of(
    id: str, rows: Iterable[HistoryEvent], waits: Iterable[RegisteredWait], *, is_ended: bool
) -> list[StepInfo]:
    """Return the steps of a history that was read before; of a child only what the history of its parent says."""
    steps = _Steps(is_ended)
    for row in rows:
        steps.add(_shown(row), row.created_at)
    for wait in waits:
        steps.add_wait(id, wait)
    return steps.found()


def _shown(row: HistoryEvent) -> Record:
    """Return what a row records; the data of a message that cannot be decoded here is an `Unreadable`."""
    record = record_of(row)
    if isinstance(record, MessageReceived) and (hidden := hidden_in(row)) is not None:
        return replace(record, envelope={**(record.envelope or {}), "data": hidden})
    return record


class _Steps:
    """Builds the steps of a run from the rows of its history. `is_ended` says whether the run has ended."""

    def __init__(self, is_ended: bool) -> None:
        self._is_ended = is_ended
        self._known: dict[str, dict[str, Any]] = {}
        self._children: dict[str, str] = {}  # by the ids of children, the steps that started them
        self._ends: dict[str | None, str] = {}  # by the paths in the end channels of children, the same steps

    def found(self) -> list[StepInfo]:
        if self._is_ended:
            for fields in self._known.values():
                if fields["status"] in _UNFINISHED:
                    fields["status"] = StepStatus.CANCELLED
        return [StepInfo(**fields) for fields in self._known.values()]

    def add(self, record: Record, at: datetime | None) -> None:
        """Add what a row records, stored at this time."""
        match record:
            case Taken():
                self._add_values(record, at)
            case Started(step, arguments):
                self._step(step, StepKind.ACTIVITY).update(
                    input=arguments_of(_activity(ids.name_of(step)), arguments), started_at=at
                )
            case AttemptFailed(step, _, failure):
                found = self._step(step, StepKind.ACTIVITY)
                found.update(status=StepStatus.RETRYING, error=error_of(failure), attempts=found["attempts"] + 1)
            case Compensated(_, activity, _, failure):
                undone = self._step(record.row_id, StepKind.COMPENSATION, activity)
                undone["name"] = activity  # a failed attempt before it has only the id of the compensation
                self._end(undone, at, None, failure)
            case MessageReceived(step):
                self._add_message(step, record, at)
            case WaitTimedOut(step, _, _, failure):
                self._end(self._step(step), at, None, failure)
            case TimerFired(step) if not step.startswith(ids.OWN):
                self._end(self._step(step), at, None)
            case ForeignRecord(row) if row.event_type == HistoryEventType.COMPENSATION_FAILED:
                self._end(self._step(row.activity_id), at, None, json.loads(row.event_data or b"{}"))
            case Completed(step, result) if _is_step(step):
                self._complete(self._step(step), result, at)
            case Failed(step, failure) if _is_step(step):
                self._end(self._step(step), at, None, failure)

    def _add_values(self, taken: Taken, at: datetime | None) -> None:
        """Add the values of a row, which the body took between two steps."""
        for path, value in taken.values.items():
            step = self._step(path, StepKind.VALUE, path if path.startswith("patch:") else "value")
            step.update(status=StepStatus.COMPLETED, result=value, finished_at=at)

    def _add_message(self, id: str, record: MessageReceived, at: datetime | None) -> None:
        name = ids.name_of(id)
        if not name.startswith(ids.CHILD_END):
            self._end(self._step(id), at, record.message("").data)
            return
        started = self._ends.get(ids.path_of_end(record.channel or ""))
        if started is not None and record.envelope is not None:
            workflow = name.removeprefix(ids.CHILD_END)
            end = record.envelope["data"]
            if isinstance(end, Unreadable):
                self._end(self._known[started], at, end)
            else:
                self._end_child(self._known[started], workflow, end, at)

    def _end_child(self, step: dict[str, Any], workflow: str, end: Mapping[str, Any], at: datetime | None) -> None:
        step.update(name=workflow, finished_at=at, status=StepStatus.FAILED)
        if end["status"] == "completed":
            data = json.dumps(end["output"]).encode()
            step.update(status=StepStatus.COMPLETED, result=result_of(WORKFLOWS.get(workflow), data))
        elif end["status"] == "cancelled":
            step["error"] = ErrorInfo(CANCELLED, end["reason"])
        else:
            step["error"] = error_of(end["failure"])

    def _step(self, id: str, kind: StepKind | None = None, name: str | None = None) -> dict[str, Any]:
        if id not in self._known:
            name = name or ids.name_of(id.removeprefix(ids.UNDO)) or id.removeprefix(ids.OWN)
            if id.startswith(ids.UNDO):
                kind = StepKind.COMPENSATION
            elif id == ids.HANDLED:
                kind = StepKind.FAILURE_HANDLER
            kind = kind or _WAITS.get(name) or (_EFFECTS.get(name) if name not in ACTIVITIES else None)
            self._known[id] = {"id": id, "name": name, "kind": kind or StepKind.ACTIVITY, "attempts": 1}
            self._known[id]["status"] = StepStatus.RUNNING
        return self._known[id]

    def _complete(self, step: dict[str, Any], result: bytes, at: datetime | None) -> None:
        """Add the result of a step; for the start of a child, that is only the beginning of the step."""
        hidden = unreadable(result)
        if step["kind"] is StepKind.CHILD:
            step.update(status=StepStatus.RUNNING, started_at=at, finished_at=None, error=None)
            if hidden is None:
                step["child"] = child = str(json.loads(result))
                self._children[child] = step["id"]
            self._ends[ids.path_of(step["id"])] = step["id"]
            self._known[step["id"]] = self._known.pop(step["id"])
        elif hidden is not None:
            self._end(step, at, hidden)
        elif step["kind"] is StepKind.ACTIVITY:
            self._end(step, at, result_of(_activity(step["name"]), result))
        else:
            self._end(step, at, json.loads(result))

    def _end(
        self, step: dict[str, Any], at: datetime | None, result: Any, failure: Mapping[str, Any] | None = None
    ) -> None:
        """Add the outcome of a step, and keep the steps in the order of their ends."""
        if failure is None:
            step.update(status=StepStatus.COMPLETED, finished_at=at, error=None, result=result)
        else:
            step.update(status=StepStatus.FAILED, finished_at=at, error=error_of(failure))
        self._known[step["id"]] = self._known.pop(step["id"])

    async def name_compensations(self, storage: Storage, id: str) -> None:
        """Name compensations without an outcome by what they undo, unless retention has deleted that."""
        unnamed = {
            key: fields
            for key, fields in self._known.items()
            if fields["kind"] is StepKind.COMPENSATION and fields["status"] is StepStatus.RETRYING
        }
        if unnamed:
            for entry in await storage.get_compensations(id):
                if (fields := unnamed.get(ids.undo_of(entry.id))) is not None:
                    fields["name"] = entry.activity_name

    async def add_children(self, storage: Storage) -> None:
        """Add workflow, input and start of children from their own rows, unless retention has deleted them."""
        children = list(self._children)
        for first in range(0, len(children), PAGE):
            for row in await storage.get_instances(children[first : first + PAGE]):
                if row is not None:
                    step = self._known[self._children[row.instance_id]]
                    given = arguments_of(WORKFLOWS.get(row.workflow_name), row.input_data)
                    step.update(name=row.workflow_name, input=given, started_at=row.started_at)

    def add_wait(self, run: str, wait: RegisteredWait) -> None:
        """Add a step that the run waits for; the wait for the next attempt of an activity changes nothing."""
        id, about = ids.step_of(wait.activity_id), wait_info(run, wait)
        if about.kind in (WaitKind.TIMER, WaitKind.EVENT, WaitKind.CHANNEL) and not id.startswith(ids.OWN):
            self._step(id)["status"] = StepStatus.WAITING


def _activity(name: str) -> Any:
    return ACTIVITIES.get(name) or COMPENSATIONS.get(name)


def is_call(name: str) -> bool:
    """Return whether steps of this name are calls of the engine, such as `publish()`, and not activities."""
    return name in _EFFECTS and name not in ACTIVITIES


def _is_step(id: str) -> bool:
    return id == ids.HANDLED or (not id.startswith(ids.OWN) and ":" in id)
