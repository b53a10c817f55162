"""Suspend instances: release the lease until a timer is due or a message arrives, or the first of several of them.

An instance that is about to wait checks again, under the locks of the channels and of its own row: what is ready by
then is not waited for, so no wake-up is lost. Waking keeps the other waits of an instance, with their times; they count
only while it is waiting, and `suspend` removes those that are no longer requested. Waits are independent: several may
be for one channel, and a message goes to the first wait of an instance that it matches.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from perdure.database.dialects import Features
from perdure.database.operation import Operation, Work, utc, utc_or_none
from perdure.errors import (
    InstanceNotFoundError,
    InvalidTransitionError,
    LeaseLostError,
    LimitError,
    NotSubscribedError,
)
from perdure.model import limits
from perdure.model.matching import Match, match_of
from perdure.model.records import (
    ChannelMode,
    ChannelWait,
    Lease,
    RegisteredWait,
    Suspension,
    TimerWait,
    Wait,
)
from perdure.model.states import WAITING, WorkflowStatus
from perdure.storage import channels, fences, matching, waking
from perdure.storage.sql import load_statements
from perdure.storage.transactions import bounded
from perdure.storage.wakeups import TIMER

S = load_statements("waits")
TIMERS = load_statements("timers")
MAYBE = 2  # result of checking a wait: there is a message, which may match

_ON_TIMER, _ON_MESSAGE = WorkflowStatus.WAITING_FOR_TIMER, WorkflowStatus.WAITING_FOR_MESSAGE


class Owner(NamedTuple):
    """Identify the holder that releases its lease; without a token the worker's name decides."""

    instance_id: str
    worker_id: str
    token: int | None


def owner(instance_id: str, worker_id: str, lease: Lease | None) -> Owner:
    """Return the holder of the lease; without a lease, the worker that has the lock."""
    if lease is None:
        return Owner(limits.name(instance_id, "instance_id"), limits.name(worker_id, "worker_id"), None)
    if lease.instance_id != instance_id:
        raise LeaseLostError(f"the lease is on run {lease.instance_id!r}, not on run {instance_id!r}")
    return holder(lease)


def holder(lease: Lease) -> Owner:
    """Return the holder of a lease."""
    return Owner(limits.name(lease.instance_id, "instance_id"), lease.worker_id, lease.token)


class Waits(waking.Waking):
    """Wait for several things at once."""

    async def suspend(self, lease: Lease, waits: Sequence[Wait]) -> Suspension:
        """Wait for the first of these and nothing else; register them and release the lease in one transaction.

        If a timer is due, a message is pending or a timeout is over, nothing is registered, the lease is kept, and the
        result names the activities that are `ready`; subscriptions for waits that `subscribe` are kept. A wait that
        exists already (the same timer, or the same activity on the same channel for the same values) keeps its time and
        its position. The status is that of the earliest deadline.
        """
        return await self._suspend(holder(lease), checked(waits), alone=True)

    async def register_channel_receive_and_release_lock(
        self,
        instance_id: str,
        channel: str,
        worker_id: str,
        activity_id: str,
        timeout_at: datetime | None = None,
        *,
        after: timedelta | None = None,
        lease: Lease | None = None,
    ) -> Suspension:
        """Add a wait for a channel's next message to the existing waits: see `suspend`.

        Without `lease` the worker must hold the lock, whatever its token.
        """
        waits = checked([ChannelWait(channel, activity_id, timeout_at, after)])
        return await self._suspend(owner(instance_id, worker_id, lease), waits, alone=False)

    async def get_channel_waits(self, instance_id: str) -> list[ChannelWait]:
        """Return the waits for messages that an instance has registered, in the order of registration."""
        return await self._read(_channel_waits, limits.name(instance_id, "instance_id"))

    async def get_waits(self, instance_ids: Sequence[str]) -> list[RegisteredWait]:
        """Return the registered waits of these instances, by instance and activity."""
        ids = list(bounded(instance_ids))
        return await self._read(_waits_of, ids) if ids else []

    async def pending_waits(self, instance_id: str, waits: Sequence[ChannelWait]) -> list[str]:
        """Return the activities of those waits, registered or not, that may have a message by now, without writing."""
        limits.name(instance_id, "instance_id")
        asked = [wait for wait in checked(waits) if isinstance(wait, ChannelWait)] if waits else []
        return await self._read(_pending, instance_id, asked) if asked else []

    async def next_due_at(self) -> datetime | None:
        """Return when the first timer, timeout or lease of an own instance is or was due; None if there is none."""
        return await self._read(_next_due, slice(3))

    async def next_work_at(self) -> datetime | None:
        """Return the same, but also for work that can be done now: an instance to take, a channel to sweep."""
        return await self._read(_next_due, slice(None))

    async def _suspend(self, owner: Owner, waits: Sequence[Wait], *, alone: bool) -> Suspension:
        work = self._suspending(owner, waits, alone=alone)
        if not any(isinstance(wait, TimerWait) or wait.timeout_at or wait.after is not None for wait in waits):
            return await self._run(work)
        timer = next((wait.timer_id for wait in waits if isinstance(wait, TimerWait)), None)
        about = {"instance_id": owner.instance_id, "timer_id": timer}
        return await self._announce(TIMER, work, lambda found: about if found.suspended else None)

    def _suspending(
        self, owner: Owner, waits: Sequence[Wait], *, alone: bool, locked: bool = False
    ) -> Work[Suspension]:
        """Return the work of suspending one instance; with `locked` the channels of its waits are locked already."""
        features = self._features
        at_once = features.one_statement_writes and alone and _is_plain(waits)
        suspend = _suspend_locked if locked else _suspend
        return Work(
            lambda: _at_once(features, owner, waits) if at_once else suspend(features, owner, waits, alone),
            single=at_once,
            confirm=lambda: _suspended(owner),
            row=owner.instance_id,
        )


def _is_plain(waits: Sequence[Wait]) -> bool:
    """Return whether this is one wait, for a timer or for any message of a channel that the instance subscribes to."""
    (first, *others) = waits
    return not others and (isinstance(first, TimerWait) or not (first.where or first.subscribe))


def checked(waits: Iterable[Wait]) -> list[Wait]:
    """Return the waits if they can be registered: at least one, no timer, channel or activity twice."""
    given = list(waits)
    if not 0 < len(given) <= limits.WAITS_MAX:
        raise LimitError(f"an instance must wait for 1 to {limits.WAITS_MAX} things, not {len(given)}")
    for wait in given:
        limits.name(wait.activity_id, "activity_id")
        if isinstance(wait, TimerWait):
            limits.name(wait.timer_id, "timer_id")
            moment(wait.expires_at, wait.after, needed=True)
        else:
            limits.name(wait.channel, "channel")
            moment(wait.timeout_at, wait.after)
            match_for(wait)
            if wait.subscribe is not None:
                limits.choice(ChannelMode, wait.subscribe, "subscribe")
    timers = [wait.timer_id for wait in given if isinstance(wait, TimerWait)]
    if len(set(timers)) < len(timers) or len({wait.activity_id for wait in given}) < len(given):
        raise LimitError("a timer or an activity is given twice: wait for each only once")
    return given


def moment(at: datetime | None, after: timedelta | None, *, needed: bool = False) -> dict[str, object]:
    """Return a deadline as the parameters of a statement: a time, a duration by the database's clock, or none."""
    given = [value for value in (at, after) if value is not None]
    if len(given) > 1 or (needed and not given):
        raise LimitError("pass either a time or `after`, not both")
    after_sec = None if after is None else limits.span(after, "after")
    return {"at": limits.moment(at, "the time"), "after_sec": after_sec}


def match_for(wait: Wait) -> Match | None:
    """Return what a wait requires of a message's data."""
    if isinstance(wait, TimerWait) or not wait.where:
        return None
    return match_of(wait.channel, wait.where)


def _suspend(features: Features, owner: Owner, waits: Sequence[Wait], alone: bool) -> Operation[Suspension]:
    named = {wait.channel for wait in waits if isinstance(wait, ChannelWait)}
    if not alone:  # the waits that are kept count again, and so does what arrived for them meanwhile
        named |= {channel for _, channel, _ in (yield from registered(owner.instance_id)) if channel is not None}
    return (yield from channels.locking(named, _suspend_locked(features, owner, waits, alone)))


def _suspend_locked(features: Features, owner: Owner, waits: Sequence[Wait], alone: bool) -> Operation[Suspension]:
    rows = yield S.hold(instance_id=owner.instance_id)
    _judge(owner, rows)
    known = (yield from registered(owner.instance_id)) if rows[0][3] else set()
    again = [wait for wait in waits if _key(wait) in known]
    ready, fresh = (yield from _ready(features, owner, again)) if again else set(), []
    for wait in waits:
        if _key(wait) in known:
            continue
        state = yield from _look(features, owner, wait)
        if state.ready:
            ready.add(wait.activity_id)
        fresh.append((wait, state))
    if ready:
        return Suspension(False, tuple(wait.activity_id for wait in waits if wait.activity_id in ready))
    over = known - {_key(wait) for wait in waits} if alone else _replaced(known, waits)
    if over:
        yield S.drop(
            instance_id=owner.instance_id,
            timers=[id for id, channel, _ in over if channel is None] or [""],
            activities=[id for id, channel, _ in over if channel is not None] or [""],
        )
    for wait, state in fresh:
        yield from register(owner, wait)
        match = match_for(wait)
        if match is not None and state.unknown and isinstance(wait, ChannelWait):
            yield from matching.use(wait.channel, match, state.cursor)
    if not alone:
        yield from remind(owner.instance_id, known - over)
    status = yield from _status(owner, waits)
    yield S.park(instance_id=owner.instance_id, status=status.value)
    return Suspension(True)


Key = tuple[str, str | None, str | None]  # a timer's id, or a wait's activity, channel and match


def _key(wait: Wait) -> Key:
    if isinstance(wait, TimerWait):
        return wait.timer_id, None, None
    match = match_for(wait)
    return wait.activity_id, wait.channel, None if match is None else match.key


def registered(instance_id: str) -> Operation[set[Key]]:
    """Return the timers and waits that an instance has."""
    return {(id, channel, key) for id, channel, key in (yield S.registered(instance_id=instance_id))}


def remind(instance_id: str, waits: Iterable[Key]) -> Operation[None]:
    """Mark the channels of these waits, which are locked, because their instance did not wait until now."""
    named = {channel for _, channel, _ in waits if channel is not None}
    if named:
        yield S.remind(instance_id=instance_id, channels=sorted(named))


def _ready(features: Features, owner: Owner, waits: Sequence[Wait]) -> Operation[set[str]]:
    """Return the activities of those registered waits that have a message or have timed out."""
    matched = {wait.channel for wait in waits if isinstance(wait, ChannelWait) and wait.where}
    if matched:
        yield from matching.complete_all(features, sorted(matched))
    found = {(id, channel) for id, channel in (yield S.ready(instance_id=owner.instance_id))}
    return {wait.activity_id for wait in waits if _key(wait)[:2] in found}


def _replaced(known: set[Key], waits: Sequence[Wait]) -> set[Key]:
    """Return the waits of an activity that now waits for something else."""
    again = {wait.activity_id for wait in waits if isinstance(wait, ChannelWait) and _key(wait) not in known}
    return {key for key in known if key[1] is not None and key[0] in again}


def _judge(owner: Owner, rows: Sequence[Sequence[Any]]) -> None:
    """Raise unless the row exists, is leased to its owner, and may wait."""
    if not rows:
        raise InstanceNotFoundError(f"run {owner.instance_id!r} does not exist")
    status, token, worker = rows[0][:3]
    if worker != owner.worker_id or owner.token not in (None, token):
        raise LeaseLostError(f"worker {owner.worker_id!r} lost its lease on run {owner.instance_id!r}")
    if status not in WAITING | {WorkflowStatus.RUNNING}:
        raise InvalidTransitionError(f"run {owner.instance_id!r} is {status} and cannot wait")


def _channel_waits(instance_id: str) -> Operation[list[ChannelWait]]:
    rows = yield S.channel_waits(instance_id=instance_id)
    return [
        ChannelWait(channel, activity_id, utc_or_none(timeout_at))
        for _, channel, activity_id, timeout_at in sorted(rows, key=lambda row: row[0])
    ]


def _waits_of(ids: list[str]) -> Operation[list[RegisteredWait]]:
    rows = [row for row in (yield S.waits_of(ids=ids)) if row[0] in ids]  # MySQL finds `a` when asked for `a `
    return [
        RegisteredWait(instance_id, activity_id, channel, utc_or_none(until))
        for instance_id, activity_id, channel, until in sorted(rows, key=lambda row: (row[0], row[1]))
    ]


def _pending(instance_id: str, waits: Sequence[ChannelWait]) -> Operation[list[str]]:
    named = sorted({wait.channel for wait in waits})
    stocked = {row[0] for row in (yield S.pending(instance_id=instance_id, channels=named))}
    found = []
    for wait in waits:
        match = match_for(wait)
        if wait.channel in stocked and (
            match is None or (yield from matching.may_find(instance_id, wait.channel, match))
        ):
            found.append(wait.activity_id)
    return found


class Look(NamedTuple):
    """Hold what was found about a wait before it is registered."""

    ready: bool
    cursor: int = 0
    unknown: bool = False  # its set of paths is not in use yet


def _look(features: Features, owner: Owner, wait: Wait) -> Operation[Look]:
    params = _params(owner, wait)
    if isinstance(wait, TimerWait):
        rows = yield S.is_due(**params)
        return Look(bool(rows[0][0]))
    match = match_for(wait)
    look = S.is_ready(pending=1 if match is None else MAYBE, paths_key=match and match.paths_key, **params)
    rows = yield look
    if wait.subscribe is not None and (not rows or rows[0][1] != wait.subscribe.stored):
        yield from channels.subscribe_locked(owner.instance_id, wait.channel, wait.subscribe)
        rows = yield look
    if not rows:
        raise NotSubscribedError(
            f"run {owner.instance_id!r} is not subscribed to channel {wait.channel!r}: subscribe first"
        )
    ready, mode, cursor, indexed_to = rows[0]
    if match is None:
        return Look(bool(ready))
    if mode == ChannelMode.COMPETING:
        raise matching.not_for(wait.channel)
    if ready == MAYBE:
        ready = (yield from matching.find(features, owner.instance_id, wait.channel, match, cursor)) is not None
        return Look(bool(ready))
    return Look(bool(ready), cursor, indexed_to is None)


def register(owner: Owner, wait: Wait) -> Operation[None]:
    """Store a wait of a locked instance."""
    params = _params(owner, wait)
    if isinstance(wait, TimerWait):
        yield TIMERS.register(**params)
        return
    match = match_for(wait)
    yield S.wait(match_key=match and match.key, **params)


def _params(owner: Owner, wait: Wait) -> Mapping[str, object]:
    if isinstance(wait, TimerWait):
        own: dict[str, object] = {"timer_id": wait.timer_id, **moment(wait.expires_at, wait.after)}
    else:
        own = {"channel": wait.channel, **moment(wait.timeout_at, wait.after)}
    return {**owner._asdict(), "activity_id": wait.activity_id, **own}


def _status(owner: Owner, waits: Sequence[Wait]) -> Operation[WorkflowStatus]:
    kinds = {type(wait) for wait in waits}
    if len(kinds) == 1:
        return _ON_TIMER if TimerWait in kinds else _ON_MESSAGE
    deadlines = yield S.deadlines(instance_id=owner.instance_id)
    _, on_message = min((at, kind) for kind, at in deadlines if at is not None)
    return _ON_MESSAGE if on_message else _ON_TIMER


def _at_once(features: Features, owner: Owner, waits: Sequence[Wait]) -> Operation[Suspension]:
    """Register a single wait in one statement; if that did nothing, find out why."""
    (wait,) = waits
    params = _params(owner, wait)
    parked = yield S.sleep(**params) if isinstance(wait, TimerWait) else S.listen(pending=1, **params)
    if parked:
        return Suspension(True)
    _judge(owner, (yield fences.S.standing(instance_id=owner.instance_id)))
    state = yield from _look(features, owner, wait)  # or the instance was changed just then
    return Suspension(False, (wait.activity_id,)) if state.ready else (yield from _at_once(features, owner, waits))


def _suspended(owner: Owner) -> Operation[Suspension | None]:
    """Return the suspension after a lost answer, if it is waiting and was released by its last holder."""
    rows = yield fences.S.standing(instance_id=owner.instance_id)
    return Suspension(True) if rows and rows[0][0] in WAITING and rows[0][1:3] == (owner.token, None) else None


def _next_due(columns: slice) -> Operation[datetime | None]:
    (times,) = yield S.next_due()
    return min((utc(time) for time in tuple(times)[columns] if time is not None), default=None)
