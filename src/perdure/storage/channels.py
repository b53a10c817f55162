"""Manage channels: messages in the order of their ids, and which subscriber has received which of them.

Publishers and subscribers of one channel queue on its row in `perdure_channels`, which is locked before an id is
drawn and until the commit: so a lower id never appears after a higher one, and a subscriber that starts to wait has
seen all messages. The order of locks is the same everywhere: channels by name, then instances by id, then the rest.

A direct subscription is a broadcast one to `<channel>:<instance id>`, from the first message on. That name, which
`direct_channel` makes and `subscribe_to_channel` returns, is the one that every other call takes.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar
from uuid import uuid4

from perdure.database.dialects.base import Bare
from perdure.database.operation import Operation, Work, raw, utc, utc_or_none
from perdure.database.statements import Call
from perdure.errors import ChannelModeConflictError, LimitError, NotSubscribedError, StorageError
from perdure.model import limits
from perdure.model.records import ChannelMessage, ChannelMode, ChannelSubscription, Lease, OutgoingMessage
from perdure.storage.fences import changing, fence
from perdure.storage.sql import load_statements
from perdure.storage.transactions import prepared, together
from perdure.storage.wakeups import MESSAGE, Payload, Wakeups

T = TypeVar("T")
S = load_statements("channels")

_OTHER = {ChannelMode.BROADCAST: ChannelMode.COMPETING, ChannelMode.COMPETING: ChannelMode.BROADCAST}
_START = (datetime(1970, 1, 1, tzinfo=UTC), 0)
LOOK_MIN = 100  # old messages examined in one transaction, however few can be removed: needed ones may come first


class Channels(Wakeups):
    """Implement ChannelManager without its deliveries."""

    _swept_to = ""  # the last channel that a clean-up examined

    async def publish_to_channel(
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
        """Publish a message, JSON or `binary`, and return its id.

        With `message_id`, publishing it again (from the same `source`) returns the first id and stores nothing, until
        `cleanup_old_channel_messages` removes it.
        """
        message = OutgoingMessage(channel, data, metadata, message_id, source, binary)
        params = _message(message)
        about = channel, str(params["message_id"])
        return await self._announce(
            MESSAGE,
            _publishing(params, lease),
            lambda number: _published(number, *about),
            notifying=lambda kind: _publishing({**params, "kind": kind}, lease),
        )

    async def publish_messages(
        self, messages: Sequence[OutgoingMessage], *, lease: Lease | None = None
    ) -> list[int | StorageError]:
        """Publish many messages in one commit; return an id or an error for each, in order."""
        works = prepared(lambda message: _publishing(_message(message), lease), messages)
        if not works:
            return []
        named = [m.channel for m, work in zip(messages, works, strict=True) if isinstance(work, Work)]

        def first(found: list[int | StorageError]) -> Payload | None:
            number = next((result for result in found if isinstance(result, int)), None)
            return None if number is None else _published(number, named[0])

        return await self._announce(MESSAGE, Work(lambda: locking(named, together(works))), first)

    async def subscribe_to_channel(
        self, instance_id: str, channel: str, mode: ChannelMode, *, lease: Lease | None = None
    ) -> str:
        """Subscribe an instance and return the channel it is subscribed to. Repeating the call changes nothing.

        Broadcast receives what is published from now on, competing shares a backlog, direct receives every message ever
        sent to this instance. Raise `ChannelModeConflictError` if a live subscriber uses the channel in another mode.
        """
        mode = limits.choice(ChannelMode, mode, "mode")
        direct = mode is ChannelMode.DIRECT
        name = direct_channel(channel, instance_id) if direct else limits.name(channel, "channel")
        await self._run(Work(lambda: subscribe(instance_id, name, mode, lease), repeat=True))
        return name

    async def unsubscribe_from_channel(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Remove a subscription and its cursors if it exists."""
        await self._run(changing(S.unsubscribe(**pair(instance_id, channel)), lease))

    async def get_channel_subscription(self, instance_id: str, channel: str) -> ChannelSubscription | None:
        """Return one subscription, or None; its cursor is the further one of the two that are stored."""
        return await self._read(subscription, **pair(instance_id, channel))

    async def get_channel_mode(self, channel: str) -> ChannelMode | None:
        """Return how live subscribers use a channel; None if there are none."""
        return await self._read(_mode, limits.name(channel, "channel"))

    async def clear_channel_waiting_state(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Stop waiting on a channel and keep the subscription."""
        await self._run(changing(S.clear(**pair(instance_id, channel)), lease))

    async def get_pending_channel_messages(
        self, channel: str, after_id: int = 0, limit: int = 0
    ) -> list[ChannelMessage]:
        """Return the messages of a channel after an id, in order."""
        name, page = limits.name(channel, "channel"), limits.page(limit, 100)
        return await self._read(
            _messages, S.page(channel=name, after_id=limits.number(after_id, "after_id"), limit=page)
        )

    async def get_pending_channel_messages_for_instance(
        self, instance_id: str, channel: str, *, limit: int | None = None
    ) -> list[ChannelMessage]:
        """Return the messages that a subscriber has not received, in order; raise `NotSubscribedError` without one."""
        read = self._scan if limit is None else self._read
        return await read(_pending, **pair(instance_id, channel), limit=limits.some(limit))

    async def claim_channel_message(self, message_id: int, instance_id: str, *, lease: Lease | None = None) -> bool:
        """Claim a message of a competing channel; return False if it is claimed or removed."""
        claim = S.claim(message_id=limits.number(message_id, "message_id"), instance_id=instance_id)
        return await self._run(Work(lambda: _claim(claim, lease), confirm=lambda: _claimed(claim)))

    async def delete_channel_message(self, message_id: int, *, lease: Lease | None = None) -> None:
        """Remove a message if it exists."""
        delete = S.delete(message_id=limits.number(message_id, "message_id"))
        await self._run(Work(lambda: _delete(delete, lease), repeat=True))

    async def update_delivery_cursor(
        self, instance_id: str, channel: str, last_message_id: int, *, lease: Lease | None = None
    ) -> None:
        """Record the last message that a broadcast subscriber received, in both cursor tables; never backwards."""
        message_id = limits.number(last_message_id, "last_message_id")
        advance = S.advance(**pair(instance_id, channel), message_id=message_id)
        await self._run(Work(lambda: _advance(advance, lease), repeat=True))

    async def get_delivery_cursor(self, instance_id: str, channel: str) -> int:
        """Return the last message that a subscriber received; 0 for none."""
        found = await self._read(subscription, **pair(instance_id, channel))
        return found.cursor_message_id if found else 0

    async def cleanup_old_channel_messages(
        self, older_than: timedelta, *, force: bool = False, limit: int = 0, ids_older_than: timedelta | None = None
    ) -> int:
        """Remove messages older than that which no live subscriber needs, at most a page; return their number.

        With `force`, remove them even if needed. Also remove publishers' message ids that are older than
        `ids_older_than` (default: `older_than`), and unused channels: a page of channels is examined, the next one by
        the next call.
        """
        age, page = limits.span(older_than, "older_than"), limits.page(limit, limits.PAGE_MAX)
        ids_age = age if ids_older_than is None else limits.span(ids_older_than, "ids_older_than")
        removed, after = 0, _START
        while removed < page:
            count, last = await self._write(_purge, age, after, max(page, LOOK_MIN), page - removed, force)
            removed += count
            if last is None:
                break
            after = last
        unused, self._swept_to = await self._scan(_unused, self._swept_to)
        while await self._write(_forget, ids_age, page, unused):
            unused = []
        return removed


def pair(instance_id: str, channel: str) -> dict[str, str]:
    """Return a subscription's key. Names are checked, because MySQL finds `a` when asked for `a `."""
    return {"instance_id": limits.name(instance_id, "instance_id"), "channel": limits.name(channel, "channel")}


def direct_channel(channel: str, instance_id: str) -> str:
    """Return the channel of the messages sent to one instance."""
    limits.name(channel, "channel")
    return limits.name(f"{channel}:{instance_id}", "channel with the instance's id")


def locking(names: Iterable[str], operation: Operation[T]) -> Operation[T]:
    """Run an operation under the locks of channels, which are always taken in the same order."""
    ordered = sorted(set(names))
    if len(ordered) == 1:
        yield S.lock(channel=ordered[0])
    elif ordered:
        yield S.lock_many(channels=ordered, rows=Bare((channel,) for channel in ordered))
    return (yield from operation)


def subscription(instance_id: str, channel: str) -> Operation[ChannelSubscription | None]:
    """Return one subscription, or None."""
    rows = yield S.subscription(instance_id=instance_id, channel=channel)
    return subscription_from(rows[0]) if rows else None


def message_from(row: Sequence[Any]) -> ChannelMessage:
    """Return a message from the columns of `page`."""
    message, channel, message_id, data_type, data, binary, metadata, published_at = row
    return ChannelMessage(
        message, channel, message_id, data_type, raw(data), raw(binary), raw(metadata), utc(published_at)
    )


def subscription_from(row: Sequence[Any]) -> ChannelSubscription:
    """Return a subscription from the columns of `subscription`."""
    instance_id, channel, mode, activity_id, cursor, timeout_at, number, subscribed_at = row
    at, since = utc_or_none(timeout_at), utc(subscribed_at)
    return ChannelSubscription(instance_id, channel, ChannelMode(mode), activity_id, cursor, at, number, since)


def _message(message: OutgoingMessage) -> dict[str, object]:
    """Return a message as the parameters of its insert, checked. An id without a source is the message's own."""
    key, source = message.message_id, message.source
    if message.binary:
        limits.size(message.data, "data")
        if not isinstance(message.data, bytes):
            raise LimitError(f"binary data must be bytes, not {type(message.data).__name__}")
    return {
        "channel": limits.name(message.channel, "channel"),
        "key": key if key is None else limits.name(key, "message_id"),
        "source": source and limits.name(source, "source"),
        "message_id": str(uuid4()) if key is None or source else key,
        "data_type": "binary" if message.binary else "json",
        "data": None if message.binary else json_text(message.data, "data", limits.PAYLOAD_MAX),
        "data_binary": message.data if message.binary else None,
        "metadata": None if message.metadata is None else json_text(message.metadata, "metadata", limits.METADATA_MAX),
        "kind": None,
    }


def json_text(value: bytes | None, kind: str, longest: int) -> str:
    """Return JSON as text; raise `LimitError` if it is none, or too large."""
    text = limits.text(value, kind, longest)
    try:
        json.loads(text or "", parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise LimitError(f"{kind} is not JSON ({error}); pass binary=True to publish other bytes") from error
    return text or ""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _publishing(params: dict[str, object], lease: Lease | None) -> Work[int]:
    keyed = params["key"] is not None
    return Work(
        lambda: _publish(params, lease),
        single=lease is None,
        repeat=keyed,
        confirm=None if keyed else lambda: _named(params),
    )


def _publish(params: dict[str, object], lease: Lease | None) -> Operation[int]:
    if lease is not None:
        yield S.lock(channel=params["channel"])
        yield from fence(lease.instance_id, lease)
    rows = yield S.publish(**params) if params["key"] is None else S.publish_once(**params)
    if not rows:  # the same id was published meanwhile, to another channel
        rows = yield S.key(source=params["source"], key=params["key"])
    return int(rows[0][0])


def _published(number: int, channel: str, message_id: str = "") -> Payload:
    return {"channel": channel, "channel_name": channel, "message_id": number, "ch": channel, "msg_id": message_id}


def _named(params: dict[str, object]) -> Operation[int | None]:
    """Return the message's number after a lost answer, by its own id, which is drawn before it is sent."""
    rows = yield S.named(message_id=params["message_id"])
    return rows[0][0] if rows else None


def subscribe(instance_id: str, channel: str, mode: ChannelMode, lease: Lease | None) -> Operation[None]:
    """Subscribe an instance under the lock of the channel and the fence. A direct channel has its whole name."""
    return locking([channel], _subscribe(instance_id, channel, mode, lease))


def _subscribe(instance_id: str, channel: str, mode: ChannelMode, lease: Lease | None) -> Operation[None]:
    yield from fence(instance_id, lease)
    yield from subscribe_locked(instance_id, channel, mode)


def subscribe_locked(instance_id: str, channel: str, mode: ChannelMode) -> Operation[None]:
    """Subscribe an instance; the channel and the instance are locked."""
    stored = mode.stored
    ((own, other),) = yield S.modes(instance_id=instance_id, channel=channel, other=_OTHER[stored].value)
    if own == stored:
        return
    if own or other:
        raise ChannelModeConflictError(
            f"channel {channel!r} is used in {own or other} mode, not in {stored} mode: use that mode or another "
            "channel"
        )
    from_start = int(mode is ChannelMode.DIRECT)
    yield S.subscribe(instance_id=instance_id, channel=channel, mode=stored.value, from_start=from_start)


def _delete(delete: Call, lease: Lease | None) -> Operation[None]:
    if lease is not None:
        yield from fence(lease.instance_id, lease)
    yield delete


def _mode(channel: str) -> Operation[ChannelMode | None]:
    rows = yield S.mode(channel=channel)
    return ChannelMode(rows[0][0]) if rows else None


def _messages(call: Call) -> Operation[list[ChannelMessage]]:
    return [message_from(row) for row in (yield call)]


def _pending(instance_id: str, channel: str, limit: int) -> Operation[list[ChannelMessage]]:
    found = yield from subscription(instance_id, channel)
    if found is None:
        raise NotSubscribedError(f"run {instance_id!r} is not subscribed to channel {channel!r}: subscribe first")
    if found.mode is ChannelMode.COMPETING:
        return (yield from _messages(S.unclaimed(channel=channel, limit=limit)))
    after_id = found.cursor_message_id
    return (yield from _messages(S.pending(instance_id=instance_id, channel=channel, after_id=after_id, limit=limit)))


def _claim(claim: Call, lease: Lease | None) -> Operation[bool]:
    yield from fence(str(claim.params["instance_id"]), lease)
    return bool((yield claim))


def _claimed(claim: Call) -> Operation[bool | None]:
    rows = yield S.claimant(message_id=claim.params["message_id"])
    return True if rows and rows[0][0] == claim.params["instance_id"] else None


def _advance(advance: Call, lease: Lease | None) -> Operation[None]:
    yield from fence(str(advance.params["instance_id"]), lease)
    if not (yield advance):
        raise NotSubscribedError(
            f"run {advance.params['instance_id']!r} is not subscribed to channel {advance.params['channel']!r}: "
            "subscribe first"
        )


def _purge(
    age_sec: float, after: tuple[datetime, int], look: int, limit: int, force: bool
) -> Operation[tuple[int, tuple[datetime, int] | None]]:
    """Remove up to `limit` of the next `look` old messages; return their number and, if there are more, the last."""
    rows = yield S.old(age_sec=age_sec, after_at=after[0], after_id=after[1], limit=look)
    kept: set[str] = set()
    for channel in () if force else sorted({row[2] for row in rows}):
        yield S.lock(channel=channel)
        kept |= yield from _needed(channel, [(row[0], row[1]) for row in rows if row[2] == channel])
    gone = [row[1] for row in rows if row[1] not in kept][:limit]
    if gone:
        yield S.purge(ids=gone)
    return len(gone), (utc(rows[-1][3]), rows[-1][0]) if len(rows) == look else None


def _needed(channel: str, messages: Sequence[tuple[int, str]]) -> Operation[set[str]]:
    """Return the messages that a live subscriber has not received: those above its cursor, or unclaimed ones."""
    needs = dict([tuple(row) for row in (yield S.needs(channel=channel))])
    parts = channel.split(":")  # the id of a direct message's receiver follows a colon
    if not needs and parts[1:] and (yield S.addressed(ids=[":".join(parts[n:]) for n in range(1, len(parts))])):
        return {text for _, text in messages}
    kept = {text for message, text in messages if message > needs.get(ChannelMode.BROADCAST, message)}
    if ChannelMode.COMPETING in needs:
        claimed = yield S.claimed(ids=[text for _, text in messages])
        kept |= {text for _, text in messages} - {row[0] for row in claimed}
    return kept


def _unused(after: str) -> Operation[tuple[list[str], str]]:
    """Return the unused ones of a page of channels, and where the next page begins."""
    rows = yield S.unused(after=after, limit=limits.PAGE_MAX)
    return [channel for channel, unused in rows if unused], rows[-1][0] if len(rows) == limits.PAGE_MAX else ""


def _forget(age_sec: float, limit: int, unused: Sequence[str]) -> Operation[bool]:
    """Remove a page of keys, and channels; return True if there may be more keys."""
    ((until,),) = yield S.last_key(age_sec=age_sec, limit=limit)
    forgotten = until is not None and (yield S.forget_keys(until=utc(until), limit=limit))
    if unused:
        yield S.forget(channels=sorted(unused))
    return bool(forgotten)
