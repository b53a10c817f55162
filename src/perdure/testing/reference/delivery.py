"""Delivery: messages to subscribers that wait for them, and the end of waits that nothing came for."""

from collections.abc import Sequence
from operator import itemgetter

from perdure.errors import LimitError
from perdure.model import limits
from perdure.model.records import (
    ChannelDeliveryResult,
    ChannelMessage,
    ChannelMode,
    ChannelSubscription,
    HistoryEventType,
    Lease,
)
from perdure.storage.channels import pair
from perdure.storage.delivery import _envelope
from perdure.testing.reference.fences import OWN
from perdure.testing.reference.history import Archive
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import reads, writes
from perdure.testing.reference.waits import Waits, text


class Delivery(Waits, Archive):
    """The deliveries of ChannelManager, time-outs, the sweep, and the end of all subscriptions."""

    @reads
    def get_channel_subscribers_waiting(self, channel: str, *, limit: int | None = None) -> list[ChannelSubscription]:
        """Subscribers of any framework that wait for a message of this channel."""
        rows = self._waiting_on(limits.name(channel, "channel"))
        return [self._subscription(row) for row in rows[: limits.some(limit)]]

    def _waiting_on(self, channel: str) -> list[Row]:
        table = self._tables.channel_subscriptions
        rows = [table[key] for key in where(table, channel=channel)]
        waiting = [row for row in rows if row["activity_id"] is not None and self._is_waiting(row["instance_id"])]
        return sorted(waiting, key=itemgetter("id"))

    @reads
    def find_expired_channel_subscriptions(self, limit: int = 0) -> list[ChannelSubscription]:
        """Own waits whose time is up, of waiting instances, the oldest first."""
        page = limits.page(limit, 100)
        rows = [
            row
            for row in self._tables.channel_subscriptions.values()
            if self._is_up(row) and self._is_waiting(row["instance_id"])
        ]
        rows.sort(key=itemgetter("timeout_at", "id"))
        return [self._subscription(row) for row in rows[:page]]

    def _is_up(self, row: Row) -> bool:
        timeout_at = row["timeout_at"] if row["activity_id"] is not None else None
        return row["framework"] == OWN and timeout_at is not None and timeout_at <= self._now

    @writes
    def deliver_channel_message(
        self,
        instance_id: str,
        message: ChannelMessage,
        *,
        lease: Lease | None = None,
        activity_id: str | None = None,
    ) -> ChannelDeliveryResult | None:
        """Give a waiting subscriber its next message of that message's channel, and set it running."""
        if activity_id is not None:
            limits.name(activity_id, "activity_id")
            if lease is None:
                raise LimitError("only the holder of the lease says for which activity it takes a message")
        return self._deliver(instance_id, message.channel, lease, activity_id)

    @writes
    def deliver_channel_message_with_lock(
        self, instance_id: str, channel: str, message: ChannelMessage, worker_id: str, lock_timeout_sec: float
    ) -> ChannelDeliveryResult | None:
        """The same for a channel by name."""
        limits.name(worker_id, "worker_id")
        limits.seconds(lock_timeout_sec, "lock_timeout_sec")
        if message.channel != channel:
            raise LimitError(f"the message is of {message.channel!r}, not of {channel!r}")
        return self._deliver(instance_id, channel, None, None)

    def _deliver(
        self, instance_id: str, channel: str, lease: Lease | None = None, activity_id: str | None = None
    ) -> ChannelDeliveryResult | None:
        """The lowest pending message goes to who waits and is free, or to the holder itself.

        A step that is recorded already takes no message: the instance is set running all the same.
        """
        pair(instance_id, channel)
        if lease is not None:
            self._fence(instance_id, lease)
        row = self._tables.channel_subscriptions.get((instance_id, channel))
        if row is None or (activity := activity_id or row["activity_id"]) is None:
            return None
        instance = self._tables.workflow_instances[instance_id]
        pending = self._pending(instance_id, channel)
        if not pending or not self._may_wake(instance, lease):
            return None
        message = pending[0]
        sent_at = message["published_at"].isoformat(timespec="microseconds")
        envelope = _envelope(channel, message["id"], message["data"], message["metadata"], sent_at)
        kind = HistoryEventType.CHANNEL_MESSAGE_RECEIVED
        recorded = self._wake(instance_id, activity, kind, envelope, lease, message["data_binary"])
        if recorded and row["mode"] == ChannelMode.BROADCAST:
            self._advance(instance_id, channel, message["id"])
        elif recorded:
            self._remove_message(message["id"])
        change(self._tables.channel_subscriptions, (instance_id, channel), activity_id=None, timeout_at=None)
        number = message["id"] if recorded else 0
        return ChannelDeliveryResult(instance_id, instance["workflow_name"], activity, channel, number)

    async def deliver_pending(
        self, limit: int = 0, *, channels: Sequence[str] | None = None
    ) -> list[ChannelDeliveryResult]:
        """Sweep the channels where something was published, or these: deliver what is pending, at most a page."""
        page = limits.page(limit, 100)
        await self._adopt()
        return await self._sweep(page, channels)

    @writes
    def _adopt(self) -> None:
        """Mark the channels of messages that the rest of the family published without it."""
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
        """Waiting subscribers, with their channels, that are free and that there is a message for."""
        instances = self._tables.workflow_instances
        return sorted(
            (channel, row["instance_id"])
            for channel in named
            for row in self._waiting_on(channel)
            if row["mode"] == mode
            and self._is_free(instances[row["instance_id"]])
            and self._pending(row["instance_id"], channel)
        )

    def _is_unserved(self, channel: str) -> bool:
        """Whether somebody waits, free or not, and there is a message for it."""
        return any(self._pending(row["instance_id"], channel) for row in self._waiting_on(channel))

    @writes
    def expire_channel_wait(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> bool:
        """Record that the time of a wait is up, end it and set the instance running; True if so."""
        return self._expire(instance_id, channel, lease)

    @writes
    def expire_channel_waits(self, waits: Sequence[tuple[str, str]]) -> list[bool]:
        """End many waits in one commit."""
        for wait in waits:
            pair(*wait)
        return self._in_order(waits, self._expire)

    def _expire(self, instance_id: str, channel: str, lease: Lease | None) -> bool:
        key = instance_id, channel
        pair(*key)
        if lease is not None:
            self._fence(instance_id, lease)
        row = self._tables.channel_subscriptions.get(key)
        if row is None or not self._is_up(row):
            return False
        if not self._may_wake(self._tables.workflow_instances[instance_id], lease):
            return False
        payload = {
            "_error": True,
            "error_type": "TimeoutError",
            "error_message": f'timeout waiting for channel message on "{channel}" (instance: {instance_id})',
            "channel": channel,
            "timeout_at": row["timeout_at"].isoformat(timespec="microseconds"),
        }
        self._wake(instance_id, row["activity_id"], HistoryEventType.MESSAGE_TIMEOUT, text(payload), lease)
        change(self._tables.channel_subscriptions, key, activity_id=None, timeout_at=None)
        return True

    @writes
    def cleanup_instance_subscriptions(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance's timers, channel subscriptions, cursors, claims and group memberships."""
        self._fence(instance_id, lease)
        tables, claims = self._tables, self._tables.channel_message_claims
        claimed = where(claims, instance_id=instance_id)
        for row in tables.channel_messages.values():
            if row["message_id"] in claimed:
                self._mark_channel(row["channel"])  # it is there for others again
        remove(claims, claimed)
        for owned in (
            tables.workflow_timer_subscriptions,
            tables.channel_subscriptions,
            tables.channel_delivery_cursors,
            tables.workflow_group_memberships,
        ):
            remove(owned, where(owned, instance_id=instance_id))
