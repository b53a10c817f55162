"""Locks: fenced leases on instances. Acquiring never waits, and every acquisition raises the token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perdure.database.operation import Operation, Work, rows_if, utc
from perdure.errors import LeaseLostError, LimitError
from perdure.model import limits
from perdure.model.records import Lease, StaleWorkflowInfo
from perdure.model.states import RESUMABLE as CLAIMABLE
from perdure.model.states import WorkflowStatus
from perdure.storage.sql import room
from perdure.storage.transactions import bounded
from perdure.storage.wakeups import RESUMABLE, Wakeups, resumable

S = room("locks")

SWEEP_MAX = 1000


class Locks(Wakeups):
    """The seed's LockManager, with leases instead of booleans."""

    async def try_acquire_lock(self, instance_id: str, worker_id: str, timeout_sec: float) -> Lease | None:
        """A lease if the instance is free: not leased (not even to this worker), not row-locked, not finished."""
        (lease,) = await self.acquire_locks([instance_id], worker_id, timeout_sec)
        return lease

    async def acquire_locks(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float
    ) -> list[Lease | None]:
        """Take the leases of many instances in one commit: a lease for each that is free, else None, in order.

        Each as `try_acquire_lock` would; of an instance that is named twice, the first gets it.
        """
        limits.name(worker_id, "worker_id")
        ids = [limits.name(instance_id, "instance_id") for instance_id in bounded(instance_ids)]
        seconds = limits.seconds(timeout_sec)
        if not ids:
            return []
        acquire = _ACQUIRE_MANY[self._backend.driver.name] if len(ids) > 1 else _acquire
        work = Work(lambda: acquire(sorted(set(ids)), worker_id, seconds), single=acquire is not _acquire_in_steps)
        leases = await self._run(work)
        return [leases.pop(instance_id, None) for instance_id in ids]

    async def release_lock(self, instance_id: str, worker_id: str, *, lease: Lease | None = None) -> None:
        """Give a lease back; whoever does not hold it changes nothing."""
        _check(instance_id, worker_id)
        token = lease.token if lease else None
        work = Work(lambda: _release(instance_id, worker_id, token), single=True, repeat=True)
        about = resumable(instance_id, reason="released")
        await self._announce(RESUMABLE, work, lambda released: about if released else None)

    async def refresh_lock(
        self, instance_id: str, worker_id: str, timeout_sec: float, *, lease: Lease | None = None
    ) -> Lease:
        """A new expiry, also for an expired lease that nobody took; else `LeaseLostError`."""
        _check(instance_id, worker_id)
        seconds, wanted = limits.seconds(timeout_sec), {instance_id: lease.token if lease else None}
        held = await self._run(Work(lambda: _renew(worker_id, wanted, seconds), repeat=True))
        if not held:
            raise LeaseLostError(f"{worker_id!r} no longer holds {instance_id!r}")
        return held[instance_id]

    async def refresh_locks(self, leases: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
        """Renew all leases of one worker at once: the renewed lease, or None for one that was lost, in order.

        A row that is locked at the moment (a run's own open transaction) is passed over: its lease is still held.
        """
        if not leases:
            return []
        workers = {lease.worker_id for lease in leases}
        if len(workers) != 1:
            raise LimitError("refresh_locks renews the leases of one worker at a time")
        seconds, wanted = limits.seconds(timeout_sec), {lease.instance_id: lease.token for lease in leases}
        (worker_id,) = workers
        held = await self._run(Work(lambda: _renew(worker_id, dict(wanted), seconds), repeat=True))
        return [
            replace(lease, expires_at=held[lease.instance_id].expires_at)
            if lease.instance_id in held and held[lease.instance_id].token == lease.token
            else None
            for lease in leases
        ]

    async def cleanup_stale_locks(self, timeout_sec: float = 0) -> list[StaleWorkflowInfo]:
        """Clear own leases that expired more than `timeout_sec` ago; gives the running and compensating ones."""
        grace = limits.seconds(timeout_sec) if timeout_sec else 0.0
        return await self._run(Work(lambda: _sweep(grace)))


def _check(instance_id: str, worker_id: str) -> None:
    limits.name(instance_id, "instance_id")
    limits.name(worker_id, "worker_id")


def _acquire(ids: list[str], worker_id: str, timeout_sec: float) -> Operation[dict[str, Lease]]:
    """In one statement: one lease or, on PostgreSQL, many."""
    answer = yield S.acquire(instance_id=ids[0], ids=ids, worker_id=worker_id, timeout_sec=timeout_sec)
    return _leases(worker_id, rows_if(0, answer))


def _take(ids: list[str], worker_id: str, timeout_sec: float) -> Operation[dict[str, Lease]]:
    """SQLite: many in one statement, which for one would be the slower one."""
    answer = yield S.take(ids=ids, worker_id=worker_id, timeout_sec=timeout_sec)
    return _leases(worker_id, rows_if(0, answer))


def _acquire_in_steps(ids: list[str], worker_id: str, timeout_sec: float) -> Operation[dict[str, Lease]]:
    """MySQL: lock those that are free, then take them."""
    free = [row[0] for row in (yield S.free(ids=ids))]
    return (yield from _take(free, worker_id, timeout_sec)) if free else {}


_ACQUIRE_MANY = {"sqlite": _take, "postgresql": _acquire, "mysql": _acquire_in_steps}


def _leases(worker_id: str, rows: Sequence[Sequence[Any]]) -> dict[str, Lease]:
    return {row[0]: Lease(row[0], worker_id, row[1], utc(row[2])) for row in rows}


def _release(instance_id: str, worker_id: str, token: int | None) -> Operation[bool]:
    return bool((yield S.release(instance_id=instance_id, worker_id=worker_id, token=token)))


def _renew(worker_id: str, wanted: dict[str, int | None], timeout_sec: float) -> Operation[dict[str, Lease]]:
    rows = yield S.free_to_renew(ids=sorted(wanted), worker_id=worker_id)
    free = [instance_id for instance_id, token in rows if wanted[instance_id] in (None, token)]
    if free:
        yield S.renew(ids=free, worker_id=worker_id, timeout_sec=timeout_sec)
    rows = yield S.held(ids=sorted(wanted), worker_id=worker_id)
    return _leases(worker_id, [row for row in rows if wanted[row[0]] in (None, row[1])])


def _sweep(grace_sec: float) -> Operation[list[StaleWorkflowInfo]]:
    rows = yield S.stale(grace_sec=grace_sec, limit=SWEEP_MAX)
    if rows:
        yield S.clear(ids=[row[0] for row in rows])
    rows.sort(key=lambda row: (row[3], row[0]))  # leases renewed together expire together
    return [
        StaleWorkflowInfo(instance_id, name)
        for instance_id, name, status, _ in rows
        if WorkflowStatus(status) in CLAIMABLE
    ]
