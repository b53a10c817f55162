"""Delete instances that have ended, with all their rows."""

from collections.abc import Sequence
from datetime import timedelta

from perdure.database.operation import Operation, Work
from perdure.model import limits
from perdure.model.records import FRAMEWORK
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions, bounded

S = load_statements("deletion")


class Deletion(Transactions):
    """Delete own instances, an addition to the API page."""

    async def delete_instances(self, older_than: timedelta, limit: int = 0) -> int:
        """Delete own instances that ended longer ago than that, with all their rows; return their number."""
        age, page = limits.span(older_than, "older_than"), limits.page(limit, 100)
        return await self._run(Work(lambda: _delete(age, page)))

    async def delete_ended(self, instance_ids: Sequence[str]) -> list[bool]:
        """Delete those of these own instances that have ended, with all their rows; return whether, in order.

        As in `delete_instances`, generations that a live run continues from are kept.
        """
        ids = sorted({limits.name(each, "instance_id") for each in bounded(instance_ids)})
        deleted = await self._run(Work(lambda: _delete_ended(ids))) if ids else set()
        return [each in deleted for each in instance_ids]


def _delete(age_sec: float, limit: int) -> Operation[int]:
    ids = [row[0] for row in (yield S.finished(age_sec=age_sec, limit=limit))]
    return (yield from _remove(ids)) if ids else 0


def _delete_ended(ids: list[str]) -> Operation[set[str]]:
    rows = yield S.ended(ids=ids)  # by their ids: with a condition on the framework, SQLite would read all of it
    ended = sorted({row[0] for row in rows if row[1] == FRAMEWORK}.intersection(ids))
    if ended:
        yield from _remove(ended)
    return set(ended)


def _remove(ids: list[str]) -> Operation[int]:
    yield S.unlink(ids=ids)
    deleted: int = yield S.delete(ids=ids)
    return deleted
