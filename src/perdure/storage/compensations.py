"""Manage compensations, which undo the steps of a run, the last step first."""

from perdure.database.operation import Operation, Work, raw, utc
from perdure.model import limits
from perdure.model.records import CompensationEntry, Lease
from perdure.storage.fences import fence
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("compensations")


class Compensations(Transactions):
    """Implement CompensationManager."""

    async def add_compensation(self, entry: CompensationEntry, *, lease: Lease | None = None) -> int:
        """Register a compensation of a step and return its id. If it is added twice, it is stored twice."""
        params = entry_params(entry)
        return await self._run(Work(lambda: _add(params, lease)))

    async def get_compensations(self, instance_id: str, *, limit: int | None = None) -> list[CompensationEntry]:
        """Return the registered compensations, strictly last in, first out."""
        return await self._read(_newest_first, limits.name(instance_id, "instance_id"), limits.some(limit))


def entry_params(entry: CompensationEntry) -> dict[str, object]:
    """Return a compensation as the parameters of its insert, checked."""
    return {
        "instance_id": entry.instance_id,
        "activity_id": limits.name(entry.activity_id, "activity_id"),
        "activity_name": limits.name(entry.activity_name, "activity_name"),
        "args": limits.text(entry.args, "args"),
        "created_at": limits.moment(entry.created_at, "created_at"),
    }


def _add(params: dict[str, object], lease: Lease | None) -> Operation[int]:
    yield from fence(str(params["instance_id"]), lease)
    rows = yield S.add(**params)
    return int(rows[0][0])


def _newest_first(instance_id: str, limit: int) -> Operation[list[CompensationEntry]]:
    rows = yield S.newest_first(instance_id=instance_id, limit=limit)
    return [
        CompensationEntry(instance, activity, name, raw(args) or b"", entry_id, utc(created_at))
        for entry_id, instance, activity, name, args, created_at in rows
    ]
