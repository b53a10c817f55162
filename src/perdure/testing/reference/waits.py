"""Suspend instances: release the lease until a timer is due or a message arrives, and wake them for the first."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter

from perdure.errors import (
    CodecError,
    InstanceNotFoundError,
    InvalidTransitionError,
    LeaseLostError,
    LimitError,
    NotSubscribedError,
    StorageError,
)
from perdure.model import limits
from perdure.model.matching import data_of, matches
from perdure.model.records import (
    ChannelMode,
    ChannelWait,
    HistoryEventType,
    Lease,
    RegisteredWait,
    Suspension,
    TimerSubscription,
    TimerWait,
    Wait,
)
from perdure.model.states import TERMINAL, WAITING, WorkflowStatus
from perdure.testing.reference.arguments import (
    OWN,
    Owner,
    bounded,
    check_deadline,
    checked_waits,
    holder,
    match_key,
    owner,
)
from perdure.testing.reference.fences import FREE, claimable_at
from perdure.testing.reference.history import History
from perdure.testing.reference.messages import Messages
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import reads, writes


class Waits(Messages, History):
    """Wait for several things at once, and wake instances."""

    @writes
    def suspend(self, lease: Lease, waits: Sequence[Wait]) -> Suspension:
        """Wait for the first of these and nothing else; what is ready by now is not waited for."""
        return self._suspend(holder(lease), checked_waits(waits), alone=True)

    @writes
    def suspend_instances(self, items: Sequence[tuple[Lease, Sequence[Wait]]]) -> list[Suspension | StorageError]:
        """Suspend many instances in one commit."""
        return self._each(
            items,
            lambda item: self._suspend(holder(item[0]), checked_waits(item[1]), alone=True),
            lambda item: item[0].instance_id,
        )

    @writes
    def register_channel_receive_and_release_lock(
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
        """Add a wait for a channel's next message to the existing waits."""
        waits = checked_waits([ChannelWait(channel, activity_id, timeout_at, after)])
        return self._suspend(owner(instance_id, worker_id, lease), waits, alone=False)

    @writes
    def register_timer_subscription_and_release_lock(
        self,
        subscription: TimerSubscription,
        instance_id: str,
        worker_id: str,
        *,
        after: timedelta | None = None,
        lease: Lease | None = None,
    ) -> Suspension:
        """Add a wait for a timer to the existing waits."""
        if subscription.instance_id != instance_id:
            raise LimitError(f"the timer belongs to run {subscription.instance_id!r}, not to run {instance_id!r}")
        activity_id = subscription.activity_id or subscription.timer_id
        wait = TimerWait(subscription.timer_id, activity_id, subscription.expires_at, after)
        return self._suspend(owner(instance_id, worker_id, lease), checked_waits([wait]), alone=False)

    def _suspend(self, who: Owner, waits: Sequence[Wait], *, alone: bool) -> Suspension:
        self._judge(who)
        for wait in waits:
            if isinstance(wait, ChannelWait):
                self._lock_channel(wait.channel)
        ready = [wait.activity_id for wait in waits if self._is_ready_now(who.instance_id, wait)]
        if ready:
            return Suspension(False, tuple(ready))
        self._drop(who.instance_id, waits, alone=alone)
        if not alone:
            self._remind(who.instance_id)
        for wait in waits:
            self._register(who.instance_id, wait)
        status = self._status(who.instance_id, waits)
        change(self._tables.workflow_instances, who.instance_id, status=status.value, updated_at=self._now, **FREE)
        return Suspension(True)

    def _is_ready_now(self, instance_id: str, wait: Wait) -> bool:
        """Return whether a wait is over, after subscribing to its channel if it asks for that: wait by wait."""
        if isinstance(wait, ChannelWait) and wait.subscribe is not None:
            direct = wait.subscribe is ChannelMode.DIRECT
            stored = ChannelMode.BROADCAST if direct else wait.subscribe
            self._add_subscription(instance_id, wait.channel, stored, from_start=direct)
        return self._is_ready(instance_id, wait)

    def _judge(self, who: Owner) -> None:
        row = self._tables.workflow_instances.get(who.instance_id)
        if row is None:
            raise InstanceNotFoundError(f"run {who.instance_id!r} does not exist")
        if row["locked_by"] != who.worker_id or who.token not in (None, row["lock_token"]):
            raise LeaseLostError(f"worker {who.worker_id!r} lost its lease on run {who.instance_id!r}")
        if row["status"] not in WAITING | {WorkflowStatus.RUNNING}:
            raise InvalidTransitionError(f"run {who.instance_id!r} is {row['status']} and cannot wait")

    def _deadline(self, instance_id: str, wait: Wait) -> datetime | None:
        """Return when a wait ends; an existing one keeps its time."""
        if isinstance(wait, TimerWait):
            timer = self._tables.workflow_timer_subscriptions.get((instance_id, wait.timer_id))
            known: datetime | None = timer["expires_at"] if timer else None
            return known or self._moment(wait.expires_at, wait.after)
        row = self._registered(instance_id, wait)
        return row["timeout_at"] if row else self._moment(wait.timeout_at, wait.after)

    def _registered(self, instance_id: str, wait: ChannelWait) -> Row | None:
        """Return the same wait if it exists: of the same activity, on the same channel and for the same values."""
        row = self._tables.perdure_waits.get((instance_id, wait.activity_id))
        return row if row and (row["channel"], row["match_key"]) == (wait.channel, match_key(wait)) else None

    def _is_ready(self, instance_id: str, wait: Wait) -> bool:
        """Return whether a timer is due, a message is pending or a timeout is over."""
        if isinstance(wait, ChannelWait):
            if (instance_id, wait.channel) not in self._tables.channel_subscriptions:
                raise NotSubscribedError(
                    f"run {instance_id!r} is not subscribed to channel {wait.channel!r}: subscribe first"
                )
            self._check_mode(instance_id, wait.channel, wait.where)
            if self._matching(instance_id, wait.channel, wait.where):
                return True
        deadline = self._deadline(instance_id, wait)
        return deadline is not None and deadline <= self._now

    def _check_mode(self, instance_id: str, channel: str, values: Mapping[str, object] | None) -> None:
        row = self._tables.channel_subscriptions.get((instance_id, channel))
        if values and row is not None and row["mode"] == ChannelMode.COMPETING:
            raise LimitError(f"channel {channel!r} is competing: its messages cannot be selected by their data")

    def _matching(self, instance_id: str, channel: str, values: Mapping[str, object] | None) -> list[Row]:
        """Return the pending messages that have these values; all of them if none are given."""
        pending = self._pending(instance_id, channel)
        if not values:
            return pending
        return [row for row in pending if row["data"] is not None and _has(channel, row["data"], values)]

    def _register(self, instance_id: str, wait: Wait) -> None:
        deadline = self._deadline(instance_id, wait)
        if isinstance(wait, TimerWait):
            assert deadline is not None, "a timer has a time"
            self._set_timer(instance_id, wait.timer_id, wait.activity_id, deadline)
        else:
            row = {
                "id": self._world.draw("perdure_waits"),
                "instance_id": instance_id,
                "activity_id": wait.activity_id,
                "channel": wait.channel,
                "match_key": match_key(wait),
                "timeout_at": deadline,
                "where": dict(wait.where or {}),
            }
            self._tables.perdure_waits.setdefault((instance_id, wait.activity_id), row)

    def _drop(self, instance_id: str, waits: Sequence[Wait], *, alone: bool) -> None:
        """Remove waits that are no longer requested, if these are all, and other waits of the same steps."""
        timers, table = self._tables.workflow_timer_subscriptions, self._tables.perdure_waits
        same = {
            wait.activity_id: self._registered(instance_id, wait) for wait in waits if isinstance(wait, ChannelWait)
        }
        over = [key for key in where(table, instance_id=instance_id) if same.get(key[1]) is None]
        remove(table, [key for key in over if alone or key[1] in same])
        kept = {wait.timer_id for wait in waits if isinstance(wait, TimerWait)}
        if alone:
            remove(timers, [key for key in where(timers, instance_id=instance_id) if key[1] not in kept])

    def _status(self, instance_id: str, waits: Sequence[Wait]) -> WorkflowStatus:
        """Return the status of the earliest deadline."""
        times = [(self._deadline(instance_id, wait), isinstance(wait, ChannelWait)) for wait in waits]
        if all(on_message for _, on_message in times):
            return WorkflowStatus.WAITING_FOR_MESSAGE
        _, on_message = min((at, kind) for at, kind in times if at is not None)
        return WorkflowStatus.WAITING_FOR_MESSAGE if on_message else WorkflowStatus.WAITING_FOR_TIMER

    def _wake(
        self,
        instance_id: str,
        activity_id: str,
        kind: HistoryEventType,
        text: str,
        lease: Lease | None,
        binary: bytes | None = None,
    ) -> bool:
        """Record why an instance wakes and set it running; return False if the activity was recorded before."""
        data_type = "json" if binary is None else "binary"
        recorded = self._record(instance_id, activity_id, kind.value, data_type, text, binary)
        woken = {"status": "running", "updated_at": self._now, "current_activity_id": activity_id}
        if lease is None:
            woken |= {**FREE, "lock_token": self._tables.workflow_instances[instance_id]["lock_token"] + 1}
        change(self._tables.workflow_instances, instance_id, **woken)
        return recorded

    def _in_order(self, keys: Sequence[tuple[str, str]], end: Callable[[str, str, Lease | None], bool]) -> list[bool]:
        """End many waits in the order of their instances."""
        positions = sorted(range(len(bounded(keys))), key=keys.__getitem__)
        ended = {position: end(*keys[position], None) for position in positions}
        return [ended[position] for position in range(len(keys))]

    @reads
    def get_channel_waits(self, instance_id: str) -> list[ChannelWait]:
        """Return the waits for messages that an instance has registered, in the order of registration."""
        table = self._tables.perdure_waits
        rows = [table[key] for key in where(table, instance_id=limits.name(instance_id, "instance_id"))]
        rows.sort(key=itemgetter("id"))
        return [ChannelWait(row["channel"], row["activity_id"], row["timeout_at"]) for row in rows]

    @reads
    def get_waits(self, instance_ids: Sequence[str]) -> list[RegisteredWait]:
        """Return the registered waits of these instances, by instance and activity."""
        wanted = set(bounded(instance_ids))
        found = [
            RegisteredWait(row["instance_id"], row["activity_id"] or row["timer_id"], None, row["expires_at"])
            for row in self._tables.workflow_timer_subscriptions.values()
            if row["instance_id"] in wanted
        ]
        found += [
            RegisteredWait(row["instance_id"], row["activity_id"], row["channel"], row["timeout_at"])
            for row in self._tables.perdure_waits.values()
            if row["instance_id"] in wanted
        ]
        return sorted(found, key=lambda wait: (wait.instance_id, wait.activity_id))

    @reads
    def pending_waits(self, instance_id: str, waits: Sequence[ChannelWait]) -> list[str]:
        """Return the activities of those waits, registered or not, that have a message by now."""
        limits.name(instance_id, "instance_id")
        asked = checked_waits(waits) if waits else []
        return [
            wait.activity_id
            for wait in asked
            if isinstance(wait, ChannelWait)
            and (instance_id, wait.channel) in self._tables.channel_subscriptions
            and self._matching(instance_id, wait.channel, wait.where)
        ]

    @reads
    def next_due_at(self) -> datetime | None:
        """Return when the first timer, timeout or lease of an own instance is or was due."""
        leases = [at for at in self._claimable() if at > self._now]
        return min([*self._deadlines(), *leases], default=None)

    @reads
    def next_work_at(self) -> datetime | None:
        """Return the same, but also for work that can be done now: an instance to take, a channel to sweep."""
        marked = [row["dirty_at"] for row in self._tables.perdure_channels.values() if row["dirty_at"] is not None]
        return min([*self._deadlines(), *self._claimable(), *marked], default=None)

    def _deadlines(self) -> list[datetime]:
        timers = self._tables.workflow_timer_subscriptions.values()
        times = [(row, row["expires_at"]) for row in timers if row["framework"] == OWN]
        times += [(row, row["timeout_at"]) for row in self._tables.perdure_waits.values()]
        return [at for row, at in times if at is not None and self._is_waiting(row["instance_id"])]

    def _claimable(self) -> list[datetime]:
        own = [row for row in self._tables.workflow_instances.values() if row["framework"] == OWN]
        return [at for at in map(claimable_at, own) if at is not None]


class Timers(Waits):
    """Implement TimerSubscriptionManager."""

    @writes
    def register_timer_subscription(
        self, subscription: TimerSubscription, *, after: timedelta | None = None, lease: Lease | None = None
    ) -> None:
        """Register a timer; an existing one keeps its time."""
        instance_id, activity_id = subscription.instance_id, subscription.activity_id
        limits.name(subscription.timer_id, "timer_id")
        if activity_id:
            limits.name(activity_id, "activity_id")
        check_deadline(subscription.expires_at, after, needed=True)
        row = self._fence(instance_id, lease)
        if row["status"] in TERMINAL:
            raise InvalidTransitionError(f"run {instance_id!r} is {row['status']} and cannot wait for a timer")
        at = self._moment(subscription.expires_at, after)
        assert at is not None
        self._set_timer(instance_id, subscription.timer_id, activity_id, at)

    @writes
    def remove_timer_subscription(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> None:
        """Remove a timer if it exists."""
        key = _key(instance_id, timer_id)
        if lease is not None:
            self._fence(instance_id, lease)
        remove(self._tables.workflow_timer_subscriptions, [key])

    @reads
    def find_expired_timers(self, limit: int = 0) -> list[TimerSubscription]:
        """Return own timers of waiting instances that are due, the oldest first."""
        page = limits.page(limit, 100)
        rows = [
            row
            for row in self._tables.workflow_timer_subscriptions.values()
            if row["framework"] == OWN and row["expires_at"] <= self._now and self._is_waiting(row["instance_id"])
        ]
        rows.sort(key=itemgetter("expires_at", "id"))
        return [
            TimerSubscription(**{name: value for name, value in row.items() if name != "framework"})
            for row in rows[:page]
        ]

    @writes
    def fire_timer(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> bool:
        """Record that a timer expired, remove it and set the instance running; return whether it did."""
        return self._fire(*_key(instance_id, timer_id), lease)

    @writes
    def fire_timers(self, timers: Sequence[tuple[str, str]]) -> list[bool]:
        """Fire many timers in one commit."""
        keys = [_key(*timer) for timer in timers]
        return self._in_order(keys, self._fire)

    def _fire(self, instance_id: str, timer_id: str, lease: Lease | None) -> bool:
        if lease is not None:
            self._fence(instance_id, lease)
        timers, key = self._tables.workflow_timer_subscriptions, (instance_id, timer_id)
        timer = timers.get(key)
        if timer is None or timer["framework"] != OWN or timer["expires_at"] > self._now:
            return False
        if not self._may_wake(self._tables.workflow_instances[instance_id], lease):
            return False
        at = timer["expires_at"].isoformat(timespec="microseconds")
        payload = text({"result": None, "timer_id": timer_id, "expires_at": at, "completed": True})
        self._wake(instance_id, timer["activity_id"] or timer_id, HistoryEventType.TIMER_EXPIRED, payload, lease)
        del timers[key]
        return True


def _key(instance_id: str, timer_id: str) -> tuple[str, str]:
    return limits.name(instance_id, "instance_id"), limits.name(timer_id, "timer_id")


def text(payload: Mapping[str, object]) -> str:
    """Return an event's payload as it is stored."""
    return json.dumps(payload, ensure_ascii=False)


def _has(channel: str, text: str, values: Mapping[str, object]) -> bool:
    """Return whether a message has these values; False as long as no codec of this process decodes it."""
    return not is_unread(channel, text) and matches(data_of(channel, text), values)


def is_unread(channel: str, text: str | None) -> bool:
    """Return whether a message is encoded, and no codec of this process decodes it."""
    try:
        data_of(channel, text or "null")
    except CodecError:
        return True
    return False
