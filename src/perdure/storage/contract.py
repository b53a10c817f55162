"""The storage contract as Protocols: what every storage does, room by room.

The names are those of the family's Go storage package in snake_case; what goes beyond it stands beside it. Whoever
writes another backend is held to it by `perdure.testing.conformance`; what holds for every operation is in
docs/storage.md.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Protocol

from perdure.database.backends.base import Executor
from perdure.errors import StorageError
from perdure.model.limits import COUNT_MAX
from perdure.model.records import (
    ArchivedHistoryEvent,
    ChannelDeliveryResult,
    ChannelMessage,
    ChannelMode,
    ChannelSubscription,
    ChannelWait,
    CompensationEntry,
    HistoryEvent,
    Lease,
    ListInstancesOptions,
    OutboxEvent,
    OutboxStatus,
    OutgoingMessage,
    PaginationResult,
    RegisteredWait,
    ResumableWorkflow,
    StaleWorkflowInfo,
    StuckInstance,
    Suspension,
    SystemLease,
    TimerSubscription,
    TimerWait,
    WakeUp,
    WorkerInfo,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.transactions import Callback

Wait = TimerWait | ChannelWait


class TransactionManager(Protocol):
    """Transactions: the everyday form is `async with storage.transaction()`."""

    async def begin_transaction(self) -> None:
        """Open a transaction for this task; inside one, a savepoint."""

    async def commit_transaction(self) -> None:
        """Commit the innermost level. After the outermost the callbacks run, in order, outside the transaction."""

    async def rollback_transaction(self) -> None:
        """Undo the innermost level and forget its callbacks; without a transaction nothing happens."""

    def transaction(self) -> AbstractAsyncContextManager[Executor]:
        """Commit what the block did, or undo it if the block raises or is cancelled."""

    def in_transaction(self) -> bool:
        """True exactly while this task has a transaction open."""

    def conn(self) -> Executor:
        """The open transaction, or the pool, for a caller's own SQL."""

    def register_post_commit_callback(self, callback: Callback) -> None:
        """Call it once after the outermost commit; a rollback of this level forgets it."""

    def detached(self) -> AbstractContextManager[None]:
        """Work outside the transaction that this task was spawned in (or has open)."""


class InstanceManager(Protocol):
    """Instances, from creation to deletion."""

    async def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        worker_id: str | None = None,
        timeout_sec: float = 15,
        source_code: str = "",
    ) -> Lease | None:
        """Store a new instance and its definition; `InstanceExistsError` if the id is taken."""

    async def create_instances(
        self, instances: Sequence[WorkflowInstance], *, worker_id: str | None = None, timeout_sec: float = 15
    ) -> list[Lease | StorageError | None]:
        """Create many in one commit: a lease (or None) or an error for each, in order."""

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Every field of one instance, or None."""

    async def get_instances(self, instance_ids: Sequence[str]) -> list[WorkflowInstance | None]:
        """Many instances in one statement, in the order of their ids; None for one that is not there."""

    async def update_instance_status(
        self, instance_id: str, status: WorkflowStatus, error_msg: str = "", *, lease: Lease | None = None
    ) -> None:
        """Move an instance along the table of states; a failure's message is recorded in the same transaction."""

    async def update_instance_activity(self, instance_id: str, activity_id: str, *, lease: Lease | None = None) -> None:
        """Note the step the instance is at."""

    async def update_instance_output(self, instance_id: str, output_data: bytes, *, lease: Lease | None = None) -> None:
        """Store the output and complete the instance, together."""

    async def complete_and_release(self, lease: Lease, output_data: bytes) -> None:
        """Complete a leased instance with its output; the lease ends with it. One statement where it can be."""

    async def complete_instances(self, items: Sequence[tuple[Lease, bytes]]) -> list[StorageError | None]:
        """Complete many leased instances in one commit: None or an error for each, in order."""

    async def cancel_instance(
        self, instance_id: str, reason: str = "", *, compensate: bool = False, lease: Lease | None = None
    ) -> None:
        """Cancel from any state that is not final, fencing off whoever runs it, and record why."""

    async def list_instances(self, options: ListInstancesOptions | None = None) -> PaginationResult:
        """A page of the instances for which every filter holds, by start time and id, both descending."""

    async def count_instances(self, options: ListInstancesOptions | None = None, *, limit: int = COUNT_MAX) -> int:
        """The number of instances that a listing with these filters has in all its pages, at most `limit`."""

    async def list_workflow_names(self) -> list[str]:
        """The names of the workflows that own instances are of, sorted."""

    async def find_resumable_workflows(
        self, limit: int = 0, *, workflow_names: Sequence[str] | None = None
    ) -> list[ResumableWorkflow]:
        """Own instances, running or compensating, that no live lease covers; the longest waiting first."""

    async def delete_instances(self, older_than: timedelta, limit: int = 0) -> int:
        """Delete own instances that ended longer ago than that, with all that is theirs; gives their number."""

    async def delete_ended(self, instance_ids: Sequence[str]) -> list[bool]:
        """Delete these own instances with all that is theirs, each that has ended: whether it was, in order."""


class LockManager(Protocol):
    """Leases on instances."""

    async def try_acquire_lock(self, instance_id: str, worker_id: str, timeout_sec: float) -> Lease | None:
        """A lease if the instance is free: not leased (not even to this worker), not row-locked, not finished."""

    async def acquire_locks(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float
    ) -> list[Lease | None]:
        """Take the leases of many instances in one commit: a lease for each that is free, else None, in order."""

    async def release_lock(self, instance_id: str, worker_id: str, *, lease: Lease | None = None) -> None:
        """Give a lease back; whoever does not hold it changes nothing."""

    async def refresh_lock(
        self, instance_id: str, worker_id: str, timeout_sec: float, *, lease: Lease | None = None
    ) -> Lease:
        """A new expiry, also for an expired lease that nobody took; else `LeaseLostError`."""

    async def refresh_locks(self, leases: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
        """Renew leases at once, whoever owns them: the renewed lease, or None for one that was lost, in order."""

    async def cleanup_stale_locks(self, timeout_sec: float = 0) -> list[StaleWorkflowInfo]:
        """Clear own leases that expired more than `timeout_sec` ago; gives the running and compensating ones."""

    async def back_off(self, lease: Lease, tries: int, reason: str, pause_sec: float) -> None:
        """End a lease after so many tries without progress, and let no worker take the instance for a while."""

    async def clear_stuck(self, instance_ids: Sequence[str]) -> None:
        """Forget that these instances were stuck."""

    async def get_stuck(self, instance_ids: Sequence[str]) -> list[StuckInstance | None]:
        """Why each of these instances is stuck, in the order of their ids; None for one that is not."""

    async def list_stuck(self, limit: int = 0, *, after: tuple[datetime, str] | None = None) -> list[StuckInstance]:
        """Stuck instances, those that have been so for longest first; `after` is the last one's `since` and id."""


class HistoryManager(Protocol):
    """What an instance has done, in order."""

    async def append_history(self, event: HistoryEvent, *, lease: Lease | None = None) -> int:
        """Record an event; gives its id. Equal again: the first id. Different: `HistoryConflictError`."""

    async def append_histories(self, items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        """Record many events in one commit: an id or an error for each, in order; one's failure touches no other."""

    async def get_history_paginated(
        self, instance_id: str, after_id: int = 0, limit: int = 0
    ) -> tuple[list[HistoryEvent], bool]:
        """The events after an id, in order, and whether there are more."""

    async def get_history_count(self, instance_id: str) -> int:
        """How many events the instance has."""

    async def get_last_event(self, instance_id: str, event_type: str) -> HistoryEvent | None:
        """The newest event of a type, or None; the archive does not count."""

    async def get_events(self, instance_ids: Sequence[str], activity_ids: Sequence[str]) -> list[HistoryEvent]:
        """The events that these instances have of these activities, by instance and in order."""


class TimerSubscriptionManager(Protocol):
    """Waits for a time, and for several things at once."""

    async def register_timer_subscription(
        self, subscription: TimerSubscription, *, after: timedelta | None = None, lease: Lease | None = None
    ) -> None:
        """Register a timer, at its `expires_at` or `after` a while; one that is there keeps its time."""

    async def register_timer_subscription_and_release_lock(
        self,
        subscription: TimerSubscription,
        instance_id: str,
        worker_id: str,
        *,
        after: timedelta | None = None,
        lease: Lease | None = None,
    ) -> Suspension:
        """Wait for a timer, beside the waits that are there: see `suspend`. A due one is `ready`, not waited for."""

    async def find_expired_timers(self, limit: int = 0) -> list[TimerSubscription]:
        """Own timers that are due, of waiting instances, the oldest first."""

    async def remove_timer_subscription(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> None:
        """Remove a timer, if it is there."""

    async def fire_timer(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> bool:
        """Record that a timer expired, remove it and set the instance running, in one transaction; True if it did."""

    async def fire_timers(self, timers: Sequence[tuple[str, str]]) -> list[bool]:
        """Fire many timers, each given by its instance and its id, in one commit: whether it fired, in order."""

    async def suspend(self, lease: Lease, waits: Sequence[Wait]) -> Suspension:
        """Wait for the first of these, and for nothing else; one transaction registers them and releases the lease."""

    async def suspend_instances(self, items: Sequence[tuple[Lease, Sequence[Wait]]]) -> list[Suspension | StorageError]:
        """Suspend many instances in one commit: a result or an error for each, in order."""

    async def get_waits(self, instance_ids: Sequence[str]) -> list[RegisteredWait]:
        """What these instances wait for, as far as it is registered: by instance and activity."""

    async def next_due_at(self) -> datetime | None:
        """When the first timer, time-out or running lease of an own instance is or was due; None if there is none."""

    async def next_work_at(self) -> datetime | None:
        """The same, and also what can be done at once: an instance to take, a channel to sweep. One statement."""


class OutboxManager(Protocol):
    """Events to be sent once their transaction has committed."""

    async def add_outbox_event(self, event: OutboxEvent, *, lease: Lease | None = None) -> None:
        """Store an event to be sent; the same one again changes nothing, another of its id is a conflict."""

    async def get_pending_outbox_events(
        self, limit: int = 0, *, relay_id: str = "", lease_sec: float = 30
    ) -> list[OutboxEvent]:
        """Claim events for a while: no other call gets them, or later ones of their sources, until they are marked."""

    async def mark_outbox_event_sent(self, event_id: str) -> bool:
        """The event was published, whoever has claimed it meanwhile."""

    async def mark_outbox_event_failed(
        self, event_id: str, *, error: str | None = None, relay_id: str | None = None
    ) -> bool:
        """Park the event: it is never fetched again and no longer in the way; `requeue_outbox_event` puts it back."""

    async def increment_outbox_attempts(
        self, event_id: str, *, error: str | None = None, back_off: timedelta | None = None, relay_id: str | None = None
    ) -> bool:
        """An attempt failed: the event waits (1, 2, 4 … 300 s if not said), and its source's later ones behind it."""

    async def cleanup_old_outbox_events(self, older_than: timedelta) -> int:
        """Remove own events published longer ago than that, batch by batch; gives their number."""

    async def list_outbox_events(
        self, status: OutboxStatus | str | None = None, limit: int = 0, *, after: str | None = None
    ) -> list[OutboxEvent]:
        """Own events, oldest first, of one state or all; `after` is the id of the last event of the page before."""

    async def requeue_outbox_event(self, event_id: str) -> bool:
        """Put a parked event back, at the end of its source; False if it is not parked."""


class CompensationManager(Protocol):
    """Actions that undo steps."""

    async def add_compensation(self, entry: CompensationEntry, *, lease: Lease | None = None) -> int:
        """Register an action that undoes a step; gives its id. Added twice, it is there twice."""

    async def get_compensations(self, instance_id: str, *, limit: int | None = None) -> list[CompensationEntry]:
        """What is registered, strictly last in, first out."""


class ChannelManager(Protocol):
    """Messages between instances and from outside."""

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
        """Publish a message, JSON or `binary`; gives its id."""

    async def publish_messages(
        self, messages: Sequence[OutgoingMessage], *, lease: Lease | None = None
    ) -> list[int | StorageError]:
        """Publish many messages in one commit: an id or an error for each, in order."""

    async def subscribe_to_channel(
        self, instance_id: str, channel: str, mode: ChannelMode, *, lease: Lease | None = None
    ) -> str:
        """Subscribe an instance; gives the channel it is subscribed to. The same again changes nothing."""

    async def unsubscribe_from_channel(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Remove a subscription and its cursors, if it is there."""

    async def get_channel_subscription(self, instance_id: str, channel: str) -> ChannelSubscription | None:
        """One subscription, or None; its cursor is the further one of the family's two."""

    async def get_channel_mode(self, channel: str) -> ChannelMode | None:
        """How live subscribers use a channel; None if there are none."""

    async def register_channel_receive_and_release_lock(
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
        """Wait for a channel's next message, beside the waits that are there: see `suspend`."""

    async def get_channel_waits(self, instance_id: str) -> list[ChannelWait]:
        """The waits for messages that an instance has registered, in the order they were made."""

    async def pending_waits(self, instance_id: str, waits: Sequence[ChannelWait]) -> list[str]:
        """Which of these waits, registered or not, may have a message by now: their activities. This only reads."""

    async def get_pending_channel_messages(
        self, channel: str, after_id: int = 0, limit: int = 0
    ) -> list[ChannelMessage]:
        """The messages of a channel after an id, in order."""

    async def get_pending_channel_messages_for_instance(
        self, instance_id: str, channel: str, *, limit: int | None = None
    ) -> list[ChannelMessage]:
        """What a subscriber has not had, in order; `NotSubscribedError` if it is none."""

    async def claim_channel_message(self, message_id: int, instance_id: str, *, lease: Lease | None = None) -> bool:
        """Take a message of a competing channel; False if it is taken or gone."""

    async def delete_channel_message(self, message_id: int, *, lease: Lease | None = None) -> None:
        """Remove a message, if it is there."""

    async def update_delivery_cursor(
        self, instance_id: str, channel: str, last_message_id: int, *, lease: Lease | None = None
    ) -> None:
        """Note how far a broadcast subscriber has come, in both of the family's stores; never backwards."""

    async def get_delivery_cursor(self, instance_id: str, channel: str) -> int:
        """The last message that a subscriber has had; 0 for none."""

    async def get_channel_subscribers_waiting(
        self, channel: str, *, limit: int | None = None
    ) -> list[ChannelSubscription]:
        """Subscribers of any framework that wait for a message of this channel."""

    async def clear_channel_waiting_state(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Stop waiting on a channel; the subscription stays."""

    async def deliver_channel_message(
        self,
        instance_id: str,
        message: ChannelMessage,
        *,
        lease: Lease | None = None,
        activity_id: str | None = None,
        where: Mapping[str, object] | None = None,
    ) -> ChannelDeliveryResult | None:
        """Give a waiting subscriber the next message that one of its waits matches, and set it running."""

    async def deliver_channel_message_with_lock(
        self, instance_id: str, channel: str, message: ChannelMessage, worker_id: str, lock_timeout_sec: float
    ) -> ChannelDeliveryResult | None:
        """The same for a channel by name. The lock is held within the transaction only, so its time does not count."""

    async def deliver_pending(
        self, limit: int = 0, *, channels: Sequence[str] | None = None
    ) -> list[ChannelDeliveryResult]:
        """Sweep the channels where something was published, or these: deliver what is pending, at most a page."""

    async def expire_channel_wait(
        self, instance_id: str, channel: str, *, lease: Lease | None = None, activity_id: str | None = None
    ) -> bool:
        """Record that the time of a wait is up, end it and set the instance running, at once; True if so."""

    async def expire_channel_waits(self, waits: Sequence[tuple[str, str]]) -> list[bool]:
        """End many waits, each given by its instance and its channel, in one commit: whether it ended, in order."""

    async def cleanup_old_channel_messages(self, older_than: timedelta, *, force: bool = False, limit: int = 0) -> int:
        """Remove messages older than that which no live subscriber still needs; gives their number, at most a page."""

    async def find_expired_channel_subscriptions(self, limit: int = 0) -> list[ChannelSubscription]:
        """Own waits whose time is up, of waiting instances, the oldest first."""


class GroupManager(Protocol):
    """Named groups of instances."""

    async def join_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Add an instance to a group; a member keeps its place."""

    async def leave_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from a group, if it is in it."""

    async def get_group_members(self, group_name: str, *, limit: int | None = None) -> list[str]:
        """The instances in a group, in the order of joining."""

    async def leave_all_groups(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from every group."""


class SystemLockManager(Protocol):
    """Locks for background duties, and who is there to do them."""

    async def try_acquire_system_lock(self, lock_name: str, worker_id: str, timeout_sec: float) -> SystemLease | None:
        """Take a lock that is free or expired, or renew one's own, which keeps its token; else None."""

    async def release_system_lock(self, lock_name: str, worker_id: str) -> None:
        """Give a lock back; whoever does not hold it changes nothing."""

    async def cleanup_expired_system_locks(self) -> int:
        """Remove the rows of locks that nobody holds; gives their number."""

    async def beat_worker(self, worker_id: str, info: bytes | None = None, *, gone: bool = False) -> None:
        """Say that a worker is alive, with JSON about it (None keeps what is there), or with `gone` that it stops."""

    async def list_workers(
        self, *, alive_within: timedelta | None = None, limit: int | None = None
    ) -> list[WorkerInfo]:
        """The workers, the longest running first; with `alive_within` only those heard of since then."""

    async def current_time(self) -> datetime:
        """The database's clock, by which every time is judged."""


class HistoryArchiveManager(Protocol):
    """Histories of finished generations."""

    async def archive_history(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Move the whole history to the archive, all or nothing."""

    async def get_archived_history(self, instance_id: str, *, limit: int | None = None) -> list[ArchivedHistoryEvent]:
        """The archived events in the order they were recorded in, with the ids and times they had."""

    async def cleanup_instance_subscriptions(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance's timers, channel subscriptions, cursors, claims and group memberships."""

    async def recur_instance(self, instance_id: str, input_data: bytes, *, lease: Lease) -> WorkflowInstance:
        """Begin the next generation of a running instance with a new input; gives the live row."""


class Storage(
    TransactionManager,
    InstanceManager,
    LockManager,
    HistoryManager,
    TimerSubscriptionManager,
    OutboxManager,
    CompensationManager,
    ChannelManager,
    GroupManager,
    SystemLockManager,
    HistoryArchiveManager,
    Protocol,
):
    """All of it: what an engine needs from a database."""

    async def initialize(self) -> None:
        """Connect and bring the schema up to date; any number of processes may do it at once."""

    async def pending_migrations(self) -> list[str]:
        """The versions of the schema that this release knows and the database lacks."""

    async def close(self) -> None:
        """Give every connection back."""

    def db(self) -> Executor:
        """The database outside any transaction, for migrations and checks."""

    def wakeups(self) -> AsyncIterator[WakeUp]:
        """Hints from this and other processes. Each may be lost or false: look, and look now and then anyway."""
