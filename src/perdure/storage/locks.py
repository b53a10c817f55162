"""Manage fenced leases on instances. Acquiring never waits, and every acquisition increases the fencing token.

Everything that locks rows here is one statement, or one packet that commits separately: a worker that is stopped at any
moment does not prevent others from taking over its runs.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any
from uuid import uuid4

from perdure.database.operation import Operation, Work, utc
from perdure.errors import LeaseLostError
from perdure.model import limits
from perdure.model.records import Lease, StaleWorkflowInfo, WorkflowInstance
from perdure.model.states import RESUMABLE as CLAIMABLE
from perdure.model.states import WorkflowStatus
from perdure.storage import instances
from perdure.storage.sql import load_statements
from perdure.storage.transactions import bounded
from perdure.storage.wakeups import RESUMABLE, Wakeups, resumable

S = load_statements("locks")

SWEEP_MAX = 1000


class Locks(Wakeups):
    """Implement LockManager, with leases instead of booleans."""

    async def try_acquire_lock(self, instance_id: str, worker_id: str, timeout_sec: float) -> Lease | None:
        """Return a lease if the instance is free: not leased (even to this worker), not row-locked, not finished."""
        (lease,) = await self.acquire_locks([instance_id], worker_id, timeout_sec)
        return lease

    async def acquire_locks(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float
    ) -> list[Lease | None]:
        """Acquire the leases of many instances in one commit; return a lease or None for each, in order.

        Each is acquired as by `try_acquire_lock`; if an instance is named twice, the first occurrence gets the lease.
        """
        limits.name(worker_id, "worker_id")
        ids = [limits.name(instance_id, "instance_id") for instance_id in bounded(instance_ids)]
        seconds = limits.seconds(timeout_sec)
        if not ids:
            return []
        acquire = _acquire if len(ids) == 1 or self._features.one_statement_writes else _take
        leases = await self._run(Work(lambda: acquire(sorted(set(ids)), worker_id, seconds), single=True))
        return [leases.pop(instance_id, None) for instance_id in ids]

    async def claim_instances(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float, *, limit: int
    ) -> list[tuple[Lease, WorkflowInstance]]:
        """Acquire the leases of at most `limit` of these instances in one commit; return them with the instances.

        Only instances that `find_resumable_workflows` would return now are leased, so a notification that comes late
        leases no run that waits again. Two workers that pass the same instances acquire different ones, as long as
        there are enough: which of them a worker gets is not defined.
        """
        limits.name(worker_id, "worker_id")
        ids = sorted({limits.name(instance_id, "instance_id") for instance_id in bounded(instance_ids)})
        seconds, most = limits.seconds(timeout_sec), min(limits.page(limit, limits.PAGE_MAX), len(ids))
        if not ids:
            return []
        return await self._run(Work(lambda: _claim(ids, worker_id, seconds, most), single=True))

    async def release_lock(self, instance_id: str, worker_id: str, *, lease: Lease | None = None) -> None:
        """Release a lease; do nothing if this worker does not hold it."""
        _check(instance_id, worker_id)
        token, about = lease.token if lease else None, resumable(instance_id, reason="released")
        notifies = self._backend.notifier.due(RESUMABLE)  # then the statement itself notifies
        work = Work(lambda: _release(instance_id, worker_id, token, notifies), single=True, repeat=True)
        await self._announce(RESUMABLE, work, None if notifies else lambda released: about if released else None)

    async def refresh_lock(
        self, instance_id: str, worker_id: str, timeout_sec: float, *, lease: Lease | None = None
    ) -> Lease:
        """Renew a lease, even an expired one that no worker has taken; else raise `LeaseLostError`."""
        _check(instance_id, worker_id)
        seconds, wanted = limits.seconds(timeout_sec), [(instance_id, worker_id, lease.token if lease else None)]
        for held in await self._run(Work(lambda: _renew(wanted, seconds), single=True, repeat=True)):
            return held
        raise LeaseLostError(f"worker {worker_id!r} lost its lease on run {instance_id!r}")

    async def refresh_locks(self, leases: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
        """Renew leases at once; return the renewed lease, or None for each that was lost, in order.

        A row that is locked (by a run's own open transaction) is skipped: its lease is still held.
        """
        if not leases:
            return []
        seconds, wanted = limits.seconds(timeout_sec), [_key(lease) for lease in leases]
        found = await self._run(Work(lambda: _renew(wanted, seconds), single=True, repeat=True))
        held = {_key(lease): lease.expires_at for lease in found}
        return [replace(lease, expires_at=held[key]) if (key := _key(lease)) in held else None for lease in leases]

    async def cleanup_stale_locks(self, timeout_sec: float = 0) -> list[StaleWorkflowInfo]:
        """Clear own leases that expired more than `timeout_sec` ago; return the running and compensating ones."""
        grace = limits.seconds(timeout_sec) if timeout_sec else 0.0
        return await self._run(Work(lambda: _sweep(grace), single=True))


def _check(instance_id: str, worker_id: str) -> None:
    limits.name(instance_id, "instance_id")
    limits.name(worker_id, "worker_id")


def _acquire(ids: list[str], worker_id: str, timeout_sec: float) -> Operation[dict[str, Lease]]:
    """Acquire in one statement: one lease or, with the feature `one_statement_writes`, many."""
    rows = yield S.acquire(instance_id=ids[0], ids=ids, worker_id=worker_id, timeout_sec=timeout_sec)
    return _leases(worker_id, rows)


def _take(ids: list[str], worker_id: str, timeout_sec: float) -> Operation[dict[str, Lease]]:
    """Acquire many at once; for one lease it would be slower."""
    rows = yield S.take(ids=ids, worker_id=worker_id, timeout_sec=timeout_sec, limit=len(ids), mark=_mark())
    return _leases(worker_id, rows)


def _claim(
    ids: list[str], worker_id: str, timeout_sec: float, limit: int
) -> Operation[list[tuple[Lease, WorkflowInstance]]]:
    rows = yield S.claim(ids=ids, worker_id=worker_id, timeout_sec=timeout_sec, limit=limit, mark=_mark())
    return [_claimed(instances.from_row(row), worker_id) for row in sorted(rows, key=itemgetter(0))]


def _claimed(instance: WorkflowInstance, worker_id: str) -> tuple[Lease, WorkflowInstance]:
    if instance.locked_by != worker_id:
        instance = replace(instance, locked_by=worker_id)
    assert instance.lock_expires_at is not None, "the instance is leased"
    return Lease(instance.instance_id, worker_id, instance.lock_token, instance.lock_expires_at), instance


def _leases(worker_id: str, rows: Sequence[Sequence[Any]]) -> dict[str, Lease]:
    return {row[0]: Lease(row[0], worker_id, row[1], utc(row[2])) for row in rows}


def _mark() -> str:
    """Return a name that no worker has."""
    return f"taking {uuid4().hex}"


def _release(instance_id: str, worker_id: str, token: int | None, notifies: bool) -> Operation[bool]:
    about = {key: value for key, value in resumable(instance_id, reason="released").items() if value is not None}
    payload = json.dumps(about, ensure_ascii=False) if notifies else None
    whose = {"instance_id": instance_id, "worker_id": worker_id, "token": token}
    return bool((yield S.release(**whose, kind=RESUMABLE, payload=payload)))


def _key(lease: Lease) -> tuple[str, str, int | None]:
    return lease.instance_id, lease.worker_id, lease.token


def _renew(wanted: Sequence[tuple[str, str, int | None]], timeout_sec: float) -> Operation[list[Lease]]:
    """Renew those that are current; one without a token is alone, and is renewed whatever its token is."""
    ids, owners, tokens = map(list, zip(*wanted, strict=True))
    leases = [(instance_id, owner, token or 0) for instance_id, owner, token in wanted]
    wants = {"ids": ids, "owners": owners, "tokens": tokens, "leases": leases, "any_token": None in tokens}
    rows = yield S.renew(**wants, limit=len(ids), timeout_sec=timeout_sec)
    asked = set(wanted)
    return [
        Lease(instance_id, owner, token, utc(expires_at))
        for instance_id, owner, token, expires_at in rows
        if (instance_id, owner, token) in asked or (instance_id, owner, None) in asked
    ]


def _sweep(grace_sec: float) -> Operation[list[StaleWorkflowInfo]]:
    rows = yield S.sweep(grace_sec=grace_sec, limit=SWEEP_MAX, mark=_mark())
    return [StaleWorkflowInfo(row[0], row[1]) for row in sorted(rows) if WorkflowStatus(row[2]) in CLAIMABLE]
