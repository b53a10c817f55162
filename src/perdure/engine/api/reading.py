"""Reading runs: convert storage rows to the public classes, with a fixed number of statements per page."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from perdure.engine.api.run_info import ErrorInfo, RunInfo, WaitInfo, WaitKind
from perdure.engine.api.step_info import HistoryEntry, StepInfo, StepKind, StepStatus
from perdure.engine.execution import children
from perdure.engine.execution.driven import rows
from perdure.engine.execution.endings import FAILED_ID
from perdure.engine.execution.rollback import HANDLED
from perdure.engine.execution.waits import EXPIRED
from perdure.engine.history.codec import decode
from perdure.engine.replay.body import ATTEMPT_FAILED, OWN, STARTED, STATE, VALUES
from perdure.engine.replay.definitions import ACTIVITIES, COMPENSATIONS, WORKFLOWS
from perdure.engine.replay.steps import message_of
from perdure.engine.starting import BEGIN, DEADLINE
from perdure.engine.worker.stuck import UNSERVED, is_backed_off, served_names, stuck_info, tries_of, unclaimed_for
from perdure.errors import EngineError, SerializationError
from perdure.model import names
from perdure.model.records import HistoryEvent, HistoryEventType, RegisteredWait, StuckInstance, WorkflowInstance
from perdure.model.states import RESUMABLE, TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.instances import CANCELLED_ACTIVITY

PAGE = 1000
CANCELLED = "perdure.errors.WorkflowCancelledError"
LIFE = (children.PARENT, DEADLINE, FAILED_ID, CANCELLED_ACTIVITY)  # rows about the run as a whole
UNDO = "~undo:"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


# Runs.


async def read_runs(storage: Storage, found: Sequence[WorkflowInstance], *, whole: bool = False) -> list[RunInfo]:
    """Return the public view of at most a page of runs; with `whole`, also their states and children."""
    ids = [row.instance_id for row in found]
    life: dict[str, dict[str, HistoryEvent]] = {id: {} for id in ids}
    for event in await storage.get_events(ids, LIFE):
        life[event.instance_id][event.activity_id] = event
    going = [row.instance_id for row in found if row.status not in TERMINAL]
    waits: dict[str, list[RegisteredWait]] = {id: [] for id in ids}
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
        more = await _read_whole(storage, id) if whole else (None, None)
        runs.append(_run(row, life[id], waits[id], stuck.get(id), now, served, *more))
    return runs


async def _read_whole(storage: Storage, id: str) -> tuple[Any, tuple[str, ...]]:
    """Return the state and the children of a run, which need a read of its whole history."""
    state = await storage.get_last_event(id, STATE)
    started = [_json(event) async for event in rows(storage, id) if _is_child(event)]
    return None if state is None else _json(state)["state"], tuple(map(str, started))


def _run(
    row: WorkflowInstance,
    life: Mapping[str, HistoryEvent],
    waits: Sequence[RegisteredWait],
    stuck: StuckInstance | None,
    now: datetime,
    served: Any,
    state: Any,
    started: tuple[str, ...] | None,
) -> RunInfo:
    ended = row.status in TERMINAL
    parent = _json(life[children.PARENT]).get("instance_id") if children.PARENT in life else None
    leased = row.locked_by is not None and not is_backed_off(row.locked_by)
    why = None if ended else stuck_info(row, stuck, now, served)
    return RunInfo(
        id=row.instance_id,
        workflow=row.workflow_name,
        status=row.status,
        input=_arguments(WORKFLOWS.get(row.workflow_name), row.input_data),
        result=_result(WORKFLOWS.get(row.workflow_name), row.output_data),
        error=_error_of(row, life),
        state=state,
        started_at=row.started_at or _LONG_AGO,
        updated_at=row.updated_at or _LONG_AGO,
        finished_at=row.updated_at if ended else None,
        deadline=_deadline(life.get(DEADLINE)),
        parent=parent,
        children=started,
        previous=row.continued_from,
        waiting_for=_waiting(row.instance_id, waits),
        worker=(row.locked_by or "").partition("#")[0] if leased else None,
        lease_expires_at=row.lock_expires_at if leased else None,
        attempts=0 if ended else stuck.tries if stuck is not None else tries_of(row.locked_by),
        stuck=why,
    )


def _error_of(row: WorkflowInstance, life: Mapping[str, HistoryEvent]) -> ErrorInfo | None:
    """Return the error with which a run ended or will end after its compensations; a cancellation takes precedence."""
    if row.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.COMPENSATING):
        return None
    if CANCELLED_ACTIVITY in life:
        return ErrorInfo(CANCELLED, str(_json(life[CANCELLED_ACTIVITY]).get("reason") or ""))
    return _failure(_json(life[FAILED_ID])) if FAILED_ID in life else None


def _failure(data: Any) -> ErrorInfo:
    fields = data if isinstance(data, dict) else {}
    found = (str(fields.get(key) or "") for key in ("error_type", "error_message", "stack_trace"))
    return ErrorInfo(*found)


def _deadline(event: HistoryEvent | None) -> datetime | None:
    if event is None or event.created_at is None:
        return None
    return event.created_at + timedelta(seconds=_json(event)["timeout_sec"])


def _waiting(id: str, waits: Sequence[RegisteredWait]) -> tuple[WaitInfo, ...]:
    """Return what a run waits for, each wait once: a wait for an event has two rows, one for events to this run."""
    found: dict[str, WaitInfo] = {}
    for wait in waits:
        step = _step_of(wait.activity_id)
        if wait.activity_id != EXPIRED and step not in found:
            found[step] = _wait(id, step, wait)
    return tuple(found[step] for step in sorted(found))


def _wait(id: str, step: str, wait: RegisteredWait) -> WaitInfo:
    if wait.activity_id == BEGIN:
        return WaitInfo(WaitKind.START, "start", wait.until)
    if wait.channel is None:
        return WaitInfo(WaitKind.RETRY if wait.activity_id.endswith("~") else WaitKind.TIMER, step, wait.until)
    name = step.partition(":")[2]
    if name.startswith("end."):
        return WaitInfo(WaitKind.CHILD, name.removeprefix("end."), wait.until)
    kind = WaitKind.EVENT if name == "wait_event" else WaitKind.CHANNEL
    return WaitInfo(kind, names.public(wait.channel.removesuffix(f":{id}")), wait.until)


# Values.


def _json(event: HistoryEvent) -> Any:
    return json.loads(event.event_data or b"null")


def _arguments(defined: Any, data: bytes | None) -> dict[str, Any]:
    """Return the arguments of a call by name, decoded by the hints as far as they match."""
    try:
        texts = msgspec.json.decode(data or b"{}", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}
    hints: Mapping[str, Any] = {} if defined is None else defined.signature.hints
    return {name: _value(bytes(text), hints.get(name, Any)) for name, text in texts.items()}


def _result(defined: Any, data: bytes | None) -> Any:
    if data is None:
        return None
    return _value(data, Any if defined is None else defined.signature.hints.get("return", Any))


def _value(data: bytes, hint: Any) -> Any:
    try:
        return decode(data, hint)
    except SerializationError:  # of another version of the code
        return json.loads(data)


# History.


async def read_history(storage: Storage, id: str) -> AsyncIterator[HistoryEntry]:
    """Yield the entries of a run's history, oldest first."""
    async for event in rows(storage, id):
        data = event.event_data_binary if event.data_type == "binary" else _json(event)
        yield HistoryEntry(event.id, event.activity_id, str(event.event_type), event.created_at, data)


# Steps.

_EFFECTS = {
    **dict.fromkeys(("publish", "send_to", "send_event", "send_to_group"), StepKind.SEND),
    **dict.fromkeys(("subscribe", "unsubscribe"), StepKind.SUBSCRIPTION),
    **dict.fromkeys(("join_group", "leave_group"), StepKind.GROUP),
    "start": StepKind.START,
    "cancel": StepKind.CANCEL,
    "child": StepKind.CHILD,
}
_WAITS = {"wait_event": StepKind.EVENT, "receive": StepKind.CHANNEL, "timer": StepKind.TIMER}
_DONE, _FAILED = HistoryEventType.ACTIVITY_COMPLETED, HistoryEventType.ACTIVITY_FAILED
_MESSAGE, _TIMEOUT = HistoryEventType.CHANNEL_MESSAGE_RECEIVED, HistoryEventType.MESSAGE_TIMEOUT
_UNDONE, _NOT_UNDONE = HistoryEventType.COMPENSATION_EXECUTED, HistoryEventType.COMPENSATION_FAILED


async def read_steps(storage: Storage, id: str) -> list[StepInfo]:
    """Return the steps of a run: first those that have ended, in the order of their ends."""
    steps = _Steps()
    async for event in rows(storage, id):
        steps.add(event)
    await steps.add_children(storage)
    for wait in await storage.get_waits([id]):
        steps.add_wait(id, wait)
    return steps.found()


class _Steps:
    """Builds the steps of a run from the rows of its history."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        self._children: dict[str, str] = {}  # by the ids of children, the steps that started them
        self._ends: dict[str, str] = {}  # by the paths in the end channels of children, the same steps

    def found(self) -> list[StepInfo]:
        return [StepInfo(**fields) for fields in self._known.values()]

    def add(self, event: HistoryEvent) -> None:
        id, kind = event.activity_id, event.event_type
        if kind in (VALUES, STATE):
            self._add_values(event)
        elif kind == STARTED:
            step = self._step(id.removesuffix("!"), StepKind.ACTIVITY)
            given = _arguments(_activity(step["name"]), event.event_data)
            step.update(input=given, started_at=event.created_at)
        elif kind == ATTEMPT_FAILED:
            step = self._step(id.rpartition("#")[0], StepKind.ACTIVITY)
            step.update(status=StepStatus.RETRYING, error=_failure(_json(event)), attempts=step["attempts"] + 1)
        elif kind in (_UNDONE, _NOT_UNDONE):
            self._end(self._step(id, StepKind.COMPENSATION, _json(event).get("activity_name")), event)
        elif id == HANDLED:
            self._end(self._step(id, StepKind.FAILURE_HANDLER), event)
        elif kind in (_MESSAGE, _TIMEOUT, HistoryEventType.EVENT_RECEIVED):
            self._add_message(_step_of(id), event)
        elif not id.startswith(OWN) and ":" in id:
            self._end(self._step(id), event)

    def _add_values(self, event: HistoryEvent) -> None:
        """Add the values of a row, which the body took between two steps."""
        for path, value in _json(event)["values"].items():
            step = self._step(path, StepKind.VALUE, path if path.startswith("patch:") else "value")
            step.update(status=StepStatus.COMPLETED, result=value, finished_at=event.created_at)

    def _add_message(self, id: str, event: HistoryEvent) -> None:
        name = id.partition(":")[2]
        if not name.startswith("end."):
            step = self._step(id)
            self._end(step, event)
            if event.event_type == _MESSAGE:
                step["result"] = message_of(event, "").data
            return
        about = _json(event)
        if (started := self._ends.get(_end_of(about.get("channel")))) is not None:
            self._end_child(self._known[started], name.removeprefix("end."), about["data"], event.created_at)

    def _end_child(self, step: dict[str, Any], workflow: str, end: Mapping[str, Any], at: datetime | None) -> None:
        step.update(name=workflow, finished_at=at, status=StepStatus.FAILED)
        if end["status"] == "completed":
            data = json.dumps(end["output"]).encode()
            step.update(status=StepStatus.COMPLETED, result=_result(WORKFLOWS.get(workflow), data))
        elif end["status"] == "cancelled":
            step["error"] = ErrorInfo(CANCELLED, end["reason"])
        else:
            step["error"] = _failure(end["failure"])

    def _step(self, id: str, kind: StepKind | None = None, name: str | None = None) -> dict[str, Any]:
        if id not in self._known:
            name = name or id.removeprefix(UNDO).partition(":")[2] or id.removeprefix(OWN)
            if id.startswith(UNDO):
                kind = StepKind.COMPENSATION
            elif id == HANDLED:
                kind = StepKind.FAILURE_HANDLER
            kind = kind or _WAITS.get(name) or (_EFFECTS.get(name) if name not in ACTIVITIES else None)
            self._known[id] = {"id": id, "name": name, "kind": kind or StepKind.ACTIVITY, "attempts": 1}
            self._known[id]["status"] = StepStatus.RUNNING
        return self._known[id]

    def _end(self, step: dict[str, Any], event: HistoryEvent) -> None:
        """Add the outcome of a step; for the start of a child, that is only the beginning of the step."""
        kind, data = event.event_type, _json(event) if event.data_type == "json" else event.event_data_binary
        step.update(finished_at=event.created_at, error=None)
        if kind in (_FAILED, _NOT_UNDONE, _TIMEOUT):
            step.update(status=StepStatus.FAILED, error=_failure(data))
        elif step["kind"] is StepKind.CHILD:
            step.update(status=StepStatus.RUNNING, started_at=event.created_at, finished_at=None)
            self._children[str(data)] = step["id"]
            self._ends[step["id"].removesuffix(":child")] = step["id"]
        else:
            result = data
            if step["kind"] is StepKind.ACTIVITY:
                result = _result(_activity(step["name"]), event.event_data)
            elif step["kind"] in (StepKind.TIMER, StepKind.COMPENSATION):
                result = None
            step.update(status=StepStatus.COMPLETED, result=result)
        # Keep the steps in the order of their ends.
        self._known[step["id"]] = self._known.pop(step["id"])

    async def add_children(self, storage: Storage) -> None:
        """Add workflow, input and start of children from their own rows, unless retention has deleted them."""
        ids = list(self._children)
        for first in range(0, len(ids), PAGE):
            for row in await storage.get_instances(ids[first : first + PAGE]):
                if row is not None:
                    step = self._known[self._children[row.instance_id]]
                    given = _arguments(WORKFLOWS.get(row.workflow_name), row.input_data)
                    step.update(name=row.workflow_name, input=given, started_at=row.started_at)

    def add_wait(self, run: str, wait: RegisteredWait) -> None:
        """Add a step that the run waits for; the wait for the next attempt of an activity changes nothing."""
        id, about = _step_of(wait.activity_id), _wait(run, _step_of(wait.activity_id), wait)
        if about.kind in (WaitKind.TIMER, WaitKind.EVENT, WaitKind.CHANNEL) and not id.startswith(OWN):
            self._step(id)["status"] = StepStatus.WAITING


def _activity(name: str) -> Any:
    return ACTIVITIES.get(name) or COMPENSATIONS.get(name)


def _is_child(event: HistoryEvent) -> bool:
    return event.activity_id.endswith(":child") and event.event_type == _DONE


def _step_of(id: str) -> str:
    """Return the id of the step that a row belongs to."""
    return id.partition("#")[0].rstrip("!@~") if not id.startswith(OWN) else id


def _end_of(channel: object) -> str:
    """Return the path of the step that started a child from its end channel, `~end/<generation>/<path>:<run>`."""
    if not isinstance(channel, str) or not channel.startswith(children.ENDS):
        raise EngineError(f"channel {channel!r} is not a channel for the end of a child")
    return channel.removeprefix(children.ENDS).partition("/")[2].partition(":")[0]
