"""Durable execution for Python on SQLite, PostgreSQL, MySQL or MariaDB.

Decorate functions with `@workflow` and `@activity`, open an `App` to execute runs, and start a run with
`await some_workflow.start(…)`. A `Client` starts and inspects runs without executing them, and a `SyncClient` does the
same for programs that block.
"""

from perdure import integrations  # noqa: F401 - registers the connections of other libraries with the engine
from perdure.brokers.subscription import Subscription
from perdure.engine.api.activity import Activity, activity
from perdure.engine.api.app import App
from perdure.engine.api.calls import (
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
from perdure.engine.api.client import Client
from perdure.engine.api.handles import RunHandle
from perdure.engine.api.queries import BulkResult, RunPage, RunQuery
from perdure.engine.api.relay import Relay
from perdure.engine.api.run_info import ErrorInfo, RunInfo, StuckInfo, WaitInfo, WaitKind
from perdure.engine.api.step_info import HistoryEntry, StepInfo, StepKind, StepStatus
from perdure.engine.api.sync_client import SyncClient
from perdure.engine.api.sync_handles import SyncRunHandle
from perdure.engine.api.sync_queries import SyncRunQuery
from perdure.engine.api.workflow import ConfiguredWorkflow, Workflow, workflow
from perdure.engine.history.messages import Event, Message
from perdure.engine.replay.body import RunEvicted
from perdure.engine.replay.context import ActivityInfo, activity_info, run_headers
from perdure.engine.replay.source import NotDurableWarning
from perdure.engine.worker.activities import connection
from perdure.engine.worker.retention import Retention, Swept
from perdure.engine.worker.supervision import Health, TaskHealth
from perdure.errors import (
    ActivityError,
    BrokerRefusedError,
    BrokerUnavailableError,
    ClosedError,
    EngineError,
    EventDataError,
    NonDeterminismError,
    NotDurableError,
    OutsideWorkflowError,
    PerdureError,
    RecordedError,
    RunExistsError,
    RunNotFoundError,
    RunNotRetryableError,
    SerializationError,
    TerminalError,
    TransactionTooLongError,
    WorkerDiedError,
    WorkflowCancelledError,
    WorkflowFailedError,
)
from perdure.model.records import OutboxEvent
from perdure.model.retries import Retry
from perdure.model.states import WorkflowStatus

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "ActivityError",
    "ActivityInfo",
    "App",
    "BrokerRefusedError",
    "BrokerUnavailableError",
    "BulkResult",
    "Client",
    "ClosedError",
    "ConfiguredWorkflow",
    "EngineError",
    "ErrorInfo",
    "Event",
    "EventDataError",
    "Health",
    "HistoryEntry",
    "Message",
    "NonDeterminismError",
    "NotDurableError",
    "NotDurableWarning",
    "OutboxEvent",
    "OutsideWorkflowError",
    "PerdureError",
    "RecordedError",
    "Relay",
    "Retention",
    "Retry",
    "RunEvicted",
    "RunExistsError",
    "RunHandle",
    "RunInfo",
    "RunNotFoundError",
    "RunNotRetryableError",
    "RunPage",
    "RunQuery",
    "SerializationError",
    "StepInfo",
    "StepKind",
    "StepStatus",
    "StuckInfo",
    "Subscription",
    "Swept",
    "SyncClient",
    "SyncRunHandle",
    "SyncRunQuery",
    "TaskHealth",
    "TerminalError",
    "TransactionTooLongError",
    "WaitInfo",
    "WaitKind",
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
    "run_headers",
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
