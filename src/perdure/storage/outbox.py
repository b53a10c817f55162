"""Manage the outbox: events are sent at least once, in order for each source, if their transaction committed.

Adding an event draws its sequence number and locks the source's sequence row until the commit, so events appear in
order. Relays take turns on a second row of the source. Its `ready_at` is the time from which the next event may be
fetched: the end of a claim, or of a back-off; NULL if there is none. A relay sets it to NULL only while no transaction
is adding.

Events that Edda or Romancy wrote have no sequence number and are left to their relays.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

from perdure.database.operation import Operation, Work, raw, utc, utc_or_none
from perdure.errors import HistoryConflictError, InvalidPageTokenError, LimitError
from perdure.model import limits
from perdure.model.records import Lease, OutboxEvent, OutboxStatus
from perdure.storage.fences import fence
from perdure.storage.sql import load_statements
from perdure.storage.wakeups import OUTBOX, Wakeups

S = load_statements("outbox")

PAGE = 100
BACK_OFF_MAX_SEC = 300.0
CONTENT_TYPE_MAX = 100
CLEANUP_MAX = 1000

_CONTENT = ("event_type", "event_source", "data_type", "event_data", "event_data_binary", "content_type")
_PARKED = {OutboxStatus.INVALID, OutboxStatus.FAILED, OutboxStatus.EXPIRED}  # the last two by another framework
_EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)  # MySQL's minimum


class Outbox(Wakeups):
    """Implement OutboxManager and its additions. Calls about one event return False if it does not exist."""

    async def add_outbox_event(self, event: OutboxEvent, *, lease: Lease | None = None) -> None:
        """Store an event to be sent; an equal one changes nothing, a different one with the same id is a conflict.

        Headers do not count: an event that is sent again has those of another attempt, such as another trace.
        """
        params = _params(event)
        about = {"event_id": event.event_id, "evt_id": event.event_id, "evt_type": event.event_type}
        work = Work(lambda: _add(params, lease), repeat=True)
        await self._announce(OUTBOX, work, lambda added: about if added else None)

    async def get_pending_outbox_events(
        self, limit: int = 0, *, relay_id: str = "", lease_sec: float = 30
    ) -> list[OutboxEvent]:
        """Claim events for a while: until they are marked, no other call gets them or later events of their sources.

        A source's events are together and in order. Events that are not marked within `lease_sec` are handed out again.
        """
        page, seconds = limits.page(limit, PAGE), limits.seconds(lease_sec, "lease_sec")
        if relay_id:
            limits.name(relay_id, "relay_id")
        if not await self._read(_waiting):  # an idle relay takes no lock
            return []
        return await self._run(Work(lambda: _fetch(page, relay_id, seconds), repeat=True))

    async def mark_outbox_event_sent(self, event_id: str) -> bool:
        """Mark an event as published, even if another relay has claimed it since."""
        limits.name(event_id, "event_id")
        return await self._run(Work(lambda: _sent(event_id), repeat=True))

    async def settle_outbox_events(
        self,
        *,
        sent: Sequence[str] = (),
        released: Sequence[str] = (),
        relay_id: str,
        pause: timedelta = timedelta(0),
    ) -> None:
        """Mark events as published, and end this relay's claims on others without counting an attempt: in one commit.

        The sources of released events wait for `pause` before their next event can be fetched (default: not at all).
        Events that do not exist, or are no longer claimed by this relay, are not released.
        """
        for event_id in (*sent, *released):
            limits.name(event_id, "event_id")
        if relay_id:
            limits.name(relay_id, "relay_id")
        pause_sec = limits.span(pause, "pause")
        if sent or released:
            await self._run(Work(lambda: _settle_all([*sent], [*released], relay_id, pause_sec), repeat=True))

    async def increment_outbox_attempts(
        self,
        event_id: str,
        *,
        error: str | None = None,
        back_off: timedelta | None = None,
        relay_id: str | None = None,
    ) -> bool:
        """Record a failed attempt; the event and later events of its source wait (default: 1, 2, 4 … 300 s).

        With `relay_id`, do nothing and return False if another relay has claimed the event since.
        """
        limits.name(event_id, "event_id")
        text, seen = limits.text(error, "error"), list[int]()
        wait_sec = None if back_off is None else limits.span(back_off, "back_off")
        return await self._run(
            Work(
                lambda: _back_off(event_id, text, wait_sec, relay_id, seen),
                confirm=lambda: _backed_off(event_id, seen),
            )
        )

    async def mark_outbox_event_failed(
        self, event_id: str, *, error: str | None = None, relay_id: str | None = None
    ) -> bool:
        """Park an event: it is never fetched again and blocks no other, until `requeue_outbox_event`."""
        limits.name(event_id, "event_id")
        text = limits.text(error, "error")
        return await self._run(Work(lambda: _park(event_id, text, relay_id), repeat=True))

    async def requeue_outbox_event(self, event_id: str) -> bool:
        """Put a parked event back at the end of its source; return False if it is not parked.

        An own event that another framework's relay has marked `failed` or `expired` is parked, too.
        """
        limits.name(event_id, "event_id")
        about = {"event_id": event_id, "evt_id": event_id}
        work = Work(lambda: _requeue(event_id), confirm=lambda: _requeued(event_id))
        return await self._announce(OUTBOX, work, lambda put_back: about if put_back else None)

    async def list_outbox_events(
        self, status: OutboxStatus | str | None = None, limit: int = 0, *, after: str | None = None
    ) -> list[OutboxEvent]:
        """Return own events, oldest first, of one state or all; `after` is the id of the previous page's last event."""
        state = None if status is None else limits.choice(OutboxStatus, status, "status").value
        if after is not None:
            limits.name(after, "after")
        return await self._scan(_list, state, limits.page(limit, PAGE), after)

    async def cleanup_old_outbox_events(self, older_than: timedelta) -> int:
        """Remove own events published longer ago than that, in batches; return their number."""
        age, total = limits.span(older_than, "older_than"), 0
        while True:
            deleted = await self._run(Work(lambda: _cleanup(age), repeat=True))
            total += deleted
            if deleted < CLEANUP_MAX:
                return total


class _State(NamedTuple):
    """Hold the state of an own event, while its source is locked."""

    source: str
    sequence: int
    status: str
    retry_count: int
    claimed_by: str | None

    def is_open_to(self, relay_id: str | None) -> bool:
        """Return whether its attempt can fail: it is not finished, and no other relay has claimed it."""
        if self.status == OutboxStatus.PROCESSING:
            return relay_id in (None, self.claimed_by)
        return self.status == OutboxStatus.PENDING and relay_id is None


def _params(event: OutboxEvent) -> dict[str, Any]:
    if event.data_type not in ("json", "binary"):
        raise LimitError(f"data_type must be 'json' or 'binary', not {event.data_type!r}")
    limits.size(event.event_data_binary, "event_data_binary")
    return {
        "event_id": limits.name(event.event_id, "event_id"),
        "event_type": limits.name(event.event_type, "event_type", limits.EVENT_TYPE_MAX),
        "event_source": limits.name(event.event_source, "event_source"),
        "data_type": event.data_type,
        "event_data": limits.text(event.event_data, "event_data"),
        "event_data_binary": event.event_data_binary,
        "content_type": limits.name(event.content_type, "content_type", CONTENT_TYPE_MAX),
        "created_at": limits.moment(event.created_at, "created_at"),
        "headers": limits.text(event.headers, "headers", limits.METADATA_MAX),
    }


def _add(params: dict[str, Any], lease: Lease | None) -> Operation[bool]:
    if lease is not None:
        yield from fence(lease.instance_id, lease)
    event_id, source = params["event_id"], params["event_source"]
    sequence = yield from _draw(source)
    if (yield S.add(sequence=sequence, **params)):
        yield from _wake(source)
        return True
    rows = yield S.content(event_id=event_id)
    if not rows or tuple(rows[0]) != tuple(params[key] for key in _CONTENT):
        raise HistoryConflictError(f"the outbox already has a different event with the id {event_id!r}: use another id")
    return False


def _draw(source: str) -> Operation[int]:
    rows = yield S.draw(event_source=source)
    return int(rows[0][0])


def _wake(source: str) -> Operation[None]:
    """Wake a source whose sequence is locked. A source that is awake is skipped, because relays write its row."""
    rows = yield S.ready_at(event_source=source)
    if not rows:
        yield S.enter(event_source=source)
    elif rows[0][0] is None:
        yield S.wake(event_source=source, ready_at=None)


def _waiting() -> Operation[bool]:
    return bool((yield S.waiting()))


def _fetch(limit: int, relay_id: str, lease_sec: float) -> Operation[list[OutboxEvent]]:
    sources = [row[0] for row in (yield S.ready(limit=limit))]
    events: list[OutboxEvent] = []
    for source in sources:
        if len(events) == limit:
            break
        yield from _hand_back(source, after=0)
        rows = yield S.first(event_source=source, limit=limit - len(events))
        due = [_from_row(row[:-1]) for row in takewhile(lambda row: not row[-1], rows)]
        events += due
        if not due:
            yield from _settle(source)
    if not events:
        return []
    ids, at = [event.event_id for event in events], events[-1].updated_at
    yield S.claim(ids=ids, relay_id=relay_id, lease_sec=lease_sec, updated_at=at)
    # after the claims, so that it is not before their end
    yield S.postpone(sources=sorted({event.event_source for event in events}), lease_sec=lease_sec)
    return [replace(event, status=OutboxStatus.PROCESSING.value, updated_at=at) for event in events]


def _hand_back(source: str, after: int) -> Operation[None]:
    rows = yield S.claimed(event_source=source, after=after)
    if rows:
        yield S.hand_back(ids=[row[0] for row in rows])


def _settle(source: str, pause_sec: float = 0.0) -> Operation[None]:
    """Record when a locked source is ready, unless some of its events are still claimed."""
    ahead = dict((yield S.ahead(event_source=source)))
    quiet = not ahead and bool((yield S.quiet(sources=[source])))
    if quiet:  # what was added before is visible only now
        ahead = dict((yield S.ahead(event_source=source)))
    if OutboxStatus.PROCESSING in ahead:
        return
    if quiet and not ahead:
        yield S.sleep(event_source=source)
    elif pause_sec:
        yield S.postpone(sources=[source], lease_sec=pause_sec)
    else:
        yield S.wake(event_source=source, ready_at=ahead.get(OutboxStatus.PENDING))


def _hold(event_id: str) -> Operation[_State | None]:
    yield S.hold(event_id=event_id)
    rows = yield S.state(event_id=event_id)
    return _State(*rows[0]) if rows else None


def _sent(event_id: str) -> Operation[bool]:
    event = yield from _hold(event_id)
    if event is not None and event.status != OutboxStatus.PUBLISHED:
        yield S.sent(event_id=event_id)
        yield from _settle(event.source)
    return event is not None


def _settle_all(sent: list[str], released: list[str], relay_id: str, pause_sec: float) -> Operation[None]:
    rows = yield S.states(ids=[*sent, *released])
    sources = sorted({row[1] for row in rows})
    if not sources:
        return
    yield S.hold_all(sources=sources)
    states = {row[0]: _State(*row[1:]) for row in (yield S.states(ids=[*sent, *released]))}
    done = [id for id in sent if id in states and states[id].status != OutboxStatus.PUBLISHED]
    if done:
        yield S.sent_all(ids=done)
    back = [id for id in released if id not in done and id in states and _is_claimed(states[id], relay_id)]
    if back:
        yield S.hand_back(ids=back)
    paused = {states[id].source for id in back}
    for source in sources:
        yield from _settle(source, pause_sec if source in paused else 0.0)


def _is_claimed(event: _State, relay_id: str) -> bool:
    return event.status == OutboxStatus.PROCESSING and event.claimed_by == relay_id


def _back_off(
    event_id: str, error: str | None, wait_sec: float | None, relay_id: str | None, seen: list[int]
) -> Operation[bool]:
    event = yield from _hold(event_id)
    if event is None or not event.is_open_to(relay_id):
        return False
    seen.append(event.retry_count)
    if wait_sec is None:
        wait_sec = min(2.0 ** min(event.retry_count, 10), BACK_OFF_MAX_SEC)
    yield S.back_off(event_id=event_id, error=error, back_off_sec=wait_sec)
    yield from _hand_back(event.source, event.sequence)
    yield from _settle(event.source)
    return True


def _backed_off(event_id: str, seen: list[int]) -> Operation[bool | None]:
    """Return whether the attempt was counted after a lost answer."""
    rows = yield S.state(event_id=event_id)
    if not seen:
        return False
    return True if rows and _State(*rows[0]).retry_count > seen[-1] else None


def _park(event_id: str, error: str | None, relay_id: str | None) -> Operation[bool]:
    event = yield from _hold(event_id)
    if event is None or not event.is_open_to(relay_id):
        return event is not None and event.status == OutboxStatus.INVALID
    yield S.park(event_id=event_id, error=error)
    yield from _settle(event.source)
    return True


def _requeue(event_id: str) -> Operation[bool]:
    rows = yield S.state(event_id=event_id)
    if not rows or _State(*rows[0]).status not in _PARKED:
        return False
    source = _State(*rows[0]).source
    sequence = yield from _draw(source)
    yield from _wake(source)
    return bool((yield S.requeue(event_id=event_id, sequence=sequence)))


def _requeued(event_id: str) -> Operation[bool | None]:
    """Return whether the event is no longer parked after a lost answer."""
    rows = yield S.state(event_id=event_id)
    return True if rows and _State(*rows[0]).status not in _PARKED else None


def _list(status: str | None, limit: int, after: str | None) -> Operation[list[OutboxEvent]]:
    created_at: object = _EARLIEST
    if after is not None:
        rows = yield S.position(event_id=after)
        if not rows:
            raise InvalidPageTokenError(f"the outbox event {after!r}, given as after=, does not exist")
        created_at = rows[0][0]
    place = {"created_at": created_at, "after": after or "", "limit": limit}
    rows = yield S.list(**place) if status is None else S.list_status(status=status, **place)
    return [_from_row(row) for row in rows]


def _from_row(row: Sequence[Any]) -> OutboxEvent:
    key, data, about, (published_at, created_at, sequence, updated_at, headers) = row[:3], row[3:5], row[5:10], row[10:]
    state = [*about, utc_or_none(published_at), utc(created_at), sequence, utc(updated_at)]
    fields = [*key, *map(raw, data), *state, raw(headers)]
    return OutboxEvent(*fields)


def _cleanup(age_sec: float) -> Operation[int]:
    rows = yield S.old(age_sec=age_sec, limit=CLEANUP_MAX)
    if not rows:
        return 0
    deleted: int = yield S.delete(ids=[row[0] for row in rows])
    yield from _forget(sorted({row[1] for row in rows}))
    return deleted


def _forget(sources: list[str]) -> Operation[None]:
    """Remove sources without events: their names may contain, say, an order's number, and would pile up."""
    quiet = [row[0] for row in (yield S.quiet(sources=sources))]
    unused = [row[0] for row in (yield S.unused(sources=quiet))] if quiet else []
    if unused:
        yield S.forget(sources=unused)
