"""Record stuck instances, whose attempts end without progress: why, and when they are retried.

A row is valid as long as nothing happens to its instance: any write on the instance's behalf is progress and makes the
row void, whether or not it was removed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.database.operation import Operation, Work, utc
from perdure.model import limits
from perdure.model.records import Lease, StuckInstance
from perdure.storage.fences import refused
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions, bounded

S = load_statements("stuck")

BACKED_OFF = "~put-off"  # the owner of a lease that keeps workers away, followed by `#` and the number of attempts
PAGE = 100
_FIRST = datetime(2000, 1, 1, tzinfo=UTC), ""


class Stuck(Transactions):
    """Manage stuck instances, an addition to the API page."""

    async def back_off(self, lease: Lease, tries: int, reason: str, pause_sec: float) -> None:
        """End a lease after so many attempts without progress, and let no worker take the instance for a while.

        The instance is stuck for this reason until something is written on its behalf.
        """
        limits.name(lease.instance_id, "instance_id")
        params = {
            "tries": limits.count(tries, "tries"),
            "reason": limits.text(reason, "reason", limits.METADATA_MAX),
        }
        seconds = limits.seconds(pause_sec, "pause_sec")
        await self._run(Work(lambda: _back_off(lease, params, seconds)))

    async def clear_stuck(self, instance_ids: Sequence[str]) -> None:
        """Mark these instances as no longer stuck."""
        ids = sorted(limits.name(each, "instance_id") for each in bounded(instance_ids))
        if ids:
            await self._run(Work(lambda: _clear(ids), single=True, repeat=True))

    async def get_stuck(self, instance_ids: Sequence[str]) -> list[StuckInstance | None]:
        """Return why each of these instances is stuck, in the order of their ids; None for each that is not."""
        return await self._read(_get, list(bounded(instance_ids))) if instance_ids else []

    async def list_stuck(self, limit: int = 0, *, after: tuple[datetime, str] | None = None) -> list[StuckInstance]:
        """Return stuck instances, the longest stuck first; `after` is the last one's `since` and id."""
        since, instance_id = after or _FIRST
        return await self._read(_list, limits.page(limit, PAGE), limits.moment(since, "after"), instance_id)


def _back_off(lease: Lease, params: dict[str, Any], seconds: float) -> Operation[None]:
    instance_id = lease.instance_id
    held = {"instance_id": instance_id, "token": lease.token, "worker_id": lease.worker_id}
    if not (yield S.back_off(**held, owner=f"{BACKED_OFF}#{params['tries']}", seconds=seconds)):
        raise (yield from refused(instance_id, lease))
    ((since, next_retry_at, progressed_at),) = yield S.standing(instance_id=instance_id)
    times = {"since": utc(since), "next_retry_at": utc(next_retry_at), "progressed_at": utc(progressed_at)}
    yield S.mark(instance_id=instance_id, **params, **times)


def _clear(ids: list[str]) -> Operation[None]:
    yield S.clear(ids=ids)


def _get(ids: list[str]) -> Operation[list[StuckInstance | None]]:
    found = {row[0]: _from_row(row) for row in (yield S.get(ids=ids))}
    return [found.get(instance_id) for instance_id in ids]


def _list(limit: int, since: datetime | None, instance_id: str) -> Operation[list[StuckInstance]]:
    return [_from_row(row) for row in (yield S.list(limit=limit, since=since, instance_id=instance_id))]


def _from_row(row: Sequence[Any]) -> StuckInstance:
    instance_id, reason, tries, since, next_retry_at = row
    return StuckInstance(instance_id, reason, tries, utc(since), utc(next_retry_at))
