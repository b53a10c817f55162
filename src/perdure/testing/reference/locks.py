"""Manage fenced leases on instances, locks of background tasks, and the list of workers."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter

from perdure.errors import LeaseLostError
from perdure.model import limits
from perdure.model.records import Lease, StaleWorkflowInfo, SystemLease, WorkerInfo, WorkflowInstance
from perdure.model.states import RESUMABLE, TERMINAL
from perdure.testing.reference.arguments import OWN, bounded
from perdure.testing.reference.fences import FREE, Fences, claimable_at, instance_from
from perdure.testing.reference.history import raw
from perdure.testing.reference.tables import change, remove
from perdure.testing.reference.transactions import reads, writes

SWEEP_MAX = 1000
FORGET_SEC = 7 * 24 * 3600.0  # a worker that died without notice is listed for a week

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Locks(Fences):
    """Implement LockManager."""

    async def try_acquire_lock(self, instance_id: str, worker_id: str, timeout_sec: float) -> Lease | None:
        """Return a lease if the instance is free: not leased (not even to this worker), not finished."""
        (lease,) = await self.acquire_locks([instance_id], worker_id, timeout_sec)
        return lease

    @writes
    def acquire_locks(self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float) -> list[Lease | None]:
        """Acquire the leases of many instances that are free; if one is named twice, the first occurrence gets it."""
        limits.name(worker_id, "worker_id")
        ids = [limits.name(instance_id, "instance_id") for instance_id in bounded(instance_ids)]
        seconds = limits.seconds(timeout_sec)
        return [self._acquire(instance_id, worker_id, seconds) for instance_id in ids]

    @writes
    def claim_instances(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float, *, limit: int
    ) -> list[tuple[Lease, WorkflowInstance]]:
        """Acquire the leases of at most `limit` of these instances that may be taken now; return these, too."""
        limits.name(worker_id, "worker_id")
        ids = sorted({limits.name(instance_id, "instance_id") for instance_id in bounded(instance_ids)})
        seconds, most = limits.seconds(timeout_sec), limits.page(limit, limits.PAGE_MAX)
        claimed: list[tuple[Lease, WorkflowInstance]] = []
        for instance_id in ids:
            row = self._tables.workflow_instances.get(instance_id)
            at = None if row is None else claimable_at(row)
            if len(claimed) == most or at is None or at > self._now:
                continue
            if (lease := self._acquire(instance_id, worker_id, seconds)) is not None:
                claimed.append((lease, instance_from(self._tables.workflow_instances[instance_id])))
        return claimed

    def _acquire(self, instance_id: str, worker_id: str, timeout_sec: float) -> Lease | None:
        instances = self._tables.workflow_instances
        row = instances.get(instance_id)
        if row is None or row["status"] in TERMINAL or not self._is_free(row):
            return None
        lease = Lease(
            instance_id, worker_id, row["lock_token"] + 1, self._after(row["lock_timeout_seconds"] or timeout_sec)
        )
        taken = {"locked_by": worker_id, "locked_at": self._now, "lock_token": lease.token}
        change(instances, instance_id, **taken, lock_expires_at=lease.expires_at)
        return lease

    @writes
    def release_lock(self, instance_id: str, worker_id: str, *, lease: Lease | None = None) -> None:
        """Release a lease; do nothing if this worker does not hold it."""
        if self._holds(instance_id, worker_id, lease):
            change(self._tables.workflow_instances, instance_id, **FREE, updated_at=self._now)

    @writes
    def refresh_lock(
        self, instance_id: str, worker_id: str, timeout_sec: float, *, lease: Lease | None = None
    ) -> Lease:
        """Renew a lease, even an expired one that no worker has taken."""
        seconds = limits.seconds(timeout_sec)
        if not self._holds(instance_id, worker_id, lease):
            raise LeaseLostError(f"worker {worker_id!r} lost its lease on run {instance_id!r}")
        return self._renew(instance_id, seconds)

    @writes
    def refresh_locks(self, leases: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
        """Renew leases of any owner at once; return None for each that was lost."""
        if not leases:
            return []
        seconds = limits.seconds(timeout_sec)
        held = [self._holds(lease.instance_id, lease.worker_id, lease) for lease in leases]
        return [self._renew(lease.instance_id, seconds) if ok else None for lease, ok in zip(leases, held, strict=True)]

    def _holds(self, instance_id: str, worker_id: str, lease: Lease | None) -> bool:
        limits.name(instance_id, "instance_id")
        limits.name(worker_id, "worker_id")
        row = self._tables.workflow_instances.get(instance_id)
        if row is None or row["locked_by"] != worker_id:
            return False
        return lease is None or lease.token == row["lock_token"]

    def _renew(self, instance_id: str, timeout_sec: float) -> Lease:
        row = self._tables.workflow_instances[instance_id]
        lease = Lease(
            instance_id, row["locked_by"], row["lock_token"], self._after(row["lock_timeout_seconds"] or timeout_sec)
        )
        change(self._tables.workflow_instances, instance_id, lock_expires_at=lease.expires_at)
        return lease

    @writes
    def cleanup_stale_locks(self, timeout_sec: float = 0) -> list[StaleWorkflowInfo]:
        """Clear own leases that expired more than `timeout_sec` ago; return the running and compensating ones."""
        until = self._after(-limits.seconds(timeout_sec) if timeout_sec else 0)
        stale = sorted(
            (row["lock_expires_at"], instance_id, row)
            for instance_id, row in self._tables.workflow_instances.items()
            if row["framework"] == OWN and row["lock_expires_at"] is not None and row["lock_expires_at"] < until
        )[:SWEEP_MAX]
        for _, instance_id, _ in stale:
            change(self._tables.workflow_instances, instance_id, **FREE)
        freed = sorted((name, row["workflow_name"]) for _, name, row in stale if row["status"] in RESUMABLE)
        return [StaleWorkflowInfo(*each) for each in freed]


class SystemLocks(Fences):
    """Implement SystemLockManager."""

    @writes
    def try_acquire_system_lock(self, lock_name: str, worker_id: str, timeout_sec: float) -> SystemLease | None:
        """Take a lock that is free or expired, or renew an own lock, which keeps its token."""
        limits.name(lock_name, "lock_name")
        limits.name(worker_id, "worker_id")
        expires_at = self._after(limits.seconds(timeout_sec))
        row, tokens = self._tables.system_locks.get(lock_name), self._tables.perdure_lock_tokens
        ours = row is not None and row["locked_by"] == worker_id
        until = row["lock_expires_at"] if row is not None and row["locked_by"] is not None else None
        if not ours and until is not None and until > self._now:
            return None
        self._tables.system_locks[lock_name] = {
            "lock_name": lock_name,
            "locked_by": worker_id,
            "locked_at": self._now,
            "lock_expires_at": expires_at,
        }
        if not ours or lock_name not in tokens:
            token = tokens[lock_name]["token"] + 1 if lock_name in tokens else 1
            tokens[lock_name] = {"lock_name": lock_name, "token": token}
        return SystemLease(lock_name, worker_id, tokens[lock_name]["token"], expires_at)

    @writes
    def release_system_lock(self, lock_name: str, worker_id: str) -> None:
        """Release a lock; its time is set far in the past, so that Edda and Romancy can take it."""
        limits.name(lock_name, "lock_name")
        limits.name(worker_id, "worker_id")
        row = self._tables.system_locks.get(lock_name)
        if row is not None and row["locked_by"] == worker_id:
            change(self._tables.system_locks, lock_name, locked_by=None, locked_at=None, lock_expires_at=_LONG_AGO)

    @writes
    def cleanup_expired_system_locks(self) -> int:
        """Remove the rows of locks that no worker holds, and keep their tokens."""
        table = self._tables.system_locks
        gone = [
            name
            for name, row in table.items()
            if row["locked_by"] is None or (row["lock_expires_at"] is not None and row["lock_expires_at"] <= self._now)
        ]
        return remove(table, gone)

    @writes
    def beat_worker(self, worker_id: str, info: bytes | None = None, *, gone: bool = False) -> None:
        """Record that a worker is alive, or that it stops; remove workers that died long ago without notice."""
        limits.name(worker_id, "worker_id")
        text, table = limits.text(info, "info", limits.METADATA_MAX), self._tables.perdure_workers
        if gone:
            remove(table, [worker_id])
        elif worker_id in table:
            known = table[worker_id]["info"]
            change(table, worker_id, beat_at=self._now, info=known if text is None else text)
        else:
            table[worker_id] = {"worker_id": worker_id, "started_at": self._now, "beat_at": self._now, "info": text}
            remove(table, [name for name, row in table.items() if row["beat_at"] < self._after(-FORGET_SEC)])

    @reads
    def now(self) -> datetime:
        """Return the clock, which decides about every time."""
        return self._now

    @reads
    def list_workers(self, *, alive_within: timedelta | None = None, limit: int | None = None) -> list[WorkerInfo]:
        """Return the workers, the longest running first."""
        since = None if alive_within is None else self._after(-limits.span(alive_within, "alive_within"))
        rows = [row for row in self._tables.perdure_workers.values() if since is None or row["beat_at"] >= since]
        rows.sort(key=itemgetter("started_at", "worker_id"))
        found = [WorkerInfo(**row) for row in rows[: limits.some(limit)]]
        return [replace(worker, info=raw(row["info"])) for worker, row in zip(found, rows, strict=False)]
