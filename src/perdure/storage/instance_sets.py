"""Write many instances by a constant number of statements, because a group commit has hundreds of them.

Each way returns exactly the answers that writing one instance at a time would return. A batch for which that is not
certain, because it names an instance twice or has an invalid item, is not plain, and is written one at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from perdure.database.dialects import Features
from perdure.database.dialects.base import Bare, Now
from perdure.database.operation import Again, Operation, Work, utc_or_none
from perdure.errors import InstanceExistsError, StorageError
from perdure.model import limits
from perdure.model.records import FRAMEWORK, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage import sets, transactions, wakeups
from perdure.storage.fences import fence_params, refusal
from perdure.storage.sql import load_statements
from perdure.storage.wakeups import COALESCED

S = load_statements("instances")
DEFINITIONS = load_statements("definitions")

T = TypeVar("T")
Answer = StorageError | None
Build = Callable[[str | None], Work[T]]  # gets the kind of the notification that a `single` operation has to send


class Creations(NamedTuple):
    """Hold instances to create, as checked columns, and what is the same for all of them."""

    rows: Sequence["Row"]
    locked_by: str | None
    lease_sec: float | None
    lock_timeout_seconds: int | None

    def lease(self, instance_id: str, expires_at: Any) -> Lease | None:
        """Return the lease of a created instance; None if none is leased."""
        return None if self.locked_by is None else Lease(instance_id, self.locked_by, FIRST_TOKEN, expires_at)

    @property
    def lock_token(self) -> int:
        """Return the fencing token of the new rows."""
        return 0 if self.locked_by is None else FIRST_TOKEN


FIRST_TOKEN = 1  # nosec B105 # a number
# id, name of the workflow, hash of its source, owner, status, headers, input
Row = tuple[str, str, str, str, str, str | None, str]
_UNSET = (None, None, None, None, None, None, None, None, 0)
_unset = attrgetter(
    *("continued_from", "current_activity_id", "output_data", "locked_by", "locked_at", "lock_expires_at"),
    *("started_at", "updated_at", "lock_token"),
)
_STATUSES = {status.value: status.value for status in WorkflowStatus}

Created = Lease | StorageError | None
CreateSingly = Callable[[], Operation[list[Created]]]


def creating(
    features: Features,
    instances: Sequence[WorkflowInstance],
    worker_id: str | None,
    timeout_sec: float,
    singly: CreateSingly,
) -> Build[list[Created]] | None:
    """Return what builds the operation that creates a batch; None if the batch is not plain.

    A plain batch has no explicit times, leases, outputs or predecessors, and the same lease for all. `singly` creates
    the instances one at a time, and returns an error for each whose id is taken.
    """
    checked = _creations(instances, worker_id, timeout_sec)
    if checked is None:
        return None
    ids = [row[0] for row in checked.rows]
    parts = [checked._replace(rows=rows) for rows in sets.split(sorted(checked.rows), lambda row: len(row[-1]))]
    if features.one_statement_writes:
        return lambda kind: Work(lambda: _create_at_once(parts, ids, kind), single=len(parts) == 1)
    many = _create_many if features.repeated_calls else _create_rows
    return lambda _: Work(lambda: _create_all(many, parts, ids, singly))


def _creations(instances: Sequence[WorkflowInstance], worker_id: str | None, timeout_sec: float) -> Creations | None:
    """Check what is the same for many instances only once."""
    own = instances[0].lock_timeout_seconds
    rows: list[Row] = []
    named: set[tuple[str, str, str]] = set()
    try:
        if own is not None:
            limits.seconds(own, "lock_timeout_seconds")
        if worker_id is not None:
            limits.name(worker_id, "worker_id")
        lease_sec = None if worker_id is None else limits.seconds(timeout_sec if own is None else own)
        for it in instances:
            if _unset(it) != _UNSET or it.framework not in ("", FRAMEWORK):
                return None
            if it.lock_timeout_seconds != own or it.lock_timeout_seconds is True:
                return None
            names = it.workflow_name, it.source_hash, it.owner_service
            if names not in named:
                _check_names(*names)
                named.add(names)
            text = limits.text(it.input_data, "input_data")
            if text is None or type(it.input_data) is not bytes:  # a str may contain a lone surrogate
                return None
            if it.headers is not None and type(it.headers) is not bytes:
                return None
            headers = limits.text(it.headers, "headers", limits.METADATA_MAX)
            rows.append((limits.instance_id(it.instance_id), *names, _STATUSES[it.status], headers, text))
    except (StorageError, KeyError, TypeError):
        return None
    if len({row[0] for row in rows}) < len(rows):
        return None
    return Creations(rows, worker_id, lease_sec, own)


def _check_names(workflow_name: str, source_hash: str, owner_service: str) -> None:
    limits.name(workflow_name, "workflow_name")
    if source_hash != "":
        limits.name(source_hash, "source_hash", 64)
    if owner_service != "":
        limits.name(owner_service, "owner_service")


def _create_at_once(parts: Sequence[Creations], ids: Sequence[str], kind: str | None) -> Operation[list[Created]]:
    """Create each set in one statement."""
    expiries: dict[str, datetime | None] = {}
    for part in parts:
        columns: Sequence[Sequence[str | None]] = list(zip(*part.rows, strict=True))
        expiries.update(
            (
                yield S.create_set(
                    **dict(zip(_ARRAYS, map(list, columns), strict=True)),
                    locked_by=part.locked_by,
                    lease_sec=part.lease_sec,
                    lock_timeout_seconds=part.lock_timeout_seconds,
                    lock_token=part.lock_token,
                    kind=kind,
                    reason="created",
                )
            )
        )
    return [parts[0].lease(id, utc_or_none(expiries[id])) if id in expiries else taken(id) for id in ids]


_ARRAYS = ("instance_ids", "workflow_names", "source_hashes", "owner_services", "statuses", "headers", "inputs")


def taken(instance_id: str) -> InstanceExistsError:
    """Return the error for an id that exists already."""
    return InstanceExistsError(f"run {instance_id!r} already exists: use another id")


CreateMany = Callable[[Creations], Operation[Any]]


def _create_all(
    many: CreateMany, parts: Sequence[Creations], ids: Sequence[str], singly: CreateSingly
) -> Operation[list[Created]]:
    """Create all; if one id is taken, undo it and create them one by one."""
    times: dict[str, datetime | None] = {}
    undoable = many is _create_many or len(parts) > 1  # one insert of many rows writes all or nothing
    if undoable:
        yield transactions.S.savepoint()
    for part in parts:
        rows = yield from many(part)
        if not rows:
            break
        expires_at = utc_or_none(rows[0][0])
        times.update((row[0], expires_at) for row in part.rows)
    done = len(times) == len(ids)
    if undoable and not done:
        yield transactions.S.undo()
    if undoable:
        yield transactions.S.release()
    return [parts[0].lease(id, times[id]) for id in ids] if done else (yield from singly())


def _create_many(part: Creations) -> Operation[Any]:
    """Insert all rows; return when the leases expire, or nothing if an id is taken, after inserting the others."""
    ((now, expires_at),) = yield S.lease_times(lease_sec=part.lease_sec)
    for workflow_name, source_hash in sorted({row[1:3] for row in part.rows}):
        yield DEFINITIONS.define(workflow_name=workflow_name, source_hash=source_hash, source_code="")
    inserted = yield S.create_many(
        items=part.rows,
        now=now,
        locked_by=part.locked_by,
        locked_at=None if part.lease_sec is None else now,
        lock_timeout_seconds=part.lock_timeout_seconds,
        lock_expires_at=expires_at,
        lock_token=part.lock_token,
    )
    return [(expires_at,)] if inserted == len(part.rows) else []


def _create_rows(part: Creations) -> Operation[Any]:
    """Insert all rows at once; return when the leases expire, or nothing if an id is taken."""
    same = (FRAMEWORK, _NOW, _NOW, part.locked_by, _LOCKED_AT, part.lock_timeout_seconds, _EXPIRES_AT, part.lock_token)
    return (
        yield S.create_rows(
            lease_sec=part.lease_sec,
            definitions=Bare((*key, "", _NOW) for key in sorted({row[1:3] for row in part.rows})),
            rows=Bare((*row, *same) for row in part.rows),
        )
    )


_NOW, _LOCKED_AT, _EXPIRES_AT = Now(), Now("@locked_at"), Now("@expires_at")


class Completion(NamedTuple):
    """Hold the lease of an instance to complete, and its output as checked text."""

    lease: Lease
    output: str


Completions = Sequence[Completion]
Complete = Callable[[Completions], Operation[list[Answer]]]  # answers in the order of the items


def completing(
    features: Features, items: Sequence[tuple[Lease, bytes]], singly: Complete
) -> Build[list[Answer]] | None:
    """Return what builds the operation that completes a batch; None if the batch is not plain.

    `singly` completes items one at a time, and returns an error for each that is refused.
    """
    checked = completions(items)
    if not checked:
        return None
    single = features.one_statement_writes and len(sets.split(checked, size)) == 1
    return lambda kind: Work(lambda: _complete_all(features, checked, singly, kind), single=single)


def completions(items: Sequence[tuple[Lease, bytes]]) -> list[Completion] | None:
    """Return a checked batch; None if it is not plain."""
    checked: list[Completion] = []
    try:
        for lease, output_data in items:
            fence_params(lease.instance_id, lease)
            output = limits.text(output_data, "output_data")
            if output is None or type(output_data) is not bytes:  # a str may contain a lone surrogate
                return None
            checked.append(Completion(lease, output))
    except StorageError:
        return None
    return checked if len({lease.instance_id for lease, _ in items}) == len(checked) else None


def size(item: Completion) -> int:
    """Return the number of characters in an item of a batch."""
    return len(item.output)


def _complete_many(features: Features, kind: str | None) -> "CompleteMany":
    """Return the fastest way to complete a batch."""
    if features.one_statement_writes:
        return partial(_complete_at_once, kind)
    return _complete_all_or_none if features.repeated_calls else _complete_locked


Refused = dict[str, StorageError]  # by the instance's id
CompleteMany = Callable[[Completions, Complete], Operation[Refused]]


def _complete_all(
    features: Features, items: Completions, singly: Complete, kind: str | None
) -> Operation[list[Answer]]:
    errors = yield from complete_all(features, items, singly, kind)
    return [errors.get(item.lease.instance_id) for item in items] if errors else [None] * len(items)


def complete_all(
    features: Features, items: Completions, singly: Complete, kind: str | None = None
) -> Operation[Refused]:
    """Complete a batch set by set, and return the errors of the instances that were refused."""
    many, errors = _complete_many(features, kind), Refused()
    ordered = sorted(items, key=lambda item: item.lease.instance_id)  # every batch locks in this order
    for part in sets.split(ordered, size):
        errors.update((yield from many(part, singly)))
    return errors


def _complete_at_once(kind: str | None, items: Completions, singly: Complete) -> Operation[Refused]:
    """Complete the whole batch in one statement."""
    rows = yield S.complete_set(
        instance_ids=[item.lease.instance_id for item in items],
        tokens=[item.lease.token for item in items],
        worker_ids=[item.lease.worker_id for item in items],
        outputs=[item.output for item in items],
        kind=kind,
        reason=WorkflowStatus.COMPLETED.value,
    )
    if not rows:
        return {}
    errors, again = _refusals(items, {row[0]: row[1:] for row in rows if row[1] is not None}, {row[0] for row in rows})
    for item in again:  # it was changed while the statement waited for it
        errors.update((yield from complete_patiently(item, singly)))
    if again and kind is not None:  # the statement has not announced these
        yield wakeups.S.notify(kind=kind, payload=COALESCED)
    return errors


def complete_patiently(item: Completion, singly: Complete) -> Operation[Refused]:
    """Complete one instance of a set that may be committed, so that running the whole operation again is no option."""
    while True:
        try:
            return (yield from _one_by_one([item], singly))
        except Again:
            continue


def _complete_locked(items: Completions, _: Complete) -> Operation[Refused]:
    """Lock the rows first, then complete the instances whose leases are current."""
    return (yield from complete_standing(items, (yield from lock([item.lease.instance_id for item in items]))))


Standing = dict[str, Sequence[Any]]  # status, token and worker of locked rows, by the instance's id


def lock(ids: Sequence[str]) -> Operation[Standing]:
    """Lock the rows of instances, given in order, and return their state."""
    return {row[0]: row[1:] for row in (yield S.lock_many(instance_ids=ids))}


def complete_standing(items: Completions, standing: Standing) -> Operation[Refused]:
    """Complete the instances whose rows are locked and accept it."""
    errors, current = _refusals(items, standing, {item.lease.instance_id for item in items})
    if current:
        waiting = yield S.complete_locked(
            instance_ids=Bare(item.lease.instance_id for item in current),
            outputs=Bare(item.output for item in current),
        )
        if waiting:
            yield S.clear_many(ids=sorted({row[0] for row in waiting}))
    return errors


def _complete_all_or_none(items: Completions, singly: Complete) -> Operation[Refused]:
    """Complete all; if one is refused, undo it and complete them one by one."""
    yield transactions.S.savepoint()
    done = yield from complete_many(items, {})
    if not done:
        yield transactions.S.undo()
    yield transactions.S.release()
    return {} if done else (yield from _one_by_one(items, singly))


def complete_many(items: Completions, newest: Mapping[str, str]) -> Operation[bool]:
    """Complete instances, with the newest activity of those that are given one; return whether all were accepted."""
    done = yield S.complete_many(
        items=[
            (lease.instance_id, lease.token, lease.worker_id, output, newest.get(lease.instance_id))
            for lease, output in items
        ]
    )
    if done != len(items):
        return False
    yield S.clear_many(ids=[item.lease.instance_id for item in items])
    return True


def _one_by_one(items: Completions, singly: Complete) -> Operation[Refused]:
    answers = yield from singly(items)
    pairs = zip(items, answers, strict=True)
    return {item.lease.instance_id: answer for item, answer in pairs if answer is not None}


def _refusals(items: Completions, rows: Standing, asked: set[str]) -> tuple[Refused, list[Completion]]:
    """Return the errors of those items that their rows refuse, and the items that their rows accept."""
    errors: Refused = {}
    accepted = []
    for item in items:
        instance_id = item.lease.instance_id
        if instance_id not in asked:
            continue
        error = refusal(instance_id, rows.get(instance_id), item.lease, WorkflowStatus.COMPLETED)
        if error is None:
            accepted.append(item)
        else:
            errors[instance_id] = error
    return errors, accepted
