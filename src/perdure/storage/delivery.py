"""Deliver messages to subscribers that wait for them, and end waits that timed out.

A delivery takes a waiting instance only if it is free, and never waits for one: the next sweep finds what cannot be
delivered now, because a channel stays marked until no subscriber has anything to receive.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from perdure.database.dialects import Features
from perdure.database.operation import Operation, Work, raw, utc
from perdure.database.statements import Call
from perdure.errors import LimitError
from perdure.model import limits
from perdure.model.matching import Match, match_of
from perdure.model.records import (
    ChannelDeliveryResult,
    ChannelMessage,
    ChannelMode,
    ChannelSubscription,
    HistoryEventType,
    Lease,
)
from perdure.storage import channels, matching, waits, waking
from perdure.storage.channels import pair
from perdure.storage.fences import fence
from perdure.storage.sql import load_statements
from perdure.storage.wakeups import RESUMABLE, Payload, first_of, resumable

S = load_statements("delivery")

ADOPTED_MAX = 1000  # messages of other frameworks detected in one sweep
SPARE = 100  # candidates examined beyond those needed, so that their order is the same on every database

Pair = tuple[str, str]  # a channel and an instance
Deliver = Callable[[str, str, Lease | None, str | None, Match | None], Operation[ChannelDeliveryResult | None]]


class Delivery(waits.Waits):
    """Implement the deliveries of ChannelManager, timeouts, and the sweep."""

    async def get_channel_subscribers_waiting(
        self, channel: str, *, limit: int | None = None
    ) -> list[ChannelSubscription]:
        """Return the subscribers of any framework that wait for a message of this channel."""
        name = limits.name(channel, "channel")
        return await self._scan(_subscriptions, S.waiting(channel=name, limit=limits.some(limit)))

    async def find_expired_channel_subscriptions(self, limit: int = 0) -> list[ChannelSubscription]:
        """Return own waits of waiting instances that have timed out, the oldest first."""
        return await self._read(_subscriptions, S.expired(limit=limits.page(limit, 100)))

    async def deliver_channel_message(
        self,
        instance_id: str,
        message: ChannelMessage,
        *,
        lease: Lease | None = None,
        activity_id: str | None = None,
        where: Mapping[str, object] | None = None,
    ) -> ChannelDeliveryResult | None:
        """Deliver to a waiting subscriber its next message of that message's channel, and set it running.

        That is the lowest pending message that one of its waits matches, perhaps an earlier one than was offered; the
        result names it. It goes to the first of the waits that it matches. Return None and change nothing if the
        instance does not wait for a message, or is leased or locked. With `lease` the holder takes a message for
        itself, even while it runs, and keeps the lease; `activity_id` names the step, and `where` what the message must
        match.

        A step that is already recorded takes no message: the instance is set running, and the result names none.
        """
        if activity_id is not None:
            limits.name(activity_id, "activity_id")
            if lease is None:
                raise LimitError("activity_id needs lease: only the lease's holder can take a message for an activity")
        if where and activity_id is None:
            raise LimitError("where needs activity_id: a registered wait defines itself what it matches")
        return await self._deliver(instance_id, message.channel, lease, activity_id, where)

    async def deliver_channel_message_with_lock(
        self, instance_id: str, channel: str, message: ChannelMessage, worker_id: str, lock_timeout_sec: float
    ) -> ChannelDeliveryResult | None:
        """Do the same for a channel by name. The lock ends with the transaction, so its timeout is ignored."""
        limits.name(worker_id, "worker_id")
        limits.seconds(lock_timeout_sec, "lock_timeout_sec")
        if message.channel != channel:
            raise LimitError(f"the message belongs to channel {message.channel!r}, not to {channel!r}")
        return await self._deliver(instance_id, channel, None, None)

    async def deliver_pending(
        self, limit: int = 0, *, channels: Sequence[str] | None = None
    ) -> list[ChannelDeliveryResult]:
        """Deliver pending messages of channels that were published to, or of these channels, at most a page.

        This is one commit. A full page means that there may be more.
        """
        page = limits.page(limit, 100)
        named = None if channels is None else sorted({limits.name(channel, "channel") for channel in channels})
        if not (named and self._features.one_statement_writes):
            named = await self._adopt(page, named)
        if not named:
            return []
        if self._features.one_statement_writes:
            found = await self._read(_survey, named, page)
            if found.unseen:
                await self._run(Work(_adopt, repeat=True))
                found = await self._read(_survey, named, page)
            if found.plain and not (found.marked or found.candidates):
                return []
            if found.plain:
                return await self._deliver_set(named, found.candidates)
        await self._match(named)
        features = self._features
        work = Work(lambda: _sweep(features, self._way(), named, page), repeat=True)
        return await self._announce(RESUMABLE, work, _delivered)

    async def expire_channel_wait(
        self, instance_id: str, channel: str, *, lease: Lease | None = None, activity_id: str | None = None
    ) -> bool:
        """Record that a wait timed out, end it and set the instance running, in one transaction; return if it did.

        Of several waits on the channel it ends the one that was due first, or that of `activity_id`. Return False and
        change nothing if the wait is not due or has ended, or the instance is leased or locked. With `lease` the holder
        ends a wait of its own while it runs, and keeps the lease.
        """
        pair(instance_id, channel)
        if activity_id is not None:
            limits.name(activity_id, "activity_id")
        return await self._wake(partial(_expire, activity_id=activity_id), (instance_id, channel), lease)

    async def expire_channel_waits(self, waits: Sequence[tuple[str, str]]) -> list[bool]:
        """End many waits, given by instance and channel, in one commit; return whether each ended, in order.

        Each is ended as `expire_channel_wait` does without a lease; waits of instances that are locked are skipped.
        """
        for instance_id, channel in waits:
            pair(instance_id, channel)
        return await self._wake_all(_expire, waits)

    async def _adopt(self, limit: int, named: list[str] | None) -> list[str]:
        """Mark the channels of other frameworks' messages; return these channels, or else those that are marked."""
        marked = await self._read(_marked, limit if named is None else 1)
        if marked.unseen:
            await self._run(Work(_adopt, repeat=True))
            if named is None:
                marked = await self._read(_marked, limit)
        return marked.channels if named is None else named

    async def _deliver_set(self, named: Sequence[str], candidates: Sequence[Pair]) -> list[ChannelDeliveryResult]:
        """Deliver to these instances from these channels, which are plain, in one statement."""

        def work(kind: str | None) -> Work[list[ChannelDeliveryResult]]:
            return Work(lambda: _deliver_set(named, candidates, kind), single=True, repeat=True)

        return await self._announce(RESUMABLE, work(None), _delivered, work)

    async def _match(self, named: Sequence[str]) -> None:
        """Create the keys of these channels' messages, so that registered waits find them."""
        features = self._features
        if await self._read(_matched, named):
            await self._run(Work(lambda: _make_keys(features, named), repeat=True))

    def _way(self) -> Deliver:
        return _deliver_at_once if self._features.round_trips else _deliver

    async def _deliver(
        self,
        instance_id: str,
        channel: str,
        lease: Lease | None,
        activity_id: str | None,
        where: Mapping[str, object] | None = None,
    ) -> ChannelDeliveryResult | None:
        pair(instance_id, channel)
        way, alone = self._way(), lease is None
        match = match_of(channel, where) if where else None
        single = alone and way is _deliver_at_once
        if activity_id is None:
            await self._match([channel])
        if match is None:
            work = Work(lambda: way(instance_id, channel, lease, activity_id, None), single=single, repeat=alone)
        else:
            features, key = self._features, (instance_id, channel, lease, activity_id, match)
            work = Work(lambda: channels.locking([channel], _take(features, way, *key)))
        return await self._announce(RESUMABLE, work, (lambda found: _delivered([found])) if alone else None)


def _delivered(results: Sequence[ChannelDeliveryResult | None]) -> Payload | None:
    return first_of([resumable(found.instance_id, found.workflow_name) for found in results if found])


def _subscriptions(call: Call) -> Operation[list[ChannelSubscription]]:
    return [channels.subscription_from(row) for row in (yield call)]


def _take(
    features: Features,
    deliver: Deliver,
    instance_id: str,
    channel: str,
    lease: Lease | None,
    activity_id: str | None,
    match: Match,
) -> Operation[ChannelDeliveryResult | None]:
    """Take a message that matches for the holder of the lease; the channel is locked."""
    subscription = yield from channels.subscription(instance_id, channel)
    if subscription is not None:
        if subscription.mode is ChannelMode.COMPETING:
            raise matching.not_for(channel)
        yield from matching.complete(features, channel, match, subscription.cursor_message_id)
    return (yield from deliver(instance_id, channel, lease, activity_id, match))


def _deliver(
    instance_id: str, channel: str, lease: Lease | None, activity_id: str | None, match: Match | None
) -> Operation[ChannelDeliveryResult | None]:
    """Deliver step by step, where a step costs no round trip and no other connection writes."""
    rows = yield from _fenced(S.target, instance_id, channel, lease, activity_id, match)
    if not rows:
        return None
    name, activity, mode, message, key, data, binary, metadata, published_at, in_turn = rows[0]
    sent_at = utc(published_at).isoformat(timespec="microseconds")
    envelope = _envelope(channel, message, data, metadata, sent_at, key)
    kind = HistoryEventType.CHANNEL_MESSAGE_RECEIVED
    recorded = yield from waking.wake(instance_id, activity, kind, envelope, lease, raw(binary))
    if recorded and mode == ChannelMode.COMPETING:
        yield channels.S.delete(message_id=message)
    elif recorded and in_turn:
        yield channels.S.advance(instance_id=instance_id, channel=channel, message_id=message)
    elif recorded:
        yield S.take(instance_id=instance_id, channel=channel, message_id=message, match_key=key)
    yield waits.S.end(instance_id=instance_id, channel=channel, activity_id=activity)
    return ChannelDeliveryResult(instance_id, name, activity, channel, message if recorded else 0)


def _deliver_at_once(
    instance_id: str, channel: str, lease: Lease | None, activity_id: str | None, match: Match | None
) -> Operation[ChannelDeliveryResult | None]:
    """Deliver in one round trip."""
    rows = yield from _fenced(S.deliver, instance_id, channel, lease, activity_id, match)
    if not rows:
        return None
    name, activity, message, recorded = rows[0]
    return ChannelDeliveryResult(instance_id, name, activity, channel, message if recorded else 0)


def _fenced(
    statement: Callable[..., Call],
    instance_id: str,
    channel: str,
    lease: Lease | None,
    activity_id: str | None,
    match: Match | None,
) -> Operation[list[Any]]:
    if lease is not None:
        yield from fence(instance_id, lease)
    rows: list[Any] = yield statement(
        instance_id=instance_id,
        channel=channel,
        activity_id=activity_id,
        match_key=match and match.key,
        token=lease.token if lease else None,
        name=json.dumps(channel, ensure_ascii=False),
    )
    return rows


def _envelope(
    channel: str, message: int, data: str | None, metadata: str | None, published_at: str, match_key: str | None
) -> str:
    """Return the event that Edda and Romancy can read, with the data as published. `match` is for a replay."""
    name = json.dumps(channel, ensure_ascii=False)
    match = f', "match": "{match_key}"' if match_key else ""
    return (
        f'{{"id": {message}, "channel": {name}, "channel_name": {name}, "data": {data or "null"}, '
        f'"metadata": {metadata or "{}"}, "published_at": "{published_at}", "created_at": "{published_at}"{match}}}'
    )


def _matched(named: Sequence[str]) -> Operation[bool]:
    """Return whether an instance waits for certain values on these channels."""
    return bool((yield from matching.sets_of(named)))


def _make_keys(features: Features, named: Sequence[str]) -> Operation[None]:
    """Create keys in a commit of its own: publishers wait for this, but not for the deliveries."""
    quiet = [row[0] for row in (yield S.seize(channels=named))]
    yield from matching.complete_all(features, quiet)


def _sweep(
    features: Features, deliver: Deliver, named: Sequence[str], limit: int
) -> Operation[list[ChannelDeliveryResult]]:
    found: list[ChannelDeliveryResult] = []
    for channel, instance_id in (yield from _candidates(named, limit)):
        result = yield from deliver(instance_id, channel, None, None, None)
        if result is not None:
            found.append(result)
    quiet = [row[0] for row in (yield S.seize(channels=named))]
    if quiet:
        unserved = {row[0] for row in (yield S.unserved(channels=quiet))}
        unserved |= yield from _unmatched(features, quiet)
        yield S.requeue(channels=sorted(unserved))
        yield S.clean(channels=[channel for channel in quiet if channel not in unserved])
    return found


def _unmatched(features: Features, quiet: Sequence[str]) -> Operation[set[str]]:
    """Return channels with a message that a wait matches. The sweep is done with all messages before the first."""
    sets, left = yield from matching.complete_all(features, quiet)
    for channel, (swept_id, own) in matching.by_channel(sets).items():
        more = True
        while more:
            page = yield from matching.fresh(channel, own, swept_id)
            if page.keys and (yield S.unmatched(keys=page.keys)):
                left.add(channel)
                break
            swept_id, more = page.last_id, page.more
        yield matching.S.swept(channel=channel, message_id=swept_id)
    return left


def _candidates(named: Sequence[str], limit: int) -> Operation[list[tuple[str, str]]]:
    """Return waiting subscribers, with their channels, that are free and have a message."""
    rows = list((yield S.behind(channels=named, limit=limit + SPARE)))
    rows += yield from _matching(named, limit + SPARE)
    found = sorted({(channel, instance_id) for channel, instance_id in rows})
    if len(found) < limit and (stocked := [row[0] for row in (yield S.backlog(channels=named))]):
        rows = yield S.idle(channels=stocked, limit=limit + SPARE)
        found += sorted({(channel, instance_id) for channel, instance_id in rows})
    return found[:limit]


def _matching(named: Sequence[str], limit: int) -> Operation[list[tuple[str, str]]]:
    """Return those that wait for certain values, as far as messages have keys."""
    found: list[tuple[str, str]] = []
    for channel, (after_id, own) in matching.by_channel((yield from matching.sets_of(named))).items():
        more = True
        while more and len(found) < limit:
            page = yield from matching.fresh(channel, own, after_id)
            if page.keys:
                found += yield S.matching(keys=page.keys, limit=limit - len(found))
            after_id, more = page.last_id, page.more
    return found


class Survey(NamedTuple):
    """Hold what one look at some channels finds."""

    candidates: list[Pair]  # instances to deliver to, with their channels, each instance once
    marked: bool  # one of the channels is
    plain: bool  # all channels are
    unseen: bool  # there are messages of other frameworks, whose channels may have to be marked


def _survey(named: Sequence[str], limit: int) -> Operation[Survey]:
    rows = yield S.survey(channels=named, limit=limit + SPARE)
    kinds = {row[0] for row in rows}
    found: dict[str, str] = {}
    for channel, instance_id in sorted((row[1], row[2]) for row in rows if row[0] == "behind"):
        found.setdefault(instance_id, channel)
    candidates = [(channel, instance_id) for instance_id, channel in found.items()][:limit]
    return Survey(candidates, "marked" in kinds, "special" not in kinds, "unseen" in kinds)


def _deliver_set(
    named: Sequence[str], candidates: Sequence[Pair], kind: str | None
) -> Operation[list[ChannelDeliveryResult]]:
    rows = yield S.deliver_set(
        channels=named,
        ids=[instance_id for _, instance_id in candidates],
        from_channels=[channel for channel, _ in candidates],
        names=[json.dumps(channel, ensure_ascii=False) for channel, _ in candidates],
        kind=kind,
        reason=None,
    )
    return [
        ChannelDeliveryResult(instance_id, name, activity_id, channel, message if recorded else 0)
        for instance_id, name, activity_id, channel, message, recorded in sorted(rows, key=lambda row: (row[3], row[0]))
    ]


class Marked(NamedTuple):
    """Hold the channels that are marked, and whether there are messages whose channels are not."""

    channels: list[str]
    unseen: bool


def _marked(limit: int) -> Operation[Marked]:
    rows = yield S.marked(limit=limit)
    return Marked([channel for channel, is_unseen in rows if not is_unseen], any(row[1] for row in rows))


def _adopt() -> Operation[None]:
    """Mark the channels of messages that other frameworks published without marking them."""
    messages = yield S.unseen(limit=ADOPTED_MAX)
    first: dict[str, int] = {}
    for _, channel, number in messages:
        first.setdefault(channel, number)
    for channel in sorted(first):
        yield channels.S.mark(channel=channel)
        yield matching.S.back(channel=channel, message_id=first[channel])  # keys of later ones may exist already
    yield S.adopt(ids=sorted(message_id for message_id, _, _ in messages))


def _expire(
    instance_id: str, channel: str, lease: Lease | None, *, activity_id: str | None = None
) -> Operation[str | None]:
    if lease is not None:
        yield from fence(instance_id, lease)
    token = lease.token if lease else None
    rows = yield S.due(instance_id=instance_id, channel=channel, activity_id=activity_id, token=token)
    if not rows:
        return None
    name, waiting_id, timeout_at = rows[0]
    payload = {
        "_error": True,
        "error_type": "TimeoutError",
        "error_message": f'timeout waiting for channel message on "{channel}" (instance: {instance_id})',
        "channel": channel,
        "timeout_at": utc(timeout_at).isoformat(timespec="microseconds"),
    }
    yield from waking.wake(instance_id, waiting_id, HistoryEventType.MESSAGE_TIMEOUT, waking.text(payload), lease)
    yield waits.S.end(instance_id=instance_id, channel=channel, activity_id=waiting_id)
    return str(name)
