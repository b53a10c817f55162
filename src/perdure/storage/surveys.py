"""List what operators look at besides instances: leases, system locks, channels, groups, and the outbox without data.

Nothing here is needed to execute instances. Every list is served by an index, and counts end at a maximum.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.database.backends.base import Backend
from perdure.database.operation import Operation, utc, utc_or_none
from perdure.model import limits
from perdure.model.administration import ChannelUse, GroupUse, HeldLease
from perdure.model.records import OutboxEvent, OutboxStatus, SystemLock
from perdure.model.states import WorkflowStatus
from perdure.storage.encoding.fields import Fields
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("surveys")

PAGE = 50
USE_MAX = 1000  # messages, subscribers and members that are counted
LOCKS_MAX = 1000
_EARLIEST = datetime(1000, 1, 1, tzinfo=UTC)  # the minimum of a database


class Surveys(Transactions):
    """Read what operators look at."""

    def __init__(self, backend: Backend, fields: Fields | None = None) -> None:
        super().__init__(backend)
        self._fields = fields

    async def list_leases(self, limit: int = 0, *, after: tuple[datetime, str] | None = None) -> list[HeldLease]:
        """Return leased own instances, the lease that expires first before the others.

        `after` is the expiry and the id of the last one of the page before. A lease that is renewed moves to the end.
        """
        expires_at, instance_id = after or (_EARLIEST, "")
        place = {
            "expires_at": limits.moment(expires_at, "after"),
            "instance_id": limits.searchable(instance_id, "after"),
            "limit": limits.page(limit, PAGE),
        }
        return await self._scan(_leases, place)

    async def list_system_locks(self) -> list[SystemLock]:
        """Return the system locks that have an owner, also expired ones."""
        return await self._read(_system_locks)

    async def oldest_in(self, statuses: Sequence[WorkflowStatus]) -> list[str]:
        """Return the own instance of each of these states that was started first."""
        return await self._read(_oldest, [status.value for status in statuses])

    async def list_channels(self, limit: int = 0, *, after: str = "") -> list[ChannelUse]:
        """Return channels by name, with their use counted up to 1,000; `after` is the last one of the page before."""
        return await self._scan(_channels, limits.page(limit, PAGE), limits.searchable(after, "after"))

    async def some_waiting(self, channel: str, limit: int = 0) -> list[tuple[str, datetime | None]]:
        """Return some of the own instances that wait for a message of a channel, with their timeouts, in no order."""
        return await self._read(_waiting, limits.name(channel, "channel"), limits.page(limit, PAGE))

    async def list_groups(self, limit: int = 0, *, after: str = "") -> list[GroupUse]:
        """Return groups by name, with their members counted up to 1,000; `after` is the last one of the page before."""
        return await self._scan(_groups, limits.page(limit, PAGE), limits.searchable(after, "after"))

    async def list_outbox(
        self, status: OutboxStatus, limit: int = 0, *, after: tuple[datetime, str] | None = None
    ) -> list[OutboxEvent]:
        """Return own events of the outbox in one state without their data, oldest first.

        `after` is the time and the id of the last one of the page before.
        """
        created_at, event_id = after or (_EARLIEST, "")
        place = {
            "status": status.value,
            "created_at": limits.moment(created_at, "after"),
            "event_id": limits.searchable(event_id, "after"),
            "limit": limits.page(limit, PAGE),
        }
        found = await self._scan(_events, place)
        return found if self._fields is None else [self._fields.decoded_outbox(event) for event in found]

    async def count_outbox(self, status: OutboxStatus, limit: int) -> int:
        """Return the number of own events of the outbox in one state, at most `limit`."""
        return await self._scan(_count_events, status.value, limits.count(limit, "limit", limits.COUNT_MAX))


def _leases(place: Mapping[str, object]) -> Operation[list[HeldLease]]:
    rows = yield S.leases(**place)
    return [
        HeldLease(id, workflow, WorkflowStatus(status), owner or "", utc_or_none(since), utc(until))
        for id, workflow, status, owner, since, until in rows
    ]


def _system_locks() -> Operation[list[SystemLock]]:
    rows = yield S.held(limit=LOCKS_MAX)
    return [SystemLock(name, owner, utc_or_none(since), utc_or_none(until)) for name, owner, since, until in rows]


def _oldest(statuses: list[str]) -> Operation[list[str]]:
    found: list[str] = []
    for status in statuses:
        found += [row[0] for row in (yield S.oldest(status=status))]
    return found


def _channels(limit: int, after: str) -> Operation[list[ChannelUse]]:
    found: list[ChannelUse] = []
    while len(found) < limit and (rows := (yield S.channel(after=after))):
        after = rows[0][0]
        ((messages, subscribers),) = yield S.channel_use(channel=after, most=USE_MAX)
        found.append(ChannelUse(after, messages, subscribers))
    return found


def _waiting(channel: str, limit: int) -> Operation[list[tuple[str, datetime | None]]]:
    rows = yield S.waiting(channel=channel, limit=limit)
    return [(instance_id, utc_or_none(timeout_at)) for instance_id, timeout_at in rows]


def _groups(limit: int, after: str) -> Operation[list[GroupUse]]:
    found: list[GroupUse] = []
    while len(found) < limit and (rows := (yield S.group(after=after))):
        after = rows[0][0]
        ((members,),) = yield S.group_use(group_name=after, most=USE_MAX)
        found.append(GroupUse(after, members))
    return found


def _events(place: Mapping[str, object]) -> Operation[list[OutboxEvent]]:
    return [_event(row) for row in (yield S.events(**place))]


def _event(row: Sequence[Any]) -> OutboxEvent:
    id, kind, source, status, retries, error, published_at, created_at = row
    return OutboxEvent(
        id,
        kind,
        source,
        status=status,
        retry_count=retries or 0,
        last_error=error,
        published_at=utc_or_none(published_at),
        created_at=utc(created_at),
    )


def _count_events(status: str, most: int) -> Operation[int]:
    ((number,),) = yield S.count_events(status=status, most=most)
    return int(number)
