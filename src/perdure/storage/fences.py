"""Fences: the first act of every write for an instance, which holds the instance's row if the lease is current."""

from perdure.database.operation import Operation
from perdure.errors import InstanceNotFoundError, InvalidTransitionError, LeaseLostError, StorageError
from perdure.model import limits
from perdure.model.records import Lease
from perdure.model.states import WorkflowStatus
from perdure.storage.sql import room

S = room("fences")


def fence_params(instance_id: str, lease: Lease | None) -> dict[str, object]:
    """A lease as the parameters of a fence; none is an administrator's write."""
    limits.name(instance_id, "instance_id")  # MySQL finds `a` under `a `, and would store the latter
    if lease is None:
        return {"token": None, "worker_id": None}
    if lease.instance_id != instance_id:
        raise LeaseLostError(f"the lease is on {lease.instance_id!r}, not on {instance_id!r}")
    return {"token": lease.token, "worker_id": lease.worker_id}


def fence(instance_id: str, lease: Lease | None) -> Operation[None]:
    """The first call of a transaction that writes for an instance: hold its row if the lease is current, else raise."""
    if not (yield S.fence(instance_id=instance_id, **fence_params(instance_id, lease))):
        raise (yield from refused(instance_id, lease))


def refused(instance_id: str, lease: Lease | None, target: WorkflowStatus | None = None) -> Operation[StorageError]:
    """Why a fenced write or a move found no row: the error to raise. The fence is judged first."""
    rows = yield S.standing(instance_id=instance_id)
    if not rows:
        return InstanceNotFoundError(f"there is no instance {instance_id!r}")
    status, token, owner, _ = rows[0]
    if lease is not None and (token != lease.token or owner != lease.worker_id):
        return lost(lease)
    return InvalidTransitionError(f"{instance_id!r} is {status} and cannot become {target or 'something else'}")


def lost(lease: Lease) -> LeaseLostError:
    """The error of a lease that is over."""
    return LeaseLostError(f"the lease on {lease.instance_id!r} is over: token {lease.token} of {lease.worker_id!r}")
