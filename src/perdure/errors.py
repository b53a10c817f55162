"""Everything perdure raises on purpose.

PerdureError
├── StorageError
│   ├── ConfigurationError            a URL, option or driver that cannot work
│   ├── SchemaError                   the tables are not what this version needs
│   ├── DatabaseUnavailableError      nobody answered in time
│   ├── TransactionError              begin, commit or use of a transaction out of order
│   │   └── TransactionConflictError  the database gave up the caller's transaction
│   ├── CommitUnknownError            the answer to a commit was lost
│   ├── InstanceNotFoundError
│   ├── InstanceExistsError
│   ├── WorkflowNotCancellableError
│   ├── InvalidTransitionError
│   ├── LeaseLostError                another worker owns the instance now
│   ├── HistoryConflictError          the same step, recorded differently
│   ├── ChannelModeConflictError
│   ├── NotSubscribedError
│   ├── InvalidJSONPathError
│   ├── InvalidPageTokenError
│   └── LimitError                    too long, too large, or not a name
└── EngineError
    ├── NonDeterminismError           the code does not do what its history says
    ├── SerializationError            a value that is not JSON, or not of its hint's type
    ├── RecordedError                 an error whose class is not known here, or cannot be rebuilt
    │   └── ActivityError             one of an activity
    ├── WorkflowFailedError           the run that was waited for failed
    ├── WorkflowCancelledError        the run that was waited for was cancelled
    ├── RunExistsError                another run has the id
    ├── RunNotFoundError
    ├── ClosedError                   the App or Client that was waited on was closed
    ├── WorkerDiedError               workers die, one after the other, under a run
    ├── NotDurableError               a call in a workflow's body that no replay could repeat
    ├── OutsideWorkflowError          a durable call where there is no workflow
    ├── TransactionTooLongError       a transactional activity held the database for too long
    └── TerminalError                 raised by user code: never retried

`code` is stable and meant for programs; the message is for people and may change. The driver's own error is the
`__cause__`, and no message carries a password.
"""

from typing import ClassVar


class PerdureError(Exception):
    """Base of everything perdure raises on purpose."""

    code: ClassVar[str] = "perdure"


class StorageError(PerdureError):
    """The storage layer refused or could not do what was asked."""

    code = "storage"


class ConfigurationError(StorageError):
    """A URL, option or driver that cannot work; nothing was tried on the database."""

    code = "storage.configuration"


class SchemaError(StorageError):
    """The tables are missing, half made, or of another shape than this version needs."""

    code = "storage.schema"


class DatabaseUnavailableError(StorageError):
    """The database could not be reached, or gave no answer in time; nothing was written."""

    code = "storage.unavailable"


class TransactionError(StorageError):
    """A transaction was begun, used or ended out of order."""

    code = "storage.transaction"


class TransactionConflictError(TransactionError):
    """The database gave up the caller's transaction (deadlock, busy); roll it back and run it again."""

    code = "storage.transaction_conflict"


class CommitUnknownError(StorageError):
    """The connection was lost while a commit was under way: read back before doing it again."""

    code = "storage.commit_unknown"


class InstanceNotFoundError(StorageError):
    """No instance has this id."""

    code = "storage.instance_not_found"


class InstanceExistsError(StorageError):
    """An instance with this id is already there."""

    code = "storage.instance_exists"


class WorkflowNotCancellableError(StorageError):
    """The workflow is finished or unknown, so there is nothing to cancel."""

    code = "storage.not_cancellable"


class InvalidTransitionError(StorageError):
    """The instance may not move from its state to the one asked for."""

    code = "storage.invalid_transition"


class LeaseLostError(StorageError):
    """The lease is no longer current; nothing was written. Stop working on this instance."""

    code = "storage.lease_lost"


class HistoryConflictError(StorageError):
    """This activity id is already recorded with a different event."""

    code = "storage.history_conflict"


class ChannelModeConflictError(StorageError):
    """Live subscribers use this channel in another mode."""

    code = "storage.channel_mode_conflict"


class NotSubscribedError(StorageError):
    """The instance is not subscribed to this channel."""

    code = "storage.not_subscribed"


class InvalidJSONPathError(StorageError):
    """A JSON path is one or more identifiers joined by dots."""

    code = "storage.invalid_json_path"


class InvalidPageTokenError(StorageError):
    """The page token was not made by this storage layer."""

    code = "storage.invalid_page_token"


class LimitError(StorageError):
    """A value is longer, larger or of another kind than the storage contract allows."""

    code = "storage.limit"


class EngineError(PerdureError):
    """The engine refused or could not do what was asked."""

    code = "engine"


class NonDeterminismError(EngineError):
    """The workflow's code does not do what its history says; the run waits for code that does."""

    code = "engine.non_determinism"

    def __init__(self, message: str, *, summary: str | None = None) -> None:
        super().__init__(message)
        self.summary = message if summary is None else summary  # without the arguments of a call, fit for a log


class SerializationError(EngineError):
    """A value cannot be written as JSON, or read back as its type hint says."""

    code = "engine.serialization"


class RecordedError(EngineError):
    """An error whose class is not known here, or cannot be rebuilt: its type, message and traceback as text."""

    code = "engine.recorded"

    def __init__(self, message: str, *, error_type: str = "", stack_trace: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.stack_trace = stack_trace


class ActivityError(RecordedError):
    """An activity failed with an error whose class is not known here, or cannot be rebuilt."""

    code = "engine.activity"


class WorkflowFailedError(EngineError):
    """The run that was waited for failed; its error is the `__cause__`."""

    code = "engine.workflow_failed"


class WorkflowCancelledError(EngineError):
    """The run that was waited for was cancelled."""

    code = "engine.workflow_cancelled"


class RunExistsError(EngineError):
    """A run with this id already exists, and is not the one that was to be started."""

    code = "engine.run_exists"


class RunNotFoundError(EngineError):
    """No run has this id."""

    code = "engine.run_not_found"


class ClosedError(EngineError):
    """The App or Client was closed while somebody waited for its answer; runs are not affected."""

    code = "engine.closed"


class WorkerDiedError(EngineError):
    """Several workers in a row died while they executed a run, which made no progress; why it is backed off."""

    code = "engine.worker_died"


class NotDurableError(EngineError):
    """A call in a workflow's body that no replay could repeat; the message names the durable way."""

    code = "engine.not_durable"


class OutsideWorkflowError(EngineError):
    """A durable call where no workflow runs, or from inside an activity."""

    code = "engine.outside_workflow"


class TransactionTooLongError(EngineError):
    """A transactional activity held the database for longer than its limit; it was rolled back."""

    code = "engine.transaction_too_long"


class TerminalError(EngineError):
    """Raise it, or a class of yours derived from it, in an activity: it is not retried."""

    code = "engine.terminal"
