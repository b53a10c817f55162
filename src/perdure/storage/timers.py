"""Manage timers: waits for a time. A timer keeps the time it was registered with, and fires once."""

import json
from collections.abc import Sequence
from datetime import timedelta

from perdure.database.operation import Operation, Work, utc
from perdure.errors import InvalidTransitionError, LimitError
from perdure.model import limits
from perdure.model.records import HistoryEventType, Lease, Suspension, TimerSubscription, TimerWait
from perdure.model.states import TERMINAL
from perdure.storage import fences, transactions, waits, wakeups, waking
from perdure.storage.fences import fence
from perdure.storage.sql import load_statements

S = load_statements("timers")


class Timers(waits.Waits):
    """Implement TimerSubscriptionManager, and fire timers."""

    async def register_timer_subscription(
        self, subscription: TimerSubscription, *, after: timedelta | None = None, lease: Lease | None = None
    ) -> None:
        """Register a timer, at its `expires_at` or `after` a duration; an existing timer keeps its time."""
        params = _params(subscription, after)
        about = {"instance_id": params["instance_id"], "timer_id": params["timer_id"]}
        work = Work(lambda: _register(params, lease), repeat=True)
        await self._announce(wakeups.TIMER, work, lambda _: about)

    async def register_timer_subscription_and_release_lock(
        self,
        subscription: TimerSubscription,
        instance_id: str,
        worker_id: str,
        *,
        after: timedelta | None = None,
        lease: Lease | None = None,
    ) -> Suspension:
        """Add a wait for a timer to the existing waits: see `suspend`. A due timer is `ready`, not waited for.

        Without `lease` the worker must hold the lock, whatever its token.
        """
        if subscription.instance_id != instance_id:
            raise LimitError(f"the timer belongs to run {subscription.instance_id!r}, not to run {instance_id!r}")
        activity_id = subscription.activity_id or subscription.timer_id
        wait = TimerWait(subscription.timer_id, activity_id, subscription.expires_at, after)
        return await self._suspend(waits.owner(instance_id, worker_id, lease), waits.checked([wait]), alone=False)

    async def find_expired_timers(self, limit: int = 0) -> list[TimerSubscription]:
        """Return own timers of waiting instances that are due, the oldest first."""
        return await self._read(_expired, limits.page(limit, 100))

    async def remove_timer_subscription(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> None:
        """Remove a timer if it exists."""
        _key(instance_id, timer_id)
        await self._run(Work(lambda: _remove(instance_id, timer_id, lease), repeat=True))

    async def fire_timer(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> bool:
        """Record that a timer expired, remove it and set the instance running, in one transaction; return if it did.

        Return False and change nothing if the timer is not due or does not exist, or the instance is not waiting, or is
        leased or locked. With `lease` the holder fires a timer of its own while it runs, and keeps the lease.
        """
        at_once = lease is None and self._fire is _fire_at_once
        return await self._wake(self._fire, _key(instance_id, timer_id), lease, single=at_once)

    async def fire_timers(self, timers: Sequence[tuple[str, str]]) -> list[bool]:
        """Fire many timers, given by instance and id, in one commit; return whether each fired, in order.

        Each is fired as `fire_timer` does without a lease; timers of instances that are locked are skipped.
        """
        keys = [_key(*timer) for timer in timers]
        if not self._features.one_statement_writes:
            return await self._wake_all(self._fire, keys)
        if not transactions.bounded(keys):
            return []

        def work(kind: str | None) -> Work[list[str | None]]:
            return Work(lambda: _fire_set(keys, kind), single=True, repeat=True)

        names = await self._announce(wakeups.RESUMABLE, work(None), lambda found: waking.woken(keys, found), work)
        return [name is not None for name in names]

    @property
    def _fire(self) -> waking.Wake:
        return _fire_at_once if self._features.one_statement_writes else _fire


def _key(instance_id: str, timer_id: str) -> tuple[str, str]:
    """Return a timer's key. Names are checked, because MySQL finds `a` when asked for `a `."""
    return limits.name(instance_id, "instance_id"), limits.name(timer_id, "timer_id")


def _params(subscription: TimerSubscription, after: timedelta | None) -> dict[str, object]:
    activity_id = subscription.activity_id
    return {
        "instance_id": subscription.instance_id,
        "timer_id": limits.name(subscription.timer_id, "timer_id"),
        "activity_id": activity_id and limits.name(activity_id, "activity_id"),
        **waits.moment(subscription.expires_at, after, needed=True),
    }


def _register(params: dict[str, object], lease: Lease | None) -> Operation[None]:
    instance_id = str(params["instance_id"])
    yield from fence(instance_id, lease)
    ((status, *_),) = yield fences.S.standing(instance_id=instance_id)
    if status in TERMINAL:
        raise InvalidTransitionError(f"run {instance_id!r} is {status} and cannot wait for a timer")
    yield S.register(**params)


def _expired(limit: int) -> Operation[list[TimerSubscription]]:
    rows = yield S.expired(limit=limit)
    return [
        TimerSubscription(instance_id, timer_id, utc(expires_at), activity_id, timer, utc(created_at))
        for instance_id, timer_id, expires_at, activity_id, timer, created_at in rows
    ]


def _remove(instance_id: str, timer_id: str, lease: Lease | None) -> Operation[None]:
    if lease is not None:
        yield from fence(instance_id, lease)
    yield S.remove(instance_id=instance_id, timer_id=timer_id)


def _fire(instance_id: str, timer_id: str, lease: Lease | None) -> Operation[str | None]:
    if lease is not None:
        yield from fence(instance_id, lease)
    rows = yield S.due(instance_id=instance_id, timer_id=timer_id, token=lease.token if lease else None)
    if not rows:
        return None
    name, activity_id, expires_at = rows[0]
    at = utc(expires_at).isoformat(timespec="microseconds")
    payload = {"result": None, "timer_id": timer_id, "expires_at": at, "completed": True}
    yield from waking.wake(instance_id, activity_id, HistoryEventType.TIMER_EXPIRED, waking.text(payload), lease)
    yield S.remove(instance_id=instance_id, timer_id=timer_id)
    return str(name)


def _fire_at_once(instance_id: str, timer_id: str, lease: Lease | None) -> Operation[str | None]:
    """Do the same in one statement, for a waiting instance."""
    if lease is not None:
        return (yield from _fire(instance_id, timer_id, lease))
    rows = yield S.fire(instance_id=instance_id, timer_id=timer_id, name=json.dumps(timer_id, ensure_ascii=False))
    return rows[0][0] if rows else None


def _fire_set(keys: Sequence[tuple[str, str]], kind: str | None) -> Operation[list[str | None]]:
    """Do the same for many timers; return the workflow of each that fired, in order."""
    rows = yield S.fire_set(
        ids=[instance_id for instance_id, _ in keys],
        timers=[timer_id for _, timer_id in keys],
        names=[json.dumps(timer_id, ensure_ascii=False) for _, timer_id in keys],
        kind=kind,
        reason=None,
    )
    fired = {(instance_id, timer_id): name for instance_id, timer_id, name in rows}
    return [fired.pop(key, None) for key in keys]
