"""Check what callers pass, and return it as the rows that the tables hold.

Nothing here comes from the storages that the reference judges, except the limits of `perdure.model`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, NoReturn, TypeVar
from uuid import uuid4

from perdure.errors import InvalidTransitionError, LeaseLostError, LimitError
from perdure.model import limits
from perdure.model.matching import match_of
from perdure.model.records import (
    ChannelMode,
    ChannelWait,
    HistoryEvent,
    Lease,
    OutboxEvent,
    OutgoingMessage,
    ParentLink,
    TimerWait,
    Wait,
    WorkflowInstance,
)
from perdure.model.states import TERMINAL, WorkflowStatus

T = TypeVar("T")

OWN = "perdure"
SOURCE_HASH_MAX = 64
CONTENT_TYPE_MAX = 100


def bounded(items: Sequence[T]) -> Sequence[T]:
    """Return a batch if it is not longer than a page."""
    if len(items) > limits.PAGE_MAX:
        raise LimitError(f"a batch must have at most {limits.PAGE_MAX} items, not {len(items)}")
    return items


def instance_row(instance: WorkflowInstance, worker_id: str | None, timeout_sec: float) -> dict[str, Any]:
    """Return the row of a new instance, with the duration of its first lease as `lease_sec`."""
    if instance.framework not in ("", OWN):
        raise LimitError(f"framework must be empty or {OWN!r}, not {instance.framework!r}")
    if instance.source_hash:
        limits.name(instance.source_hash, "source_hash", SOURCE_HASH_MAX)
    if instance.owner_service:
        limits.name(instance.owner_service, "owner_service")
    own_sec = instance.lock_timeout_seconds
    if own_sec is not None:
        limits.seconds(own_sec, "lock_timeout_seconds")
    token, lease_sec = instance.lock_token, None
    if worker_id is not None:
        limits.name(worker_id, "worker_id")
        token, lease_sec = token + 1, limits.seconds(timeout_sec if own_sec is None else own_sec)
    return {
        "instance_id": limits.instance_id(instance.instance_id),
        "workflow_name": limits.name(instance.workflow_name, "workflow_name"),
        "source_hash": instance.source_hash,
        "owner_service": instance.owner_service,
        "framework": OWN,
        "status": limits.choice(WorkflowStatus, instance.status, "status").value,
        "current_activity_id": _name_or_none(instance.current_activity_id, "current_activity_id"),
        "continued_from": _name_or_none(instance.continued_from, "continued_from"),
        "started_at": limits.moment(instance.started_at, "started_at"),
        "updated_at": limits.moment(instance.updated_at, "updated_at"),
        "input_data": limits.text(instance.input_data, "input_data"),
        "output_data": limits.text(instance.output_data, "output_data"),
        "locked_by": worker_id or _name_or_none(instance.locked_by, "locked_by"),
        "locked_at": limits.moment(instance.locked_at, "locked_at"),
        "lock_timeout_seconds": own_sec,
        "lock_expires_at": limits.moment(instance.lock_expires_at, "lock_expires_at"),
        "lock_token": limits.number(token, "lock_token", limits.EVERYTHING),
        "headers": limits.text(instance.headers, "headers", limits.METADATA_MAX),
        "lease_sec": lease_sec,
    }


def _name_or_none(value: str | None, kind: str) -> str | None:
    return None if value is None else limits.name(value, kind)


def check_first_rows(
    instance: WorkflowInstance, events: Sequence[HistoryEvent], timers: Sequence[TimerWait], parent: ParentLink | None
) -> None:
    """Raise if an instance cannot begin with these events and timers, or a parent not wait for it like this."""
    for event in events:
        if event.instance_id != instance.instance_id:
            raise LimitError(f"the event belongs to run {event.instance_id!r}, not to run {instance.instance_id!r}")
    if timers and instance.status in TERMINAL:
        raise InvalidTransitionError(f"run {instance.instance_id!r} is {instance.status} and cannot wait for a timer")
    for event in events:
        event_content(event)
    for timer in timers:
        limits.name(timer.timer_id, "timer_id")
        limits.name(timer.activity_id, "activity_id")
        check_deadline(timer.expires_at, timer.after, needed=True)
    if parent is not None:
        _check_parent(parent)


def _check_parent(parent: ParentLink) -> None:
    limits.name(parent.channel, "channel")
    entry, parent_id = parent.compensation, parent.lease.instance_id
    if entry is None:
        return
    if entry.instance_id != parent_id:
        raise LimitError(f"the compensation belongs to run {entry.instance_id!r}, not to run {parent_id!r}")
    limits.name(entry.activity_id, "activity_id")
    limits.name(entry.activity_name, "activity_name")
    limits.text(entry.args, "args")
    limits.moment(entry.created_at, "created_at")


def check_versions(versions: Mapping[str, str]) -> None:
    """Raise `LimitError` for an invalid name or source hash of a workflow."""
    for name, source_hash in versions.items():
        limits.name(name, "workflow_name")
        if source_hash:
            limits.name(source_hash, "source_hash", SOURCE_HASH_MAX)


def failure(message: str) -> dict[str, object]:
    """Return the payload of the event of a failure that has only a message."""
    return {"error": message, "error_message": message, "error_type": "", "stack_trace": ""}


def event_content(event: HistoryEvent) -> dict[str, Any]:
    """Return what an event of a step is compared by, if the step has one already."""
    limits.name(event.instance_id, "instance_id")
    limits.name(event.activity_id, "activity_id")
    return {
        "event_type": str(limits.name(event.event_type, "event_type", limits.EVENT_TYPE_MAX)),
        **_content(event),
    }


def outbox_content(event: OutboxEvent) -> dict[str, Any]:
    """Return what an event of the outbox is compared by, if there is one with its id already."""
    limits.name(event.event_id, "event_id")
    return {
        "event_type": limits.name(event.event_type, "event_type", limits.EVENT_TYPE_MAX),
        "event_source": limits.name(event.event_source, "event_source"),
        "content_type": limits.name(event.content_type, "content_type", CONTENT_TYPE_MAX),
        **_content(event),
    }


def _content(event: HistoryEvent | OutboxEvent) -> dict[str, Any]:
    if event.data_type not in ("json", "binary"):
        raise LimitError(f"data_type must be 'json' or 'binary', not {event.data_type!r}")
    limits.size(event.event_data_binary, "event_data_binary")
    return {
        "data_type": event.data_type,
        "event_data": limits.text(event.event_data, "event_data"),
        "event_data_binary": event.event_data_binary,
    }


def message_row(message: OutgoingMessage) -> dict[str, Any]:
    """Return the row of a new message. A publisher's key without a source is the id of the message."""
    limits.name(message.channel, "channel")
    if message.source:
        limits.name(message.source, "source")
    key = message.message_id
    if key is not None:
        limits.name(key, "message_id")
    if message.binary:
        limits.size(message.data, "data")
        if not isinstance(message.data, bytes):
            raise LimitError(f"binary data must be bytes, not {type(message.data).__name__}")
    return {
        "channel": message.channel,
        "message_id": key if key is not None and not message.source else str(uuid4()),
        "data_type": "binary" if message.binary else "json",
        "data": None if message.binary else _json(message.data, "data", limits.PAYLOAD_MAX),
        "data_binary": message.data if message.binary else None,
        "metadata": None if message.metadata is None else _json(message.metadata, "metadata", limits.METADATA_MAX),
    }


def _json(value: bytes, kind: str, longest: int) -> str:
    text = limits.text(value, kind, longest) or ""
    try:
        json.loads(text, parse_constant=_reject)
    except (ValueError, RecursionError) as error:
        raise LimitError(f"{kind} is not JSON ({error}); pass binary=True to publish other bytes") from error
    return text


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def subscription_key(instance_id: str, channel: str) -> tuple[str, str]:
    """Return the key of a subscription."""
    return limits.name(instance_id, "instance_id"), limits.name(channel, "channel")


def direct_channel(channel: str, instance_id: str) -> str:
    """Return the channel of the messages that are sent to one instance."""
    limits.name(channel, "channel")
    return limits.name(f"{channel}:{instance_id}", "channel with the instance's id")


class Owner(NamedTuple):
    """Identify the worker that releases its lease; without a token only its name is compared."""

    instance_id: str
    worker_id: str
    token: int | None


def holder(lease: Lease) -> Owner:
    """Return the worker that holds a lease."""
    return Owner(limits.name(lease.instance_id, "instance_id"), lease.worker_id, lease.token)


def owner(instance_id: str, worker_id: str, lease: Lease | None) -> Owner:
    """Return the worker that holds the lease, or without a lease the worker of this name."""
    if lease is None:
        return Owner(limits.name(instance_id, "instance_id"), limits.name(worker_id, "worker_id"), None)
    if lease.instance_id != instance_id:
        raise LeaseLostError(f"the lease is on run {lease.instance_id!r}, not on run {instance_id!r}")
    return holder(lease)


def check_deadline(at: datetime | None, after: timedelta | None, *, needed: bool = False) -> None:
    """Raise `LimitError` unless there is a time or a duration, or neither where none is needed."""
    if (at is not None and after is not None) or (needed and at is None and after is None):
        raise LimitError("pass either a time or `after`, not both")
    limits.moment(at, "the time")
    if after is not None:
        limits.span(after, "after")


def checked_waits(waits: Iterable[Wait]) -> list[Wait]:
    """Return the waits if they can be registered together: at least one, and no timer or activity twice."""
    given = list(waits)
    if not 1 <= len(given) <= limits.WAITS_MAX:
        raise LimitError(f"an instance must wait for 1 to {limits.WAITS_MAX} things, not {len(given)}")
    timers, activities = set[str](), set[str]()
    for wait in given:
        activities.add(limits.name(wait.activity_id, "activity_id"))
        if isinstance(wait, TimerWait):
            timers.add(limits.name(wait.timer_id, "timer_id"))
            check_deadline(wait.expires_at, wait.after, needed=True)
        else:
            limits.name(wait.channel, "channel")
            check_deadline(wait.timeout_at, wait.after)
            match_key(wait)
            if wait.subscribe is not None:
                limits.choice(ChannelMode, wait.subscribe, "subscribe")
    if len(activities) < len(given) or len(timers) < sum(isinstance(wait, TimerWait) for wait in given):
        raise LimitError("a timer or an activity is given twice: wait for each only once")
    return given


def match_key(wait: ChannelWait) -> str | None:
    """Return the key of the values that a wait asks for; None if it accepts every message."""
    return match_of(wait.channel, wait.where).key if wait.where else None
