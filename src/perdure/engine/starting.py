"""Starting runs: the one way in which a run comes to be.

A `NewRun` describes a run; `store` stores it with everything it begins with, in one commit. All ways use it: a program,
a step of another run, a child, a cron tick, an event, a retry, and a caller's own transaction. They differ in the
storage they pass (a caller's transaction is one, too), in the ids they try, and in what they do if a run has the id
already.
"""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import count
from typing import Literal, Protocol, get_origin

from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.hints import bare
from perdure.engine.history.messages import Event
from perdure.engine.history.records import AttemptFailed, Compensated, Deadline, Taken, check_row, record_of, row_of
from perdure.engine.interception import Interception, Start, around_start
from perdure.engine.replay.definitions import WORKFLOWS, WorkflowDefinition
from perdure.errors import (
    EngineError,
    EventDataError,
    InstanceExistsError,
    RunExistsError,
    RunNotFoundError,
    RunNotRetryableError,
    SerializationError,
    StorageError,
)
from perdure.model import headers as header_rules
from perdure.model import limits, names
from perdure.model.blank import quick
from perdure.model.envelopes import check_readable
from perdure.model.headers import Headers, none
from perdure.model.records import (
    FRAMEWORK,
    HistoryEvent,
    Lease,
    ParentLink,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

OWNER = "perdure"  # the owner of all runs but those that `retry` starts

DEFINE_SEC = 1.0

_RETRY = re.compile(r"(.*)~r([0-9]+)\Z", re.DOTALL)  # the id of a run that `retry` started

EVENT_ID_SHOWN = limits.INSTANCE_ID_MAX - 22  # a suffix of 2 characters and at most 20 digits follows

SHOWN_MAX = 200  # characters of an input in an error message

IfExists = Literal["return", "error"]
Create = Callable[[WorkflowInstance], Awaitable[object]]

_new_instance = quick(WorkflowInstance)


class RunStore(Protocol):
    """What storing a run needs of a storage, or of a caller's transaction."""

    async def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        source_code: str = "",
        events: Sequence[HistoryEvent] = (),
        timers: Sequence[TimerWait] = (),
        parent: ParentLink | None = None,
    ) -> object:
        """Store a new instance with its first rows; raise `InstanceExistsError` if the id is taken."""

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return an instance, or None."""


@dataclass(slots=True)  # not frozen, because each start makes one, and the next one
class NewRun:
    """A run to be stored, under an id that is chosen when it is stored."""

    workflow_name: str
    input_data: bytes
    source_hash: str
    source: str = ""
    owner: str = OWNER
    events: Sequence[HistoryEvent] = ()  # its first rows; they get the id of the run
    begin: TimerWait | None = None  # when it starts (default: now)
    parent: Callable[[str], ParentLink] | None = None  # of a child: what its parent needs, by the child's id
    headers: Headers = field(default_factory=none)

    def instance(self, id: str) -> WorkflowInstance:
        """Return the row of the run."""
        return _new_instance(
            id,
            self.workflow_name,
            self.input_data,
            status=WorkflowStatus.RUNNING if self.begin is None else WorkflowStatus.WAITING_FOR_TIMER,
            source_hash=self.source_hash,
            owner_service=self.owner,
            headers=header_rules.encode(self.headers),
        )


async def store(storage: RunStore, run: NewRun, id: str) -> None:
    """Store a run with its first rows, in one commit; raise `InstanceExistsError` if the id is taken."""
    await storage.create_instance(
        run.instance(id),
        source_code=run.source,
        events=[replace(event, instance_id=id) for event in run.events],
        timers=[] if run.begin is None else [run.begin],
        parent=None if run.parent is None else run.parent(id),
    )


async def store_at_first_free(storage: RunStore, run: NewRun, names: Iterable[str]) -> str:
    """Store a run under the first of these ids that no run has, and return that id."""
    for id in names:
        with suppress(InstanceExistsError):  # the id is taken: try the next
            await store(storage, run, id)
            return id
    raise AssertionError("unreachable: the ids don't end")


# From a program, from a step of another run, and in a caller's transaction.


@dataclass(slots=True)
class StartRequest:
    """A run to be started."""

    workflow_name: str
    input_data: bytes
    id: str | None
    at: datetime | None
    after: timedelta | None
    if_exists: IfExists
    source_hash: str
    timeout: timedelta | None
    read: Callable[[bytes], object]  # decodes an input, to compare it with another
    headers: Headers = field(default_factory=none)

    def new_run(self) -> NewRun:
        """Return the requested run, with its timeout and the timer for its start."""
        events: list[HistoryEvent] = []
        if self.timeout is not None:
            events.append(row_of("", Deadline(self.timeout)))
        later = self.at is not None or self.after is not None
        return NewRun(
            self.workflow_name,
            self.input_data,
            self.source_hash,
            events=events,
            begin=TimerWait(ids.BEGIN, ids.BEGIN, self.at, self.after) if later else None,
            headers=self.headers,
        )

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
        for data in inputs:
            check_readable(
                data, f"run {id!r} already exists, and its input, with which that of this start is compared,"
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


async def start(
    storage: RunStore,
    request: StartRequest,
    create: Create | None = None,
    interception: Interception | None = None,
) -> str:
    """Store a new run, or find the existing run with the requested id, and return the id.

    `create` stores a run without further rows, in a group commit (default: in a commit of its own). Raises
    `RunExistsError` if the existing run is not the requested one.
    """
    names.run_id(request.id)
    id = new_id() if request.id is None else request.id
    if interception is None:
        return await _start(storage, request, id, create)
    about = Start(request.workflow_name, "start", id, dict(request.headers))
    with interception.start(about):
        return await _start(storage, replace(request, headers=about.stored_headers()), id, create)


async def _start(storage: RunStore, request: StartRequest, id: str, create: Create | None) -> str:
    run = request.new_run()
    try:
        if create is None or run.events or run.begin:
            await store(storage, run, id)
        else:
            await create(run.instance(id))
    except InstanceExistsError:
        await _check_existing(storage, request, id)
    return id


def starting(request: StartRequest, interception: Interception | None) -> "Callable[[Storage, Lease], Awaitable[str]]":
    """Return the effect that stores a run in the commit of the step that starts it; the new run is not leased."""

    async def write(storage: Storage, lease: Lease) -> str:
        return await start(storage, request, interception=interception)

    return write


async def _check_existing(storage: RunStore, request: StartRequest, instance_id: str) -> None:
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


def refuse_foreign(found: WorkflowInstance, action: str, error: type[EngineError] = EngineError) -> None:
    """Raise `error` if a run belongs to another framework, because no perdure worker would execute it."""
    if found.framework != FRAMEWORK:
        raise error(
            f"run {found.instance_id!r} ({found.workflow_name}) cannot be changed here: it belongs to the framework "
            f"{found.framework!r}, so {action} it there"
        )


def first_generation(instance_id: str) -> str:
    """Return the id under which the first generation of a run is kept after `recur()`."""
    return f"{instance_id}~1"


# By a schedule.


async def start_tick(
    storage: RunStore, workflow: WorkflowDefinition, tick_id: str, interception: Interception | None = None
) -> str:
    """Store the run of a cron tick unless it exists, and return its id.

    If a run of another workflow has the id, the tick gets an id with a suffix.
    """
    run = NewRun(workflow.name, workflow.signature.bind((), {}), workflow.source_hash, workflow.source)
    if interception is None:
        return await _store_tick(storage, run, tick_id)
    found = await storage.get_instance(tick_id)
    if found is not None and found.workflow_name == workflow.name:
        return tick_id  # another worker has started it, inside its interceptors
    about = Start(workflow.name, "cron", tick_id)
    with interception.start(about):
        return await _store_tick(storage, replace(run, headers=about.stored_headers()), tick_id)


async def _store_tick(storage: RunStore, run: NewRun, tick_id: str) -> str:
    for id in with_suffixes(tick_id):
        try:
            await store(storage, run, id)
        except InstanceExistsError:
            found = await storage.get_instance(id)
            if found is not None and found.workflow_name != run.workflow_name:
                continue
        return id
    raise AssertionError("unreachable: the ids don't end")


def with_suffixes(id: str) -> Iterator[str]:
    """Yield an id, then the same with the suffixes `~c1`, `~c2` …, which users cannot choose."""
    yield id
    for number in count(1):
        yield f"{id}~c{number}"


# By an event.


def started_by(event: Event[None], data: bytes) -> list[tuple[str, NewRun]]:
    """Return the runs that an event with this data starts, each with its id: one of each workflow with its type.

    The id of a run is derived from the workflow and from source and id of the event, so a duplicate of the event starts
    nothing. Raises `EventDataError` if the data does not fit the parameter of such a workflow.
    """
    workflows = [each for each in list(WORKFLOWS.values()) if each.event == event.type]
    return [(_event_run_id(each.name, event), _event_run(each, event, data)) for each in workflows]


async def store_missing(storage: RunStore, runs: Iterable[tuple[str, NewRun]]) -> None:
    """Store the runs that an event starts, except those that it has started before."""
    for id, run in sorted(runs, key=lambda item: item[0]):  # rows are locked in the order of their ids
        with suppress(InstanceExistsError):
            await store(storage, run, id)


def _event_run_id(workflow_name: str, event: Event[None]) -> str:
    """Return an id that users cannot choose, and that differs for each event; an event without an id is a new one."""
    if not event.id:
        return new_id()
    known_as = f"{len(workflow_name)} {workflow_name} {len(event.source)} {event.source} {event.id}"
    digest = int.from_bytes(blake2b(known_as.encode(), digest_size=8).digest())
    return f"{f'{workflow_name}@{event.id}'[:EVENT_ID_SHOWN]}~e{digest}"


def _event_run(workflow: WorkflowDefinition, event: Event[None], data: bytes) -> NewRun:
    (name,) = workflow.signature.required
    hint = bare(workflow.signature.hints[name])
    value = _event_text(event, data) if hint is Event or get_origin(hint) is Event else data
    input_data = b"{" + encode(name) + b":" + value + b"}"
    limits.size(input_data, f"the input of {workflow.name}")
    try:
        workflow.signature.unbind(input_data)
    except SerializationError as error:
        raise EventDataError(
            f"event {event.type!r} starts workflow {workflow.name!r}, and does not fit: {error}"
        ) from error
    return NewRun(workflow.name, input_data, workflow.source_hash, headers=event.headers)


def _event_text(event: Event[None], data: bytes) -> bytes:
    """Return the JSON of an event whose data is JSON already."""
    others = [each.name for each in fields(event) if each.name not in ("data", "headers")]
    about: dict[str, object] = {name: getattr(event, name) for name in others}
    if event.headers:
        about["headers"] = dict(event.headers)
    return b'{"data":' + data + b"," + encode(about).removeprefix(b"{")


# By `retry`.


async def retry(
    storage: Storage, instance_id: str, from_step: str | None, interception: Interception | None = None
) -> str:
    """Store a new run `<id>~r<n>` with the input of a failed or cancelled run and its history before `from_step`.

    Returns the new id. Raises `RunNotFoundError` or `RunNotRetryableError` if the run cannot be retried.
    """
    base = _split_retry(instance_id)[0]
    return await _retry_as(storage, instance_id, from_step, interception, (f"{base}~r{n}" for n in count(1)))


async def retry_once(storage: Storage, instance_id: str, interception: Interception | None = None) -> str | None:
    """Do what `retry` does; return None if the run has been retried, perhaps by another process at this moment."""
    with suppress(InstanceExistsError):
        return await _retry_as(storage, instance_id, None, interception, None)
    return None


def next_retry(id: str) -> str:
    """Return the id that the first retry of a run has, which may be a retry itself."""
    base, number = _split_retry(id)
    return f"{base}~r{number + 1}"


def _split_retry(id: str) -> tuple[str, int]:
    """Return the id of the run that was retried first, and the number of this retry of it, or 0."""
    match = _RETRY.match(id)
    return (id, 0) if match is None else (match[1], int(match[2]))


async def _retry_as(
    storage: Storage,
    instance_id: str,
    from_step: str | None,
    interception: Interception | None,
    names: Iterable[str] | None,
) -> str:
    """Store the new run under the first of these ids that is free, or else under the next one only."""
    found = await storage.get_instance(instance_id)
    if found is None:
        raise not_found(instance_id)
    refuse_foreign(found, "retry", RunNotRetryableError)
    if found.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED):
        raise RunNotRetryableError(
            f"run {instance_id!r} ({found.workflow_name}) cannot be retried: it is {found.status}, and only failed and "
            "cancelled runs can"
        )
    check_readable(found.input_data, f"run {instance_id!r} cannot be retried: its input")
    events = [] if from_step is None else await _history_before(storage, instance_id, from_step)
    again = NewRun(found.workflow_name, found.input_data, found.source_hash, owner="", events=events)
    about = Start(again.workflow_name, "retry", None, dict(header_rules.decode(found.headers)))
    with around_start(interception, about):
        again = replace(again, headers=about.stored_headers())
        if names is not None:
            return await store_at_first_free(storage, again, names)
        id = next_retry(instance_id)
        await store(storage, again, id)
        return id


async def _history_before(storage: Storage, instance_id: str, from_step: str) -> list[HistoryEvent]:
    """Return the rows to replay before a step; raise `RunNotRetryableError` if a step among them was compensated.

    Failed attempts of the step itself are left out, so that it gets all of its attempts again.
    """
    kept: list[HistoryEvent] = []
    undone: set[str] = set()
    found, begun, last_id, more = False, False, 0, True
    while more:
        page, more = await storage.get_history_paginated(instance_id, last_id)
        for event in page:
            last_id = event.id
            step, record = ids.step_of(event.activity_id), record_of(event)
            is_attempt = isinstance(record, AttemptFailed) or ids.split_pause(event.activity_id) is not None
            if isinstance(record, AttemptFailed):
                step = record.step
            if isinstance(record, Compensated):
                undone.add(record.step)
            if step == from_step:
                found, begun = True, begun or not is_attempt
                continue
            if begun:
                continue
            if ids.name_of(step) in ("subscribe", ids.CHILD):
                raise RunNotRetryableError(
                    f"run {instance_id!r} cannot be retried from {from_step!r}: {step!r} comes before it, and a new "
                    f"run must execute that step itself; retry from {step!r}, or from the start (without from_step)"
                )
            check_row(event)
            kept.append(event)
    if not found:
        raise RunNotRetryableError(
            f"run {instance_id!r} has no step {from_step!r}: use the id of a step that steps() returns"
        )
    for step in (ids.step_of(event.activity_id) for event in kept):
        if step in undone:
            raise RunNotRetryableError(
                f"run {instance_id!r} cannot be retried from {from_step!r}: {step!r} comes before it and was "
                f"compensated when the run ended; retry from {step!r}, or from the start (without from_step)"
            )
    return [replace(each, id=0, created_at=None) for each in kept if _is_replayed(each)]


def _is_replayed(row: HistoryEvent) -> bool:
    return not row.activity_id.startswith(ids.OWN) or isinstance(record_of(row), Taken)


def new_id() -> str:
    """Return a new unique id; ids sort by the time at which they were made (UUID version 7)."""
    stamp = time.time_ns() // 1_000_000
    chance = secrets.randbits(12 + 62)
    number = stamp << 80 | 0x7 << 76 | (chance >> 62) << 64 | 0b10 << 62 | chance & (1 << 62) - 1
    text = f"{number:032x}"  # by hand, because a `uuid.UUID` takes twice as long
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


async def define(storage: Storage, versions: Mapping[str, str]) -> None:
    """Store workflow definitions, by name and hash, before a caller starts a run in a transaction of its own.

    Otherwise that transaction would insert the definition, and every other start of the workflow would wait for its
    commit.
    """
    try:
        async with asyncio.timeout(DEFINE_SEC):
            await storage.define_workflows(versions)
    except (TimeoutError, StorageError) as error:  # such a transaction may be open, and the app does not wait for it
        log.debug(
            "the definitions of %d workflows were not stored in advance; the first start of each stores its own: %s: "
            "%s",
            len(versions),
            type(error).__name__,
            error,
            extra={"reason": str(error)},
        )
