"""Record history: append-only, in id order, fenced; appending an equal event again changes nothing."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.database.dialects import Features
from perdure.database.dialects.base import Bare, Now
from perdure.database.operation import Operation, Work, raw, utc
from perdure.errors import HistoryConflictError, LimitError, StorageError
from perdure.model import limits
from perdure.model.blank import blank
from perdure.model.records import HistoryEvent, HistoryEventType, Lease
from perdure.storage import sets, transactions
from perdure.storage.contract import HistoryManager
from perdure.storage.fences import fence_params, refused
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("history")

PAGE = 1000


class History(Transactions):
    """Implement HistoryManager."""

    async def append_history(self, event: HistoryEvent, *, lease: Lease | None = None) -> int:
        """Record an event and return its id; raise `HistoryConflictError` if the step has a different event already."""
        answer = await self._run(appending(event, lease))
        if isinstance(answer, StorageError):
            raise answer
        return answer

    async def append_histories(self, items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        """Record many events in one commit; return an id or an error for each, in order."""
        checked = plain(items)
        if checked is None:
            return await self._batch(lambda item: appending(*item), items)
        many, parts = append_many(self._features), sets.split(checked, size)
        if many is not _append_at_once or len(parts) > 1 or self.in_transaction():
            return await self._run(Work(lambda: in_turn(many, parts)))
        rows = await self._run(Work(lambda: _append_set(checked), single=True))
        if all(event_id is not None for event_id, _ in rows):
            return [event_id for event_id, _ in rows]
        try:
            return await self._read(_outcomes, checked, rows)
        except StorageError as error:  # the other events are committed, so only those that were not accepted get it
            return [error if event_id is None else event_id for event_id, _ in rows]

    async def get_history_paginated(
        self, instance_id: str, after_id: int = 0, limit: int = 0
    ) -> tuple[list[HistoryEvent], bool]:
        """Return the events after an id, in order, and whether there are more."""
        limits.name(instance_id, "instance_id")
        return await self._read(_page, instance_id, limits.number(after_id, "after_id"), limits.page(limit, PAGE))

    async def get_history_count(self, instance_id: str) -> int:
        """Return the number of events of an instance."""
        return await self._read(_count, limits.name(instance_id, "instance_id"))

    async def get_last_event(self, instance_id: str, event_type: str) -> HistoryEvent | None:
        """Return the newest event of a type, or None; archived events are ignored."""
        kind = str(limits.name(event_type, "event_type", limits.EVENT_TYPE_MAX))
        return await self._read(_last, limits.name(instance_id, "instance_id"), kind)

    async def get_events(self, instance_ids: Sequence[str], activity_ids: Sequence[str]) -> list[HistoryEvent]:
        """Return the events of these activities of these instances, by instance and in order."""
        ids, activities = list(transactions.bounded(instance_ids)), list(transactions.bounded(activity_ids))
        return await self._read(_events, ids, activities) if ids and activities else []


def event_params(event: HistoryEvent) -> dict[str, object]:
    """Return an event as the parameters of its insert, checked."""
    if event.data_type not in ("json", "binary"):
        raise LimitError(f"data_type must be 'json' or 'binary', not {event.data_type!r}")
    limits.size(event.event_data_binary, "event_data_binary")
    return {
        "instance_id": limits.name(event.instance_id, "instance_id"),
        "activity_id": limits.name(event.activity_id, "activity_id"),
        "event_type": str(limits.name(event.event_type, "event_type", limits.EVENT_TYPE_MAX)),
        "data_type": event.data_type,
        "event_data": limits.text(event.event_data, "event_data"),
        "event_data_binary": event.event_data_binary,
        "created_at": limits.moment(event.created_at, "created_at"),
    }


def _own_params(event: HistoryEvent) -> dict[str, object]:
    """Return the parameters of an event under a lease of its instance, whose id is checked; such events are many."""
    if type(event.event_type) is not HistoryEventType or event.data_type != "json":
        return event_params(event)
    limits.size(event.event_data_binary, "event_data_binary")
    return {
        "instance_id": event.instance_id,
        "activity_id": limits.name(event.activity_id, "activity_id"),
        "event_type": event.event_type.value,
        "data_type": "json",
        "event_data": limits.text(event.event_data, "event_data"),
        "event_data_binary": event.event_data_binary,
        "created_at": None,
    }


def appending(event: HistoryEvent, lease: Lease | None) -> Work[int | StorageError]:
    """Return the operation that records one event."""
    params = event_params(event)
    fence_params(event.instance_id, lease)
    return Work(lambda: append(params, lease), single=True, confirm=lambda: _recorded(params), row=event.instance_id)


def append(params: dict[str, object], lease: Lease | None) -> Operation[int | StorageError]:
    """Record one event under the fence. Return errors: raised, they would undo the fence on some databases only."""
    token, worker_id = (lease.token, lease.worker_id) if lease else (None, None)
    ((fenced, event_id),) = yield S.append(token=token, worker_id=worker_id, **params)
    return (yield from outcome(params, lease, fenced, event_id))


def outcome(
    params: dict[str, object], lease: Lease | None, fenced: int, event_id: Any
) -> Operation[int | StorageError]:
    """Return the id of an event; if it was not inserted, the id of the equal event, or the error."""
    if event_id is not None:
        return int(event_id)
    if not fenced:
        return (yield from refused(str(params["instance_id"]), lease))
    same: int | None = yield from _recorded(params)
    if same is None:
        return HistoryConflictError(
            f"activity {params['activity_id']!r} of run {params['instance_id']!r} already has a different event"
        )
    return same


Items = Sequence[tuple[dict[str, Any], Lease]]


def plain(items: Sequence[tuple[HistoryEvent, Lease | None]]) -> Items | None:
    """Return a checked batch that can be written in sets: one lease per instance, no step twice, no explicit times."""
    checked: list[tuple[dict[str, Any], Lease]] = []
    leases: dict[str, Lease] = {}
    for event, lease in items:
        if lease is None or event.created_at or lease.instance_id != event.instance_id:
            return None
        known = leases.get(event.instance_id)
        if known is not None and known is not lease and known != lease:
            return None
        try:
            if known is None:
                limits.name(event.instance_id, "instance_id")
                leases[event.instance_id] = lease
            checked.append((_own_params(event), lease))
        except StorageError:
            return None
    steps = {(event.instance_id, event.activity_id) for event, _ in items}
    return checked if 0 < len(steps) == len(items) else None


def size(item: tuple[dict[str, Any], Lease]) -> int:
    """Return the number of characters and bytes in an item of a batch."""
    return len(item[0]["event_data"] or "") + len(item[0]["event_data_binary"] or b"")


def in_turn(many: "Many", parts: Sequence[Items]) -> Operation[list[int | StorageError]]:
    """Write the sets of a batch one after the other."""
    answers: list[int | StorageError] = []
    for items in parts:
        answers += yield from many(items)
    return answers


def _append_at_once(items: Items) -> Operation[list[int | StorageError]]:
    """Write the whole batch in one statement, in a transaction with others."""
    return (yield from _outcomes(items, (yield from _append_set(items))))


def _append_set(items: Items) -> Operation[Sequence[tuple[Any, int]]]:
    """Write the whole batch in one statement; return an id, or None, and whether the lease was current, for each."""
    rows: Sequence[tuple[Any, int]] = yield S.append_set(
        tokens=[lease.token for _, lease in items],
        worker_ids=[lease.worker_id for _, lease in items],
        **columns(items),
    )
    return rows


def _outcomes(items: Items, rows: Sequence[tuple[Any, int]]) -> Operation[list[int | StorageError]]:
    """Return the answers for what `_append_set` returned; read why events were not accepted."""
    answers: list[int | StorageError] = []
    for (params, lease), (event_id, fenced) in zip(items, rows, strict=True):
        answers.append((yield from outcome(params, lease, fenced, event_id)))
    return answers


def columns(items: Items) -> dict[str, list[object]]:
    """Return a batch as arrays, one for each column."""
    return {column: [params[key] for params, _ in items] for column, key in _COLUMNS.items()}


_COLUMNS = {
    "instance_ids": "instance_id",
    "activity_ids": "activity_id",
    "event_types": "event_type",
    "data_types": "data_type",
    "texts": "event_data",
    "binaries": "event_data_binary",
    "times": "created_at",
}


def _append_locked(items: Items) -> Operation[list[int | StorageError]]:
    """Lock the rows first, then write for the leases that are current."""
    rows = yield S.lock_many(instance_ids=sorted({params["instance_id"] for params, _ in items}))
    return (yield from append_standing(items, {row[0]: (row[1], row[2]) for row in rows}))


def append_standing(items: Items, standing: Mapping[str, tuple[int, str]]) -> Operation[list[int | StorageError]]:
    """Write for instances whose rows are locked: their tokens and workers are given."""
    current = [params for params, lease in items if standing.get(lease.instance_id) == (lease.token, lease.worker_id)]
    found: dict[tuple[str, str], int] = {}
    if current:
        newest = {params["instance_id"]: params["activity_id"] for params in current}
        rows = yield S.append_locked(
            instance_ids=Bare(newest),
            newest_ids=Bare(newest.values()),
            events=Bare((*(params[key] for key in _EVENT), _NOW) for params in current),
            keys=Bare((params["instance_id"], params["activity_id"]) for params in current),
        )
        found = {(instance_id, activity_id): event_id for event_id, instance_id, activity_id in rows}
    return (yield from fates(items, [found.get((p["instance_id"], p["activity_id"])) for p, _ in items]))


_NOW = Now()
_EVENT = ("instance_id", "activity_id", "event_type", "data_type", "event_data", "event_data_binary")


def fates(items: Items, ids: Sequence[int | None]) -> Operation[list[int | StorageError]]:
    """Return the answer for each item; append those without an id one by one, to find out why."""
    answers: list[int | StorageError] = []
    for (params, lease), event_id in zip(items, ids, strict=True):
        answers.append(event_id if event_id is not None else (yield from append(params, lease)))
    return answers


Many = Callable[[Items], Operation[list[int | StorageError]]]


def _append_undoably(items: Items) -> Operation[list[int | StorageError]]:
    """Write all fences, then all events; if one is rejected, undo them and append one by one."""
    yield transactions.S.savepoint()
    fenced = yield from fence_all(items)
    ids = (yield from insert_for_each(items)) if fenced else None
    if ids is None:
        yield transactions.S.undo()
    yield transactions.S.release()
    return (yield from fates(items, [None] * len(items) if ids is None else ids))


def fence_all(items: Items) -> Operation[bool]:
    """Write the fence of each instance once; return whether all leases are current."""
    newest = {lease.instance_id: (params, lease) for params, lease in items}
    fences = [(id, params["activity_id"], lease.token, lease.worker_id) for id, (params, lease) in newest.items()]
    return (yield S.fence_many(items=fences)) == len(fences) if fences else True


def insert_for_each(items: Items) -> Operation[Sequence[int] | None]:
    """Write all events and return their ids; None if there is one already."""
    ((inserted, last_id),) = yield S.append_each.for_each([params for params, _ in items])
    if inserted != len(items):
        return None
    return range(last_id - len(items) + 1, last_id + 1)  # no other connection writes meanwhile


def append_many(features: Features) -> Many:
    """Return the fastest way to write a batch."""
    if features.one_statement_writes:
        return _append_at_once
    return _append_undoably if features.repeated_calls else _append_locked


def _recorded(params: dict[str, object]) -> Operation[int | None]:
    """Return the id of the event if an equal one is recorded, else None."""
    rows = yield S.recorded(instance_id=params["instance_id"], activity_id=params["activity_id"])
    wanted = tuple(params[key] for key in ("event_type", "data_type", "event_data", "event_data_binary"))
    return int(rows[0][0]) if rows and tuple(rows[0][1:5]) == wanted else None


def _page(instance_id: str, after_id: int, limit: int) -> Operation[tuple[list[HistoryEvent], bool]]:
    rows = yield S.page(instance_id=instance_id, after_id=after_id, limit=limit + 1)
    return [from_row(row) for row in rows[:limit]], len(rows) > limit


_new = blank(HistoryEvent)


def from_row(row: Sequence[Any]) -> HistoryEvent:
    """Return an event from the columns of `page`."""
    it = _new()
    it.id, it.instance_id, it.activity_id, it.event_type, it.data_type, text, binary, created_at = row
    it.event_data, it.event_data_binary, it.created_at = raw(text), raw(binary), utc(created_at)
    it.__class__ = HistoryEvent
    return it  # type: ignore[no-any-return]


def _count(instance_id: str) -> Operation[int]:
    rows = yield S.count(instance_id=instance_id)
    return int(rows[0][0])


def _last(instance_id: str, event_type: str) -> Operation[HistoryEvent | None]:
    rows = yield S.last(instance_id=instance_id, event_type=event_type)
    return from_row(rows[0]) if rows else None


def _events(ids: list[str], activities: list[str]) -> Operation[list[HistoryEvent]]:
    found = [from_row(row) for row in (yield S.of_activities(ids=ids, activities=activities))]
    # MySQL finds `a` when asked for `a `
    asked = [event for event in found if event.instance_id in ids and event.activity_id in activities]
    return sorted(asked, key=lambda event: (event.instance_id, event.id))


@dataclass(frozen=True, slots=True)
class HistoryIteratorOptions:
    """Configure an iterator, which reads `batch_size` events at a time."""

    batch_size: int = PAGE


class HistoryIterator:
    """Stream an instance's history in batches, so that it is never in memory as a whole."""

    def __init__(
        self, storage: HistoryManager, instance_id: str, options: HistoryIteratorOptions | None = None
    ) -> None:
        self._storage, self._instance_id = storage, instance_id
        self._batch_size = limits.page((options or HistoryIteratorOptions()).batch_size, PAGE)
        self._batch: list[HistoryEvent] = []
        self._after_id, self._more = 0, True
        self._error: Exception | None = None

    async def next(self) -> HistoryEvent | None:
        """Return the next event; None at the end, or after an error, which `err` returns."""
        if not self._batch and self._more and self._error is None:
            try:
                events, self._more = await self._storage.get_history_paginated(
                    self._instance_id, self._after_id, self._batch_size
                )
            except StorageError as error:
                self._error = error
                return None
            self._batch = events[::-1]
        if not self._batch:
            return None
        event = self._batch.pop()
        self._after_id = event.id
        return event

    async def collect(self) -> list[HistoryEvent]:
        """Return all remaining events."""
        return [event async for event in self]

    @property
    def err(self) -> Exception | None:
        """Return the error that ended the iteration, or None."""
        return self._error

    def close(self) -> None:
        """End the iteration and release what was read."""
        self._batch, self._more = [], False

    async def __aiter__(self) -> AsyncIterator[HistoryEvent]:
        while (event := await self.next()) is not None:
            yield event
        if self._error is not None:
            raise self._error
