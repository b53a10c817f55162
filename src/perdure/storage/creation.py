"""Store what a new instance begins with: the first events of its history, timers, and what its parent needs."""

from collections.abc import Sequence
from typing import NamedTuple

from perdure.database.operation import Operation
from perdure.errors import InvalidTransitionError, LimitError, StorageError
from perdure.model import limits
from perdure.model.records import ChannelMode, HistoryEvent, ParentLink, TimerWait, WorkflowInstance
from perdure.model.states import RESUMABLE, TERMINAL
from perdure.storage import channels, compensations, history, timers, waits, wakeups

Params = dict[str, object]


class FirstRows(NamedTuple):
    """Hold the first rows of an instance as the checked parameters of their inserts."""

    events: Sequence[Params] = ()
    timers: Sequence[Params] = ()
    parent: ParentLink | None = None
    compensation: Params | None = None

    def __bool__(self) -> bool:
        return bool(self.events or self.timers or self.parent)


NO_ROWS = FirstRows()


def first_rows(
    instance: WorkflowInstance, events: Sequence[HistoryEvent], waiting: Sequence[TimerWait], parent: ParentLink | None
) -> FirstRows:
    """Return the events and timers of a new instance and what its parent needs, checked."""
    if not (events or waiting or parent):
        return NO_ROWS
    for event in events:
        if event.instance_id != instance.instance_id:
            raise LimitError(f"the event belongs to run {event.instance_id!r}, not to run {instance.instance_id!r}")
    if waiting and instance.status in TERMINAL:
        raise InvalidTransitionError(f"run {instance.instance_id!r} is {instance.status} and cannot wait for a timer")
    return FirstRows(
        [history.event_params(event) for event in events],
        [_timer_params(instance.instance_id, timer) for timer in waiting],
        parent,
        None if parent is None else _compensation_params(parent),
    )


def _compensation_params(parent: ParentLink) -> Params | None:
    limits.name(parent.channel, "channel")
    entry, parent_id = parent.compensation, parent.lease.instance_id
    if entry is None:
        return None
    if entry.instance_id != parent_id:
        raise LimitError(f"the compensation belongs to run {entry.instance_id!r}, not to run {parent_id!r}")
    return compensations.entry_params(entry)


def _timer_params(instance_id: str, timer: TimerWait) -> Params:
    return {
        "instance_id": instance_id,
        "timer_id": limits.name(timer.timer_id, "timer_id"),
        "activity_id": limits.name(timer.activity_id, "activity_id"),
        **waits.moment(timer.expires_at, timer.after, needed=True),
    }


def subscribe_parent(first: FirstRows) -> Operation[None]:
    """Fence the parent, and subscribe it before the child exists: channels are locked before instances."""
    if first.parent is not None:
        lease, channel = first.parent.lease, first.parent.channel
        yield from channels.subscribe(lease.instance_id, channel, ChannelMode.BROADCAST, lease)


def insert_first_rows(first: FirstRows) -> Operation[None]:
    """Insert the first rows, in the transaction that has inserted the instance."""
    for event in first.events:
        answer = yield from history.append(event, None)
        if isinstance(answer, StorageError):
            raise answer
    for timer in first.timers:
        yield timers.S.register(**timer)
    if first.compensation is not None:
        yield compensations.S.add(**first.compensation)


def announcement(
    instance: WorkflowInstance, worker_id: str | None, first: FirstRows
) -> tuple[str, wakeups.Payload | None]:
    """Return the kind and payload of what a creation announces: nothing if the instance is leased to its creator."""
    if not (worker_id or instance.locked_by) and instance.status in RESUMABLE:
        return wakeups.RESUMABLE, wakeups.resumable(instance.instance_id, instance.workflow_name, "created")
    if first.timers:
        return wakeups.TIMER, {key: first.timers[0][key] for key in ("instance_id", "timer_id")}
    return wakeups.RESUMABLE, None
