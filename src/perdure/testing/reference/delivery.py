"""Deliver messages to subscribers that wait for them, and end waits that timed out."""

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter

from perdure.errors import LimitError
from perdure.model import limits
from perdure.model.matching import check, match_of
from perdure.model.records import (
    ChannelDeliveryResult,
    ChannelMessage,
    ChannelMode,
    ChannelSubscription,
    HistoryEventType,
    Lease,
)
from perdure.testing.reference.arguments import subscription_key
from perdure.testing.reference.history import Archive
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import reads, writes
from perdure.testing.reference.waits import Waits, is_unread, text


class Delivery(Waits, Archive):
    """Implement the deliveries of ChannelManager, timeouts, the sweep, and the end of all subscriptions."""

    @reads
    def get_channel_subscribers_waiting(self, channel: str, *, limit: int | None = None) -> list[ChannelSubscription]:
        """Return the subscribers of any framework that wait for a message of this channel."""
        rows = self._waiting_on(limits.name(channel, "channel"))
        return [self._subscription(row) for row in rows[: limits.some(limit)]]

    def _waiting_on(self, channel: str) -> list[Row]:
        table = self._tables.channel_subscriptions
        rows = [table[key] for key in where(table, channel=channel) if self._waits_for(*key)]
        return sorted((row for row in rows if self._is_waiting(row["instance_id"])), key=itemgetter("id"))

    @reads
    def find_expired_channel_subscriptions(self, limit: int = 0) -> list[ChannelSubscription]:
        """Return own waits of waiting instances that have timed out, the oldest first."""
        page = limits.page(limit, 100)
        waits = [wait for wait in self._tables.perdure_waits.values() if self._is_waiting(wait["instance_id"])]
        table = self._tables.channel_subscriptions
        return [self._subscription(table[w["instance_id"], w["channel"]], w) for w in self._up(waits)[:page]]

    def _up(self, waits: Sequence[Row]) -> list[Row]:
        """Return the waits that have timed out, the oldest first."""
        up = [wait for wait in waits if wait["timeout_at"] is not None and wait["timeout_at"] <= self._now]
        return sorted(up, key=itemgetter("timeout_at", "id"))

    @writes
    def deliver_channel_message(
        self,
        instance_id: str,
        message: ChannelMessage,
        *,
        lease: Lease | None = None,
        activity_id: str | None = None,
        where: Mapping[str, object] | None = None,
    ) -> ChannelDeliveryResult | None:
        """Deliver to a waiting subscriber its next message of that message's channel, and set it running."""
        if activity_id is not None:
            limits.name(activity_id, "activity_id")
            if lease is None:
                raise LimitError("activity_id needs lease: only the lease's holder can take a message for an activity")
        if where and activity_id is None:
            raise LimitError("where needs activity_id: a registered wait defines itself what it matches")
        return self._deliver(instance_id, message.channel, lease, activity_id, where)

    @writes
    def deliver_channel_message_with_lock(
        self, instance_id: str, channel: str, message: ChannelMessage, worker_id: str, lock_timeout_sec: float
    ) -> ChannelDeliveryResult | None:
        """Do the same for a channel by name."""
        limits.name(worker_id, "worker_id")
        limits.seconds(lock_timeout_sec, "lock_timeout_sec")
        if message.channel != channel:
            raise LimitError(f"the message belongs to channel {message.channel!r}, not to {channel!r}")
        return self._deliver(instance_id, channel, None, None)

    def _deliver(
        self,
        instance_id: str,
        channel: str,
        lease: Lease | None = None,
        activity_id: str | None = None,
        values: Mapping[str, object] | None = None,
    ) -> ChannelDeliveryResult | None:
        """Deliver the lowest message that a wait matches to the first of these waits, or to the holder itself.

        A step that is already recorded takes no message: the instance is set running all the same.
        """
        subscription_key(instance_id, channel)
        if values:
            check(values)
            self._check_mode(instance_id, channel, values)
        if lease is not None:
            self._fence(instance_id, lease)
        row = self._tables.channel_subscriptions.get((instance_id, channel))
        if row is None or not self._may_wake(self._tables.workflow_instances[instance_id], lease):
            return None
        asked = [(activity_id, values)] if activity_id else self._asked(instance_id, channel)
        matched = [(activity, self._matching(instance_id, channel, each)) for activity, each in asked]
        found = [(messages[0], activity) for activity, messages in matched if messages]
        if not found:
            return None
        message, activity = min(found, key=lambda each: each[0]["id"])  # the first wait for that message
        in_turn = message == self._pending(instance_id, channel)[0]
        instance = self._tables.workflow_instances[instance_id]
        sent_at = message["published_at"].isoformat(timespec="microseconds")
        values = dict(asked)[activity]
        match_key = match_of(channel, values).key if values else None
        envelope = _envelope(message, sent_at, match_key)
        kind = HistoryEventType.CHANNEL_MESSAGE_RECEIVED
        recorded = self._wake(instance_id, activity, kind, envelope, lease, message["data_binary"])
        if recorded and row["mode"] == ChannelMode.COMPETING:
            self._remove_message(message["id"])
        elif recorded and in_turn:
            self._advance(instance_id, channel, message["id"])
        elif recorded:
            taken = {
                "instance_id": instance_id,
                "channel": channel,
                "message_id": message["id"],
                "match_key": match_key,
            }
            self._tables.perdure_taken_messages[instance_id, channel, message["id"]] = taken
        remove(self._tables.perdure_waits, [(instance_id, activity)])
        number = message["id"] if recorded else 0
        return ChannelDeliveryResult(instance_id, instance["workflow_name"], activity, channel, number)

    def _asked(self, instance_id: str, channel: str) -> list[tuple[str, Mapping[str, object]]]:
        """Return what the waits of an instance on a channel ask for, in the order of registration."""
        return [(wait["activity_id"], wait["where"]) for wait in self._waits_for(instance_id, channel)]

    def _has_message(self, instance_id: str, channel: str) -> bool:
        """Return whether there is a message for one of its waits."""
        return any(self._matching(instance_id, channel, values) for _, values in self._asked(instance_id, channel))

    async def deliver_pending(
        self, limit: int = 0, *, channels: Sequence[str] | None = None
    ) -> list[ChannelDeliveryResult]:
        """Deliver pending messages of channels that were published to, or of these channels, at most a page."""
        page = limits.page(limit, 100)
        await self._adopt()
        return await self._sweep(page, channels)

    @writes
    def _adopt(self) -> None:
        """Mark the channels of messages that other frameworks published without marking them."""
        messages = self._tables.channel_messages
        for number in where(messages, framework=None):
            self._mark_channel(messages[number]["channel"])
            change(messages, number, framework="family")

    @writes
    def _sweep(self, page: int, channels: Sequence[str] | None) -> list[ChannelDeliveryResult]:
        table = self._tables.perdure_channels
        if channels is None:
            marked = sorted((row["dirty_at"], name) for name, row in table.items() if row["dirty_at"] is not None)
            named = [name for _, name in marked[:page]]
        else:
            named = sorted({limits.name(channel, "channel") for channel in channels})
        candidates = self._candidates(named, ChannelMode.BROADCAST) + self._candidates(named, ChannelMode.COMPETING)
        found = [self._deliver(instance_id, channel) for channel, instance_id in candidates[:page]]
        for channel in named:
            if channel in table:
                change(table, channel, dirty_at=self._now if self._is_unserved(channel) else None)
        return [result for result in found if result is not None]

    def _candidates(self, named: Sequence[str], mode: ChannelMode) -> list[tuple[str, str]]:
        """Return waiting subscribers, with their channels, that are free and have a message."""
        instances = self._tables.workflow_instances
        return sorted(
            (channel, row["instance_id"])
            for channel in named
            for row in self._waiting_on(channel)
            if row["mode"] == mode
            and self._is_free(instances[row["instance_id"]])
            and self._has_message(row["instance_id"], channel)
        )

    def _is_unserved(self, channel: str) -> bool:
        """Return whether an instance waits, free or not, and there is a message for it."""
        waiting = [row["instance_id"] for row in self._waiting_on(channel)]
        return any(self._has_message(each, channel) or self._has_unread(each, channel) for each in waiting)

    def _has_unread(self, instance_id: str, channel: str) -> bool:
        """Return whether an instance waits for certain values, and there is a message that only others can decode."""
        if not any(values for _, values in self._asked(instance_id, channel)):
            return False
        return any(is_unread(channel, row["data"]) for row in self._pending(instance_id, channel))

    @writes
    def expire_channel_wait(
        self, instance_id: str, channel: str, *, lease: Lease | None = None, activity_id: str | None = None
    ) -> bool:
        """Record that a wait timed out, end it and set the instance running; return whether it did."""
        if activity_id is not None:
            limits.name(activity_id, "activity_id")
        return self._expire(instance_id, channel, lease, activity_id)

    @writes
    def expire_channel_waits(self, waits: Sequence[tuple[str, str]]) -> list[bool]:
        """End many waits in one commit."""
        for wait in waits:
            subscription_key(*wait)
        return self._in_order(waits, self._expire)

    def _expire(self, instance_id: str, channel: str, lease: Lease | None, activity_id: str | None = None) -> bool:
        key = instance_id, channel
        subscription_key(*key)
        if lease is not None:
            self._fence(instance_id, lease)
        waits = self._waits_for(*key)
        up = self._up([wait for wait in waits if activity_id in (None, wait["activity_id"])])
        if not up or not self._may_wake(self._tables.workflow_instances[instance_id], lease):
            return False
        wait = up[0]
        payload = {
            "_error": True,
            "error_type": "TimeoutError",
            "error_message": f'timeout waiting for channel message on "{channel}" (instance: {instance_id})',
            "channel": channel,
            "timeout_at": wait["timeout_at"].isoformat(timespec="microseconds"),
        }
        self._wake(instance_id, wait["activity_id"], HistoryEventType.MESSAGE_TIMEOUT, text(payload), lease)
        remove(self._tables.perdure_waits, [(instance_id, wait["activity_id"])])
        return True

    @writes
    def cleanup_instance_subscriptions(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance's timers, channel subscriptions, cursors, claims and group memberships."""
        self._fence(instance_id, lease)
        tables, claims = self._tables, self._tables.channel_message_claims
        claimed = where(claims, instance_id=instance_id)
        for row in tables.channel_messages.values():
            if row["message_id"] in claimed:
                self._mark_channel(row["channel"])  # it is available to others again
        remove(claims, claimed)
        for owned in (
            tables.workflow_timer_subscriptions,
            tables.channel_subscriptions,
            tables.channel_delivery_cursors,
            tables.perdure_waits,
            tables.workflow_group_memberships,
        ):
            remove(owned, where(owned, instance_id=instance_id))
        remove(tables.perdure_taken_messages, where(tables.perdure_taken_messages, instance_id=instance_id))


def _envelope(message: Row, published_at: str, match_key: str | None) -> str:
    """Return the event of a delivery; data and metadata are JSON already and remain as they were published."""
    channel, at = json.dumps(message["channel"], ensure_ascii=False), json.dumps(published_at)
    parts = {
        "id": str(message["id"]),
        "channel": channel,
        "channel_name": channel,
        "data": message["data"] or "null",
        "metadata": message["metadata"] or "{}",
        "published_at": at,
        "created_at": at,
    }
    if match_key is not None:
        parts["match"] = json.dumps(match_key)
    return "{" + ", ".join(f'"{name}": {part}' for name, part in parts.items()) + "}"
