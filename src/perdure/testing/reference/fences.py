"""Fence writes: a write on behalf of an instance happens only while its lease is current."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from perdure.errors import InstanceNotFoundError, InvalidTransitionError, LeaseLostError, StorageError
from perdure.model import limits
from perdure.model.records import Lease, WorkflowInstance
from perdure.model.states import RESUMABLE, TERMINAL, WAITING, WorkflowStatus
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import Transactions

T = TypeVar("T")
Item = TypeVar("Item")

FREE = {"locked_by": None, "locked_at": None, "lock_expires_at": None}


def instance_from(row: Row) -> WorkflowInstance:
    """Return an instance as callers see it."""
    output, headers = row["output_data"], row["headers"]
    return WorkflowInstance(
        **{
            **row,
            "status": WorkflowStatus(row["status"]),
            "input_data": row["input_data"].encode(),
            "output_data": None if output is None else output.encode(),
            "headers": None if headers is None else headers.encode(),
        }
    )


def finished_at(row: Row) -> datetime | None:
    """Return when an instance ended."""
    return row["updated_at"] if row["status"] in TERMINAL else None


def claimable_at(row: Row) -> datetime | None:
    """Return from when on a worker may take an instance: now, or when its lease expires; None if it must not."""
    if row["status"] not in RESUMABLE:
        return None
    held_until: datetime | None = row["lock_expires_at"] if row["locked_by"] is not None else None
    at: datetime = held_until or row["started_at"]
    return at


class Fences(Transactions):
    """Check leases before writes, and change the state of instances."""

    def _hold(self, instance_id: str, lease: Lease | None) -> Row:
        """Return the instance if it exists and the lease, if one is given, is current; else raise."""
        limits.name(instance_id, "instance_id")
        if lease is not None and lease.instance_id != instance_id:
            raise LeaseLostError(f"the lease is on run {lease.instance_id!r}, not on run {instance_id!r}")
        row = self._tables.workflow_instances.get(instance_id)
        if row is None:
            raise InstanceNotFoundError(f"run {instance_id!r} does not exist")
        if lease is not None and (row["lock_token"], row["locked_by"]) != (lease.token, lease.worker_id):
            raise LeaseLostError(
                f"worker {lease.worker_id!r} lost its lease on run {instance_id!r} (fencing token {lease.token})"
            )
        return row

    def _fence(self, instance_id: str, lease: Lease | None) -> Row:
        """Do the same, and update the instance's time; a finished instance keeps it: retention counts from it."""
        row = self._hold(instance_id, lease)
        if row["status"] not in TERMINAL:
            change(self._tables.workflow_instances, instance_id, updated_at=self._now)
        return row

    def _is_free(self, row: Row) -> bool:
        """Return whether an instance has no lease, or an expired one."""
        expires_at = row["lock_expires_at"]
        return row["locked_by"] is None or (expires_at is not None and expires_at <= self._now)

    def _is_waiting(self, instance_id: str) -> bool:
        return self._tables.workflow_instances[instance_id]["status"] in WAITING

    def _may_wake(self, row: Row, lease: Lease | None) -> bool:
        """Return whether an instance may be woken: it waits and is free, or its holder wakes it, even while it runs."""
        if lease is not None:
            return row["status"] in WAITING | {WorkflowStatus.RUNNING}
        return row["status"] in WAITING and self._is_free(row)

    def _finish(self, instance_id: str, status: WorkflowStatus, output: str | None, lease: Lease | None) -> None:
        """Change to a final state, end the lease (the token grows), and remove timers and waits."""
        row = self._hold(instance_id, lease)
        if row["status"] in TERMINAL or (status is WorkflowStatus.COMPLETED and row["status"] != "running"):
            raise InvalidTransitionError(f"run {instance_id!r} is {row['status']} and cannot become {status}")
        self._fence_off(instance_id, status)
        if output is not None:
            change(self._tables.workflow_instances, instance_id, output_data=output)

    def _fence_off(self, instance_id: str, status: WorkflowStatus) -> None:
        """Fence off the worker of an instance, and end all its waits."""
        instances = self._tables.workflow_instances
        token = instances[instance_id]["lock_token"] + 1
        change(instances, instance_id, status=status.value, updated_at=self._now, lock_token=token, **FREE)
        self._wait_for_nothing(instance_id)

    def _wait_for_nothing(self, instance_id: str) -> None:
        """Remove all timers and waits, and keep the subscriptions."""
        timers, waits = self._tables.workflow_timer_subscriptions, self._tables.perdure_waits
        remove(timers, where(timers, instance_id=instance_id))
        remove(waits, where(waits, instance_id=instance_id))

    def _moment(self, at: datetime | None, after: timedelta | None) -> datetime | None:
        return limits.moment(at, "the time") if after is None else self._now + after

    def _set_timer(self, instance_id: str, timer_id: str, activity_id: str | None, expires_at: datetime) -> None:
        """Store a timer; an existing one keeps its time."""
        row = {
            "id": self._world.draw("workflow_timer_subscriptions"),
            "instance_id": instance_id,
            "timer_id": timer_id,
            "expires_at": expires_at,
            "activity_id": activity_id,
            "created_at": self._now,
            "framework": self._tables.workflow_instances[instance_id]["framework"],
        }
        self._tables.workflow_timer_subscriptions.setdefault((instance_id, timer_id), row)

    def _each(
        self, items: Sequence[Item], act: Callable[[Item], T], row: Callable[[Item], str]
    ) -> list[T | StorageError]:
        """Run a batch item by item, in the order of their instances; a rejected item affects no other."""
        answers: dict[int, T | StorageError] = {}
        for position in sorted(range(len(items)), key=lambda position: row(items[position])):
            try:
                with self._undone_if_refused():
                    answers[position] = act(items[position])
            except StorageError as error:
                answers[position] = error
        return [answers[position] for position in range(len(items))]
