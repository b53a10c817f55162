"""Define the records of the contract: frozen, with the field names that Edda and Romancy use in JSON.

Payloads are bytes and never parsed. Times are aware and in UTC. A field that the database fills may be left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.model.states import WorkflowStatus


class HistoryEventType(StrEnum):
    """Name the type of a history event; Edda and Romancy use the same values."""

    ACTIVITY_COMPLETED = "ActivityCompleted"
    ACTIVITY_FAILED = "ActivityFailed"
    EVENT_RECEIVED = "EventReceived"
    TIMER_EXPIRED = "TimerExpired"
    CHANNEL_MESSAGE_RECEIVED = "ChannelMessageReceived"
    MESSAGE_TIMEOUT = "MessageTimeout"
    COMPENSATION_EXECUTED = "CompensationExecuted"
    COMPENSATION_FAILED = "CompensationFailed"
    WORKFLOW_FAILED = "WorkflowFailed"
    WORKFLOW_CANCELLED = "WorkflowCancelled"


class ChannelMode(StrEnum):
    """Define how subscribers share a channel. Direct is stored as broadcast on `<channel>:<instance id>`."""

    BROADCAST = "broadcast"
    COMPETING = "competing"
    DIRECT = "direct"

    @property
    def stored(self) -> "ChannelMode":
        """Return the mode in which a subscription is stored."""
        return ChannelMode.BROADCAST if self is ChannelMode.DIRECT else self


FRAMEWORK = "perdure"  # marks our instances; other frameworks that share the tables mark their own


@dataclass(frozen=True, slots=True)
class WorkflowInstance:
    """Describe one execution of a workflow."""

    instance_id: str
    workflow_name: str
    input_data: bytes = b"{}"
    framework: str = ""
    status: WorkflowStatus = WorkflowStatus.RUNNING
    output_data: bytes | None = None
    current_activity_id: str | None = None
    source_hash: str = ""
    owner_service: str = ""
    continued_from: str | None = None
    locked_by: str | None = None
    locked_at: datetime | None = None
    lock_timeout_seconds: int | None = None
    lock_expires_at: datetime | None = None
    lock_token: int = 0
    started_at: datetime | None = None
    updated_at: datetime | None = None
    headers: bytes | None = None  # a JSON object of strings


@dataclass(frozen=True, slots=True)
class Lease:
    """Grant the right to execute one instance until another worker takes it; the token grows with every acquisition."""

    instance_id: str
    worker_id: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SystemLease:
    """Grant the right to do one background task."""

    lock_name: str
    worker_id: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SystemLock:
    """Describe a system lock as stored in its table."""

    lock_name: str
    locked_by: str | None
    locked_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ResumableWorkflow:
    """Describe an instance that a worker may take now.

    If its last lease expired, `worker_id` is the owner of that lease and `locked_at` the time at which it was acquired.
    """

    instance_id: str
    workflow_name: str
    worker_id: str | None = None
    locked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StaleWorkflowInfo:
    """Describe an instance that a sweep freed from an expired lease."""

    instance_id: str
    workflow_name: str


@dataclass(frozen=True, slots=True)
class ListInstancesOptions:
    """Select instances: every filter given must hold. `framework=None` lists the rows of every framework."""

    limit: int = 0
    page_token: str | None = None
    status_filter: WorkflowStatus | None = None
    workflow_name_filter: str | None = None
    instance_id_filter: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    input_filters: Mapping[str, str | bool | int | float | None] = field(default_factory=dict)
    framework: str | None = "perdure"
    workflow_name: str | None = None  # the whole name, served by an index; the filter above matches a part of the name
    statuses: tuple[WorkflowStatus, ...] = ()  # any of these states, instead of the one above
    payloads: bool = True  # False reads neither inputs nor outputs: instances have `{}` and None instead


@dataclass(frozen=True, slots=True)
class PaginationResult:
    """Hold one page of instances, newest first."""

    instances: list[WorkflowInstance]
    next_page_token: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class EndedInstance:
    """Describe an instance that has ended: how, and how long it took."""

    instance_id: str
    workflow_name: str
    status: WorkflowStatus
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Describe one recorded event. JSON is in `event_data`, anything else in `event_data_binary`.

    The engine's own steps have JSON in the first and a digest of the step's call in the second.
    """

    instance_id: str
    activity_id: str
    event_type: str
    event_data: bytes | None = None
    event_data_binary: bytes | None = None
    data_type: str = "json"
    id: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ArchivedHistoryEvent:
    """Describe an event of a finished generation. Rows archived by Edda or Romancy have no original id or time."""

    id: int
    original_id: int | None
    instance_id: str
    activity_id: str
    event_type: str
    event_data: bytes | None
    event_data_binary: bytes | None
    data_type: str
    original_created_at: datetime | None
    archived_at: datetime


@dataclass(frozen=True, slots=True)
class TimerSubscription:
    """Describe a wait for a time. Set `expires_at`, or omit it and pass `after` to the call."""

    instance_id: str
    timer_id: str
    expires_at: datetime | None = None
    activity_id: str | None = None
    id: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TimerWait:
    """Describe one wait of `suspend`: until a time, or for a duration by the database's clock."""

    timer_id: str
    activity_id: str
    expires_at: datetime | None = None
    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ChannelWait:
    """Describe one wait of `suspend`: for the next message of a channel, with or without a timeout.

    With `where` only messages match whose data has these values at these JSON paths. With `subscribe` the instance is
    subscribed to the channel in this mode if it is not yet; a direct channel is given by its whole name.
    """

    channel: str
    activity_id: str
    timeout_at: datetime | None = None
    after: timedelta | None = None
    where: Mapping[str, object] | None = None
    subscribe: ChannelMode | None = None


Wait = TimerWait | ChannelWait


@dataclass(frozen=True, slots=True)
class Suspension:
    """Report the result of a suspension: the lease is released, or nothing changed because something is `ready`."""

    suspended: bool
    ready: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """Describe a message in a channel."""

    id: int
    channel: str
    message_id: str
    data_type: str = "json"
    data: bytes | None = None
    data_binary: bytes | None = None
    metadata: bytes | None = None
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """Describe a message to publish, for the batch form. `binary=True` keeps `data` as bytes that are not JSON."""

    channel: str
    data: bytes
    metadata: bytes | None = None
    message_id: str | None = None
    source: str = ""
    binary: bool = False


@dataclass(frozen=True, slots=True)
class ChannelSubscription:
    """Describe an instance's subscription; it waits while `activity_id` is set."""

    instance_id: str
    channel: str
    mode: ChannelMode
    activity_id: str | None = None
    cursor_message_id: int = 0
    timeout_at: datetime | None = None
    id: int = 0
    subscribed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChannelDeliveryCursor:
    """Hold the last message that a broadcast subscriber has received."""

    id: int
    instance_id: str
    channel: str
    last_delivered_id: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ChannelMessageClaim:
    """Record which instance claimed a message of a competing channel, by the message's text id, as in the table.

    A message has at most one claim, so the claim's `id` is the number of the message.
    """

    message_id: str
    instance_id: str
    claimed_at: datetime
    id: int = 0


@dataclass(frozen=True, slots=True)
class ChannelDeliveryResult:
    """Report which message was delivered to whom; it may be an earlier one than was offered."""

    instance_id: str
    workflow_name: str
    activity_id: str
    channel: str = ""
    message_id: int = 0


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """Describe an instance's membership of a group."""

    id: int
    instance_id: str
    group_name: str
    joined_at: datetime


class OutboxStatus(StrEnum):
    """List the outbox states of Edda and Romancy. A parked event is stored as `invalid`: Edda would retry `failed`."""

    PENDING = "pending"
    PROCESSING = "processing"
    PUBLISHED = "published"
    FAILED = "failed"
    INVALID = "invalid"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """Describe an event to be sent once its transaction has committed."""

    event_id: str
    event_type: str
    event_source: str
    event_data: bytes | None = None
    event_data_binary: bytes | None = None
    data_type: str = "json"
    content_type: str = "application/json"
    status: str = OutboxStatus.PENDING
    retry_count: int = 0
    last_error: str | None = None
    published_at: datetime | None = None
    created_at: datetime | None = None
    sequence: int | None = None
    updated_at: datetime | None = None
    headers: bytes | None = None  # a JSON object of strings


@dataclass(frozen=True, slots=True)
class CompensationEntry:
    """Describe a compensation of a step; the last added runs first."""

    instance_id: str
    activity_id: str
    activity_name: str
    args: bytes = b"{}"
    id: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ParentLink:
    """Describe what an instance needs that creates a child: a subscription to a channel, and a compensation.

    It subscribes (broadcast) before the child exists, so that it receives everything that the child publishes.
    """

    lease: Lease
    channel: str
    compensation: CompensationEntry | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Describe a worker and the time of its last heartbeat, by the database's clock."""

    worker_id: str
    started_at: datetime
    beat_at: datetime
    info: bytes | None = None


@dataclass(frozen=True, slots=True)
class StuckInstance:
    """Describe an instance whose attempts end without progress, and why."""

    instance_id: str
    reason: str
    tries: int
    since: datetime
    next_retry_at: datetime


@dataclass(frozen=True, slots=True)
class RegisteredWait:
    """Describe what an instance waits for: a message of a channel, or, without a channel, a time."""

    instance_id: str
    activity_id: str
    channel: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WakeUp:
    """Hint that there may be work. `kind` is a notification channel, or `scan`: look everywhere."""

    kind: str
    payload: Mapping[str, object] = field(default_factory=dict)
