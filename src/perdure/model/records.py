"""The records of the contract: frozen, with the field names that the family uses in JSON.

Payloads are bytes and never parsed. Times are aware and in UTC. A field that the database fills may be left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from perdure.model.states import WorkflowStatus


class HistoryEventType(StrEnum):
    """What a history event says; the values are the family's."""

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
    """How subscribers share a channel. Direct is stored as broadcast on `<channel>:<instance id>`."""

    BROADCAST = "broadcast"
    COMPETING = "competing"
    DIRECT = "direct"


FRAMEWORK = "perdure"  # of our instances; the rest of the family keeps its own in the same table


@dataclass(frozen=True, slots=True)
class WorkflowInstance:
    """One execution of a workflow."""

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


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to drive one instance until somebody else takes it; the token grows with every acquisition."""

    instance_id: str
    worker_id: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SystemLease:
    """The right to do one background duty."""

    lock_name: str
    worker_id: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SystemLock:
    """A system lock as it stands in its table."""

    lock_name: str
    locked_by: str | None
    locked_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ResumableWorkflow:
    """An instance that a worker may take now, with whose expired lease, and since when, still stands on it."""

    instance_id: str
    workflow_name: str
    worker_id: str | None = None
    locked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StaleWorkflowInfo:
    """An instance that a sweep freed from an expired lease."""

    instance_id: str
    workflow_name: str


@dataclass(frozen=True, slots=True)
class ListInstancesOptions:
    """What to list: every filter given must hold. `framework=None` lists the rows of every framework."""

    limit: int = 0
    page_token: str | None = None
    status_filter: WorkflowStatus | None = None
    workflow_name_filter: str | None = None
    instance_id_filter: str | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    input_filters: Mapping[str, str | bool | int | float | None] = field(default_factory=dict)
    framework: str | None = "perdure"
    workflow_name: str | None = None  # the whole name, which an index serves; the filter above looks for a part


@dataclass(frozen=True, slots=True)
class PaginationResult:
    """One page of instances, newest first."""

    instances: list[WorkflowInstance]
    next_page_token: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One recorded event. JSON is in `event_data`, anything else in `event_data_binary`.

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
    """An event of a finished generation. Rows archived by the rest of the family have no original id or time."""

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
    """A wait for a time. Give `expires_at`, or leave it out and give `after` to the call."""

    instance_id: str
    timer_id: str
    expires_at: datetime | None = None
    activity_id: str | None = None
    id: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TimerWait:
    """One wait of `suspend`: until a time, or for a while by the database's clock."""

    timer_id: str
    activity_id: str
    expires_at: datetime | None = None
    after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ChannelWait:
    """One wait of `suspend`: for the next message of a channel, for ever or with a time-out.

    With `where` only a message counts whose data has these values at these JSON paths.
    """

    channel: str
    activity_id: str
    timeout_at: datetime | None = None
    after: timedelta | None = None
    where: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Suspension:
    """What a request to wait came to: released and waiting, or nothing changed because of what is `ready`."""

    suspended: bool
    ready: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A message in a channel."""

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
    """A message to publish, for the batch form. `binary=True` keeps `data` as bytes that are not JSON."""

    channel: str
    data: bytes
    metadata: bytes | None = None
    message_id: str | None = None
    source: str = ""
    binary: bool = False


@dataclass(frozen=True, slots=True)
class ChannelSubscription:
    """An instance's subscription; it waits while `activity_id` is set."""

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
    """How far a broadcast subscriber has come."""

    id: int
    instance_id: str
    channel: str
    last_delivered_id: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ChannelMessageClaim:
    """Which instance took a message of a competing channel. The message is named by its text id, as in the table.

    A message has at most one claim, so the claim's `id` is the number of the message.
    """

    message_id: str
    instance_id: str
    claimed_at: datetime
    id: int = 0


@dataclass(frozen=True, slots=True)
class ChannelDeliveryResult:
    """What was delivered to whom; the message may be an earlier one than the one offered."""

    instance_id: str
    workflow_name: str
    activity_id: str
    channel: str = ""
    message_id: int = 0


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """An instance in a group."""

    id: int
    instance_id: str
    group_name: str
    joined_at: datetime


class OutboxStatus(StrEnum):
    """The family's outbox states. A parked event is stored as `invalid`: Edda would fetch `failed` again."""

    PENDING = "pending"
    PROCESSING = "processing"
    PUBLISHED = "published"
    FAILED = "failed"
    INVALID = "invalid"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event to be sent once its transaction has committed."""

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


@dataclass(frozen=True, slots=True)
class CompensationEntry:
    """An action that undoes a step; the last added is undone first."""

    instance_id: str
    activity_id: str
    activity_name: str
    args: bytes = b"{}"
    id: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker and when it was last heard of, by the database's clock."""

    worker_id: str
    started_at: datetime
    beat_at: datetime
    info: bytes | None = None


@dataclass(frozen=True, slots=True)
class StuckInstance:
    """An instance whose tries end without progress, and why."""

    instance_id: str
    reason: str
    tries: int
    since: datetime
    next_retry_at: datetime


@dataclass(frozen=True, slots=True)
class RegisteredWait:
    """What an instance waits for: a message of a channel, or, without one, a time."""

    instance_id: str
    activity_id: str
    channel: str | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A hint that there may be work: its kind (a family notification channel, or `scan`: look everywhere)."""

    kind: str
    payload: Mapping[str, object] = field(default_factory=dict)
