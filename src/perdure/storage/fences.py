"""Fence writes: every write for an instance first locks the instance's row, if the lease is current."""

from collections.abc import Sequence
from typing import Any

from perdure.database.operation import Again, Operation, Work
from perdure.database.statements import Call
from perdure.errors import InstanceNotFoundError, InvalidTransitionError, LeaseLostError, StorageError
from perdure.model import limits
from perdure.model.records import Lease
from perdure.model.states import WorkflowStatus, sources_of
from perdure.storage.sql import load_statements

S = load_statements("fences")


def fence_params(instance_id: str, lease: Lease | None) -> dict[str, object]:
    """Return a lease as the parameters of a fence; without one the write is an administrator's."""
    limits.name(instance_id, "instance_id")  # MySQL finds `a` when asked for `a `, and would store the latter
    if lease is None:
        return {"token": None, "worker_id": None}  # nosec B105 # a number
    if lease.instance_id != instance_id:
        raise LeaseLostError(f"the lease is on run {lease.instance_id!r}, not on run {instance_id!r}")
    return {"token": lease.token, "worker_id": lease.worker_id}


def fence(instance_id: str, lease: Lease | None) -> Operation[None]:
    """Lock the instance's row if the lease is current, else raise; the first call of a transaction that writes."""
    if not (yield S.fence(instance_id=instance_id, **fence_params(instance_id, lease))):
        raise (yield from refused(instance_id, lease))


def changing(call: Call, lease: Lease | None) -> Work[None]:
    """Run a statement that writes rows of one instance, under its fence."""
    return Work(lambda: _change(call, lease), repeat=True)


def _change(call: Call, lease: Lease | None) -> Operation[None]:
    yield from fence(str(call.params["instance_id"]), lease)
    yield call


def refused(instance_id: str, lease: Lease | None, target: WorkflowStatus | None = None) -> Operation[StorageError]:
    """Return the error for a fenced write or a change of state that found no row."""
    rows = yield S.standing(instance_id=instance_id)
    error = refusal(instance_id, rows[0][:3] if rows else None, lease, target)
    if error is None:  # its state has changed since
        raise Again
    return error


def refusal(
    instance_id: str, row: Sequence[Any] | None, lease: Lease | None, target: WorkflowStatus | None = None
) -> StorageError | None:
    """Return why a row (status, token, worker) refuses a write; None if it would accept it. The fence comes first."""
    if row is not None and lease is not None and tuple(row[1:]) != (lease.token, lease.worker_id):
        return lost(lease)
    if row is None or target is None:  # a row that exists by now did not exist when the write looked
        return InstanceNotFoundError(f"run {instance_id!r} does not exist")
    if row[0] in sources_of(target):
        return None
    return InvalidTransitionError(f"run {instance_id!r} is {row[0]} and cannot become {target}")


def lost(lease: Lease) -> LeaseLostError:
    """Return the error for a lease that has ended."""
    return LeaseLostError(
        f"worker {lease.worker_id!r} lost its lease on run {lease.instance_id!r} (fencing token {lease.token})"
    )
