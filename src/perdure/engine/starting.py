"""Starting runs: store a new run or find the existing one, from a program or as a step of another run."""

import json
import re
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Literal

from perdure.engine.history.codec import encode
from perdure.errors import EngineError, InstanceExistsError, RunExistsError, RunNotFoundError
from perdure.model import names
from perdure.model.records import FRAMEWORK, HistoryEvent, HistoryEventType, Lease, TimerSubscription, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

BEGIN = "~begin"  # the timer of a run that starts later
DEADLINE = "~deadline"  # the row with the timeout of a run

_TRIED_AGAIN = re.compile(r"~r[0-9]+\Z")  # the suffix of a run that `retry` started

SHOWN_MAX = 200  # characters of an input in an error message

IfExists = Literal["return", "error"]
Create = Callable[[WorkflowInstance], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A run to be started."""

    workflow_name: str
    input_data: bytes
    id: str | None
    at: datetime | None
    after: timedelta | None
    if_exists: IfExists
    source_hash: str
    source: str
    timeout: timedelta | None
    read: Callable[[bytes], object]  # decodes an input, to compare it with another

    def differs_from(
        self, id: str, framework: str, workflow_name: str, inputs: Sequence[bytes]
    ) -> RunExistsError | None:
        """Return the error to raise if the existing run is not the requested one; None if it is.

        `inputs` are the inputs of the existing run: the current one and, after `recur()`, the first one.
        """
        if self.if_exists == "error":
            return RunExistsError(f'run {id!r} already exists, and if_exists="error" was given: use another id')
        if framework != FRAMEWORK:
            return RunExistsError(
                f"run {id!r} already exists, and belongs to the framework {framework!r}: use another id"
            )
        if workflow_name != self.workflow_name:
            return RunExistsError(
                f"run {id!r} already exists, as a run of workflow {workflow_name!r} and not of {self.workflow_name!r}: "
                "use another id"
            )
        if any(map(self.asks_for, inputs)):
            return None
        return RunExistsError(
            f"run {id!r} ({self.workflow_name}) already exists with different input: it has {_shown(inputs[0])}, and "
            f"this start has {_shown(self.input_data)}; use another id, or get() the existing run"
        )

    def asks_for(self, input_data: bytes) -> bool:
        """Return whether this input equals the requested one once decoded."""
        return self.read(input_data) == self.read(self.input_data)


async def start(storage: Storage, request: StartRequest, create: Create) -> str:
    """Store a new run, or find the existing run with the requested id, and return the id.

    Raises `RunExistsError` if the existing run is not the requested one.
    """
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
    """Store a run that starts later or has a timeout, with the rows that record this."""
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
    """Raise `RunExistsError` unless the existing run has the requested input, now or before its first `recur()`."""
    found = await storage.get_instance(instance_id)
    if found is None:
        raise RunExistsError(f"run {instance_id!r} existed a moment ago and was removed: start it again")
    inputs = [found.input_data]
    if found.continued_from is not None:
        first = await storage.get_instance(first_generation(instance_id))
        if first is None or first.status is not WorkflowStatus.RECURRED:
            inputs.append(request.input_data)  # retention deleted the first input, so any input is accepted
        else:
            inputs.append(first.input_data)
    if (error := request.differs_from(instance_id, found.framework, found.workflow_name, inputs)) is not None:
        raise error


def not_found(instance_id: str) -> RunNotFoundError:
    """Return the error for an id that no run has."""
    return RunNotFoundError(f"run {instance_id!r} does not exist: check the id, and whether retention has removed it")


def refuse_foreign(found: WorkflowInstance, action: str) -> None:
    """Raise `EngineError` if a run belongs to another framework, because no perdure worker would execute it."""
    if found.framework != FRAMEWORK:
        raise EngineError(
            f"run {found.instance_id!r} ({found.workflow_name}) cannot be changed here: it belongs to the framework "
            f"{found.framework!r}, so {action} it there"
        )


def first_generation(instance_id: str) -> str:
    """Return the id under which the first generation of a run is kept after `recur()`."""
    return f"{instance_id}~1"


async def start_tick(storage: Storage, tick: WorkflowInstance, source: str) -> str:
    """Store the run of a cron tick unless it exists, and return its id.

    If a run of another workflow has the id, the tick gets an id with a suffix.
    """
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
    """Store a new run `<id>~r<n>` with the input of a failed or cancelled run and its history before `from_step`.

    Returns the new id. Raises `RunNotFoundError` or `EngineError` if the run cannot be retried.
    """
    found = await storage.get_instance(instance_id)
    if found is None:
        raise not_found(instance_id)
    refuse_foreign(found, "retry")
    if found.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED):
        raise EngineError(
            f"run {instance_id!r} ({found.workflow_name}) cannot be retried: it is {found.status}, and only failed and "
            "cancelled runs can"
        )
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
    """Return the rows to replay before a step; raise `EngineError` if a step among them was compensated."""
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
                raise EngineError(
                    f"run {instance_id!r} cannot be retried from {from_step!r}: {step!r} comes before it, and a new "
                    f"run must execute that step itself; retry from {step!r}, or from the start (without from_step)"
                )
            kept.append(event)
    if not found:
        raise EngineError(f"run {instance_id!r} has no step {from_step!r}: use the id of a step that steps() returns")
    for step in map(_step_of, kept):
        if step in undone:
            raise EngineError(
                f"run {instance_id!r} cannot be retried from {from_step!r}: {step!r} comes before it and was "
                f"compensated when the run ended; retry from {step!r}, or from the start (without from_step)"
            )
    return [each for each in kept if _is_replayed(each)]


_UNDOS = (HistoryEventType.COMPENSATION_EXECUTED, HistoryEventType.COMPENSATION_FAILED)


def _step_of(event: HistoryEvent) -> str:
    """Return the id of the step that a row belongs to."""
    return event.activity_id.partition("#")[0].rstrip("!@")


def _is_replayed(event: HistoryEvent) -> bool:
    return not event.activity_id.startswith("~") or event.event_type in ("Values", "State")


def starting(request: StartRequest) -> "Callable[[Storage, Lease], Awaitable[str]]":
    """Return the effect that stores a run in the commit of the step that starts it; the new run is not leased."""

    async def write(storage: Storage, lease: Lease) -> str:
        return await start(storage, request, storage.create_instance)

    return write


def new_id() -> str:
    """Return a new unique id; ids sort by the time at which they were made (UUID version 7)."""
    stamp = time.time_ns() // 1_000_000
    number = stamp << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"
