"""The durable calls that a workflow's body uses besides activities. Each is a step or consists of steps."""

import asyncio
import uuid as _uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from random import Random, SystemRandom
from typing import Any, NoReturn, TypeVar, overload

from perdure.engine.api import current, messages
from perdure.engine.history.codec import decode, encode
from perdure.engine.history.digests import Call
from perdure.engine.history.messages import Event, Message
from perdure.engine.replay import context
from perdure.engine.replay.body import Body, Recur
from perdure.engine.worker.activities import OUTGOING
from perdure.errors import OutsideWorkflowError
from perdure.model import limits, names
from perdure.model.durations import Duration, any_seconds, moment
from perdure.model.limits import SPAN_MAX
from perdure.model.matching import Where, check
from perdure.model.records import ChannelMode, Lease, OutgoingMessage
from perdure.storage.contract import Storage

T = TypeVar("T")

GLANCE = timedelta(milliseconds=1)  # the shortest wait: long enough to find a message that is stored already


def _patience(timeout: Duration | None, what: str) -> timedelta | None:
    """Return the duration of a wait, or None to wait forever, which includes a timeout of more than 100 years.

    A timeout of 0 becomes `GLANCE`, so that the wait still finds what is stored already.
    """
    if timeout is None or (seconds := any_seconds(timeout, f"{what}(timeout=)")) > SPAN_MAX.total_seconds():
        return None
    return max(timedelta(seconds=seconds), GLANCE)


# Time.


async def sleep(duration: Duration) -> None:
    """Sleep for `duration`, in seconds or as a timedelta, at most 100 years.

    A long sleep is stored in the database and holds no worker. Raises `ValueError` if `duration` is too long.
    """
    context.require_run("sleep()")
    seconds = any_seconds(duration, "the duration of sleep()")
    if seconds > SPAN_MAX.total_seconds():
        raise ValueError(f"sleep() takes at most 100 years, not {duration!r}: wait for an event instead")
    await asyncio.sleep(max(0.0, seconds))


async def sleep_until(when: datetime) -> None:
    """Sleep until `when`, a datetime with a time zone. Returns at once if that is in the past."""
    await sleep(max(0.0, (moment(when, "sleep_until()") - now()).total_seconds()))


def timeout(duration: Duration | None) -> asyncio.Timeout:
    """Return a context manager for `async with timeout(…):`, which raises `TimeoutError` if the block takes longer.

    `duration` is in seconds, a timedelta, or None for no timeout. The timeout is durable: it survives restarts.
    """
    context.require_run("timeout()")
    return asyncio.timeout(None if duration is None else any_seconds(duration, "timeout()"))


def now() -> datetime:
    """Return the current time in UTC by the database's clock. It is recorded, so a replay returns the same time."""
    run = context.require_run("now()")
    return datetime.fromisoformat(run.value(lambda: run.clock().isoformat()))


def random() -> Random:
    """Return a random number generator with a recorded seed: `random().choice(names)`.

    A replay returns a generator with the same seed. Don't use its numbers as secrets.
    """
    return Random(context.require_run("random()").value(SystemRandom().random))  # nosec B311 # seeded on purpose


def uuid4() -> _uuid.UUID:
    """Return a random UUID. It is recorded, so a replay returns the same one."""
    return _uuid.UUID(context.require_run("uuid4()").value(lambda: str(_uuid.uuid4())))


# The run itself.


def patched(name: str) -> bool:
    """Return whether the run takes the new path of a code change: `if patched("fee"): … else: …`.

    Returns False on replay of a run that passed this point before the change was deployed, and True otherwise. `name`
    identifies the change; the answer is recorded for each run and name.
    """
    return context.require_run("patched()").patched(name)


def set_state(value: object) -> None:
    """Publish a value that `RunHandle.state()` returns, such as the run's progress.

    It is not a step, so it can be added to code that has runs. Raises `SerializationError` if the value cannot be
    encoded as JSON, and `LimitError` if it is too large.
    """
    context.require_run("set_state()").set_state(value)


def recur(*args: object, **kwargs: object) -> NoReturn:
    """Restart this run with the same id, these arguments and an empty history (continue-as-new in other systems).

    It never returns. Use it to keep the history of a long-lived run short.
    """
    run = context.require_run("recur()")
    data = run.workflow.signature.bind_checked(args, kwargs)
    limits.size(data, "the input that recur() was given")
    raise Recur(data)


# Groups.


async def join_group(name: str) -> None:
    """Make this run a member of the group `name`, until it leaves the group or ends."""
    run = context.require_run("join_group()")
    names.group(name)

    async def write(storage: Storage, lease: Lease) -> None:
        await storage.join_group(run.run_id, name, lease=lease)

    await run.effect("join_group", write, Call(name))


async def leave_group(name: str) -> None:
    """Remove this run from the group `name`."""
    run = context.require_run("leave_group()")

    async def write(storage: Storage, lease: Lease) -> None:
        await storage.leave_group(run.run_id, name, lease=lease)

    await run.effect("leave_group", write, Call(name))


async def send_to_group(name: str, channel: str, data: object) -> int:
    """Send a message on `channel` to every member of the group `name`, and return the number of members."""
    run = context.require_run("send_to_group()")
    names.group(name)
    names.stored(channel)
    payload = encode(data)
    outgoing = partial(messages.Outgoing, name=channel, headers=run.headers, interception=current.interception())

    async def write(storage: Storage, lease: Lease) -> int:
        members = await storage.get_group_members(name)
        for member in sorted(members):
            await outgoing(OutgoingMessage(names.direct(channel, member), payload)).store(storage, lease)
        return len(members)

    return int(await run.effect("send_to_group", write, Call(name, data, encoded=payload, what=channel), int))


# Channels.


async def subscribe(channel: str, mode: ChannelMode | str = ChannelMode.BROADCAST) -> None:
    """Subscribe this run to a channel, from now on.

    `mode` is a `ChannelMode` or its value:

    - `"broadcast"` (the default): each subscriber receives every message.
    - `"competing"`: each message goes to one of the subscribers.
    - `"direct"`: only messages that are sent to this run with `send_to()`.

    Raises `ChannelModeConflictError` if the channel has live subscribers in a different mode.
    """
    run = context.require_run("subscribe()")
    name = names.stored(channel)
    try:
        kind = ChannelMode(mode)
    except ValueError:
        known = ", ".join(repr(each.value) for each in ChannelMode)
        raise ValueError(f"subscribe(mode=) is one of {known}, not {mode!r}") from None

    async def write(storage: Storage, lease: Lease) -> str:
        return await storage.subscribe_to_channel(run.run_id, name, kind, lease=lease)

    run.subscribed(channel, await run.effect("subscribe", write, Call(channel, kind.value), str))


async def unsubscribe(channel: str) -> None:
    """End this run's subscription to a channel. Raises `NotSubscribedError` if it has none."""
    run = context.require_run("unsubscribe()")
    stored = run.stored_channel(channel)

    async def write(storage: Storage, lease: Lease) -> None:
        await storage.unsubscribe_from_channel(run.run_id, stored, lease=lease)

    await run.effect("unsubscribe", write, Call(channel))
    run.unsubscribed(channel)


@overload
async def receive(channel: str, *, timeout: Duration | None = None) -> Message[Any]: ...


@overload
async def receive(channel: str, *, timeout: Duration | None = None, type: type[T]) -> Message[T]: ...


async def receive(channel: str, *, timeout: Duration | None = None, type: Any = None) -> Message[Any]:
    """Wait for the next message of a channel that this run is subscribed to, and return it.

    - `timeout`: seconds or a timedelta; with 0, take only what is stored already (default: wait forever).
    - `type`: decode the data as this type (default: plain JSON values).

    Raises `NotSubscribedError` without a subscription, and `TimeoutError` if no message arrives in time.
    """
    run = context.require_run("receive()")
    stored = run.stored_channel(channel)
    message: Message[Any] = await run.wait(run.new_wait("receive", (stored,), type, _patience(timeout, "receive")))
    return message if "%" not in stored else replace(message, channel=names.public(stored))


async def publish(channel: str, data: object, *, metadata: Mapping[str, object] | None = None) -> None:
    """Send a message to all runs that are subscribed to a channel.

    In a workflow this is a step. In an activity the message is stored in the same commit as the activity's result.
    `metadata` is returned by `Message.metadata` (default: none). Raises `SerializationError` if `data` cannot be
    encoded as JSON.
    """
    await _send("publish", messages.message(channel, data, metadata), channel, metadata, data)


async def send_to(
    instance_id: str, channel: str, data: object, *, metadata: Mapping[str, object] | None = None
) -> None:
    """Send a message to one run. It is stored until the run receives it; if the run has ended, it is dropped.

    In a workflow this is a step. In an activity the message is stored in the same commit as the activity's result.
    Raises `RunNotFoundError` if no run has this id.
    """
    outgoing = messages.message(channel, data, metadata, to=instance_id)
    await _send("send_to", outgoing, channel, instance_id, metadata, data)


# Events.


@overload
async def wait_event(
    type: str, *, where: Mapping[str, object] | None = None, timeout: Duration | None = None
) -> Event[Any]: ...


@overload
async def wait_event(
    type: str, *, where: Mapping[str, object] | None = None, timeout: Duration | None = None, data: type[T]
) -> Event[T]: ...


async def wait_event(
    type: str, *, where: Mapping[str, object] | None = None, timeout: Duration | None = None, data: Any = None
) -> Event[Any]:
    """Wait for the next event of a type and return it.

    - `where`: values that the event's data must have at JSON paths, such as `{"order.id": "A-1"}` (default: any
      event). Events that don't match are skipped and don't reset the timeout.
    - `timeout`: seconds or a timedelta; with 0, take only what is stored already (default: wait forever).
    - `data`: decode the event's data as this type (default: plain JSON values).

    A run sees the events that are stored after it first waited for the type, and all events sent `to` it. Each event
    goes to the first wait of the run that it matches, in the order in which the waits were made. An event that matches
    none stays available to later waits. Raises `TimeoutError` if no matching event arrives in time.
    """
    run = context.require_run("wait_event()")
    where, name = _checked(where), names.stored(type, "event type")
    patience = _patience(timeout, "wait_event")
    if where and patience and patience > GLANCE:
        async with asyncio.timeout(patience.total_seconds()):  # an event that does not match must not reset the timeout
            event = await _event(run, name, where, None, data)
    else:
        event = await _event(run, name, where, patience, data)
    return event if name == type else replace(event, type=type)


def _checked(where: Mapping[str, object] | None) -> Mapping[str, object] | None:
    if where is not None and not isinstance(where, Mapping):
        raise TypeError(f"wait_event(where=) must be a dict of JSON paths and values, not {where!r}")
    if where:
        where = Where(decode(encode(dict(where), what="wait_event(where=)")))
        check(where)
    return where


def _event(
    run: Body, name: str, where: Mapping[str, object] | None, patience: timedelta | None, data: Any
) -> "asyncio.Future[Event[Any]]":
    channels = (name, names.of_run(name, run.run_id, "event type"))
    return run.wait(run.new_wait("wait_event", channels, data, patience, where=where, kind=name))


async def send_event(
    type: str,
    data: object,
    *,
    to: str | None = None,
    source: str = "",
    id: str | None = None,
    subject: str | None = None,
) -> None:
    """Send an event to all runs that wait for its type, or to one run.

    - `type`: the event type, which `wait_event()` names.
    - `data`: any value that can be encoded as JSON.
    - `to`: the id of the only receiver (default: all runs that wait for the type).
    - `source`, `subject`: attributes of the CloudEvent (default: empty).
    - `id`: makes the event idempotent: with the same id, source, type and receiver it is stored once (default: a new
      event each time).

    In a workflow this is a step. In an activity the event is stored in the same commit as the activity's result. An
    event without `to` starts, in the same commit, a run of each workflow that is defined in this process with its type
    (`@workflow(on_event=)`). With `App(publisher=)` it is also stored in the outbox. Raises `RunNotFoundError` if the
    run `to` does not exist, and `EventDataError`, a `TypeError`, if the data does not fit a workflow that it starts.
    """
    app = current.APP.get()
    outgoing = messages.event(
        type,
        data,
        to=to,
        source=source,
        id=id,
        subject=subject,
        outbox_stored=None if app is None else app.outbox_stored,
        sender=context.workflow_name() or messages.SOURCE,
    )
    await _send("send_event", outgoing, type, to, source, id, subject, data)


async def _send(name: str, outgoing: messages.Outgoing, what: str, *about: object) -> None:
    run, effects = context.current_run(), OUTGOING.get()
    headers, interception = context.inherited_headers(), current.interception()
    if headers or interception is not None:
        outgoing = replace(outgoing, headers=headers, interception=interception)
    if run is not None:
        await run.effect(name, outgoing.store, Call(*about, encoded=outgoing.message.data, what=what))
    elif effects is not None:
        if outgoing.to is not None:  # checked now, so that this call raises and not the commit of the result
            await current.current_app().check_run(outgoing.to)
        outgoing.check()
        effects.append(outgoing.store)
    elif context.ATTEMPT.get() is not None:
        raise OutsideWorkflowError(f"{name}() was called by an activity that has ended")
    else:
        await current.current_app().send(outgoing)
