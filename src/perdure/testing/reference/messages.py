"""Manage channels: messages in the order of their ids, and which subscriber has received which of them."""

from collections.abc import Sequence
from datetime import timedelta
from operator import itemgetter

from perdure.errors import ChannelModeConflictError, NotSubscribedError, StorageError
from perdure.model import limits
from perdure.model.records import ChannelMessage, ChannelMode, ChannelSubscription, Lease, OutgoingMessage
from perdure.model.states import TERMINAL
from perdure.testing.reference.arguments import direct_channel, message_row, subscription_key
from perdure.testing.reference.fences import Fences
from perdure.testing.reference.history import raw
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import reads, writes


def message_from(row: Row) -> ChannelMessage:
    """Return a message as callers see it."""
    fields = {name: value for name, value in row.items() if name != "framework"}
    return ChannelMessage(**{**fields, "data": raw(row["data"]), "metadata": raw(row["metadata"])})


class Messages(Fences):
    """Implement ChannelManager without its deliveries."""

    @writes
    def publish_to_channel(
        self,
        channel: str,
        data: bytes,
        metadata: bytes | None = None,
        *,
        message_id: str | None = None,
        source: str = "",
        binary: bool = False,
        lease: Lease | None = None,
    ) -> int:
        """Publish a message; for a known key, store nothing and return the first id."""
        return self._publish(OutgoingMessage(channel, data, metadata, message_id, source, binary), lease)

    @writes
    def publish_messages(
        self, messages: Sequence[OutgoingMessage], *, lease: Lease | None = None
    ) -> list[int | StorageError]:
        """Publish many messages in one commit, in their order."""
        return self._each(messages, lambda message: self._publish(message, lease), lambda _: "")

    def _publish(self, message: OutgoingMessage, lease: Lease | None) -> int:
        row, source, key = message_row(message), message.source, message.message_id
        if lease is not None:
            self._fence(lease.instance_id, lease)
        self._mark_channel(row["channel"])
        if key is None:
            return self._store(row)
        keys = self._tables.perdure_message_keys
        if (source, key) not in keys:
            named = where(self._tables.channel_messages, message_id=row["message_id"])
            number = named[0] if named else self._store(row)
            keys[source, key] = {"source": source, "message_id": key, "id": number, "created_at": self._now}
        return int(keys[source, key]["id"])

    def _store(self, row: Row) -> int:
        number = self._world.draw("channel_messages")
        stored = {"id": number, **row, "published_at": self._now, "framework": "perdure"}
        self._tables.channel_messages[number] = stored
        return number

    def _lock_channel(self, channel: str) -> None:
        self._tables.perdure_channels.setdefault(channel, {"channel": channel, "dirty_at": None})

    def _mark_channel(self, channel: str) -> None:
        """Mark that there may be something to deliver, if it is not marked yet."""
        self._lock_channel(channel)
        if self._tables.perdure_channels[channel]["dirty_at"] is None:
            change(self._tables.perdure_channels, channel, dirty_at=self._now)

    def _remind(self, instance_id: str) -> None:
        """Mark the channels of an instance's waits: it waits from now on, and messages may have arrived before."""
        waits = self._tables.perdure_waits
        for key in where(waits, instance_id=instance_id):
            self._mark_channel(waits[key]["channel"])

    @writes
    def subscribe_to_channel(
        self, instance_id: str, channel: str, mode: ChannelMode, *, lease: Lease | None = None
    ) -> str:
        """Subscribe an instance and return the channel it is subscribed to.

        Broadcast receives what is published from now on, competing shares a backlog, direct is a broadcast to
        `<channel>:<instance id>` from the first message on.
        """
        mode = limits.choice(ChannelMode, mode, "mode")
        direct = mode is ChannelMode.DIRECT
        name = direct_channel(channel, instance_id) if direct else limits.name(channel, "channel")
        self._subscribe(instance_id, name, ChannelMode.BROADCAST if direct else mode, lease, from_start=direct)
        return name

    def _subscribe(
        self, instance_id: str, name: str, stored: ChannelMode, lease: Lease | None, *, from_start: bool = False
    ) -> None:
        self._lock_channel(name)
        self._fence(instance_id, lease)
        self._add_subscription(instance_id, name, stored, from_start=from_start)

    def _add_subscription(self, instance_id: str, name: str, stored: ChannelMode, *, from_start: bool) -> None:
        """Subscribe an instance, without its fence."""
        subscriptions = self._tables.channel_subscriptions
        own = subscriptions.get((instance_id, name))
        if own is not None and own["mode"] == stored:
            return
        if own is not None or self._live_modes(name) - {stored}:
            raise ChannelModeConflictError(f"channel {name!r} is not used in {stored} mode: use another mode or name")
        cursor = 0 if from_start else max(where(self._tables.channel_messages, channel=name), default=0)
        subscriptions[instance_id, name] = {
            "id": self._world.draw("channel_subscriptions"),
            "instance_id": instance_id,
            "channel": name,
            "mode": stored.value,
            "activity_id": None,
            "cursor_message_id": cursor,
            "timeout_at": None,
            "subscribed_at": self._now,
            "framework": self._tables.workflow_instances[instance_id]["framework"],
        }
        if stored is ChannelMode.BROADCAST and (instance_id, name) not in self._tables.channel_delivery_cursors:
            self._set_cursor(instance_id, name, cursor)

    def _set_cursor(self, instance_id: str, channel: str, message_id: int) -> None:
        """Return the second of the two cursors of a subscriber."""
        cursors, key = self._tables.channel_delivery_cursors, (instance_id, channel)
        number = cursors[key]["id"] if key in cursors else self._world.draw("channel_delivery_cursors")
        cursors[key] = {
            "id": number,
            "channel": channel,
            "instance_id": instance_id,
            "last_delivered_id": message_id,
            "updated_at": self._now,
        }

    def _live(self, channel: str) -> list[Row]:
        """Return the subscriptions of instances that have not ended."""
        table, instances = self._tables.channel_subscriptions, self._tables.workflow_instances
        rows = [table[key] for key in where(table, channel=channel)]
        return [row for row in rows if instances[row["instance_id"]]["status"] not in TERMINAL]

    def _live_modes(self, channel: str) -> set[str]:
        return {row["mode"] for row in self._live(channel)}

    @writes
    def unsubscribe_from_channel(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Remove a subscription and its cursors if it exists."""
        tables, key = self._tables, self._own(instance_id, channel, lease)
        remove(tables.channel_subscriptions, [key])
        remove(tables.channel_delivery_cursors, [key])
        remove(tables.perdure_waits, where(tables.perdure_waits, instance_id=instance_id, channel=channel))
        taken = where(tables.perdure_taken_messages, instance_id=instance_id, channel=channel)
        remove(tables.perdure_taken_messages, taken)

    @writes
    def clear_channel_waiting_state(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Stop waiting on a channel and keep the subscription."""
        self._own(instance_id, channel, lease)
        remove(self._tables.perdure_waits, where(self._tables.perdure_waits, instance_id=instance_id, channel=channel))

    def _own(self, instance_id: str, channel: str, lease: Lease | None) -> tuple[str, str]:
        """Return a subscription's key, under its instance's fence."""
        key = subscription_key(instance_id, channel)
        self._fence(instance_id, lease)
        return key

    @reads
    def get_channel_subscription(self, instance_id: str, channel: str) -> ChannelSubscription | None:
        """Return one subscription; its cursor is the further one of the two that are stored."""
        subscription_key(instance_id, channel)
        row = self._tables.channel_subscriptions.get((instance_id, channel))
        return None if row is None else self._subscription(row)

    def _subscription(self, row: Row, wait: Row | None = None) -> ChannelSubscription:
        """Return a subscription as callers see it, with one of its waits: the first by default."""
        waits = [wait] if wait else self._waits_for(row["instance_id"], row["channel"])
        shown = {name: waits[0][name] for name in ("activity_id", "timeout_at")} if waits else {}
        fields = {name: value for name, value in row.items() if name != "framework"} | shown
        return ChannelSubscription(
            **{**fields, "mode": ChannelMode(row["mode"]), "cursor_message_id": self._cursor(row)}
        )

    def _waits_for(self, instance_id: str, channel: str) -> list[Row]:
        """Return the waits of an instance for messages of a channel, in the order of registration."""
        waits = self._tables.perdure_waits
        found = [waits[key] for key in where(waits, instance_id=instance_id, channel=channel)]
        return sorted(found, key=itemgetter("id"))

    def _cursor(self, row: Row) -> int:
        second = self._tables.channel_delivery_cursors.get((row["instance_id"], row["channel"]))
        return max(row["cursor_message_id"] or 0, second["last_delivered_id"] if second else 0)

    @reads
    def get_delivery_cursor(self, instance_id: str, channel: str) -> int:
        """Return the last message that a subscriber received; 0 for none."""
        subscription_key(instance_id, channel)
        row = self._tables.channel_subscriptions.get((instance_id, channel))
        return self._cursor(row) if row else 0

    @reads
    def get_channel_mode(self, channel: str) -> ChannelMode | None:
        """Return how live subscribers use a channel."""
        modes = self._live_modes(limits.name(channel, "channel"))
        return ChannelMode(min(modes)) if modes else None

    @reads
    def get_pending_channel_messages(self, channel: str, after_id: int = 0, limit: int = 0) -> list[ChannelMessage]:
        """Return the messages of a channel after an id, in order."""
        limits.name(channel, "channel")
        limits.number(after_id, "after_id")
        rows = self._after_id(channel, after_id)
        return [message_from(row) for row in rows[: limits.page(limit, 100)]]

    @reads
    def get_pending_channel_messages_for_instance(
        self, instance_id: str, channel: str, *, limit: int | None = None
    ) -> list[ChannelMessage]:
        """Return the messages that a subscriber has not received, in order."""
        subscription_key(instance_id, channel)
        most = limits.some(limit)
        if (instance_id, channel) not in self._tables.channel_subscriptions:
            raise NotSubscribedError(f"run {instance_id!r} is not subscribed to channel {channel!r}: subscribe first")
        return [message_from(row) for row in self._pending(instance_id, channel)[:most]]

    def _after_id(self, channel: str, after_id: int) -> list[Row]:
        table = self._tables.channel_messages
        return [table[number] for number in sorted(where(table, channel=channel)) if number > after_id]

    def _pending(self, instance_id: str, channel: str) -> list[Row]:
        """Return messages after both cursors that were not taken out of turn; unclaimed ones of a competing channel."""
        row = self._tables.channel_subscriptions[instance_id, channel]
        if row["mode"] == ChannelMode.COMPETING:
            return self._unclaimed(channel)
        taken, messages = self._tables.perdure_taken_messages, self._after_id(channel, self._cursor(row))
        return [message for message in messages if (instance_id, channel, message["id"]) not in taken]

    def _unclaimed(self, channel: str) -> list[Row]:
        claims = self._tables.channel_message_claims
        return [row for row in self._after_id(channel, 0) if row["message_id"] not in claims]

    @writes
    def claim_channel_message(self, message_id: int, instance_id: str, *, lease: Lease | None = None) -> bool:
        """Claim a message of a competing channel; return False if it is claimed or removed."""
        limits.number(message_id, "message_id")
        self._fence(instance_id, lease)
        row, claims = self._tables.channel_messages.get(message_id), self._tables.channel_message_claims
        if row is None or row["message_id"] in claims:
            return False
        claims[row["message_id"]] = {
            "message_id": row["message_id"],
            "instance_id": instance_id,
            "claimed_at": self._now,
        }
        return True

    @writes
    def delete_channel_message(self, message_id: int, *, lease: Lease | None = None) -> None:
        """Remove a message, with its claim, if it exists."""
        limits.number(message_id, "message_id")
        if lease is not None:
            self._fence(lease.instance_id, lease)
        self._remove_message(message_id)

    def _remove_message(self, number: int) -> None:
        row = self._tables.channel_messages.pop(number, None)
        if row is not None:
            remove(self._tables.channel_message_claims, [row["message_id"]])

    @writes
    def update_delivery_cursor(
        self, instance_id: str, channel: str, last_message_id: int, *, lease: Lease | None = None
    ) -> None:
        """Record the last message that a subscriber received, in both cursor tables; never backwards."""
        limits.number(last_message_id, "last_message_id")
        subscription_key(instance_id, channel)
        self._fence(instance_id, lease)
        if (instance_id, channel) not in self._tables.channel_subscriptions:
            raise NotSubscribedError(f"run {instance_id!r} is not subscribed to channel {channel!r}: subscribe first")
        self._advance(instance_id, channel, last_message_id)

    def _advance(self, instance_id: str, channel: str, message_id: int) -> None:
        subscriptions, cursors, key = (
            self._tables.channel_subscriptions,
            self._tables.channel_delivery_cursors,
            (instance_id, channel),
        )
        first = max(subscriptions[key]["cursor_message_id"] or 0, message_id)
        change(subscriptions, key, cursor_message_id=first)
        self._set_cursor(*key, max(cursors[key]["last_delivered_id"], message_id) if key in cursors else first)

    @writes
    def cleanup_old_channel_messages(
        self, older_than: timedelta, *, force: bool = False, limit: int = 0, ids_older_than: timedelta | None = None
    ) -> int:
        """Remove messages older than that which no live subscriber needs, the oldest first, at most a page.

        Also remove publishers' keys that are older than `ids_older_than` (default: `older_than`), and unused channels.
        """
        until, page = self._after(-limits.span(older_than, "older_than")), limits.page(limit, limits.PAGE_MAX)
        keys_until = until if ids_older_than is None else self._after(-limits.span(ids_older_than, "ids_older_than"))
        old = [row for row in self._tables.channel_messages.values() if row["published_at"] < until]
        old.sort(key=itemgetter("published_at", "id"))
        gone = [row["id"] for row in old if force or not self._is_needed(row)][:page]
        for number in gone:
            self._remove_message(number)
        keys, channels = self._tables.perdure_message_keys, self._tables.perdure_channels
        remove(keys, [key for key, row in keys.items() if row["created_at"] < keys_until])
        used = {row["channel"] for row in self._tables.channel_messages.values()}
        used |= {channel for _, channel in self._tables.channel_subscriptions}
        remove(channels, [name for name, row in channels.items() if row["dirty_at"] is None and name not in used])
        return len(gone)

    def _is_needed(self, message: Row) -> bool:
        """Return whether a live subscriber has not received it, or its receiver is live and has not subscribed yet."""
        live = self._live(message["channel"])
        parts = message["channel"].split(":")
        if not live:
            addressed = [":".join(parts[n:]) for n in range(1, len(parts))]
            found = [self._tables.workflow_instances.get(instance_id) for instance_id in addressed]
            return any(row is not None and row["status"] not in TERMINAL for row in found)
        return any(
            message["message_id"] not in self._tables.channel_message_claims
            if row["mode"] == ChannelMode.COMPETING
            else message["id"] > self._cursor(row)
            for row in live
        )
