"""Suspend many instances with a few statements, whatever their number.

Most runs that are suspended have no waits yet and find nothing ready: their rows are locked, checked and written in
sets. All others are suspended one by one, as by `suspend`: those that wait again, that have a message to check, or that
are refused. Subscriptions are part of it, so a new wait for an event needs no transaction of its own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from perdure.database.dialects import Features
from perdure.database.dialects.base import Bare, naive_utc
from perdure.database.operation import Operation, Work, utc
from perdure.errors import StorageError
from perdure.model.records import ChannelMode, ChannelWait, Lease, Suspension, TimerWait, Wait
from perdure.model.states import WAITING, WorkflowStatus
from perdure.storage import channels, matching, waits
from perdure.storage.transactions import prepared, together
from perdure.storage.wakeups import TIMER

S = waits.S
_MAY_WAIT = WAITING | {WorkflowStatus.RUNNING}

Item = tuple[Lease, Sequence[Wait]]
Pair = tuple[str, str]  # an instance and a channel
Row = tuple[Any, ...]

PAGE = 1000


class Parking(waits.Waits):
    """Suspend many instances at once."""

    async def suspend_instances(self, items: Sequence[Item]) -> list[Suspension | StorageError]:
        """Suspend many instances in one commit; return a result or an error for each, in order."""
        works = prepared(
            lambda item: self._suspending(waits.holder(item[0]), waits.checked(item[1]), alone=True, locked=True), items
        )
        accepted = [item for item, work in zip(items, works, strict=True) if isinstance(work, Work)]
        if not accepted:
            return [work for work in works if isinstance(work, StorageError)]
        features = self._features
        named = [wait.channel for _, given in accepted for wait in given if isinstance(wait, ChannelWait)]
        work = Work(lambda: channels.locking(named, _suspend_all(features, items, works)))
        about = {"reason": "batch"}
        return await self._announce(TIMER, work, lambda found: about if Suspension(True) in found else None)


def _suspend_all(
    features: Features, items: Sequence[Item], works: Sequence[Work[Suspension] | StorageError]
) -> Operation[list[Suspension | StorageError]]:
    """Suspend in sets what can be, and the rest one by one; the channels are locked."""
    accepted = {
        place: item for place, (item, work) in enumerate(zip(items, works, strict=True)) if isinstance(work, Work)
    }
    parked = yield from _park(features, accepted)
    others = [work for place, work in enumerate(works) if place not in parked]
    answers = iter((yield from together(others)))
    return [Suspension(True) if place in parked else next(answers) for place in range(len(works))]


class Entry(NamedTuple):
    """Hold a wait to be registered: its instance's framework, and when it ends."""

    lease: Lease
    framework: str
    wait: Wait
    at: datetime | None


class Subscription(NamedTuple):
    """Hold how an instance is subscribed to a channel, or is about to be."""

    mode: str
    cursor: int
    is_new: bool = False


class Plan(NamedTuple):
    """Hold what the suspension of one instance writes."""

    entries: list[Entry]
    subscriptions: dict[Pair, Subscription]

    @property
    def instance_id(self) -> str:
        return self.entries[0].lease.instance_id

    @property
    def status(self) -> WorkflowStatus:
        """Return the status of the earliest deadline."""
        deadlines = [(each.at, isinstance(each.wait, ChannelWait)) for each in self.entries if each.at is not None]
        on_message = min(deadlines, default=(None, True))[1]
        return WorkflowStatus.WAITING_FOR_MESSAGE if on_message else WorkflowStatus.WAITING_FOR_TIMER


class Standing(NamedTuple):
    """Hold what the database knows about instances and channels of a batch, which are locked."""

    instances: dict[str, Sequence[Any]]
    subscriptions: dict[Pair, Subscription]
    channels: dict[str, tuple[int | None, str | None]]  # the newest message, and whether it is in competing use
    sets: set[Pair]  # channels and the sets of paths that they match by

    def plan(self, lease: Lease, given: Sequence[Wait]) -> Plan | None:
        """Return how to suspend an instance, or None if that needs a closer look."""
        row = self.instances.get(lease.instance_id)
        if row is None:
            return None
        _, status, token, owner, registered, framework, clock = row
        if (token, owner) != (lease.token, lease.worker_id) or status not in _MAY_WAIT or registered:
            return None
        plan, now = Plan([], {}), utc(clock)
        for wait in given:
            at = wait.expires_at if isinstance(wait, TimerWait) else wait.timeout_at
            at = now + wait.after if wait.after is not None else at
            if at is not None and at <= now:
                return None
            if isinstance(wait, ChannelWait):
                found = self._quiet(lease.instance_id, wait)
                if found is None:
                    return None
                plan.subscriptions[lease.instance_id, wait.channel] = found
            plan.entries.append(Entry(lease, framework, wait, at))
        return plan

    def _quiet(self, instance_id: str, wait: ChannelWait) -> Subscription | None:
        """Return the subscription for a wait if no message of the channel can be for it."""
        newest, competing = self.channels[wait.channel]
        found = self.subscriptions.get((instance_id, wait.channel))
        if found is None:
            if wait.subscribe in (None, ChannelMode.COMPETING) or competing:
                return None
            from_start = wait.subscribe is ChannelMode.DIRECT
            found = Subscription(ChannelMode.BROADCAST.value, 0 if from_start else newest or 0, is_new=True)
        elif found.mode != ChannelMode.BROADCAST or wait.subscribe is ChannelMode.COMPETING:
            return None
        return found if newest is None or newest <= found.cursor else None


def _park(features: Features, items: dict[int, Item]) -> Operation[set[int]]:
    """Suspend those instances for which nothing is ready, in sets; return their places."""
    times = Counter(lease.instance_id for lease, _ in items.values())
    once = {place: item for place, item in items.items() if times[item[0].instance_id] == 1}
    standing = yield from _look(once.values())
    plans = {place: plan for place, item in once.items() if (plan := standing.plan(*item)) is not None}
    if plans:
        yield from _write(features, standing, sorted(plans.values(), key=lambda plan: plan.instance_id))
    return set(plans)


def _look(items: Iterable[Item]) -> Operation[Standing]:
    """Lock the instances, and read what decides whether they can be suspended."""
    given = list(items)
    pairs = sorted(
        {(lease.instance_id, wait.channel) for lease, own in given for wait in own if isinstance(wait, ChannelWait)}
    )
    named = sorted({channel for _, channel in pairs})
    rows = yield S.hold_many(ids=sorted(lease.instance_id for lease, _ in given))
    instances = {row[0]: row for row in rows}
    if not pairs:
        return Standing(instances, {}, {}, set())
    subscriptions: dict[Pair, Subscription] = {}
    for page in _pages(pairs):
        ids, subscribed = map(list, zip(*page, strict=True))
        rows = yield channels.S.subscriptions(pairs=page, ids=ids, channels=subscribed)
        subscriptions.update(((row[0], row[1]), Subscription(row[2], row[3])) for row in rows)
    states = {channel: (newest, competing) for channel, newest, competing in (yield channels.S.states(channels=named))}
    matched = sorted({wait.channel for _, own in given for wait in own if isinstance(wait, ChannelWait) and wait.where})
    sets = {(row[0], row[1]) for row in (yield from matching.sets_of(matched))} if matched else set()
    return Standing(instances, subscriptions, states, sets)


def _write(features: Features, standing: Standing, plans: Sequence[Plan]) -> Operation[None]:
    """Store the subscriptions and the waits, and release the leases."""
    now = utc(next(iter(standing.instances.values()))[-1])
    entries = [entry for plan in plans for entry in plan.entries]
    subscriptions = {pair: found for plan in plans for pair, found in plan.subscriptions.items()}
    yield from _subscribe(features, entries, subscriptions, now)
    known = set(standing.sets)
    for entry in entries:
        match = waits.match_for(entry.wait)
        if match is not None and isinstance(entry.wait, ChannelWait):
            channel = entry.wait.channel
            if (channel, match.paths_key) not in known:
                known.add((channel, match.paths_key))
                yield from matching.use(channel, match, subscriptions[entry.lease.instance_id, channel].cursor)
    yield from _register(features, entries, now)
    by_status: dict[str, list[str]] = {}
    for plan in plans:
        by_status.setdefault(plan.status.value, []).append(plan.instance_id)
    for status, ids in sorted(by_status.items()):
        yield S.park_many(status=status, ids=sorted(ids))


def _subscribe(
    features: Features, entries: Sequence[Entry], subscriptions: Mapping[Pair, Subscription], now: datetime
) -> Operation[None]:
    frameworks = {entry.lease.instance_id: entry.framework for entry in entries}
    at = naive_utc(now)
    rows = [
        (instance_id, channel, found.mode, found.cursor, at, frameworks[instance_id])
        for (instance_id, channel), found in subscriptions.items()
        if found.is_new
    ]
    if features.round_trips:
        for page in _pages(rows):
            ids, named, modes, cursors, _, owners = map(list, zip(*page, strict=True))
            columns = {"ids": ids, "channels": named, "modes": modes, "cursors": cursors, "frameworks": owners}
            places = Bare((channel, instance_id, cursor, at) for instance_id, channel, _, cursor, *_ in page)
            yield channels.S.subscribe_many(**columns, rows=Bare(page), places=places)
        return
    for instance_id, channel, mode, cursor, *_ in rows:
        from_start = int(not cursor)
        yield channels.S.subscribe(instance_id=instance_id, channel=channel, mode=mode, from_start=from_start)


def _register(features: Features, entries: Sequence[Entry], now: datetime) -> Operation[None]:
    if not features.round_trips:
        for entry in entries:
            yield from waits.register(waits.holder(entry.lease), entry.wait)
        return
    on_message, on_time = list[Row](), list[Row]()
    for entry in entries:
        wait, instance_id, at = entry.wait, entry.lease.instance_id, entry.at and naive_utc(entry.at)
        if isinstance(wait, TimerWait):
            on_time.append((instance_id, wait.timer_id, at, wait.activity_id, naive_utc(now), entry.framework))
        else:
            match = waits.match_for(wait)
            on_message.append((instance_id, wait.activity_id, wait.channel, match and match.key, at))
    for page in _pages(on_message):
        ids, activities, named, keys, times = map(list, zip(*page, strict=True))
        columns = {"ids": ids, "activities": activities, "channels": named, "keys": keys, "times": times}
        yield S.wait_many(**columns, rows=Bare(page))
    for page in _pages(on_time):
        ids, timers, times, activities, _, owners = map(list, zip(*page, strict=True))
        columns = {"ids": ids, "timers": timers, "times": times, "activities": activities, "frameworks": owners}
        yield waits.TIMERS.register_many(**columns, rows=Bare(page))


def _pages(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Split rows into pages that fit into one statement, whose size MySQL limits."""
    return (rows[first : first + PAGE] for first in range(0, len(rows), PAGE))
