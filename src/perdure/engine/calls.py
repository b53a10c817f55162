"""Calls: what a workflow's body uses besides activities. All of them are steps, or made of steps."""

import asyncio
import uuid as _uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random, SystemRandom
from typing import Any, NoReturn, TypeVar, overload

from perdure.engine import ambient, messages, names
from perdure.engine.activities import OUTGOING
from perdure.engine.body import Recur
from perdure.engine.codec import decode, encode
from perdure.engine.digests import Call
from perdure.engine.durations import Duration, any_seconds, moment
from perdure.engine.steps import Event, Message
from perdure.errors import OutsideWorkflowError
from perdure.model import limits
from perdure.model.limits import SPAN_MAX
from perdure.model.matching import Where, check
from perdure.model.records import ChannelMode, Lease
from perdure.storage.contract import Storage

T = TypeVar("T")

GLANCE = timedelta(milliseconds=1)


def _patience(timeout: Duration | None, what: str) -> timedelta | None:
    """How long a wait lasts; with none at all it still takes what is there. Over 100 years it lasts for ever."""
    if timeout is None or (seconds := any_seconds(timeout, f"{what}(timeout=)")) > SPAN_MAX.total_seconds():
        return None
    return max(timedelta(seconds=seconds), GLANCE)


# Time.


async def sleep(duration: Duration) -> None:
    """Sleep for at most 100 years. A long sleep is stored in the database and holds no worker."""
    ambient.require_run("sleep()")
    seconds = any_seconds(duration, "the duration of sleep()")
    if seconds > SPAN_MAX.total_seconds():
        raise ValueError(f"sleep() takes at most 100 years, not {duration!r}: wait for an event instead")
    await asyncio.sleep(max(0.0, seconds))


async def sleep_until(when: datetime) -> None:
    """Sleep until a point in time, which must have a time zone."""
    await sleep(max(0.0, (moment(when, "sleep_until()") - now()).total_seconds()))


def timeout(duration: Duration | None) -> asyncio.Timeout:
    """`async with timeout(…):` raises `TimeoutError` if the block takes longer."""
    ambient.require_run("timeout()")
    return asyncio.timeout(None if duration is None else any_seconds(duration, "timeout()"))


def now() -> datetime:
    """Return the time in UTC, by the database's clock; a replay gets the same."""
    run = ambient.require_run("now()")
    return datetime.fromisoformat(run.value(lambda: run.clock().isoformat()))


def random() -> Random:
    """Return a random number generator with a seed of this run and this place: `random().choice(names)`.

    A replay gets one with the same seed. Its numbers are no secrets.
    """
    return Random(ambient.require_run("random()").value(SystemRandom().random))  # nosec B311 # seeded on purpose


def uuid4() -> _uuid.UUID:
    """A random UUID; a replay gets the same."""
    return _uuid.UUID(ambient.require_run("uuid4()").value(lambda: str(_uuid.uuid4())))


# The run itself.


def patched(name: str) -> bool:
    """Guards a deliberate change: true for runs that come here for the first time, false for those that went past."""
    return ambient.require_run("patched()").patched(name)


def set_state(value: object) -> None:
    """Show a value to whoever asks `handle.state()`."""
    ambient.require_run("set_state()").set_state(value)


def recur(*args: object, **kwargs: object) -> NoReturn:
    """End this generation of the run: the same id goes on with these arguments and an empty history."""
    run = ambient.require_run("recur()")
    data = run.workflow.signature.bind_checked(args, kwargs)
    limits.size(data, "the input that recur() was given")
    raise Recur(data)


# Groups.


async def join_group(name: str) -> None:
    """Make this run a member of a group; members that have ended are no longer."""
    run = ambient.require_run("join_group()")
    names.group(name)

    async def write(storage: Storage, lease: Lease) -> None:
        await storage.join_group(run.instance_id, name, lease=lease)

    await run.effect("join_group", write, Call(name))


async def leave_group(name: str) -> None:
    """End this run's membership."""
    run = ambient.require_run("leave_group()")

    async def write(storage: Storage, lease: Lease) -> None:
        await storage.leave_group(run.instance_id, name, lease=lease)

    await run.effect("leave_group", write, Call(name))


async def send_to_group(name: str, channel: str, data: object) -> int:
    """Send a message to every member of a group; gives how many there are."""
    run = ambient.require_run("send_to_group()")
    names.group(name)
    names.stored(channel)
    payload = encode(data)

    async def write(storage: Storage, lease: Lease) -> int:
        members = await storage.get_group_members(name)
        for member in sorted(members):
            await storage.publish_to_channel(names.direct(channel, member), payload, lease=lease)
        return len(members)

    return int(await run.effect("send_to_group", write, Call(name, data, encoded=payload, what=channel), int))


# Channels.


async def subscribe(channel: str, mode: ChannelMode | str = ChannelMode.BROADCAST) -> None:
    """Subscribe this run: to all messages from now on, to its share of them, or to those sent to it alone."""
    run = ambient.require_run("subscribe()")
    name = names.stored(channel)
    try:
        kind = ChannelMode(mode)
    except ValueError:
        known = ", ".join(repr(each.value) for each in ChannelMode)
        raise ValueError(f"subscribe(mode=) is one of {known}, not {mode!r}") from None

    async def write(storage: Storage, lease: Lease) -> str:
        return await storage.subscribe_to_channel(run.instance_id, name, kind, lease=lease)

    run.subscribed(channel, await run.effect("subscribe", write, Call(channel, kind.value), str))


async def unsubscribe(channel: str) -> None:
    """End a subscription."""
    run = ambient.require_run("unsubscribe()")
    stored = run.stored_channel(channel)

    async def write(storage: Storage, lease: Lease) -> None:
        await storage.unsubscribe_from_channel(run.instance_id, stored, lease=lease)

    await run.effect("unsubscribe", write, Call(channel))
    run.unsubscribed(channel)


@overload
async def receive(channel: str, *, timeout: Duration | None = None) -> Message[Any]: ...


@overload
async def receive(channel: str, *, timeout: Duration | None = None, type: type[T]) -> Message[T]: ...


async def receive(channel: str, *, timeout: Duration | None = None, type: Any = None) -> Message[Any]:
    """The next message of a channel that is subscribed to; `TimeoutError` if none comes in time."""
    run = ambient.require_run("receive()")
    stored = run.stored_channel(channel)
    message: Message[Any] = await run.wait(run.new_wait("receive", (stored,), type, _patience(timeout, "receive")))
    return message if "%" not in stored else replace(message, channel=names.public(stored))


async def publish(channel: str, data: object, *, metadata: Mapping[str, object] | None = None) -> None:
    """Send a message to all who are subscribed. From an activity it leaves together with its result."""
    await _send("publish", messages.message(channel, data, metadata), channel, metadata, data)


async def send_to(
    instance_id: str, channel: str, data: object, *, metadata: Mapping[str, object] | None = None
) -> None:
    """Send a message to one run; it is kept until that run takes it."""
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
    """Wait for the next event of a type, with `where` for one whose data has these values at these JSON paths.

    A wait sees the events stored after this run first waited for the type, and those sent to it alone. Each goes to the
    first wait of the run that it matches, in the order in which the waits were made; one that matches none stays there
    for later waits.
    """
    run = ambient.require_run("wait_event()")
    if where is not None and not isinstance(where, Mapping):
        raise TypeError(f"wait_event(where=) must be a dict of JSON paths and values, not {where!r}")
    if where:
        where = Where(decode(encode(dict(where), what="wait_event(where=)")))
        check(where)
    name = names.stored(type, "event type")
    channels = (name, f"{name}:{run.instance_id}")
    patience = _patience(timeout, "wait_event")
    whole = patience.total_seconds() if where and patience and patience > GLANCE else None
    async with asyncio.timeout(whole):  # what is passed over must not begin the time anew
        step = run.new_wait("wait_event", channels, data, patience if whole is None else None, where=where, kind=name)
        event: Event[Any] = await run.wait(step)
    return event if name == type else replace(event, type=type)


async def send_event(
    type: str,
    data: object,
    *,
    to: str | None = None,
    source: str = "",
    id: str | None = None,
    subject: str | None = None,
) -> None:
    """Store an event for the runs that wait for its type, or for one of them.

    Where a publisher is configured, an event that is not for one run goes to the outbox in the same commit.
    """
    app = ambient.APP.get()
    outgoing = messages.event(
        type,
        data,
        to=to,
        source=source,
        id=id,
        subject=subject,
        told=None if app is None else app.told,
        sender=ambient.workflow_name() or messages.SOURCE,
    )
    await _send("send_event", outgoing, type, to, source, id, subject, data)


async def _send(name: str, outgoing: messages.Outgoing, what: str, *about: object) -> None:
    run, effects = ambient.current_run(), OUTGOING.get()
    if run is not None:
        await run.effect(name, outgoing.store, Call(*about, encoded=outgoing.message.data, what=what))
    elif effects is not None:
        if outgoing.to is not None:  # now, so that it is the call that raises
            await ambient.current_app().check_run(outgoing.to)
        effects.append(outgoing.store)
    elif ambient.ATTEMPT.get() is not None:
        raise OutsideWorkflowError(f"{name}() was called by an activity that has ended")
    else:
        await ambient.current_app().send(outgoing)
