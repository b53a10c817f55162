"""Durable execution for Python on the database people already have."""

from perdure.engine.activities import connection
from perdure.engine.ambient import ActivityInfo, activity_info
from perdure.engine.app import App, Client
from perdure.engine.body import RunEvicted
from perdure.engine.calls import (
    join_group,
    leave_group,
    now,
    patched,
    publish,
    random,
    receive,
    recur,
    send_event,
    send_to,
    send_to_group,
    set_state,
    sleep,
    sleep_until,
    subscribe,
    timeout,
    unsubscribe,
    uuid4,
    wait_event,
)
from perdure.engine.definitions import Activity, ConfiguredWorkflow, Workflow, activity, workflow
from perdure.engine.handles import Handle
from perdure.engine.retention import Retention, Swept
from perdure.engine.retries import Retry
from perdure.engine.source import NotDurableWarning
from perdure.engine.steps import Event, Message
from perdure.engine.stuck import StuckRun
from perdure.engine.supervision import Health, TaskHealth
from perdure.errors import (
    ActivityError,
    ClosedError,
    EngineError,
    NonDeterminismError,
    NotDurableError,
    OutsideWorkflowError,
    PerdureError,
    RecordedError,
    RunExistsError,
    RunNotFoundError,
    SerializationError,
    TerminalError,
    TransactionTooLongError,
    WorkerDiedError,
    WorkflowCancelledError,
    WorkflowFailedError,
)
from perdure.model.records import OutboxEvent
from perdure.model.states import WorkflowStatus

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "ActivityError",
    "ActivityInfo",
    "App",
    "Client",
    "ClosedError",
    "ConfiguredWorkflow",
    "EngineError",
    "Event",
    "Handle",
    "Health",
    "Message",
    "NonDeterminismError",
    "NotDurableError",
    "NotDurableWarning",
    "OutboxEvent",
    "OutsideWorkflowError",
    "PerdureError",
    "RecordedError",
    "Retention",
    "Retry",
    "RunEvicted",
    "RunExistsError",
    "RunNotFoundError",
    "SerializationError",
    "StuckRun",
    "Swept",
    "TaskHealth",
    "TerminalError",
    "TransactionTooLongError",
    "WorkerDiedError",
    "Workflow",
    "WorkflowCancelledError",
    "WorkflowFailedError",
    "WorkflowStatus",
    "activity",
    "activity_info",
    "connection",
    "join_group",
    "leave_group",
    "now",
    "patched",
    "publish",
    "random",
    "receive",
    "recur",
    "send_event",
    "send_to",
    "send_to_group",
    "set_state",
    "sleep",
    "sleep_until",
    "subscribe",
    "timeout",
    "unsubscribe",
    "uuid4",
    "wait_event",
    "workflow",
]
