"""The exceptions that perdure raises.

PerdureError
├── StorageError
│   ├── ConfigurationError            a URL, option, driver or client library that cannot work
│   ├── SchemaError                   the tables do not match this version
│   ├── DatabaseUnavailableError      the database did not answer in time
│   ├── TransactionError              begin, commit or use of a transaction out of order
│   │   └── TransactionConflictError  the database aborted the caller's transaction
│   ├── CommitUnknownError            the connection was lost during a commit
│   ├── InstanceNotFoundError
│   ├── InstanceExistsError
│   ├── WorkflowNotCancellableError
│   ├── InvalidTransitionError
│   ├── LeaseLostError                the lease expired or another worker has it
│   ├── HistoryConflictError          the same step was recorded with a different event
│   ├── ChannelModeConflictError
│   ├── NotSubscribedError
│   ├── InvalidJSONPathError
│   ├── InvalidPageTokenError
│   ├── LimitError                    a value exceeds a limit or has an invalid form
│   └── CodecError                    a stored value cannot be encoded or decoded in this process
├── CopyError                         a database cannot be copied to another one, or the copy differs
└── EngineError
    ├── NonDeterminismError           the code makes different calls than the run's history records
    ├── SerializationError            a value cannot be stored as JSON or does not match its type hint
    ├── EventDataError                the data of an event does not fit a workflow that the event starts
    ├── RecordedError                 a recorded error whose class cannot be imported or rebuilt
    │   └── ActivityError             a RecordedError that an activity raised
    ├── WorkflowFailedError           the awaited run failed
    ├── WorkflowCancelledError        the awaited run was cancelled
    ├── RunExistsError                a different run already has the requested id
    ├── RunNotFoundError
    ├── RunNotRetryableError          the run has not failed, or cannot continue from the given step
    ├── UnknownWorkflowError          no process, worker or run is known to have a workflow of this name
    ├── ClosedError                   the App or Client is closed
    ├── WorkerDiedError               several workers in a row died while they executed a run
    ├── NotDurableError               a call in a workflow's body that is not deterministic
    ├── OutsideWorkflowError          a durable call outside a workflow
    ├── TransactionTooLongError       a transactional activity exceeded its time limit
    ├── BrokerUnavailableError        a message broker or webhook cannot be reached
    │   └── BrokerRefusedError        a broker refuses the login, or has no such stream, queue or topic
    ├── StalledError                  a test waits for a run that cannot end
    └── TerminalError                 raised by user code; never retried
        └── StubError                 a test has no valid stub for a call of an activity

Each class has a `code`, which is stable and meant for programs. Messages are for people and may change. The driver's
own error is the `__cause__`. No message contains a password.
"""

from typing import ClassVar


class PerdureError(Exception):
    """Base class of all errors that perdure raises."""

    code: ClassVar[str] = "perdure"


class StorageError(PerdureError):
    """The storage layer refused an operation or could not complete it."""

    code = "storage"


class ConfigurationError(StorageError):
    """A URL, option, driver or client library is invalid or missing; nothing was sent."""

    code = "storage.configuration"


class SchemaError(StorageError):
    """The tables are missing, incomplete, or do not match this version; run the migrations."""

    code = "storage.schema"


class DatabaseUnavailableError(StorageError):
    """The database could not be reached or did not answer in time; nothing was written."""

    code = "storage.unavailable"


class TransactionError(StorageError):
    """A transaction was begun, used or ended out of order."""

    code = "storage.transaction"


class TransactionConflictError(TransactionError):
    """The database aborted the caller's transaction (deadlock, busy); roll it back and retry it."""

    code = "storage.transaction_conflict"


class CommitUnknownError(StorageError):
    """The connection was lost during a commit, which may have succeeded; read the data before you retry."""

    code = "storage.commit_unknown"


class InstanceNotFoundError(StorageError):
    """No instance has this id."""

    code = "storage.instance_not_found"


class InstanceExistsError(StorageError):
    """An instance with this id already exists."""

    code = "storage.instance_exists"


class WorkflowNotCancellableError(StorageError):
    """The run cannot be cancelled because it has ended or does not exist."""

    code = "storage.not_cancellable"


class InvalidTransitionError(StorageError):
    """The instance may not change from its current status to the requested one."""

    code = "storage.invalid_transition"


class LeaseLostError(StorageError):
    """The worker no longer holds the lease of this instance; nothing was written and it must stop executing it."""

    code = "storage.lease_lost"


class HistoryConflictError(StorageError):
    """This step is already recorded with a different event."""

    code = "storage.history_conflict"


class ChannelModeConflictError(StorageError):
    """The channel has live subscribers in a different mode."""

    code = "storage.channel_mode_conflict"


class NotSubscribedError(StorageError):
    """The instance is not subscribed to this channel."""

    code = "storage.not_subscribed"


class InvalidJSONPathError(StorageError):
    """A JSON path is invalid: it must be one or more identifiers joined by dots."""

    code = "storage.invalid_json_path"


class InvalidPageTokenError(StorageError):
    """The page token is invalid: it was not returned with an earlier page of the same query."""

    code = "storage.invalid_page_token"


class LimitError(StorageError):
    """A value is too long, too large or of a type that the storage contract does not allow."""

    code = "storage.limit"


class CodecError(StorageError):
    """A stored value cannot be encoded or decoded in this process: its key or codec is missing, or it was changed.

    A run that needs the value does not fail: it is stuck, and another worker may execute it.
    """

    code = "storage.codec"


class CopyError(PerdureError):
    """A database cannot be copied to another one (`perdure copy`), or the copy differs from its source."""

    code = "copy"


class EngineError(PerdureError):
    """The engine refused an operation or could not complete it."""

    code = "engine"


class NonDeterminismError(EngineError):
    """The workflow's code makes different calls than the run's history records.

    The run does not fail: it is stuck, is retried with back-off, and continues once compatible code is deployed.
    `step` is the id of the step, `recorded` says what the history has there, and `called` what the code does there.
    """

    code = "engine.non_determinism"

    def __init__(
        self, message: str, *, summary: str | None = None, step: str = "", recorded: str = "", called: str = ""
    ) -> None:
        super().__init__(message)
        self.summary = message if summary is None else summary  # for logs: without the arguments of the call
        self.step = step
        self.recorded = recorded
        self.called = called


class SerializationError(EngineError):
    """A value cannot be encoded as JSON, or cannot be decoded as the type of its hint."""

    code = "engine.serialization"


class EventDataError(EngineError, TypeError):
    """The data of an event does not fit the parameter of a workflow that the event starts; nothing was stored."""

    code = "engine.event_data"


class RecordedError(EngineError):
    """A recorded error whose class cannot be imported or rebuilt in this process.

    `error_type` is the path of the original class, `stack_trace` the original traceback; both are text.
    """

    code = "engine.recorded"

    def __init__(self, message: str, *, error_type: str = "", stack_trace: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.stack_trace = stack_trace


class ActivityError(RecordedError):
    """An activity failed with an error whose class cannot be imported or rebuilt in this process."""

    code = "engine.activity"


class WorkflowFailedError(EngineError):
    """The awaited run failed; the run's error is the `__cause__`."""

    code = "engine.workflow_failed"


class WorkflowCancelledError(EngineError):
    """The awaited run was cancelled."""

    code = "engine.workflow_cancelled"


class RunExistsError(EngineError):
    """A run with this id already exists and differs from the requested one, or `if_exists="error"` was given."""

    code = "engine.run_exists"


class RunNotFoundError(EngineError):
    """No run has this id."""

    code = "engine.run_not_found"


class RunNotRetryableError(EngineError):
    """The run cannot be retried: it has neither failed nor been cancelled, or it cannot continue from this step."""

    code = "engine.run_not_retryable"


class UnknownWorkflowError(EngineError):
    """No workflow of this name is defined in this process, served by a live worker, or has runs in the database."""

    code = "engine.unknown_workflow"


class ClosedError(EngineError):
    """The App or Client is closed, or was closed while a caller waited for a result; runs are not affected."""

    code = "engine.closed"


class WorkerDiedError(EngineError):
    """Several workers in a row died while they executed a run, so it is stuck and retried with back-off."""

    code = "engine.worker_died"


class NotDurableError(EngineError):
    """A call in a workflow's body is not deterministic; the message names the durable alternative."""

    code = "engine.not_durable"


class OutsideWorkflowError(EngineError):
    """A durable call was made outside a workflow, or inside an activity."""

    code = "engine.outside_workflow"


class TransactionTooLongError(EngineError):
    """A transactional activity exceeded `App(transaction_timeout=)`; its transaction was rolled back."""

    code = "engine.transaction_too_long"


class BrokerUnavailableError(EngineError):
    """A message broker or webhook cannot be reached or accepts nothing now; a publisher raises it, too."""

    code = "engine.broker_unavailable"


class BrokerRefusedError(BrokerUnavailableError):
    """A message broker or webhook refuses to work until a person changes something there or in the URL.

    The login is wrong, the certificate is not trusted, or the stream, queue or topic does not exist. Like an
    unavailable broker, it is retried with back-off, because the change may be made while the app runs.
    """

    code = "engine.broker_refused"


class TerminalError(EngineError):
    """Raise this error, or a subclass of it, in an activity to fail the step without a retry."""

    code = "engine.terminal"


class StalledError(EngineError):
    """A test waits for a run that cannot end: nothing is due, and no code executes."""

    code = "engine.stalled"


class StubError(TerminalError):
    """A stub has no outcome for a call, or a wrong one, or a strict test has no stub for the activity."""

    code = "engine.stub"
