"""Starting: a run is stored, or the one that has its id is found. From a program, or as a step of another run."""

import json
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, NoReturn

from perdure.engine import names
from perdure.engine.codec import encode
from perdure.engine.handles import StartRequest
from perdure.engine.run_info import RunInfo
from perdure.engine.step_info import HistoryEntry, StepInfo
from perdure.errors import EngineError, InstanceExistsError, NotDurableError, RunExistsError, RunNotFoundError
from perdure.model.records import FRAMEWORK, HistoryEvent, HistoryEventType, Lease, TimerSubscription, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

BEGIN = "~begin"  # the timer of a run whose beginning was put off
DEADLINE = "~deadline"  # the row that says how long a run may take

_TRIED_AGAIN = re.compile(r"~r[0-9]+\Z")  # what a run that was tried again has behind the id of the first one

Create = Callable[[WorkflowInstance], Awaitable[object]]


async def start(storage: Storage, request: StartRequest, create: Create) -> str:
    """Store a new run, or find the one that has its id; gives the id."""
    names.run_id(request.id)
    instance = WorkflowInstance(
        new_id() if request.id is None else request.id,
        request.workflow_name,
        request.input_data,
        source_hash=request.source_hash,
        owner_service="perdure",
    )
    try:
        if request.at is None and request.after is None and request.timeout is None:
            await create(instance)
        else:
            await _create_with_times(storage, instance, request)
    except InstanceExistsError:
        await _check_existing(storage, request, instance.instance_id)
    return instance.instance_id


async def _create_with_times(storage: Storage, instance: WorkflowInstance, request: StartRequest) -> None:
    """A run that begins later, or has a deadline, and the rows that say so."""
    later = request.at is not None or request.after is not None
    status = WorkflowStatus.WAITING_FOR_TIMER if later else WorkflowStatus.RUNNING
    async with storage.transaction():
        await storage.create_instance(replace(instance, status=status))
        if request.timeout is not None:
            data = encode({"timeout_sec": request.timeout.total_seconds()})
            await storage.append_history(HistoryEvent(instance.instance_id, DEADLINE, "Deadline", data))
        if later:
            timer = TimerSubscription(instance.instance_id, BEGIN, request.at, BEGIN)
            await storage.register_timer_subscription(timer, after=request.after)


async def _check_existing(storage: Storage, request: StartRequest, instance_id: str) -> None:
    """Raise `RunExistsError` unless the run with this id is the one to be started: it has the input, or began so."""
    found = await storage.get_instance(instance_id)
    if found is None:
        raise RunExistsError(f"run {instance_id!r} existed a moment ago and was removed: start it again")
    inputs = [found.input_data]
    if found.continued_from is not None:
        first = await storage.get_instance(first_generation(instance_id))
        if first is None or first.status is not WorkflowStatus.RECURRED:
            inputs.append(request.input_data)  # removed by retention: what the run began with is not known any more
        else:
            inputs.append(first.input_data)
    if (error := request.differs_from(instance_id, found.framework, found.workflow_name, inputs)) is not None:
        raise error


def not_found(instance_id: str) -> RunNotFoundError:
    """The error of an id that no run has."""
    return RunNotFoundError(f"run {instance_id!r} does not exist: check the id, and whether retention has removed it")


def refuse_foreign(found: WorkflowInstance, action: str) -> None:
    """Raise `EngineError` if a run is of another framework: no worker of ours would ever go on with it."""
    if found.framework != FRAMEWORK:
        raise EngineError(
            f"run {found.instance_id!r} ({found.workflow_name}) cannot be changed here: it belongs to the framework "
            f"{found.framework!r}, so {action} it there"
        )


def first_generation(instance_id: str) -> str:
    """The id under which the first generation of a run that has recurred is kept."""
    return f"{instance_id}~1"


async def start_tick(storage: Storage, tick: WorkflowInstance, source: str) -> str:
    """Store the run of a tick, unless it is there; gives its id. A run of another workflow is not in its way."""
    for number in count():
        id = tick.instance_id if number == 0 else f"{tick.instance_id}~c{number}"
        try:
            await storage.create_instance(replace(tick, instance_id=id), source_code=source)
        except InstanceExistsError:
            found = await storage.get_instance(id)
            if found is not None and found.workflow_name != tick.workflow_name:
                continue
        return id
    raise AssertionError("unreachable")


async def retry(storage: Storage, instance_id: str, from_step: str | None) -> str:
    """Store a new run `<id>~r<n>` with the input of one that ended badly and the history before `from_step`."""
    found = await storage.get_instance(instance_id)
    if found is None:
        raise not_found(instance_id)
    refuse_foreign(found, "retry")
    if found.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED):
        raise EngineError(f"run {instance_id!r} is {found.status}: only a failed or cancelled run can be retried")
    events = [] if from_step is None else await _history_before(storage, instance_id, from_step)
    base = _TRIED_AGAIN.sub("", instance_id)
    for number in count(1):
        again = WorkflowInstance(
            f"{base}~r{number}", found.workflow_name, found.input_data, source_hash=found.source_hash
        )
        try:
            async with storage.transaction():
                await storage.create_instance(again)
                for event in events:
                    await storage.append_history(replace(event, instance_id=again.instance_id, id=0, created_at=None))
        except InstanceExistsError:
            continue
        return again.instance_id
    raise AssertionError("unreachable")


async def _history_before(storage: Storage, instance_id: str, from_step: str) -> list[HistoryEvent]:
    """The rows that a replay feeds before a step has begun; none of them may be of a step that was undone since."""
    kept: list[HistoryEvent] = []
    undone: set[str] = set()
    found, last_id, more = False, 0, True
    while more:
        page, more = await storage.get_history_paginated(instance_id, last_id)
        for event in page:
            last_id = event.id
            step = _step_of(event)
            found = found or step == from_step
            if event.event_type in _UNDOS:
                undone.add(str(json.loads(event.event_data or b"{}").get("activity_id")))
            if found:
                continue
            if step.endswith((":subscribe", ":child")):
                raise EngineError(f"{from_step} comes after {step}, which a new run must do itself: try it from there")
            kept.append(event)
    if not found:
        raise EngineError(f"run {instance_id!r} has no step {from_step!r}: see steps() of its handle for those it has")
    for step in map(_step_of, kept):
        if step in undone:
            raise EngineError(
                f"{instance_id!r} cannot be retried from {from_step}: {step} comes before it and was undone when the "
                f"run ended; retry from {step}, or from the start (without from_step)"
            )
    return [each for each in kept if _is_replayed(each)]


_UNDOS = (HistoryEventType.COMPENSATION_EXECUTED, HistoryEventType.COMPENSATION_FAILED)


def _step_of(event: HistoryEvent) -> str:
    """The step that a row is of."""
    return event.activity_id.partition("#")[0].rstrip("!@")


def _is_replayed(event: HistoryEvent) -> bool:
    return not event.activity_id.startswith("~") or event.event_type in ("Values", "State")


def starting(request: StartRequest) -> "Callable[[Storage, Lease], Awaitable[str]]":
    """The effect of a run that another one starts: they commit together, and the new one belongs to nobody."""

    async def write(storage: Storage, lease: Lease) -> str:
        return await start(storage, request, storage.create_instance)

    return write


def new_id() -> str:
    """A new id; later ones sort behind earlier ones."""
    stamp = time.time_ns() // 1_000_000
    number = stamp << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))


class InBody:
    """What a handle that a body holds can do: nothing that a replay could not repeat."""

    def _refuse(self) -> NoReturn:
        raise NotDurableError(
            "a handle is for use outside a workflow: call the workflow itself and await it as a child"
        )

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        self._refuse()

    async def info(self, instance_id: str) -> RunInfo:
        self._refuse()

    async def steps(self, instance_id: str) -> list[StepInfo]:
        self._refuse()

    async def state(self, instance_id: str) -> Any:
        self._refuse()

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        self._refuse()

    def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        self._refuse()


IN_BODY = InBody()
