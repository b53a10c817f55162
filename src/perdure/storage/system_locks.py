"""Manage system locks, which allow one worker at a time for each background task.

The token grows with every change of owner, so that writes of a late owner can be distinguished from those of its
successor. It is in a table of its own, because Edda and Romancy delete rows of `system_locks`.
"""

from perdure.database.operation import Operation, Work, utc
from perdure.model import limits
from perdure.model.records import SystemLease
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("system_locks")


class SystemLocks(Transactions):
    """Implement SystemLockManager, with leases instead of booleans."""

    async def try_acquire_system_lock(self, lock_name: str, worker_id: str, timeout_sec: float) -> SystemLease | None:
        """Take a lock that is free or expired, or renew an own lock, which keeps its token; otherwise return None."""
        _check(lock_name, worker_id)
        seconds = limits.seconds(timeout_sec)
        return await self._run(Work(lambda: _acquire(lock_name, worker_id, seconds), repeat=True))

    async def release_system_lock(self, lock_name: str, worker_id: str) -> None:
        """Release a lock; do nothing if this worker does not hold it."""
        _check(lock_name, worker_id)
        await self._run(Work(lambda: _release(lock_name, worker_id), single=True, repeat=True))

    async def cleanup_expired_system_locks(self) -> int:
        """Remove the rows of locks that no worker holds; return their number."""
        return await self._run(Work(_cleanup, single=True, repeat=True))


def _check(lock_name: str, worker_id: str) -> None:
    limits.name(lock_name, "lock_name")
    limits.name(worker_id, "worker_id")


def _acquire(lock_name: str, worker_id: str, timeout_sec: float) -> Operation[SystemLease | None]:
    holder = {"lock_name": lock_name, "worker_id": worker_id}
    rows = yield S.see(**holder)
    standing = rows[0][0] if rows else "absent"
    if standing == "held" or (standing == "free" and not (yield S.free(lock_name=lock_name))):
        return None
    owner = worker_id if standing == "ours" else None
    new = S.enter if standing == "absent" else S.hold
    if not (yield new(**holder, owner=owner, timeout_sec=timeout_sec)):
        return None
    rows = (yield S.lease(**holder)) if owner else []
    if not rows:  # a new owner, or one without a token because another framework wrote its row
        yield S.raise_token(lock_name=lock_name)
        rows = yield S.lease(**holder)
    token, expires_at = rows[0]
    return SystemLease(lock_name, worker_id, token, utc(expires_at))


def _release(lock_name: str, worker_id: str) -> Operation[None]:
    yield S.release(lock_name=lock_name, worker_id=worker_id)


def _cleanup() -> Operation[int]:
    deleted: int = yield S.cleanup()
    return deleted
