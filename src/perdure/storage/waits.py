"""Waits: an instance gives up its lease until a timer is due or a message comes, or the first of several of them.

Whoever wants to wait looks once more, under the locks of the channels and of its own row: what is ready by then is not
waited for, so no wake-up is lost. Waking leaves the other waits of an instance where they are, with their times; they
count only while it is waiting, and `suspend` removes those that are no longer asked for.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from perdure.database.operation import Operation, Work, utc
from perdure.database.statements import Call
from perdure.errors import (
    InstanceNotFoundError,
    InvalidTransitionError,
    LeaseLostError,
    LimitError,
    NotSubscribedError,
    StorageError,
)
from perdure.model import limits
from perdure.model.records import ChannelWait, HistoryEventType, Lease, Suspension, TimerWait
from perdure.model.states import WAITING, WorkflowStatus
from perdure.storage import channels, fences
from perdure.storage.sql import room
from perdure.storage.transactions import bounded, prepared, together
from perdure.storage.wakeups import RESUMABLE, TIMER, Payload, Wakeups, first_of, resumable

S = room("waits")
TIMERS = room("timers")

Wait = TimerWait | ChannelWait
Wake = Callable[[str, str, Lease | None], Operation[str | None]]  # of an instance and a wait; gives the workflow's name

_ON_TIMER, _ON_MESSAGE = WorkflowStatus.WAITING_FOR_TIMER, WorkflowStatus.WAITING_FOR_MESSAGE


class Owner(NamedTuple):
    """Who gives up the lease; without a token the worker's name decides."""

    instance_id: str
    worker_id: str
    token: int | None


def owner(instance_id: str, worker_id: str, lease: Lease | None) -> Owner:
    """Whoever holds the lease; without one, the worker that has the lock."""
    if lease is None:
        return Owner(limits.name(instance_id, "instance_id"), limits.name(worker_id, "worker_id"), None)
    if lease.instance_id != instance_id:
        raise LeaseLostError(f"the lease is on {lease.instance_id!r}, not on {instance_id!r}")
    return _holder(lease)


def _holder(lease: Lease) -> Owner:
    return Owner(limits.name(lease.instance_id, "instance_id"), lease.worker_id, lease.token)


class Waits(Wakeups):
    """Waiting, on several things at once."""

    async def suspend(self, lease: Lease, waits: Sequence[Wait]) -> Suspension:
        """Wait for the first of these, and for nothing else; one transaction registers them and releases the lease.

        If a timer is due, a message pending or a time-out over, nothing changes, the lease is kept, and the result
        names the activities that are `ready`. A wait that is there already (the same timer, or the same activity on
        the same channel) keeps its time. The status is that of the earliest deadline.
        """
        return await self._suspend(_holder(lease), checked(waits), alone=True)

    async def suspend_instances(self, items: Sequence[tuple[Lease, Sequence[Wait]]]) -> list[Suspension | StorageError]:
        """Suspend many instances in one commit: a result or an error for each, in order."""
        works = prepared(lambda item: self._suspending(_holder(item[0]), checked(item[1]), alone=True), items)
        given = [
            wait for (_, waits), work in zip(items, works, strict=True) if isinstance(work, Work) for wait in waits
        ]
        if not given:
            return [work for work in works if isinstance(work, StorageError)]
        named = [wait.channel for wait in given if isinstance(wait, ChannelWait)]
        work = Work(lambda: channels.locking(named, together(works)))
        about = {"reason": "batch"}
        return await self._announce(TIMER, work, lambda found: about if Suspension(True) in found else None)

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
        """Wait for a channel's next message, beside the waits that are there: see `suspend`.

        Without `lease` the worker must hold the lock, whatever its token.
        """
        waits = checked([ChannelWait(channel, activity_id, timeout_at, after)])
        return await self._suspend(owner(instance_id, worker_id, lease), waits, alone=False)

    async def next_due_at(self) -> datetime | None:
        """When the first timer, time-out or running lease of an own instance is or was due; None if there is none."""
        return await self._read(_next_due, slice(3))

    async def next_work_at(self) -> datetime | None:
        """The same, and also what can be done at once: an instance to take, a channel to sweep. One statement."""
        return await self._read(_next_due, slice(None))

    async def _suspend(self, owner: Owner, waits: Sequence[Wait], *, alone: bool) -> Suspension:
        work = self._suspending(owner, waits, alone=alone)
        if not any(isinstance(wait, TimerWait) or wait.timeout_at or wait.after is not None for wait in waits):
            return await self._run(work)
        timer = next((wait.timer_id for wait in waits if isinstance(wait, TimerWait)), None)
        about = {"instance_id": owner.instance_id, "timer_id": timer}
        return await self._announce(TIMER, work, lambda found: about if found.suspended else None)

    def _suspending(self, owner: Owner, waits: Sequence[Wait], *, alone: bool) -> Work[Suspension]:
        at_once = len(waits) == 1 and self._backend.driver.name == "postgresql"
        return Work(
            lambda: (_at_once if at_once else _suspend)(owner, waits, alone),
            single=at_once,
            confirm=lambda: _suspended(owner),
            row=owner.instance_id,
        )

    async def _wake(self, wake: Wake, key: tuple[str, str], lease: Lease | None, *, single: bool = False) -> bool:
        """Wake an instance, and announce it unless its holder does it for itself."""
        work = Work(lambda: wake(*key, lease), single=single, repeat=lease is None)  # a holder has to know the answer
        say = None if lease else lambda name: _woken([key], [name])
        return await self._announce(RESUMABLE, work, say) is not None

    async def _wake_all(self, wake: Wake, keys: Sequence[tuple[str, str]]) -> list[bool]:
        """Wake many in one commit, with one announcement."""
        if not bounded(keys):
            return []
        work = Work(lambda: _each(wake, keys), repeat=True)
        return [name is not None for name in await self._announce(RESUMABLE, work, lambda names: _woken(keys, names))]


def _each(wake: Wake, keys: Sequence[tuple[str, str]]) -> Operation[list[str | None]]:
    """Wake one after the other, in the order of their instances."""
    names: list[str | None] = [None] * len(keys)
    for position in sorted(range(len(keys)), key=lambda position: keys[position]):
        names[position] = yield from wake(*keys[position], None)
    return names


def _woken(keys: Sequence[tuple[str, str]], names: Sequence[str | None]) -> Payload | None:
    return first_of([resumable(key[0], name) for key, name in zip(keys, names, strict=True) if name is not None])


def text(payload: Mapping[str, object]) -> str:
    """An event's payload as it is stored."""
    return json.dumps(payload, ensure_ascii=False)


def checked(waits: Iterable[Wait]) -> list[Wait]:
    """Waits as they may be registered: at least one, no timer, channel or activity twice."""
    given = list(waits)
    if not 0 < len(given) <= limits.PAGE_MAX:
        raise LimitError(f"an instance waits for 1 to {limits.PAGE_MAX} things, not {len(given)}")
    for wait in given:
        limits.name(wait.activity_id, "activity_id")
        if isinstance(wait, TimerWait):
            limits.name(wait.timer_id, "timer_id")
            moment(wait.expires_at, wait.after, needed=True)
        else:
            limits.name(wait.channel, "channel")
            moment(wait.timeout_at, wait.after)
    things = [("timer", w.timer_id) if isinstance(w, TimerWait) else ("channel", w.channel) for w in given]
    if len(set(things)) < len(given) or len({wait.activity_id for wait in given}) < len(given):
        raise LimitError("each timer, channel and activity can be waited for once")
    return given


def moment(at: datetime | None, after: timedelta | None, *, needed: bool = False) -> dict[str, object]:
    """A deadline as the parameters of a statement: a time, a while by the database's clock, or none."""
    given = [value for value in (at, after) if value is not None]
    if len(given) > 1 or (needed and not given):
        raise LimitError("give a time or `after`, and not both")
    after_sec = None if after is None else limits.span(after, "after")
    return {"at": limits.moment(at, "the time"), "after_sec": after_sec}


def wake(
    instance_id: str, activity_id: str, kind: HistoryEventType, payload: str, lease: Lease | None, binary: Any = None
) -> Operation[bool]:
    """Record why an instance wakes and set it running; False if the activity was recorded before."""
    recorded, _ = yield S.wake(
        instance_id=instance_id,
        activity_id=activity_id,
        event_type=kind.value,
        data_type="json" if binary is None else "binary",
        event_data=payload,
        event_data_binary=binary,
        leased=int(lease is not None),
    )
    return bool(recorded)


def _suspend(owner: Owner, waits: Sequence[Wait], alone: bool) -> Operation[Suspension]:
    named = [wait.channel for wait in waits if isinstance(wait, ChannelWait)]
    return channels.locking(named, _suspend_locked(owner, waits, alone))


def _suspend_locked(owner: Owner, waits: Sequence[Wait], alone: bool) -> Operation[Suspension]:
    rows = yield S.hold(instance_id=owner.instance_id)
    _judge(owner, rows)
    ready = []
    for wait in waits:
        if (yield from _is_ready(owner, wait)):
            ready.append(wait.activity_id)
    if ready:
        return Suspension(False, tuple(ready))
    for wait in waits:
        yield _registration(owner, wait)
    if alone and rows[0][3]:
        yield S.drop_others(
            instance_id=owner.instance_id,
            timers=[wait.timer_id for wait in waits if isinstance(wait, TimerWait)] or [""],
            channels=[wait.channel for wait in waits if isinstance(wait, ChannelWait)] or [""],
        )
    status = yield from _status(owner, waits)
    yield S.park(instance_id=owner.instance_id, status=status.value)
    return Suspension(True)


def _judge(owner: Owner, rows: Sequence[Sequence[Any]]) -> None:
    """Raise unless the row is there, leased to its owner, and may wait."""
    if not rows:
        raise InstanceNotFoundError(f"there is no instance {owner.instance_id!r}")
    status, token, worker = rows[0][:3]
    if worker != owner.worker_id or owner.token not in (None, token):
        raise LeaseLostError(f"{owner.worker_id!r} no longer holds the lease on {owner.instance_id!r}")
    if status not in WAITING | {WorkflowStatus.RUNNING}:
        raise InvalidTransitionError(f"{owner.instance_id!r} is {status} and cannot wait")


def _is_ready(owner: Owner, wait: Wait) -> Operation[bool]:
    params = _params(owner, wait)
    rows = yield S.is_due(**params) if isinstance(wait, TimerWait) else S.is_ready(**params)
    if not rows and isinstance(wait, ChannelWait):
        raise NotSubscribedError(f"{owner.instance_id!r} is not subscribed to {wait.channel!r}")
    return bool(rows[0][0])


def _registration(owner: Owner, wait: Wait) -> Call:
    params = _params(owner, wait)
    return TIMERS.register(**params) if isinstance(wait, TimerWait) else S.wait(**params)


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


def _at_once(owner: Owner, waits: Sequence[Wait], alone: bool) -> Operation[Suspension]:
    """PostgreSQL: one wait in one statement, which does nothing if it may not; then it is asked why."""
    (wait,) = waits
    params = _params(owner, wait)
    if isinstance(wait, TimerWait):
        ((parked,),) = yield S.sleep(alone=int(alone), **params)
    else:
        _, ((parked,),) = yield S.listen(alone=int(alone), **params)
    if parked:
        return Suspension(True)
    _judge(owner, (yield fences.S.standing(instance_id=owner.instance_id)))
    ready = yield from _is_ready(owner, wait)  # or the instance was changed just then
    return Suspension(False, (wait.activity_id,)) if ready else (yield from _at_once(owner, waits, alone))


def _suspended(owner: Owner) -> Operation[Suspension | None]:
    """After a lost answer: waiting, and released by its last holder."""
    rows = yield fences.S.standing(instance_id=owner.instance_id)
    return Suspension(True) if rows and rows[0][0] in WAITING and rows[0][1:3] == (owner.token, None) else None


def _next_due(columns: slice) -> Operation[datetime | None]:
    (times,) = yield S.next_due()
    return min((utc(time) for time in tuple(times)[columns] if time is not None), default=None)
