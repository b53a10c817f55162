"""Record what people do: a row before each action, to which the outcome is added, and the runs that it is about.

The row is committed before the action begins. So no action is carried out without a row, and a row without an outcome
shows that the process died during the action.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from perdure.database.backends.base import Backend
from perdure.database.operation import Operation, Work, utc
from perdure.model import limits
from perdure.model.administration import REQUESTED, AuditRecord
from perdure.storage.encoding.fields import Fields
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions, bounded

S = load_statements("audit")

PAGE = 50
TEXT_MAX = 4000
REMOVE_MAX = 1000


class Audit(Transactions):
    """Manage the audit of a database. With a codec, texts that may quote values are encoded."""

    def __init__(self, backend: Backend, fields: Fields | None = None) -> None:
        super().__init__(backend)
        self._fields = fields

    async def add(
        self,
        actor: str,
        action: str,
        reason: str,
        *,
        target: str = "",
        query: str = "",
        runs: Sequence[str] = (),
        keep: timedelta | None = None,
    ) -> int:
        """Record an action that is about to begin, and return the id of the record.

        `runs` are the instances that it is about. With `keep`, records that are older are removed, a page at a time.
        """
        params = {
            "actor": limits.name(actor, "actor"),
            "action": limits.name(action, "action"),
            "target": limits.searchable(target, "target"),
            "query": self._encoded("query", query),
            "reason": self._encoded("reason", reason),
            "outcome": REQUESTED,
        }
        ids = sorted({limits.name(each, "runs") for each in bounded(runs)})
        age_sec = None if keep is None else limits.span(keep, "keep")
        return await self._run(Work(lambda: _add(params, ids, age_sec)))

    async def relate(self, audit_id: int, runs: Sequence[str]) -> None:
        """Relate a record to more instances that it is about; those that it has already are left as they are."""
        ids = sorted({limits.name(each, "runs") for each in bounded(runs)})
        await self._run(Work(lambda: _relate(audit_id, ids), single=True, repeat=True))

    async def finish(self, audit_id: int, outcome: str) -> None:
        """Record the outcome of an action."""
        params = {"audit_id": audit_id, "outcome": self._encoded("outcome", outcome)}
        await self._run(Work(lambda: _finish(params), single=True, repeat=True))

    async def latest(self, limit: int = 0, *, before: int | None = None) -> list[AuditRecord]:
        """Return records, the last one first; `before` is the id of the last record of the page before."""
        place = {"limit": limits.page(limit, PAGE), "before": limits.EVERYTHING if before is None else before}
        return [self._record(row) for row in await self._read(_latest, place)]

    async def of_run(self, instance_id: str, limit: int = 0, *, before: int | None = None) -> list[AuditRecord]:
        """Return the records about an instance, the last one first."""
        place = {"limit": limits.page(limit, PAGE), "before": limits.EVERYTHING if before is None else before}
        rows = await self._read(_of_run, {"instance_id": limits.name(instance_id, "instance_id"), **place})
        return [self._record(row) for row in rows]

    def _encoded(self, kind: str, text: str) -> str:
        checked = limits.text(text, kind, limits.METADATA_MAX) or ""
        shown = checked if len(checked) <= TEXT_MAX else f"{checked[: TEXT_MAX - 1]}…"
        return shown if self._fields is None else self._fields.encoded_text(shown, f"audit/{kind}", kind)

    def _record(self, row: Sequence[Any]) -> AuditRecord:
        id, at, actor, action, target, *texts = row
        if self._fields is not None:
            kinds = ("query", "reason", "outcome")
            texts = [self._fields.decoded_text(text, f"audit/{kind}") for kind, text in zip(kinds, texts, strict=True)]
        return AuditRecord(id, utc(at), actor, action, target, *texts)


def _add(params: dict[str, str], runs: list[str], age_sec: float | None) -> Operation[int]:
    ((audit_id,),) = yield S.add(**params)
    if runs:
        yield from _relate(audit_id, runs)
    if age_sec is not None and (old := (yield S.old(age_sec=age_sec, limit=REMOVE_MAX))):
        yield S.remove(acted_at=utc(old[-1][0]))
    return int(audit_id)


def _relate(audit_id: int, runs: list[str]) -> Operation[None]:
    yield S.relate(audit_id=audit_id, ids=runs)


def _finish(params: dict[str, object]) -> Operation[None]:
    yield S.finish(**params)


def _latest(place: dict[str, int]) -> Operation[Sequence[Sequence[Any]]]:
    return (yield S.latest(**place))  # type: ignore[no-any-return]


def _of_run(place: dict[str, object]) -> Operation[Sequence[Sequence[Any]]]:
    ids = [row[0] for row in (yield S.related(**place))]
    rows = (yield S.get(ids=ids)) if ids else []
    return sorted(rows, key=lambda row: -int(row[0]))
