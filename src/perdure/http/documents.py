"""The JSON of requests and responses. The classes are also what the OpenAPI description is made of.

Values of workflows are encoded by their type hints, as they are stored; see `perdure.engine.history.codec`.
"""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from perdure.engine.api.queries import ANY_WAIT, RunPage
from perdure.engine.api.run_info import ErrorInfo, RunInfo, WaitKind
from perdure.engine.api.step_info import HistoryEntry, StepInfo, StepKind, StepStatus
from perdure.engine.history.codec import encode
from perdure.engine.replay.definitions import ACTIVITIES, COMPENSATIONS, WORKFLOWS
from perdure.engine.worker.supervision import Health
from perdure.errors import InvalidPageTokenError, SerializationError
from perdure.model.envelopes import Unreadable
from perdure.model.limits import INSTANCE_ID_MAX, NAME_MAX
from perdure.model.states import TERMINAL, WorkflowStatus

RunId = Annotated[str, Meta(min_length=1, max_length=INSTANCE_ID_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Seconds = Annotated[float, Meta(ge=0)]
Moment = Annotated[datetime, Meta(tz=True)]
STATUSES = [*(each.value for each in WorkflowStatus), ANY_WAIT]  # that runs are listed by

# Requests.


class StartRequestBody(Struct, forbid_unknown_fields=True):
    """A run to be started: its arguments by parameter name, and the options of `Workflow.options`."""

    input: dict[str, Raw] = {}
    id: RunId | None = None
    at: Moment | None = None
    after: Seconds | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    if_exists: Literal["return", "error"] = "return"
    headers: dict[str, str] = {}


class Cancellation(Struct, forbid_unknown_fields=True):
    """A request to cancel a run, with the reason."""

    reason: Annotated[str, Meta(max_length=10_000)] = ""


class RetryRequest(Struct, forbid_unknown_fields=True):
    """A request to start a failed or cancelled run again, optionally from a step."""

    from_step: Name | None = None


class MessageBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message on a channel."""

    data: Any
    metadata: dict[str, Any] | None = None


class DirectMessage(MessageBody, forbid_unknown_fields=True, kw_only=True):
    """A message on a channel, to one run."""

    channel: Name


class EventBody(Struct, forbid_unknown_fields=True):
    """An event; see `perdure.send_event`."""

    type: Name
    data: Any = None
    to: Name | None = None
    source: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    id: Name | None = None
    subject: str | None = None
    headers: dict[str, str] = {}


# Responses.


class ErrorDocument(Struct, kw_only=True):
    """An error of a run or step. The traceback is left out of results and lists."""

    type: str
    message: str
    traceback: str | UnsetType = UNSET


class StuckDocument(Struct):
    """Why a run is stuck, since when, and when it is retried next."""

    reason: str
    since: Moment
    next_retry_at: Moment | None


class WaitDocument(Struct):
    """Something that a run waits for."""

    kind: WaitKind
    name: str
    until: Moment | None


class RunDocument(Struct):
    """A run; see `perdure.RunInfo`. `state` and `children` are null in lists."""

    id: str
    workflow: str
    status: WorkflowStatus
    input: dict[str, Any]
    result: Any
    error: ErrorDocument | None
    state: Any
    started_at: Moment
    updated_at: Moment
    finished_at: Moment | None
    deadline: Moment | None
    parent: str | None
    children: list[str] | None
    previous: str | None
    waiting_for: list[WaitDocument]
    worker: str | None
    lease_expires_at: Moment | None
    attempts: int
    stuck: StuckDocument | None
    headers: dict[str, str]


class RunPageDocument(Struct):
    """A page of runs. Pass `next_token` as `token` for the next page; it is null on the last one."""

    runs: list[RunDocument]
    next_token: str | None


class StartedDocument(Struct):
    """The id of a run that is stored."""

    id: str


class OutcomeDocument(Struct):
    """How a run ended, or its status if it has not ended: `result` of a completed run, `error` of another one."""

    id: str
    status: WorkflowStatus
    ended: bool
    result: Any = UNSET
    error: ErrorDocument | UnsetType = UNSET


class StepDocument(Struct):
    """A step of a run; see `perdure.StepInfo`."""

    id: str
    name: str
    kind: StepKind
    status: StepStatus
    attempts: int
    input: dict[str, Any] | None
    result: Any
    error: ErrorDocument | None
    started_at: Moment | None
    finished_at: Moment | None
    child: str | None = None


class StepsDocument(Struct):
    """The steps of a run that its history records."""

    steps: list[StepDocument]


class StateDocument(Struct):
    """The value that a run last passed to `set_state()`."""

    state: Any


class HistoryEntryDocument(Struct):
    """An entry of a run's history. Bytes are in base64."""

    id: int
    step: str
    kind: str
    at: Moment | None
    data: Any


class HistoryDocument(Struct):
    """A page of a run's history. Pass `next_after` as `after` for the next page; it is null on the last one."""

    entries: list[HistoryEntryDocument]
    next_after: int | None


class WorkflowDocument(Struct):
    """A workflow that is defined in the process of the server."""

    name: str
    cron: str | None
    on_event: str | None


class WorkflowsDocument(Struct):
    """The workflows that can be started here."""

    workflows: list[WorkflowDocument]


class StoredDocument(Struct):
    """The number of messages or events that are accepted, with duplicates, which were stored before.

    Those to a run that has ended are dropped.
    """

    stored: int


class TaskDocument(Struct):
    """The health of a background task; see `perdure.TaskHealth`."""

    name: str
    alive: bool
    restarts: int
    failures: int
    broker: Literal["available", "unavailable", "refused"] | None


class HealthDocument(Struct):
    """Whether the server can serve requests; see `perdure.Health`."""

    ok: bool
    database: bool
    migrations: bool
    oldest_due_sec: float | None
    tasks: list[TaskDocument]


def run_document(run: RunInfo, *, traces: bool = True) -> RunDocument:
    """Return the JSON of a run."""
    given = {field.name: getattr(run, field.name) for field in fields(run)}
    given["input"] = _arguments(WORKFLOWS.get(run.workflow), run.input)
    given["result"] = _result(run.workflow, run.result)
    given["error"] = error_document(run.error, traces=traces)
    given["state"] = _raw(run.state)
    given["children"] = None if run.children is None else list(run.children)
    given["waiting_for"] = [WaitDocument(each.kind, each.name, each.until) for each in run.waiting_for]
    given["headers"] = dict(run.headers)
    if run.stuck is not None:
        given["stuck"] = StuckDocument(run.stuck.reason, run.stuck.since, run.stuck.next_retry_at)
    return RunDocument(**given)


def page_document(page: RunPage) -> RunPageDocument:
    """Return the JSON of a page of runs."""
    token = page.next_token
    return RunPageDocument([run_document(run, traces=False) for run in page.runs], token and sealed_token(token))


def sealed_token(token: str) -> str:
    """Return the token of a page as letters, digits, `-` and `_`, so that it can be put into a URL as it is."""
    return urlsafe_b64encode(token.encode()).decode().rstrip("=")


def opened_token(given: str) -> str:
    """Return the token of a page that `sealed_token` encoded; raise `InvalidPageTokenError` for anything else."""
    try:
        return b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise InvalidPageTokenError("the page token is invalid: pass next_token of the last page unchanged") from None


def outcome_document(run: RunInfo) -> OutcomeDocument:
    """Return how a run ended, or that it has not; raise `CodecError` if its result cannot be decoded."""
    document = OutcomeDocument(run.id, run.status, run.status in TERMINAL)
    if run.status is WorkflowStatus.COMPLETED:
        document.result = _result(run.workflow, readable(run.result, f"the result of run {run.id!r}"))
    elif document.ended and (error := error_document(run.error, traces=False)) is not None:
        document.error = error
    return document


def step_document(step: StepInfo) -> StepDocument:
    """Return the JSON of a step."""
    given = {field.name: getattr(step, field.name) for field in fields(step)}
    if step.kind is StepKind.CHILD:
        defined: Any = WORKFLOWS.get(step.name)
    else:
        defined = ACTIVITIES.get(step.name) or COMPENSATIONS.get(step.name)
    given["input"] = None if step.input is None else _arguments(defined, step.input)
    given["result"] = _raw(step.result, Any if defined is None else defined.signature.hints["return"])
    given["error"] = error_document(step.error, traces=True)
    return StepDocument(**given)


def entry_document(entry: HistoryEntry) -> HistoryEntryDocument:
    """Return the JSON of an entry of a history."""
    return HistoryEntryDocument(entry.id, entry.step, entry.kind, entry.at, _raw(entry.data))


def health_document(health: Health) -> HealthDocument:
    """Return the JSON of a health report, without the texts of errors, because anyone may read it."""
    tasks = [TaskDocument(each.name, each.alive, each.restarts, each.failures, each.broker) for each in health.tasks]
    return HealthDocument(health.ok, health.database, health.migrations, health.oldest_due_sec, tasks)


def error_document(error: ErrorInfo | None, *, traces: bool) -> ErrorDocument | None:
    """Return the JSON of an error, with its traceback if `traces`."""
    if error is None:
        return None
    return ErrorDocument(type=error.type, message=error.message, traceback=error.traceback if traces else UNSET)


def readable(value: object, what: str) -> object:
    """Return a value that is all that a request asks for; raise `CodecError`, naming it `what`, if it is unreadable."""
    if isinstance(value, Unreadable):
        raise value.error(what)
    return value


def _arguments(defined: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    hints: Mapping[str, Any] = {} if defined is None else defined.signature.hints
    return {name: _raw(value, hints.get(name, Any)) for name, value in given.items()}


def _result(workflow: str, value: object) -> Raw:
    defined = WORKFLOWS.get(workflow)
    return _raw(value, Any if defined is None else defined.signature.hints["return"])


def _raw(value: object, hint: Any = Any) -> Raw:
    """Return a value as JSON by its hint; values of another version of the code have the form of JSON itself."""
    try:
        return Raw(encode(value, hint))
    except SerializationError:
        return Raw(encode(value))
