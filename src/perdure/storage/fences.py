"""Fences: the first act of every write for an instance, which holds the instance's row if the lease is current."""

from perdure.database.operation import Again, Operation, Work
from perdure.database.statements import Call
from perdure.errors import InstanceNotFoundError, InvalidTransitionError, LeaseLostError, StorageError
from perdure.model import limits
from perdure.model.records import Lease
from perdure.model.states import WorkflowStatus, sources_of
from perdure.storage.sql import load_statements

S = load_statements("fences")


def fence_params(instance_id: str, lease: Lease | None) -> dict[str, object]:
    """A lease as the parameters of a fence; none is an administrator's write."""
    limits.name(instance_id, "instance_id")  # MySQL finds `a` under `a `, and would store the latter
    if lease is None:
        return {"token": None, "worker_id": None}  # nosec B105 # a number
    if lease.instance_id != instance_id:
        raise LeaseLostError(f"the lease is on {lease.instance_id!r}, not on {instance_id!r}")
    return {"token": lease.token, "worker_id": lease.worker_id}


def fence(instance_id: str, lease: Lease | None) -> Operation[None]:
    """The first call of a transaction that writes for an instance: hold its row if the lease is current, else raise."""
    if not (yield S.fence(instance_id=instance_id, **fence_params(instance_id, lease))):
        raise (yield from refused(instance_id, lease))


def changing(call: Call, lease: Lease | None) -> Work[None]:
    """A statement about what is an instance's own, under its fence."""
    return Work(lambda: _change(call, lease), repeat=True)


def _change(call: Call, lease: Lease | None) -> Operation[None]:
    yield from fence(str(call.params["instance_id"]), lease)
    yield call


def refused(instance_id: str, lease: Lease | None, target: WorkflowStatus | None = None) -> Operation[StorageError]:
    """Why a fenced write or a move found no row: the error to raise. The fence is judged first."""
    rows = yield S.standing(instance_id=instance_id)
    if rows and lease is not None and tuple(rows[0][1:3]) != (lease.token, lease.worker_id):
        return lost(lease)
    if not rows or target is None:  # what is there by now was not when it was looked for
        return InstanceNotFoundError(f"there is no instance {instance_id!r}")
    if rows[0][0] in sources_of(target):  # nor did it stand as it does by now
        raise Again
    return InvalidTransitionError(f"{instance_id!r} is {rows[0][0]} and cannot become {target}")


def lost(lease: Lease) -> LeaseLostError:
    """The error of a lease that is over."""
    return LeaseLostError(f"the lease on {lease.instance_id!r} is over: token {lease.token} of {lease.worker_id!r}")
