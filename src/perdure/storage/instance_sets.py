"""Write many instances by a constant number of statements, because a group commit has hundreds of them.

Each way returns exactly the answers that writing one instance at a time would return. A batch for which that is not
certain, because it names an instance twice or has an invalid item, is not plain, and is written one at a time.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from perdure.database.dialects import Features
from perdure.database.dialects.base import Bare
from perdure.database.operation import Again, Operation, Work
from perdure.errors import StorageError
from perdure.model import limits
from perdure.model.records import Lease
from perdure.model.states import WorkflowStatus
from perdure.storage import sets, transactions
from perdure.storage.fences import fence_params, refusal
from perdure.storage.sql import load_statements

S = load_statements("instances")

Answer = StorageError | None


class Completion(NamedTuple):
    """Hold the lease of an instance to complete, and its output as checked text."""

    lease: Lease
    output: str


Completions = Sequence[Completion]
Complete = Callable[[Completions], Operation[list[Answer]]]  # answers in the order of the items


def completing(features: Features, items: Sequence[tuple[Lease, bytes]], singly: Complete) -> Work[list[Answer]] | None:
    """Return the operation that completes a batch; None if the batch is not plain.

    `singly` completes items one at a time, and returns an error for each that is refused.
    """
    checked = _completions(items)
    if not checked:
        return None
    ordered = sorted(checked, key=lambda item: item.lease.instance_id)  # every batch locks in this order
    parts = sets.split(ordered, lambda item: len(item.output))
    many = _complete_many(features)
    return Work(
        lambda: _complete_all(many, parts, singly, [item.lease.instance_id for item in checked]),
        single=many is _complete_at_once and len(parts) == 1,
    )


def _completions(items: Sequence[tuple[Lease, bytes]]) -> Completions | None:
    checked = []
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


def _complete_many(features: Features) -> "CompleteMany":
    """Return the fastest way to complete a batch."""
    if features.one_statement_writes:
        return _complete_at_once
    return _complete_for_each if features.repeated_calls else _complete_locked


Refused = dict[str, StorageError]  # by the instance's id
CompleteMany = Callable[[Completions, Complete], Operation[Refused]]


def _complete_all(
    many: CompleteMany, parts: Sequence[Completions], singly: Complete, ids: Sequence[str]
) -> Operation[list[Answer]]:
    errors: Refused = {}
    for items in parts:
        errors.update((yield from many(items, singly)))
    return [errors.get(id) for id in ids] if errors else [None] * len(ids)


def _complete_at_once(items: Completions, singly: Complete) -> Operation[Refused]:
    """Complete the whole batch in one statement."""
    rows = yield S.complete_set(
        instance_ids=[item.lease.instance_id for item in items],
        tokens=[item.lease.token for item in items],
        worker_ids=[item.lease.worker_id for item in items],
        outputs=[item.output for item in items],
    )
    if not rows:
        return {}
    errors, again = _refusals(items, {row[0]: row[1:] for row in rows if row[1] is not None}, {row[0] for row in rows})
    for item in again:  # it was changed while the statement waited for it
        errors.update((yield from _patiently(item, singly)))
    return errors


def _patiently(item: Completion, singly: Complete) -> Operation[Refused]:
    """Complete one instance of a set that may be committed, so that running the whole operation again is no option."""
    while True:
        try:
            return (yield from _one_by_one([item], singly))
        except Again:
            continue


def _complete_locked(items: Completions, _: Complete) -> Operation[Refused]:
    """Lock the rows first, then complete the instances whose leases are current."""
    rows = yield S.lock_many(instance_ids=[item.lease.instance_id for item in items])
    errors, current = _refusals(items, {row[0]: row[1:] for row in rows}, {item.lease.instance_id for item in items})
    if current:
        waiting = yield S.complete_locked(
            instance_ids=Bare(item.lease.instance_id for item in current),
            outputs=Bare(item.output for item in current),
        )
        if waiting:
            yield S.clear_many(ids=sorted({row[0] for row in waiting}))
    return errors


def _complete_for_each(items: Completions, singly: Complete) -> Operation[Refused]:
    """Complete all; if one is refused, undo it and complete them one by one."""
    yield transactions.S.savepoint()
    done = yield S.complete_each.for_each(
        [
            {
                "instance_id": item.lease.instance_id,
                "token": item.lease.token,
                "worker_id": item.lease.worker_id,
                "output_data": item.output,
            }
            for item in items
        ]
    )
    if done == len(items):
        yield S.clear_many(ids=[item.lease.instance_id for item in items])
    else:
        yield transactions.S.undo()
    yield transactions.S.release()
    return {} if done == len(items) else (yield from _one_by_one(items, singly))


def _one_by_one(items: Completions, singly: Complete) -> Operation[Refused]:
    answers = yield from singly(items)
    pairs = zip(items, answers, strict=True)
    return {item.lease.instance_id: answer for item, answer in pairs if answer is not None}


def _refusals(
    items: Completions, rows: dict[str, Sequence[object]], asked: set[str]
) -> tuple[Refused, list[Completion]]:
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
