"""The records of a history: one class for each kind of row, with its encoding and parsing.

`row_of` makes the row of a record, and `record_of` the record of a row. Nothing else in the engine knows how a row
looks. Rows of earlier versions are read like those of today; any other row is a `ForeignRecord`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.messages import Message, message_from
from perdure.model.blank import blank
from perdure.model.envelopes import KEY, MARK, Unreadable, check_readable, unreadable
from perdure.model.records import HistoryEvent, HistoryEventType

# Types of rows that only perdure writes; `HistoryEventType` has those that compatible frameworks know.
STARTED = "ActivityStarted"
ATTEMPT_FAILED = "ActivityAttemptFailed"
VALUES, STATE = "Values", "State"
DEADLINE = "Deadline"
UNTIL = "Until"
PARENT = "Parent"

NO_RESULT = b'{"result": null}'

Json = Mapping[str, Any]

TIMED_OUT: Json = {"error_type": "TimeoutError"}


class Record:
    """What one row records. `call` is the digest of a step's call with the time of the body's loop."""

    __slots__ = ()

    kind: str  # the type of the row
    call: bytes | None

    @property
    def row_id(self) -> str:
        """Return the id of the row."""
        raise NotImplementedError

    def data(self) -> bytes | None:
        """Return the JSON of the row."""
        return NO_RESULT


class RunRecord(Record):
    """A record that belongs to the run and not to a step."""

    __slots__ = ()

    call = None


# Steps.


@dataclass(slots=True)  # not frozen, because nearly every step makes one, which would take four times as long
class Completed(Record):
    """The result of an activity, or of another call that is a step."""

    kind = HistoryEventType.ACTIVITY_COMPLETED
    step: str
    result: bytes = b"null"
    call: bytes | None = None
    decoded: tuple[object] | None = field(default=None, compare=False)  # the result, if it was decoded before

    @property
    def row_id(self) -> str:
        """Return the id of the step."""
        return self.step

    def data(self) -> bytes:
        """Return the result."""
        return self.result


@dataclass(frozen=True, slots=True)
class Failed(Record):
    """The error of an activity after its last attempt, or of another call that is a step."""

    kind = HistoryEventType.ACTIVITY_FAILED
    step: str
    failure: Json
    call: bytes | None = None

    @property
    def row_id(self) -> str:
        """Return the id of the step."""
        return self.step

    def data(self) -> bytes:
        """Return the error."""
        return encode(self.failure)


@dataclass(frozen=True, slots=True)
class Started(Record):
    """The start of an activity with a compensation, and its arguments, which the compensation needs."""

    kind = STARTED
    step: str
    arguments: bytes
    call: bytes | None = None

    @property
    def row_id(self) -> str:
        """Return the id of the step's start."""
        return ids.start_of(self.step)

    def data(self) -> bytes:
        """Return the arguments."""
        return self.arguments


@dataclass(frozen=True, slots=True)
class AttemptFailed(Record):
    """The error of an attempt that another one follows, after a pause that a timer in the database keeps.

    `pause_sec` is 0 if the pause is too short for that. A rollback does not record its pauses (None).
    """

    kind = ATTEMPT_FAILED
    step: str
    attempt: int
    failure: Json
    pause_sec: float | None = None
    call: bytes | None = None

    @property
    def row_id(self) -> str:
        """Return the id of the attempt."""
        return ids.attempt_of(self.step, self.attempt)

    def data(self) -> bytes:
        """Return the error, the number of the attempt and the pause."""
        if self.pause_sec is None:
            return encode(self.failure)
        return encode({**self.failure, "attempt": self.attempt, "pause_sec": self.pause_sec})


@dataclass(frozen=True, slots=True)
class PauseEnded(RunRecord):
    """The end of the pause after a failed attempt."""

    kind = HistoryEventType.TIMER_EXPIRED
    step: str
    attempt: int

    @property
    def row_id(self) -> str:
        """Return the id of the pause."""
        return ids.pause_after(self.step, self.attempt)


@dataclass(frozen=True, slots=True)
class TimerFired(RunRecord):
    """A timer of the body fired."""

    kind = HistoryEventType.TIMER_EXPIRED
    step: str

    @property
    def row_id(self) -> str:
        """Return the id of the step."""
        return self.step


@dataclass(frozen=True, slots=True)
class MessageReceived(RunRecord):
    """A message or event for a wait: the envelope that the storage recorded, or bytes that are not JSON."""

    kind = HistoryEventType.CHANNEL_MESSAGE_RECEIVED
    step: str
    envelope: Json | None
    binary: bytes | None = None
    round: int = 1
    place: int = 0

    @property
    def row_id(self) -> str:
        """Return the id of the message."""
        return ids.message_of(self.step, self.round, self.place)

    def data(self) -> bytes | None:
        """Return the envelope."""
        return None if self.envelope is None else encode(dict(self.envelope))

    @property
    def channel(self) -> str | None:
        """Return the channel on which it came, or None if the row does not say."""
        found = None if self.envelope is None else self.envelope.get("channel") or self.envelope.get("channel_name")
        return found if isinstance(found, str) else None

    @property
    def match(self) -> str | None:
        """Return the key of the `where` that selected it; None if there was none, and in rows of earlier versions."""
        return None if self.envelope is None else self.envelope.get("match")

    def message(self, channel: str) -> Message[Any]:
        """Return the message, as one of `channel`."""
        return Message(channel, self.binary) if self.envelope is None else message_from(self.envelope, channel)


@dataclass(frozen=True, slots=True)
class WaitTimedOut(RunRecord):
    """No message came in time. `failure` is the error as the storage recorded it."""

    kind = HistoryEventType.MESSAGE_TIMEOUT
    step: str
    round: int = 1
    place: int = 0
    failure: Json = field(default_factory=lambda: TIMED_OUT)

    @property
    def row_id(self) -> str:
        """Return the id that the message would have."""
        return ids.message_of(self.step, self.round, self.place)

    def data(self) -> bytes:
        """Return the error."""
        return encode(dict(self.failure))

    @property
    def channel(self) -> str | None:
        """Return the channel on which no message came, or None if the row does not say."""
        found = self.failure.get("channel")
        return found if isinstance(found, str) else None


# The body, between its steps.


@dataclass(frozen=True, slots=True)
class Taken(RunRecord):
    """What the body took since the last record: values by their paths, and the state that it set last, as JSON.

    `at` is unique in the history. With `numbered`, `set_state()` was a step with a path of its own, as it was in
    earlier versions.
    """

    at: str
    values: Json
    state: bytes | None = None
    numbered: bool = False

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Return the type of the row, by which the last state is found."""
        return VALUES if self.state is None else STATE

    @property
    def row_id(self) -> str:
        """Return an id that no step has."""
        return ids.OWN + self.at

    def data(self) -> bytes:
        """Return the values and the state."""
        text = b'{"values": ' + encode(self.values)
        if self.state is not None:
            numbered = b"true" if self.numbered else b"false"
            text += b', "numbered": ' + numbered + b', "state": ' + self.state
        return text + b"}"


# The run.


@dataclass(frozen=True, slots=True)
class Deadline(RunRecord):
    """The timeout of the run, which counts from the time of the row."""

    kind = DEADLINE
    timeout: timedelta
    recorded_at: datetime | None = field(default=None, compare=False)

    @property
    def row_id(self) -> str:
        """Return the id that only this row of a run has."""
        return ids.DEADLINE

    def data(self) -> bytes:
        """Return the timeout."""
        return encode({"timeout_sec": self.timeout.total_seconds()})

    @property
    def ends_at(self) -> datetime | None:
        """Return when the run is cancelled; None while the row is not stored."""
        return None if self.recorded_at is None else self.recorded_at + self.timeout


@dataclass(frozen=True, slots=True)
class Expired(RunRecord):
    """The timeout of the run passed while it waited."""

    kind = HistoryEventType.TIMER_EXPIRED

    @property
    def row_id(self) -> str:
        """Return the id that only this row of a run has."""
        return ids.EXPIRED


@dataclass(frozen=True, slots=True)
class Until(RunRecord):
    """When the timeout of a wait ends that began while the run kept its lease."""

    kind = UNTIL
    step: str
    at: datetime

    @property
    def row_id(self) -> str:
        """Return an id that belongs to the wait."""
        return ids.until_of(self.step)

    def data(self) -> bytes:
        """Return the time."""
        return encode({"at": self.at.isoformat()})


@dataclass(frozen=True, slots=True)
class Parent(RunRecord):
    """The run that waits for this one, and the name of the channel on which it hears of its end."""

    kind = PARENT
    run_id: str
    channel: str

    @property
    def row_id(self) -> str:
        """Return the id that only this row of a run has."""
        return ids.PARENT

    def data(self) -> bytes:
        """Return the id and the channel."""
        return encode({"instance_id": self.run_id, "channel": self.channel})


@dataclass(frozen=True, slots=True)
class Compensated(RunRecord):
    """The outcome of a compensation: of the step `step`, stored as the compensation `compensation_id`.

    `failure` is the error after its last attempt, or None.
    """

    step: str
    activity: str
    compensation_id: int | None = None
    failure: Json | None = None

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Return the type of the row."""
        failed = self.failure is not None
        return HistoryEventType.COMPENSATION_FAILED if failed else HistoryEventType.COMPENSATION_EXECUTED

    @property
    def row_id(self) -> str:
        """Return an id that belongs to the compensation."""
        return ids.undo_of(self.step if self.compensation_id is None else self.compensation_id)

    def data(self) -> bytes:
        """Return the step, the activity and the error."""
        about = {
            "compensation_id": self.compensation_id,
            "activity_id": self.step,
            "activity_name": self.activity,
        }
        if self.failure is None:
            return encode(about)
        return encode({**about, **self.failure, "error": self.failure.get("error_message", "")})


@dataclass(frozen=True, slots=True)
class RunFailed(RunRecord):
    """The run failed with this error; it may have to be compensated first."""

    kind = HistoryEventType.WORKFLOW_FAILED
    failure: Json

    @property
    def row_id(self) -> str:
        """Return the id that only this row of a run has."""
        return ids.RUN_FAILED

    def data(self) -> bytes:
        """Return the error."""
        return encode(self.failure)


@dataclass(frozen=True, slots=True)
class RunCancelled(RunRecord):
    """The run was cancelled for a reason."""

    kind = HistoryEventType.WORKFLOW_CANCELLED
    reason: str

    @property
    def row_id(self) -> str:
        """Return the id that only this row of a run has."""
        return ids.RUN_CANCELLED

    def data(self) -> bytes:
        """Return the reason."""
        return encode({"reason": self.reason})


@dataclass(frozen=True, slots=True)
class ForeignRecord(RunRecord):
    """A row that is none of the above: of another framework, or of a later version of perdure."""

    row: HistoryEvent

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Return the type of the row."""
        return self.row.event_type

    @property
    def row_id(self) -> str:
        """Return the id of the row."""
        return self.row.activity_id

    def data(self) -> bytes | None:
        """Return the data of the row."""
        return self.row.event_data


# Encoding and parsing.


_blank_row = blank(HistoryEvent)
_blank_completed = blank(Completed)


def row_of(run_id: str, record: Record) -> HistoryEvent:
    """Return the row that records `record` in the history of a run."""
    if type(record) is Completed:  # nearly every row
        row = _blank_row()
        row.instance_id, row.activity_id, row.event_type = run_id, record.step, record.kind
        row.event_data, row.event_data_binary, row.data_type = record.result, record.call, "json"
        row.id, row.created_at = 0, None
        row.__class__ = HistoryEvent
        return row  # type: ignore[no-any-return]
    if isinstance(record, ForeignRecord):
        return record.row
    if isinstance(record, MessageReceived) and record.envelope is None:
        return HistoryEvent(run_id, record.row_id, record.kind, None, record.binary, "binary")
    return HistoryEvent(run_id, record.row_id, record.kind, record.data(), record.call)


def record_of(row: HistoryEvent) -> Record:
    """Return what a row records."""
    if row.event_type == Completed.kind:  # nearly every row
        return _completed(row)
    parse = _PARSERS.get(row.event_type)
    try:
        return ForeignRecord(row) if parse is None else parse(row)
    except (ValueError, KeyError, TypeError, AttributeError):  # with such a name, but of another framework
        return ForeignRecord(row)


def completed_of(row: HistoryEvent) -> Completed | None:
    """Return the result of a step that a row records; None for a row to which that does not apply, or not at once."""
    data = row.event_data
    if row.event_type != Completed.kind or row.activity_id[:1] == ids.OWN or (data and data.startswith(MARK)):
        return None
    return _completed(row)


def check_row(row: HistoryEvent) -> None:
    """Raise `CodecError` if a row has a value that is encoded, because it was not decoded when it was read."""
    data = row.event_data
    if data is not None and data.startswith(MARK):
        check_readable(data, f"the row {row.activity_id!r} of run {row.instance_id!r}")
    elif row.event_type == MessageReceived.kind and (hidden := hidden_in(row)) is not None:
        raise hidden.error(f"the message {row.activity_id!r} of run {row.instance_id!r}")


def hidden_in(row: HistoryEvent) -> Unreadable | None:
    """Return what stands for the data of a received message that could not be decoded; None if it could be."""
    if row.data_type == "binary":
        return unreadable(row.event_data_binary)
    if row.event_data is None or MARK not in row.event_data:
        return None
    fields = msgspec.json.decode(row.event_data, type=dict[str, msgspec.Raw])
    found = (unreadable(bytes(fields[name])) for name in ("data", "payload", "metadata") if name in fields)
    return next(filter(None, found), None)


def _json(row: HistoryEvent) -> Any:
    return json.loads(row.event_data or b"null")


def _call(row: HistoryEvent) -> bytes | None:
    return row.event_data_binary if row.data_type == "json" else None


def _completed(row: HistoryEvent) -> Completed:
    record = _blank_completed()
    record.step, record.result, record.decoded = row.activity_id, row.event_data or b"null", None
    record.call = row.event_data_binary if row.data_type == "json" else None
    record.__class__ = Completed
    return record  # type: ignore[no-any-return]


def _failed(row: HistoryEvent) -> Record:
    return Failed(row.activity_id, dict(_json(row) or {}), _call(row))


def _started(row: HistoryEvent) -> Record:
    return Started(row.activity_id.removesuffix("!"), row.event_data or b"{}", _call(row))


def _attempt_failed(row: HistoryEvent) -> Record:
    step, attempt = ids.split_attempt(row.activity_id)
    failure = dict(_json(row))
    failure.pop("attempt", None)
    return AttemptFailed(step, attempt, failure, failure.pop("pause_sec", None), _call(row))


def _timer(row: HistoryEvent) -> Record:
    if row.activity_id == ids.EXPIRED:
        return Expired()
    pause = ids.split_pause(row.activity_id)
    return TimerFired(row.activity_id) if pause is None else PauseEnded(*pause)


def _message(row: HistoryEvent) -> Record:
    step, round, place = ids.split_message(row.activity_id)
    if row.data_type == "binary":
        return MessageReceived(step, None, row.event_data_binary, round, place)
    return MessageReceived(step, dict(_json(row) or {}), None, round, place)


def _timed_out(row: HistoryEvent) -> Record:
    return WaitTimedOut(*ids.split_message(row.activity_id), dict(_json(row) or TIMED_OUT))


def _taken(row: HistoryEvent) -> Record:
    about = _json(row)
    at = row.activity_id.removeprefix(ids.OWN)
    if row.event_type == VALUES:
        return Taken(at, about["values"])
    return Taken(at, about["values"], encode(about["state"]), about.get("numbered", True))


def _deadline(row: HistoryEvent) -> Record:
    return Deadline(timedelta(seconds=_json(row)["timeout_sec"]), row.created_at)


def _until(row: HistoryEvent) -> Record:
    return Until(row.activity_id.removeprefix(ids.UNTIL), datetime.fromisoformat(_json(row)["at"]))


def _parent(row: HistoryEvent) -> Record:
    about = _json(row)
    return Parent(about["instance_id"], about["channel"])


def _compensated(row: HistoryEvent) -> Record:
    about = dict(_json(row))
    if KEY in about:  # it could not be decoded
        return ForeignRecord(row)
    found = [about.pop(name, None) for name in ("activity_id", "activity_name", "compensation_id")]
    about.pop("error", None)
    failed = row.event_type == HistoryEventType.COMPENSATION_FAILED
    return Compensated(str(found[0]), str(found[1]), found[2], about if failed else None)


def _run_failed(row: HistoryEvent) -> Record:
    return RunFailed(dict(_json(row) or {}))


def _run_cancelled(row: HistoryEvent) -> Record:
    return RunCancelled(str((_json(row) or {}).get("reason") or ""))


_PARSERS: dict[str, Callable[[HistoryEvent], Record]] = {
    Failed.kind: _failed,
    Started.kind: _started,
    AttemptFailed.kind: _attempt_failed,
    TimerFired.kind: _timer,
    MessageReceived.kind: _message,
    HistoryEventType.EVENT_RECEIVED: _message,
    WaitTimedOut.kind: _timed_out,
    VALUES: _taken,
    STATE: _taken,
    DEADLINE: _deadline,
    UNTIL: _until,
    PARENT: _parent,
    HistoryEventType.COMPENSATION_EXECUTED: _compensated,
    HistoryEventType.COMPENSATION_FAILED: _compensated,
    RunFailed.kind: _run_failed,
    RunCancelled.kind: _run_cancelled,
}
