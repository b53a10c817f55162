"""Manage instances: create them, change their state, cancel, find and delete them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from perdure.database.operation import Operation, Work, raw, utc, utc_or_none
from perdure.database.statements import Statement
from perdure.errors import (
    InstanceNotFoundError,
    InvalidTransitionError,
    LimitError,
    StorageError,
    WorkflowNotCancellableError,
)
from perdure.model import limits
from perdure.model.blank import blank
from perdure.model.records import (
    FRAMEWORK,
    HistoryEvent,
    HistoryEventType,
    Lease,
    ParentLink,
    ResumableWorkflow,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import TERMINAL, WAITING, WorkflowStatus, sources_of
from perdure.storage import channels, fences, history, instance_sets, waits
from perdure.storage.creation import NO_ROWS, FirstRows, announcement, first_rows, insert_first_rows, subscribe_parent
from perdure.storage.fences import fence_params, refused
from perdure.storage.sql import load_statements
from perdure.storage.transactions import bounded, prepared, together
from perdure.storage.wakeups import RESUMABLE, Payload, Say, Wakeups, first_of, resumable

S = load_statements("instances")
WAITS = load_statements("waits")

FAILED_ACTIVITY = "workflow_failed"
CANCELLED_ACTIVITY = "workflow_cancelled"
QUICK_PAGE = 100  # larger pages are read outside the event loop's thread
RESUMABLE_NAMES_MAX = 200  # names per statement; SQLite joins at most 500 branches


class Instances(Wakeups):
    """Implement InstanceManager and its additions."""

    async def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        worker_id: str | None = None,
        timeout_sec: float = 15,
        source_code: str = "",
        events: Sequence[HistoryEvent] = (),
        timers: Sequence[TimerWait] = (),
        parent: ParentLink | None = None,
    ) -> Lease | None:
        """Store a new instance with its definition, its first events and its timers, in one commit.

        Raise `InstanceExistsError` if the id is taken. With `worker_id` the new row is leased to that worker, and the
        lease is returned. With `parent` the instance is a child: what its parent needs is written under the parent's
        fence.
        """
        first = first_rows(instance, events, timers, parent)
        work = creating(instance, worker_id, timeout_sec, source_code, first)
        kind, about = announcement(instance, worker_id, first)
        return await self._announce(kind, work, (lambda _: about) if about else None)

    async def create_instances(
        self, instances: Sequence[WorkflowInstance], *, worker_id: str | None = None, timeout_sec: float = 15
    ) -> list[Lease | StorageError | None]:
        """Create many instances in one commit; return a lease (or None) or an error for each, in order."""
        if not instances:
            return []

        def prepare() -> list[Work[Lease | None] | StorageError]:
            return prepared(lambda it: creating(it, worker_id, timeout_sec, "", NO_ROWS), instances)

        def about(position: int) -> Payload | None:
            return announcement(instances[position], worker_id, NO_ROWS)[1]

        announced = [about(position) is not None for position in range(len(instances))]
        say = first_effect(about) if any(announced) else None
        build = instance_sets.creating(self._features, instances, worker_id, timeout_sec, lambda: together(prepare()))
        if build is None:
            works = prepare()
            return await self._announce(RESUMABLE, Work(lambda: together(works)), say)
        work = build(None)
        return await self._announce(RESUMABLE, work, say, build if work.single and all(announced) else None)

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return an instance with every field, or None."""
        return await self._read(_get, instance_id)

    async def get_instances(self, instance_ids: Sequence[str]) -> list[WorkflowInstance | None]:
        """Return many instances in one statement, in the order of their ids; None for each that does not exist."""
        read = self._read if len(bounded(instance_ids)) <= QUICK_PAGE else self._scan
        return await read(_get_many, instance_ids)

    async def update_instance_status(
        self, instance_id: str, status: WorkflowStatus, error_msg: str = "", *, lease: Lease | None = None
    ) -> None:
        """Change an instance's state; record the message of a failure in the same transaction."""
        status = limits.choice(WorkflowStatus, status, "status")
        if status is WorkflowStatus.RECURRED:
            raise InvalidTransitionError("an instance cannot be set to recurred: use recur_instance()")
        work = Work(lambda: _update_status(instance_id, status, error_msg, lease))
        await self._announce(RESUMABLE, work, ended(instance_id, status) if status in TERMINAL else None)

    async def update_instance_activity(self, instance_id: str, activity_id: str, *, lease: Lease | None = None) -> None:
        """Record the step that the instance has reached."""
        limits.name(activity_id, "activity_id")
        await self._run(Work(lambda: _set_activity(instance_id, activity_id, lease), single=True, repeat=True))

    async def update_instance_output(self, instance_id: str, output_data: bytes, *, lease: Lease | None = None) -> None:
        """Store the output and complete the instance in one transaction."""
        await self._announce(RESUMABLE, completing(instance_id, output_data, lease), ended(instance_id))

    async def complete_and_release(self, lease: Lease, output_data: bytes) -> None:
        """Complete a leased instance with its output and end the lease, in one statement where possible."""
        await self.update_instance_output(lease.instance_id, output_data, lease=lease)

    async def complete_instances(self, items: Sequence[tuple[Lease, bytes]]) -> list[StorageError | None]:
        """Complete many leased instances in one commit; return None or an error for each, in order."""
        if not items:
            return []
        say = first_effect(lambda position: ended(items[position][0].instance_id)(None))
        build = instance_sets.completing(self._features, items, complete_singly)
        if build is None:
            works = prepared(lambda item: completing(item[0].instance_id, item[1], item[0]), items)
            return await self._announce(RESUMABLE, Work(lambda: together(works)), say)
        work = build(None)
        return await self._announce(RESUMABLE, work, say, build if work.single else None)

    async def cancel_instance(
        self, instance_id: str, reason: str = "", *, compensate: bool = False, lease: Lease | None = None
    ) -> None:
        """Cancel an instance in any state that is not final, fence off its worker, and record why.

        With `compensate` the instance changes to compensating instead, and is cancelled once it has compensated.
        """
        work = Work(lambda: _cancel(instance_id, reason, compensate, lease))
        await self._announce(RESUMABLE, work, ended(instance_id, WorkflowStatus.CANCELLED))

    async def find_resumable_workflows(
        self, limit: int = 0, *, workflow_names: Sequence[str] | None = None
    ) -> list[ResumableWorkflow]:
        """Return own instances, running or compensating, without a live lease; the longest waiting first."""
        return await self._read(_resumable, limits.page(limit, 100), workflow_names)


def first_effect(about: Callable[[int], Payload | None]) -> Say[Sequence[object]]:
    """Return what a batch announces: the first of its items that had an effect, given by its position."""

    def say(found: Sequence[object]) -> Payload | None:
        done = [about(position) for position, result in enumerate(found) if not isinstance(result, StorageError)]
        return first_of([payload for payload in done if payload])

    return say


def ended(instance_id: str, status: WorkflowStatus = WorkflowStatus.COMPLETED) -> Say[None]:
    """Return what the end of an instance announces, because a caller may wait for it."""
    return lambda _: resumable(instance_id, reason=status.value)


def _creation(instance: WorkflowInstance, worker_id: str | None, timeout_sec: float, source: str) -> dict[str, object]:
    if instance.framework not in ("", FRAMEWORK):
        raise LimitError(f"framework must be empty or {FRAMEWORK!r}, not {instance.framework!r}")
    if instance.source_hash:
        limits.name(instance.source_hash, "source_hash", 64)
    own = instance.lock_timeout_seconds
    if own is not None:
        limits.seconds(own, "lock_timeout_seconds")
    lease_sec: float | None = None
    if worker_id is not None:
        limits.name(worker_id, "worker_id")
        lease_sec = limits.seconds(timeout_sec if own is None else own)
    return {
        "instance_id": limits.instance_id(instance.instance_id),
        "workflow_name": limits.name(instance.workflow_name, "workflow_name"),
        "source_hash": instance.source_hash,
        "source_code": limits.text(source, "source_code"),
        "owner_service": instance.owner_service and limits.name(instance.owner_service, "owner_service"),
        "status": limits.choice(WorkflowStatus, instance.status, "status").value,
        "current_activity_id": _name_or_none(instance.current_activity_id, "current_activity_id"),
        "continued_from": _name_or_none(instance.continued_from, "continued_from"),
        "started_at": limits.moment(instance.started_at, "started_at"),
        "updated_at": limits.moment(instance.updated_at, "updated_at"),
        "input_data": limits.text(instance.input_data, "input_data"),
        "output_data": limits.text(instance.output_data, "output_data"),
        "locked_by": worker_id or _name_or_none(instance.locked_by, "locked_by"),
        "locked_at": limits.moment(instance.locked_at, "locked_at"),
        "lock_timeout_seconds": instance.lock_timeout_seconds,
        "lock_expires_at": limits.moment(instance.lock_expires_at, "lock_expires_at"),
        "lock_token": limits.number(instance.lock_token + bool(worker_id), "lock_token", limits.EVERYTHING),
        "headers": limits.text(instance.headers, "headers", limits.METADATA_MAX),
        "lease_sec": lease_sec,
    }


def _name_or_none(value: str | None, kind: str) -> str | None:
    return None if value is None else limits.name(value, kind)


def creating(
    instance: WorkflowInstance, worker_id: str | None, timeout_sec: float, source: str, first: FirstRows
) -> Work[Lease | None]:
    """Return the operation that inserts an instance and its first rows; it raises `InstanceExistsError`."""
    params = _creation(instance, worker_id, timeout_sec, source)
    return Work(
        lambda: _create(params, first), single=not first, confirm=lambda: _created(params), row=instance.instance_id
    )


def _create(params: dict[str, object], first: FirstRows) -> Operation[Lease | None]:
    yield from subscribe_parent(first)
    previous = params["continued_from"]
    if previous is not None and not (yield fences.S.standing(instance_id=previous)):
        raise InstanceNotFoundError(f"run {previous!r}, which the new run continues from, does not exist")
    rows = yield S.create(**params)
    if not rows:
        raise instance_sets.taken(str(params["instance_id"]))
    yield from insert_first_rows(first)
    return _lease_of(params, rows[0][0])


def _created(params: dict[str, object]) -> Operation[Lease | None]:
    """Return the lease after a lost answer if the row is ours, in everything that distinguishes one creation."""
    found = yield from _get(str(params["instance_id"]))
    if (
        params["lease_sec"] is None
        or found is None
        or (found.locked_by, found.lock_token) != (params["locked_by"], params["lock_token"])
        or found.input_data.decode() != params["input_data"]
    ):
        return None
    return _lease_of(params, found.lock_expires_at)


def _lease_of(params: dict[str, Any], expires_at: Any) -> Lease | None:
    if params["lease_sec"] is None:
        return None
    return Lease(params["instance_id"], params["locked_by"], params["lock_token"], utc(expires_at))


def _get(instance_id: str) -> Operation[WorkflowInstance | None]:
    rows = yield S.get(instance_id=instance_id)
    # MySQL finds `a` when asked for `a `
    return from_row(rows[0]) if rows and rows[0][0] == instance_id else None


def _get_many(instance_ids: Sequence[str]) -> Operation[list[WorkflowInstance | None]]:
    rows = yield S.get_many(ids=list(instance_ids))
    found = {row[0]: from_row(row) for row in rows}
    return [found.get(instance_id) for instance_id in instance_ids]


_STATUSES = {status.value: status for status in WorkflowStatus}
_new = blank(WorkflowInstance)


def from_row(row: Sequence[Any]) -> WorkflowInstance:
    """Return an instance from the columns of `get`. Every field is set once, because pages have many instances."""
    it = _new()
    (it.instance_id, it.workflow_name, input_data, it.framework, status, output_data, it.current_activity_id,
     it.source_hash, it.owner_service, it.continued_from, it.locked_by, locked_at, it.lock_timeout_seconds,
     expires_at, it.lock_token, started_at, updated_at, headers) = row  # fmt: skip
    it.input_data = input_data.encode() if type(input_data) is str else input_data
    it.output_data = raw(output_data) if output_data is not None else None
    it.headers = raw(headers) if headers is not None else None
    it.status = _STATUSES[status]
    it.locked_at = utc(locked_at) if locked_at is not None else None
    it.lock_expires_at = utc(expires_at) if expires_at is not None else None
    it.started_at, it.updated_at = utc(started_at), utc(updated_at)
    it.__class__ = WorkflowInstance
    return it  # type: ignore[no-any-return]


def _update_status(instance_id: str, status: WorkflowStatus, error: str, lease: Lease | None) -> Operation[None]:
    if status in TERMINAL:
        yield from finish(instance_id, status, None, lease)
        if status is WorkflowStatus.FAILED and error:
            yield from note(instance_id, FAILED_ACTIVITY, HistoryEventType.WORKFLOW_FAILED, _failure(error))
        return
    if status in WAITING:
        return (yield from _wait(instance_id, status, lease))
    yield from _move(instance_id, status, lease)


def _wait(instance_id: str, status: WorkflowStatus, lease: Lease | None) -> Operation[None]:
    """Wait for what is registered, and check again what arrived while the instance did not wait."""
    known = yield from waits.registered(limits.name(instance_id, "instance_id"))
    named = {channel for _, channel, _ in known if channel is not None}
    yield from channels.locking(named, _move(instance_id, status, lease))
    yield from waits.remind(instance_id, known)


def _move(instance_id: str, status: WorkflowStatus, lease: Lease | None) -> Operation[None]:
    sources = sorted(sources_of(status))
    if not (
        yield S.move(instance_id=instance_id, status=status.value, sources=sources, **fence_params(instance_id, lease))
    ):
        raise (yield from refused(instance_id, lease, status))


def _failure(message: str) -> dict[str, object]:
    return {"error": message, "error_message": message, "error_type": "", "stack_trace": ""}


def _set_activity(instance_id: str, activity_id: str, lease: Lease | None) -> Operation[None]:
    if not (yield S.set_activity(instance_id=instance_id, activity_id=activity_id, **fence_params(instance_id, lease))):
        raise (yield from refused(instance_id, lease))


def completing(instance_id: str, output_data: bytes, lease: Lease | None) -> Work[None]:
    output = limits.text(output_data, "output_data")
    if output is None:
        raise LimitError("output_data must be JSON as bytes; use b'null' for none")
    return _finishing(instance_id, output, lease)


def _finishing(instance_id: str, output: str, lease: Lease | None) -> Work[None]:
    return Work(
        lambda: finish(instance_id, WorkflowStatus.COMPLETED, output, lease),
        single=True,
        confirm=lambda: _finished(instance_id, output, lease),
        row=instance_id,
    )


def complete_singly(items: instance_sets.Completions) -> Operation[list[StorageError | None]]:
    works = [_finishing(item.lease.instance_id, item.output, item.lease) for item in items]
    return together(works)


def finish(instance_id: str, status: WorkflowStatus, output: str | None, lease: Lease | None) -> Operation[None]:
    """Change to a final state, or raise the error that says why not."""
    params = {"instance_id": instance_id, "status": status.value, "output_data": output}
    if not (yield S.finish(**params, **fence_params(instance_id, lease))):
        raise (yield from refused(instance_id, lease, status))


def _finished(instance_id: str, output: str, lease: Lease | None) -> Operation[None]:
    """Return after a lost answer. There is nothing to return, so a write that does not exist raises."""
    found = yield from _get(instance_id)
    ours = (
        lease is not None
        and found is not None
        and (found.status, found.lock_token) == (WorkflowStatus.COMPLETED, lease.token + 1)
        and found.output_data == output.encode()
    )
    return True if ours else None  # type: ignore[return-value]


def note(instance_id: str, activity: str, kind: HistoryEventType, payload: dict[str, object]) -> Operation[None]:
    """Record an event of the instance's life once, in the open transaction."""
    yield history.S.append(
        instance_id=instance_id,
        activity_id=activity,
        event_type=kind.value,
        data_type="json",
        event_data=limits.text(json.dumps(payload, ensure_ascii=False), "error message"),
        event_data_binary=None,
        created_at=None,
        **fence_params(instance_id, None),
    )


def _cancel(instance_id: str, reason: str, compensate: bool, lease: Lease | None) -> Operation[None]:
    fence_params(instance_id, lease)
    rows = yield WAITS.hold(instance_id=instance_id)  # a transaction that would end it meanwhile has to wait
    if not rows or WorkflowStatus(rows[0][0]) in TERMINAL:
        raise WorkflowNotCancellableError(
            f"run {instance_id!r} is {rows[0][0]}: only a run that has not ended can be cancelled"
            if rows
            else f"run {instance_id!r} does not exist"
        )
    if lease is not None:
        yield from fences.fence(instance_id, lease)
    if not compensate:
        yield from finish(instance_id, WorkflowStatus.CANCELLED, None, lease)
    elif (yield S.interrupt(instance_id=instance_id)):
        yield S.clear_waits(instance_id=instance_id)
    yield from note(instance_id, CANCELLED_ACTIVITY, HistoryEventType.WORKFLOW_CANCELLED, {"reason": reason})


def _resumable(limit: int, names: Sequence[str] | None) -> Operation[list[ResumableWorkflow]]:
    if names is None:
        return [_claimable(row) for row in (yield S.resumable(limit=limit))]
    found = []
    wanted = sorted(set(names))
    for start in range(0, len(wanted), RESUMABLE_NAMES_MAX):
        some = wanted[start : start + RESUMABLE_NAMES_MAX]
        params = {f"name_{n}": name for n, name in enumerate(some)}
        found += yield _branches(len(some))(limit=limit, **params)
    found.sort(key=lambda row: (row[2], row[0]))
    return [_claimable(row) for row in found[:limit]]


def _claimable(row: Sequence[Any]) -> ResumableWorkflow:
    instance_id, name, _, worker_id, locked_at = row
    return ResumableWorkflow(instance_id, name, worker_id, utc_or_none(locked_at))


def _branches(count: int) -> Statement:
    """Return `resumable_named` for several names: the union of their first rows, each by its own index range."""
    found = _named.get(count)
    if found is None:
        found = _named[count] = Statement(f"instances.resumable_named_{count}", S.resumable_named.columns)
        (branch,) = S.resumable_named.parts("")
        texts = [branch.replace(":workflow_name", f":name_{n}") for n in range(count)]
        found.texts[""] = (" UNION ALL ".join(texts),)
    return found


_named: dict[int, Statement] = {}
