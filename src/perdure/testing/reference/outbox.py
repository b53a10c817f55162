"""Manage the outbox: events are sent at least once, in order for each source.

A source's `ready_at` is the time from which its next event may be fetched: the end of a claim, or of a back-off; None
if there is none. Events that Edda or Romancy wrote have no sequence number, and are left alone.
"""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from itertools import takewhile
from operator import itemgetter
from typing import Any

from perdure.errors import HistoryConflictError, InvalidPageTokenError
from perdure.model import limits
from perdure.model.records import Lease, OutboxEvent, OutboxStatus
from perdure.testing.reference.arguments import outbox_content
from perdure.testing.reference.fences import Fences
from perdure.testing.reference.history import raw
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import reads, writes

PAGE = 100
BACK_OFF_MAX_SEC = 300.0

_UNCLAIMED = {"claimed_by": None, "claim_expires_at": None}
_COLUMNS = [field.name for field in fields(OutboxEvent)]


def _from_row(row: Row, **now: Any) -> OutboxEvent:
    known = {name: row[name] for name in _COLUMNS}
    return OutboxEvent(**{**known, "event_data": raw(row["event_data"]), "headers": raw(row["headers"]), **now})


class Outbox(Fences):
    """Implement OutboxManager."""

    @writes
    def add_outbox_event(self, event: OutboxEvent, *, lease: Lease | None = None) -> None:
        """Store an event at the end of its source; an equal one changes nothing, a different one is a conflict."""
        content, created_at = outbox_content(event), limits.moment(event.created_at, "created_at")
        headers = limits.text(event.headers, "headers", limits.METADATA_MAX)
        if lease is not None:
            self._fence(lease.instance_id, lease)
        events, source = self._tables.outbox_events, event.event_source
        sequence, known = self._draw(source), events.get(event.event_id)
        if known is None:
            row = {"event_id": event.event_id, **content, "created_at": created_at or self._now, "published_at": None}
            row |= {"retry_count": 0, "last_error": None, "sequence": sequence, "next_attempt_at": None, **_UNCLAIMED}
            events[event.event_id] = {**row, "status": "pending", "updated_at": self._now, "headers": headers}
            self._rouse(source)
        elif any(known[name] != value for name, value in content.items()):
            raise HistoryConflictError(
                f"the outbox already has a different event with the id {event.event_id!r}: use another id"
            )

    def _change(self, event_id: str, **columns: Any) -> None:
        change(self._tables.outbox_events, event_id, **columns, updated_at=self._now)

    def _draw(self, source: str) -> int:
        """Return the next sequence number of a source."""
        sequences = self._tables.perdure_outbox_sequences
        last = sequences[source]["last_sequence"] if source in sequences else 0
        sequences[source] = {"event_source": source, "last_sequence": last + 1}
        return int(last) + 1

    def _rouse(self, source: str) -> None:
        """Wake a source that an event was added to, unless it is awake."""
        sources = self._tables.perdure_outbox_sources
        if source not in sources or sources[source]["ready_at"] is None:
            sources[source] = {"event_source": source, "ready_at": self._now}

    def _of(self, source: str, status: OutboxStatus) -> list[Row]:
        """Return a source's own events in a state, in order."""
        rows = [row for row in self._tables.outbox_events.values() if row["sequence"] is not None]
        found = [row for row in rows if row["event_source"] == source and row["status"] == status]
        return sorted(found, key=itemgetter("sequence"))

    @writes
    def get_pending_outbox_events(
        self, limit: int = 0, *, relay_id: str = "", lease_sec: float = 30
    ) -> list[OutboxEvent]:
        """Claim events for a while: until they are marked, no other call gets them or later events of their sources."""
        page, until = limits.page(limit, PAGE), self._after(limits.seconds(lease_sec, "lease_sec"))
        if relay_id:
            limits.name(relay_id, "relay_id")
        sources = self._tables.perdure_outbox_sources
        ready = sorted(
            (row["ready_at"], source)
            for source, row in sources.items()
            if row["ready_at"] is not None and row["ready_at"] <= self._now
        )
        claimed: list[Row] = []
        for _, source in ready[:page]:
            if len(claimed) < page:
                claimed += self._next_of(source, page - len(claimed))
        for row in claimed:
            self._change(row["event_id"], status="processing", claimed_by=relay_id, claim_expires_at=until)
            change(sources, row["event_source"], ready_at=until)
        return [_from_row(row, status="processing", updated_at=self._now) for row in claimed]

    def _next_of(self, source: str, most: int) -> list[Row]:
        """Return the first events of a source that is ready, up to one that backs off; earlier claims have ended."""
        self._hand_back(source, 0)
        waiting = self._of(source, OutboxStatus.PENDING)[:most]
        due = list(takewhile(lambda row: (row["next_attempt_at"] or self._now) <= self._now, waiting))
        if not due:
            self._settle(source)
        return due

    def _hand_back(self, source: str, after: int) -> None:
        for row in self._of(source, OutboxStatus.PROCESSING):
            if row["sequence"] > after:
                self._change(row["event_id"], status="pending", **_UNCLAIMED)

    def _settle(self, source: str, pause_sec: float = 0.0) -> None:
        """Record when a source is ready, unless some of its events are still claimed."""
        if source not in self._tables.perdure_outbox_sources or self._of(source, OutboxStatus.PROCESSING):
            return
        waiting = self._of(source, OutboxStatus.PENDING)
        ready_at: datetime | None = (waiting[0]["next_attempt_at"] or self._now) if waiting else None
        if waiting and pause_sec:
            ready_at = self._after(pause_sec)
        change(self._tables.perdure_outbox_sources, source, ready_at=ready_at)

    def _event(self, event_id: str) -> Row | None:
        row = self._tables.outbox_events.get(limits.name(event_id, "event_id"))
        return None if row is None or row["sequence"] is None else row

    @writes
    def mark_outbox_event_sent(self, event_id: str) -> bool:
        """Mark an event as published, even if another relay has claimed it since."""
        row = self._event(event_id)
        if row is not None and row["status"] != OutboxStatus.PUBLISHED:
            sent = {"status": "published", "published_at": self._now, "next_attempt_at": None}
            self._change(event_id, **sent, **_UNCLAIMED)
            self._settle(row["event_source"])
        return row is not None

    @writes
    def settle_outbox_events(
        self,
        *,
        sent: Sequence[str] = (),
        released: Sequence[str] = (),
        relay_id: str,
        pause: timedelta = timedelta(0),
    ) -> None:
        """Mark events as published, and end this relay's claims on others without counting an attempt."""
        rows = [(self._event(event_id), event_id in sent) for event_id in (*sent, *released)]
        if relay_id:
            limits.name(relay_id, "relay_id")
        pause_sec, paused = limits.span(pause, "pause"), set[str]()
        for row, is_sent in rows:
            if row is None:
                continue
            if is_sent and row["status"] != OutboxStatus.PUBLISHED:
                done = {"status": "published", "published_at": self._now, "next_attempt_at": None}
                self._change(row["event_id"], **done, **_UNCLAIMED)
            elif not is_sent and (row["status"], row["claimed_by"]) == (OutboxStatus.PROCESSING, relay_id):
                self._change(row["event_id"], status="pending", **_UNCLAIMED)
                paused.add(row["event_source"])
        for source in {row["event_source"] for row, _ in rows if row is not None}:
            self._settle(source, pause_sec if source in paused else 0.0)

    @writes
    def increment_outbox_attempts(
        self,
        event_id: str,
        *,
        error: str | None = None,
        back_off: timedelta | None = None,
        relay_id: str | None = None,
    ) -> bool:
        """Record a failed attempt; the event and later events of its source wait (default: 1, 2, 4 … 300 s)."""
        row, message = self._event(event_id), limits.text(error, "error")
        wait_sec = None if back_off is None else limits.span(back_off, "back_off")
        if row is None or not _is_open(row, relay_id):
            return False
        if wait_sec is None:
            wait_sec = min(2.0 ** min(row["retry_count"], 10), BACK_OFF_MAX_SEC)
        failed = {"status": "pending", "retry_count": row["retry_count"] + 1, "next_attempt_at": self._after(wait_sec)}
        reason = row["last_error"] if message is None else message
        self._change(event_id, **failed, last_error=reason, **_UNCLAIMED)
        self._hand_back(row["event_source"], row["sequence"])
        self._settle(row["event_source"])
        return True

    @writes
    def mark_outbox_event_failed(self, event_id: str, *, error: str | None = None, relay_id: str | None = None) -> bool:
        """Park the event: it is never fetched again and blocks no other."""
        row, message = self._event(event_id), limits.text(error, "error")
        if row is None or not _is_open(row, relay_id):
            return row is not None and row["status"] == OutboxStatus.INVALID
        reason = row["last_error"] if message is None else message
        parked = {"status": OutboxStatus.INVALID.value, "last_error": reason, "next_attempt_at": None}
        self._change(event_id, **parked, **_UNCLAIMED)
        self._settle(row["event_source"])
        return True

    @writes
    def requeue_outbox_event(self, event_id: str) -> bool:
        """Put a parked event back at the end of its source."""
        row = self._event(event_id)
        if row is None or row["status"] != OutboxStatus.INVALID:
            return False
        again = {"status": "pending", "sequence": self._draw(row["event_source"]), "retry_count": 0, "last_error": None}
        self._change(event_id, **again)
        self._rouse(row["event_source"])
        return True

    @reads
    def list_outbox_events(
        self, status: OutboxStatus | str | None = None, limit: int = 0, *, after: str | None = None
    ) -> list[OutboxEvent]:
        """Return own events, oldest first, of one state or all, after one of them."""
        state = None if status is None else limits.choice(OutboxStatus, status, "status").value
        if after is not None:
            limits.name(after, "after")
        page, events = limits.page(limit, PAGE), self._tables.outbox_events
        if after is not None and after not in events:
            raise InvalidPageTokenError(f"the outbox event {after!r}, given as after=, does not exist")
        place = itemgetter("created_at", "event_id")
        rows = [row for row in events.values() if row["sequence"] is not None and state in (None, row["status"])]
        found = [row for row in rows if after is None or place(row) > place(events[after])]
        return [_from_row(row) for row in sorted(found, key=place)[:page]]

    @writes
    def cleanup_old_outbox_events(self, older_than: timedelta) -> int:
        """Remove own events published longer ago than that, and sources without events."""
        until, events = self._after(-limits.span(older_than, "older_than")), self._tables.outbox_events
        old = [
            row
            for row in events.values()
            if row["sequence"] is not None and row["published_at"] is not None and row["published_at"] <= until
        ]
        remove(events, [row["event_id"] for row in old])
        for source in {row["event_source"] for row in old}:
            if not where(events, event_source=source):
                remove(self._tables.perdure_outbox_sources, [source])
                remove(self._tables.perdure_outbox_sequences, [source])
        return len(old)


def _is_open(row: Row, relay_id: str | None) -> bool:
    """Return whether an attempt can fail: the event is not finished, and no other relay has claimed it."""
    if row["status"] == OutboxStatus.PROCESSING:
        return relay_id in (None, row["claimed_by"])
    return row["status"] == OutboxStatus.PENDING and relay_id is None
