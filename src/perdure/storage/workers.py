"""Record the workers on this database, with the time of their last heartbeat by the database's clock."""

from datetime import datetime, timedelta

from perdure.database.operation import Operation, Work, raw, utc
from perdure.model import limits
from perdure.model.records import WorkerInfo
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("workers")

FORGET_SEC = 7 * 24 * 3600.0  # a worker that died without notice is listed for a week


class Workers(Transactions):
    """Manage the rows of workers, an addition to the API page."""

    async def beat_worker(self, worker_id: str, info: bytes | None = None, *, gone: bool = False) -> None:
        """Record that a worker is alive, with JSON about it (None keeps the stored one), or that it stops (`gone`)."""
        limits.name(worker_id, "worker_id")
        text = limits.text(info, "info", limits.METADATA_MAX)
        work = Work(lambda: _leave(worker_id) if gone else _beat(worker_id, text), single=True, repeat=True)
        await self._run(work)

    async def list_workers(
        self, *, alive_within: timedelta | None = None, limit: int | None = None
    ) -> list[WorkerInfo]:
        """Return the workers, the longest running first; with `alive_within` only those with a heartbeat since then."""
        alive_sec = None if alive_within is None else limits.span(alive_within, "alive_within")
        return await self._scan(_list, alive_sec, limits.some(limit))

    async def now(self) -> datetime:
        """Return the database's clock, which decides about every time."""
        return await self._read(_now)


def _now() -> Operation[datetime]:
    ((now,),) = yield S.now()
    return utc(now)


def _beat(worker_id: str, info: str | None) -> Operation[None]:
    if not (yield S.beat(worker_id=worker_id, info=info)):
        yield S.enter(worker_id=worker_id, info=info)
        yield S.forget(silent_sec=FORGET_SEC)


def _leave(worker_id: str) -> Operation[None]:
    yield S.leave(worker_id=worker_id)


def _list(alive_sec: float | None, limit: int) -> Operation[list[WorkerInfo]]:
    rows = yield S.list(alive_sec=alive_sec, limit=limit)
    return [WorkerInfo(worker_id, utc(started), utc(beat), raw(info)) for worker_id, started, beat, info in rows]
