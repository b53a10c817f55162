"""Workers: who works on this database, and when it was last heard of, by the database's clock."""

from datetime import datetime, timedelta

from perdure.database.operation import Operation, Work, raw, utc
from perdure.model import limits
from perdure.model.records import WorkerInfo
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("workers")

FORGET_SEC = 7 * 24 * 3600.0  # a worker that died without a word is listed for a week


class Workers(Transactions):
    """Worker rows, beyond the seed."""

    async def beat_worker(self, worker_id: str, info: bytes | None = None, *, gone: bool = False) -> None:
        """Say that a worker is alive, with JSON about it (None keeps what is there), or with `gone` that it stops."""
        limits.name(worker_id, "worker_id")
        text = limits.text(info, "info", limits.METADATA_MAX)
        work = Work(lambda: _leave(worker_id) if gone else _beat(worker_id, text), single=True, repeat=True)
        await self._run(work)

    async def list_workers(
        self, *, alive_within: timedelta | None = None, limit: int | None = None
    ) -> list[WorkerInfo]:
        """The workers, the longest running first; with `alive_within` only those heard of since then."""
        alive_sec = None if alive_within is None else limits.span(alive_within, "alive_within")
        return await self._scan(_list, alive_sec, limits.some(limit))

    async def current_time(self) -> datetime:
        """The database's clock, by which every time is judged."""
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
