"""Define the storage contract as Protocols, one for each aggregate.

The names are those of Romancy's Go storage package in snake_case, with additions. `perdure.testing.conformance` checks
that a backend fulfils the contract; docs/storage.md describes what holds for every operation.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

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
    EndedInstance,
    HistoryEvent,
    Lease,
    ListInstancesOptions,
    OutboxEvent,
    OutboxStatus,
    OutgoingMessage,
    PaginationResult,
    ParentLink,
    RegisteredWait,
    ResumableWorkflow,
    StaleWorkflowInfo,
    StuckInstance,
    Suspension,
    SystemLease,
    TimerSubscription,
    TimerWait,
    Wait,
    WakeUp,
    WorkerInfo,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.transactions import Callback


class TransactionManager(Protocol):
    """Manage transactions, usually with `async with storage.transaction()`."""

    async def begin_transaction(self) -> None:
        """Open a transaction for this task, or a savepoint inside an open one."""

    async def commit_transaction(self) -> None:
        """Commit the innermost level. After the outermost commit the callbacks run, in order, outside a transaction."""

    async def rollback_transaction(self) -> None:
        """Undo the innermost level and discard its callbacks; do nothing without a transaction."""

    def transaction(self) -> AbstractAsyncContextManager[Executor]:
        """Commit what the block wrote, or undo it if the block raises or is cancelled."""

    def in_transaction(self) -> bool:
        """Return True exactly while this task has a transaction open."""

    def conn(self) -> Executor:
        """Return the open transaction, or the pool, for a caller's own SQL."""

    def register_post_commit_callback(self, callback: Callback) -> None:
        """Call the callback once after the outermost commit; a rollback of this level discards it."""

    def detached(self) -> AbstractContextManager[None]:
        """Work outside the transaction that this task has open or was spawned in."""


class InstanceManager(Protocol):
    """Manage instances, from creation to deletion."""

    async def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        worker_id: str | None = None,
        timeout_sec: float = 15,
        source_code: str = "",
        events: Sequence[HistoryEvent] = (),
        timers: Sequence[TimerWait] = (),
        parent: ParentLink | None = None,
    ) -> Lease | None:
        """Store a new instance with its definition, its first events and its timers, in one commit.

        Raise `InstanceExistsError` if the id is taken. With `parent` the instance is a child: what its parent needs is
        written under the parent's fence.
        """

    async def create_instances(
        self, instances: Sequence[WorkflowInstance], *, worker_id: str | None = None, timeout_sec: float = 15
    ) -> list[Lease | StorageError | None]:
        """Create many instances in one commit; return a lease (or None) or an error for each, in order."""

    async def define_workflows(self, versions: Mapping[str, str]) -> None:
        """Store definitions, by name and source hash, unless they exist; creating an instance would do so, too."""

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return an instance with every field, or None."""

    async def get_instances(self, instance_ids: Sequence[str]) -> list[WorkflowInstance | None]:
        """Return many instances in one statement, in the order of their ids; None for each that does not exist."""

    async def update_instance_status(
        self, instance_id: str, status: WorkflowStatus, error_msg: str = "", *, lease: Lease | None = None
    ) -> None:
        """Change an instance's state; record the message of a failure in the same transaction."""

    async def update_instance_activity(self, instance_id: str, activity_id: str, *, lease: Lease | None = None) -> None:
        """Record the step that the instance has reached."""

    async def update_instance_output(self, instance_id: str, output_data: bytes, *, lease: Lease | None = None) -> None:
        """Store the output and complete the instance in one transaction."""

    async def complete_and_release(self, lease: Lease, output_data: bytes) -> None:
        """Complete a leased instance with its output and end the lease, in one statement where possible."""

    async def complete_instances(self, items: Sequence[tuple[Lease, bytes]]) -> list[StorageError | None]:
        """Complete many leased instances in one commit; return None or an error for each, in order."""

    async def cancel_instance(
        self, instance_id: str, reason: str = "", *, compensate: bool = False, lease: Lease | None = None
    ) -> None:
        """Cancel an instance in any state that is not final, fence off its worker, and record why."""

    async def list_instances(self, options: ListInstancesOptions | None = None) -> PaginationResult:
        """Return a page of the instances for which every filter holds, by start time and id, both descending."""

    async def count_instances(self, options: ListInstancesOptions | None = None, *, limit: int = COUNT_MAX) -> int:
        """Return the number of instances that match these filters, at most `limit`."""

    async def list_ended(self, limit: int = 0, *, before: tuple[datetime, str] | None = None) -> list[EndedInstance]:
        """Return own instances that have ended, the last one first; `before` is the last one's `ended_at` and id."""

    async def list_workflow_names(self) -> list[str]:
        """Return the names of the workflows of own instances, sorted."""

    async def find_resumable_workflows(
        self, limit: int = 0, *, workflow_names: Sequence[str] | None = None
    ) -> list[ResumableWorkflow]:
        """Return own instances, running or compensating, without a live lease; the longest waiting first."""

    async def delete_instances(self, older_than: timedelta, limit: int = 0) -> int:
        """Delete own instances that ended longer ago than that, with all their rows; return their number."""

    async def delete_ended(self, instance_ids: Sequence[str]) -> list[bool]:
        """Delete those of these own instances that have ended, with all their rows; return whether, in order."""


class LockManager(Protocol):
    """Manage leases on instances."""

    async def try_acquire_lock(self, instance_id: str, worker_id: str, timeout_sec: float) -> Lease | None:
        """Return a lease if the instance is free: not leased (even to this worker), not row-locked, not finished."""

    async def acquire_locks(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float
    ) -> list[Lease | None]:
        """Acquire the leases of many instances in one commit; return a lease or None for each, in order."""

    async def claim_instances(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float, *, limit: int
    ) -> list[tuple[Lease, WorkflowInstance]]:
        """Acquire the leases of at most `limit` of these instances in one commit; return them with the instances.

        Only instances that a worker may take now are leased: running or compensating ones, not those that wait.
        """

    async def release_lock(self, instance_id: str, worker_id: str, *, lease: Lease | None = None) -> None:
        """Release a lease; do nothing if this worker does not hold it."""

    async def refresh_lock(
        self, instance_id: str, worker_id: str, timeout_sec: float, *, lease: Lease | None = None
    ) -> Lease:
        """Renew a lease, even an expired one that no worker has taken; else raise `LeaseLostError`."""

    async def refresh_locks(self, leases: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
        """Renew leases of any owner at once; return the renewed lease, or None for each that was lost, in order."""

    async def cleanup_stale_locks(self, timeout_sec: float = 0) -> list[StaleWorkflowInfo]:
        """Clear own leases that expired more than `timeout_sec` ago; return the running and compensating ones."""

    async def back_off(self, lease: Lease, tries: int, reason: str, pause_sec: float) -> None:
        """End a lease after so many attempts without progress, and let no worker take the instance for a while."""

    async def clear_stuck(self, instance_ids: Sequence[str]) -> None:
        """Mark these instances as no longer stuck."""

    async def get_stuck(self, instance_ids: Sequence[str]) -> list[StuckInstance | None]:
        """Return why each of these instances is stuck, in the order of their ids; None for each that is not."""

    async def list_stuck(self, limit: int = 0, *, after: tuple[datetime, str] | None = None) -> list[StuckInstance]:
        """Return stuck instances, the longest stuck first; `after` is the last one's `since` and id."""


class HistoryManager(Protocol):
    """Manage the recorded events of instances, in order."""

    async def append_history(self, event: HistoryEvent, *, lease: Lease | None = None) -> int:
        """Record an event and return its id; raise `HistoryConflictError` if the step has a different event already."""

    async def append_histories(self, items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        """Record many events in one commit; return an id or an error for each, in order."""

    async def append_and_complete(
        self, events: Sequence[tuple[HistoryEvent, Lease | None]], completions: Sequence[tuple[Lease, bytes]]
    ) -> list[int | StorageError | None]:
        """Record many events, then complete many leased instances, in one commit.

        Return an id or an error for each event, and then None or an error for each completion. If an event of an
        instance is refused, the instance is not completed, with the same error.
        """

    async def get_history_paginated(
        self, instance_id: str, after_id: int = 0, limit: int = 0
    ) -> tuple[list[HistoryEvent], bool]:
        """Return the events after an id, in order, and whether there are more."""

    async def get_history_count(self, instance_id: str) -> int:
        """Return the number of events of an instance."""

    async def get_last_event(self, instance_id: str, event_type: str) -> HistoryEvent | None:
        """Return the newest event of a type, or None; archived events are ignored."""

    async def get_events(self, instance_ids: Sequence[str], activity_ids: Sequence[str]) -> list[HistoryEvent]:
        """Return the events of these activities of these instances, by instance and in order."""


class TimerSubscriptionManager(Protocol):
    """Manage waits for a time, and for several things at once."""

    async def register_timer_subscription(
        self, subscription: TimerSubscription, *, after: timedelta | None = None, lease: Lease | None = None
    ) -> None:
        """Register a timer, at its `expires_at` or `after` a duration; an existing timer keeps its time."""

    async def register_timer_subscription_and_release_lock(
        self,
        subscription: TimerSubscription,
        instance_id: str,
        worker_id: str,
        *,
        after: timedelta | None = None,
        lease: Lease | None = None,
    ) -> Suspension:
        """Add a wait for a timer to the existing waits: see `suspend`. A due timer is `ready`, not waited for."""

    async def find_expired_timers(self, limit: int = 0) -> list[TimerSubscription]:
        """Return own timers of waiting instances that are due, the oldest first."""

    async def remove_timer_subscription(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> None:
        """Remove a timer if it exists."""

    async def fire_timer(self, instance_id: str, timer_id: str, *, lease: Lease | None = None) -> bool:
        """Record that a timer expired, remove it and set the instance running, in one transaction; return if it did."""

    async def fire_timers(self, timers: Sequence[tuple[str, str]]) -> list[bool]:
        """Fire many timers, given by instance and id, in one commit; return whether each fired, in order."""

    async def suspend(self, lease: Lease, waits: Sequence[Wait]) -> Suspension:
        """Wait for the first of these and nothing else; register them and release the lease in one transaction."""

    async def suspend_instances(self, items: Sequence[tuple[Lease, Sequence[Wait]]]) -> list[Suspension | StorageError]:
        """Suspend many instances in one commit; return a result or an error for each, in order."""

    async def get_waits(self, instance_ids: Sequence[str]) -> list[RegisteredWait]:
        """Return the registered waits of these instances, by instance and activity."""

    async def next_due_at(self) -> datetime | None:
        """Return when the first timer, timeout or lease of an own instance is or was due; None if there is none."""

    async def next_work_at(self) -> datetime | None:
        """Return the same, but also for work that can be done now: an instance to take, a channel to sweep."""


class OutboxManager(Protocol):
    """Manage events to be sent once their transaction has committed."""

    async def add_outbox_event(self, event: OutboxEvent, *, lease: Lease | None = None) -> None:
        """Store an event to be sent; an equal one changes nothing, a different one with the same id is a conflict."""

    async def get_pending_outbox_events(
        self, limit: int = 0, *, relay_id: str = "", lease_sec: float = 30
    ) -> list[OutboxEvent]:
        """Claim events for a while: until they are marked, no other call gets them or later events of their sources."""

    async def mark_outbox_event_sent(self, event_id: str) -> bool:
        """Mark an event as published, even if another relay has claimed it since."""

    async def settle_outbox_events(
        self,
        *,
        sent: Sequence[str] = (),
        released: Sequence[str] = (),
        relay_id: str,
        pause: timedelta = timedelta(0),
    ) -> None:
        """Mark claimed events as published, and end this relay's claims on others without counting an attempt."""

    async def mark_outbox_event_failed(
        self, event_id: str, *, error: str | None = None, relay_id: str | None = None
    ) -> bool:
        """Park an event: it is never fetched again and blocks no other, until `requeue_outbox_event`."""

    async def increment_outbox_attempts(
        self, event_id: str, *, error: str | None = None, back_off: timedelta | None = None, relay_id: str | None = None
    ) -> bool:
        """Record a failed attempt; the event and later events of its source wait (default: 1, 2, 4 … 300 s)."""

    async def cleanup_old_outbox_events(self, older_than: timedelta) -> int:
        """Remove own events published longer ago than that, in batches; return their number."""

    async def list_outbox_events(
        self, status: OutboxStatus | str | None = None, limit: int = 0, *, after: str | None = None
    ) -> list[OutboxEvent]:
        """Return own events, oldest first, of one state or all; `after` is the id of the previous page's last event."""

    async def requeue_outbox_event(self, event_id: str) -> bool:
        """Put a parked event back at the end of its source; return False if it is not parked."""


class CompensationManager(Protocol):
    """Manage compensations, the actions that undo steps."""

    async def add_compensation(self, entry: CompensationEntry, *, lease: Lease | None = None) -> int:
        """Register a compensation of a step and return its id. If it is added twice, it is stored twice."""

    async def get_compensations(self, instance_id: str, *, limit: int | None = None) -> list[CompensationEntry]:
        """Return the registered compensations, strictly last in, first out."""


class ChannelManager(Protocol):
    """Manage messages between instances and from outside."""

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
        """Publish a message, JSON or `binary`, and return its id."""

    async def publish_messages(
        self, messages: Sequence[OutgoingMessage], *, lease: Lease | None = None
    ) -> list[int | StorageError]:
        """Publish many messages in one commit; return an id or an error for each, in order."""

    async def subscribe_to_channel(
        self, instance_id: str, channel: str, mode: ChannelMode, *, lease: Lease | None = None
    ) -> str:
        """Subscribe an instance and return the channel it is subscribed to. Repeating the call changes nothing."""

    async def unsubscribe_from_channel(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Remove a subscription and its cursors if it exists."""

    async def get_channel_subscription(self, instance_id: str, channel: str) -> ChannelSubscription | None:
        """Return one subscription, or None; its cursor is the further one of the two that are stored."""

    async def get_channel_mode(self, channel: str) -> ChannelMode | None:
        """Return how live subscribers use a channel; None if there are none."""

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
        """Add a wait for a channel's next message to the existing waits: see `suspend`."""

    async def get_channel_waits(self, instance_id: str) -> list[ChannelWait]:
        """Return the waits for messages that an instance has registered, in the order of registration."""

    async def pending_waits(self, instance_id: str, waits: Sequence[ChannelWait]) -> list[str]:
        """Return the activities of those waits, registered or not, that may have a message by now, without writing."""

    async def get_pending_channel_messages(
        self, channel: str, after_id: int = 0, limit: int = 0
    ) -> list[ChannelMessage]:
        """Return the messages of a channel after an id, in order."""

    async def get_pending_channel_messages_for_instance(
        self, instance_id: str, channel: str, *, limit: int | None = None
    ) -> list[ChannelMessage]:
        """Return the messages that a subscriber has not received, in order; raise `NotSubscribedError` without one."""

    async def claim_channel_message(self, message_id: int, instance_id: str, *, lease: Lease | None = None) -> bool:
        """Claim a message of a competing channel; return False if it is claimed or removed."""

    async def delete_channel_message(self, message_id: int, *, lease: Lease | None = None) -> None:
        """Remove a message if it exists."""

    async def update_delivery_cursor(
        self, instance_id: str, channel: str, last_message_id: int, *, lease: Lease | None = None
    ) -> None:
        """Record the last message that a broadcast subscriber received, in both cursor tables; never backwards."""

    async def get_delivery_cursor(self, instance_id: str, channel: str) -> int:
        """Return the last message that a subscriber received; 0 for none."""

    async def get_channel_subscribers_waiting(
        self, channel: str, *, limit: int | None = None
    ) -> list[ChannelSubscription]:
        """Return the subscribers of any framework that wait for a message of this channel."""

    async def clear_channel_waiting_state(self, instance_id: str, channel: str, *, lease: Lease | None = None) -> None:
        """Stop waiting on a channel and keep the subscription."""

    async def deliver_channel_message(
        self,
        instance_id: str,
        message: ChannelMessage,
        *,
        lease: Lease | None = None,
        activity_id: str | None = None,
        where: Mapping[str, object] | None = None,
    ) -> ChannelDeliveryResult | None:
        """Deliver to a waiting subscriber the next message that one of its waits matches, and set it running."""

    async def deliver_channel_message_with_lock(
        self, instance_id: str, channel: str, message: ChannelMessage, worker_id: str, lock_timeout_sec: float
    ) -> ChannelDeliveryResult | None:
        """Do the same for a channel by name. The lock ends with the transaction, so its timeout is ignored."""

    async def deliver_pending(
        self, limit: int = 0, *, channels: Sequence[str] | None = None
    ) -> list[ChannelDeliveryResult]:
        """Deliver pending messages of channels that were published to, or of these channels, at most a page."""

    async def expire_channel_wait(
        self, instance_id: str, channel: str, *, lease: Lease | None = None, activity_id: str | None = None
    ) -> bool:
        """Record that a wait timed out, end it and set the instance running, in one transaction; return if it did."""

    async def expire_channel_waits(self, waits: Sequence[tuple[str, str]]) -> list[bool]:
        """End many waits, given by instance and channel, in one commit; return whether each ended, in order."""

    async def cleanup_old_channel_messages(
        self, older_than: timedelta, *, force: bool = False, limit: int = 0, ids_older_than: timedelta | None = None
    ) -> int:
        """Remove messages older than that which no live subscriber needs, at most a page; return their number.

        Also remove publishers' message ids that are older than `ids_older_than` (default: `older_than`).
        """

    async def find_expired_channel_subscriptions(self, limit: int = 0) -> list[ChannelSubscription]:
        """Return own waits of waiting instances that have timed out, the oldest first."""


class GroupManager(Protocol):
    """Manage named groups of instances."""

    async def join_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Add an instance to a group; a member keeps its position."""

    async def leave_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from a group if it is a member."""

    async def get_group_members(self, group_name: str, *, limit: int | None = None) -> list[str]:
        """Return the instances in a group, in the order of joining."""

    async def leave_all_groups(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from every group."""


class SystemLockManager(Protocol):
    """Manage locks for background tasks, and the list of workers."""

    async def try_acquire_system_lock(self, lock_name: str, worker_id: str, timeout_sec: float) -> SystemLease | None:
        """Take a lock that is free or expired, or renew an own lock, which keeps its token; otherwise return None."""

    async def release_system_lock(self, lock_name: str, worker_id: str) -> None:
        """Release a lock; do nothing if this worker does not hold it."""

    async def cleanup_expired_system_locks(self) -> int:
        """Remove the rows of locks that no worker holds; return their number."""

    async def beat_worker(self, worker_id: str, info: bytes | None = None, *, gone: bool = False) -> None:
        """Record that a worker is alive, with JSON about it (None keeps the stored one), or that it stops (`gone`)."""

    async def list_workers(
        self, *, alive_within: timedelta | None = None, limit: int | None = None
    ) -> list[WorkerInfo]:
        """Return the workers, the longest running first; with `alive_within` only those with a heartbeat since then."""

    async def now(self) -> datetime:
        """Return the database's clock, which decides about every time."""


class HistoryArchiveManager(Protocol):
    """Manage the histories of finished generations."""

    async def archive_history(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Move the whole history to the archive, all or nothing."""

    async def get_archived_history(self, instance_id: str, *, limit: int | None = None) -> list[ArchivedHistoryEvent]:
        """Return the archived events in the order they were recorded in, with their original ids and times."""

    async def cleanup_instance_subscriptions(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance's timers, channel subscriptions, cursors, claims and group memberships."""

    async def recur_instance(self, instance_id: str, input_data: bytes, *, lease: Lease) -> WorkflowInstance:
        """Begin the next generation of a running instance with a new input; return the live row."""


@runtime_checkable
class Pooled(Protocol):
    """A storage that may have a pool of connections."""

    @property
    def pool_use(self) -> tuple[int, int] | None:
        """Return how many connections are in use, and the maximum; None without a pool."""


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
    """Combine all managers: what an engine needs from a database."""

    async def initialize(self) -> None:
        """Connect and bring the schema up to date; any number of processes may do so at once."""

    async def pending_migrations(self) -> list[str]:
        """Return the schema versions that this release knows and the database lacks."""

    async def close(self) -> None:
        """Close every connection."""

    def db(self) -> Executor:
        """Return the database outside any transaction, for migrations and checks."""

    def wakeups(self) -> AsyncIterator[WakeUp]:
        """Yield hints from this and other processes. Hints may be lost or false, so look for work periodically, too."""
