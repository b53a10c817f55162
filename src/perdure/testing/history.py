"""Recorded histories as values: read from a database, written to a file, and asked what a run did.

The file is JSON (`FORMAT`, version 1):

| key | value |
|---|---|
| `format`, `version` | `"perdure-history"` and 1 |
| `workflow`, `run_id`, `status` | the name of the workflow, the id of the run and its status |
| `generation` | the id under which the generation before is kept, if the run has recurred; else null |
| `started_at` | when the run, or this generation of it, started |
| `input`, `result` | the arguments by parameter, and the result of a completed run |
| `headers` | the headers of the run |
| `rows` | the rows in order, each with `id`, `type`, `at`, `data`, `call` (the digest of the step's call and the time of the body's loop, as hexadecimal digits), `binary` (a message that is not JSON, as hexadecimal digits) and `redacted` |
| `waits` | what the run waited for when it was read, each with `step`, `channel` and `until` |

Keys of a row whose value is null or false are left out. Readers ignore keys that they don't know. A change that older
readers would misunderstand gets a new version, and `History.load` refuses versions that it does not know.
"""  # noqa: E501 - a table has one line for each row

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from perdure.engine.api.run_info import ErrorInfo
from perdure.engine.api.step_info import StepInfo
from perdure.engine.api.step_reading import steps_of
from perdure.engine.api.values import CANCELLED, error_of
from perdure.engine.history.records import RunCancelled, RunFailed, record_of
from perdure.errors import SerializationError
from perdure.model.headers import none, read
from perdure.model.records import HistoryEvent, RegisteredWait
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.testing.labels import Labels, shown

FORMAT, VERSION = "perdure-history", 1


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row of a recorded history.

    - `id`, `type`: the id of the row, such as `"3:charge#2"`, and its type, such as `"ActivityAttemptFailed"`.
    - `data`: plain JSON values.
    - `call`: the digest of the step's call, and the time since the start of the run; see `engine/history/digests.py`.
    - `binary`: a message that is not JSON.
    - `at`: when it was recorded.
    - `redacted`: values of this row, or values that its call depends on, were replaced: a replay does not compare them.
    """

    id: str
    type: str
    data: Any = None
    call: bytes | None = None
    binary: bytes | None = None
    at: datetime | None = None
    redacted: bool = False

    def event(self, run_id: str) -> HistoryEvent:
        """Return the row as the storage has it."""
        if self.binary is not None:
            return HistoryEvent(run_id, self.id, self.type, None, self.binary, "binary", 0, self.at)
        return HistoryEvent(run_id, self.id, self.type, _dumped(self.data), self.call, "json", 0, self.at)

    @staticmethod
    def of(event: HistoryEvent) -> "HistoryRow":
        """Return a row of the storage."""
        at = event.created_at
        if event.data_type == "binary":
            return HistoryRow(event.activity_id, str(event.event_type), binary=event.event_data_binary, at=at)
        data = json.loads(event.event_data or b"null")
        return HistoryRow(event.activity_id, str(event.event_type), data, event.event_data_binary, at=at)


@dataclass(frozen=True)
class History:
    """The recorded history of a run; returned by `history_of()`, `export_history()` and `History.load()`.

    - `workflow`, `run_id`, `status`: the name of the workflow, the id of the run and its status.
    - `input`, `result`: the arguments by parameter and the result, as plain JSON values.
    - `started_at`, `generation`: when the run started, and the id under which its history before `recur()` is kept.
    - `rows`: the rows in order; `registered`: what a waiting run waited for when it was read.
    - `headers`: the headers of the run.

    Its properties say what the run did, as short texts that can be compared in a test:

        history = await history_of(run)
        assert history.steps == ["reserve", "charge (3 attempts)", "wait_event shipped"]
        assert history.compensations == []
    """

    workflow: str
    run_id: str
    status: WorkflowStatus
    input: Mapping[str, Any]
    rows: tuple[HistoryRow, ...]
    result: Any = None
    started_at: datetime | None = None
    generation: str | None = None
    registered: tuple[RegisteredWait, ...] = ()
    headers: Mapping[str, str] = field(default_factory=none)

    # What the run did.

    @property
    def steps(self) -> list[str]:
        """Return the steps of the body in the order of its code, whatever order concurrent steps completed in.

        A step is the name of the activity or call, what it waited for, and how it ended if it did not just complete:
        `"charge"`, `"charge (3 attempts)"`, `"charge failed: CardError"`, `"timer"`, `"wait_event shipped"`,
        `"wait_event shipped timed out"`, `"receive jobs"`, `"child invoice"`, `"publish"`. A step of a run that has not
        ended may be `"charge (attempt 2)"`, `"wait_event shipped (waiting)"` or `"child invoice (running)"`. Values
        such as `now()` are no steps here.
        """
        return [self._labels.of(step) for step in self._labels.body()]

    @property
    def waits(self) -> list[str]:
        """Return the steps that wait: for a time, an event, a message or a child."""
        return [self._labels.of(step) for step in self._labels.body() if self._labels.is_wait(step)]

    @property
    def compensations(self) -> list[str]:
        """Return the activities and children whose compensations were executed, in the order of their execution.

        A compensation that failed is `"charge failed: BankError"`, after several attempts also
        `"charge (10 attempts) failed: BankError"`.
        """
        return [self._labels.of(step) for step in self._labels.compensations()]

    def attempts(self, name: str) -> int:
        """Return the number of attempts of all steps with this name or id; 0 if there is no such step."""
        return sum(step.attempts for step in self._labels.named(name))

    def step(self, name: str) -> StepInfo:
        """Return the step with this name or id. Raises `LookupError` if there is none, or more than one."""
        found = self._labels.named(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise LookupError(
                f"run {self.run_id!r} has {len(found)} steps {name!r}: use one of the ids "
                f"{', '.join(step.id for step in found[:5])}"
            )
        raise LookupError(f"run {self.run_id!r} has no step {name!r}; its steps are {', '.join(self.steps) or 'none'}")

    @property
    def error(self) -> ErrorInfo | None:
        """Return the error of a failed or cancelled run, also while it is compensated; None for other runs."""
        if self.status not in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED, WorkflowStatus.COMPENSATING):
            return None
        records = [record_of(row.event(self.run_id)) for row in self.rows]
        for record in records:
            if isinstance(record, RunCancelled):
                return ErrorInfo(CANCELLED, record.reason)
        return next((error_of(record.failure) for record in records if isinstance(record, RunFailed)), None)

    def snapshot(self, *, values: bool = False) -> str:
        """Return what the run did as text, for a comparison with a string or a file (`assert_snapshot`).

        It is the same for every run that does the same: it has no times, no run ids, and concurrent steps in the order
        of the code. With `values` it also has the input, the results and the messages of errors (default: False).
        """
        lines = [self._head(values), *self._lines(self._labels.body(), values)]
        if undone := [*self._labels.compensations(), *self._labels.handlers()]:
            lines += ["rollback:", *self._lines(undone, values)]
        return "\n".join(lines) + "\n"

    def _head(self, values: bool) -> str:
        error = "" if self.error is None else f": {self.error.type.rpartition('.')[2]}"
        if not values:
            return f"{self.workflow}: {self.status}{error}"
        given = ", ".join(f"{name}={self._stable(shown(value))}" for name, value in self.input.items())
        end = "" if self.error is None else self._stable(f": {self.error.message}")
        if self.status is WorkflowStatus.COMPLETED:
            end = f" -> {self._stable(shown(self.result))}"
        return f"{self.workflow}({given}): {self.status}{error}{end}"

    def _lines(self, steps: Sequence[StepInfo], values: bool) -> list[str]:
        labels = self._labels
        return [f"  {labels.of(step)}{self._stable(labels.outcome(step)) if values else ''}" for step in steps]

    def _stable(self, text: str) -> str:
        """Return a text without the id of the run, which is often different for every run."""
        return re.sub(rf"(?<!\w){re.escape(self.run_id)}(?!\w)", "<run id>", text)

    @cached_property
    def _labels(self) -> Labels:
        events = [row.event(self.run_id) for row in self.rows]
        return Labels(
            steps_of(self.run_id, events, self.registered, is_ended=self.status in TERMINAL), events, self.registered
        )

    # Files.

    def save(self, path: str | Path) -> None:
        """Write the history to a file, which `History.load` reads; folders that are missing are made."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "History":
        """Read a history from a file. Raises `SerializationError` if it is no history, or one of a later version."""
        try:
            return cls.from_json(json.loads(Path(path).read_text("utf-8")))
        except (ValueError, SerializationError) as error:
            raise SerializationError(f"the file {path} cannot be read as a history: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the history as plain JSON values; see `perdure.testing.history` for their meaning."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "workflow": self.workflow,
            "run_id": self.run_id,
            "status": self.status.value,
            "generation": self.generation,
            "started_at": _moment(self.started_at),
            "input": dict(self.input),
            "result": self.result,
            "headers": dict(self.headers),
            "rows": [_row_json(row) for row in self.rows],
            "waits": [_wait_json(wait) for wait in self.registered],
        }

    @classmethod
    def from_json(cls, data: object) -> "History":
        """Return the history that `to_json` wrote. Raises `SerializationError` for anything else."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise SerializationError(f"it lacks the format {FORMAT!r}: write histories with export_history()")
        if data.get("version") != VERSION:
            raise SerializationError(
                f"it has version {data.get('version')!r} of the format, and this version of perdure knows {VERSION}: "
                "read it with the version of perdure that wrote it, or a later one"
            )
        try:
            return cls(
                data["workflow"],
                data["run_id"],
                WorkflowStatus(data["status"]),
                dict(data["input"]),
                tuple(_row_from(row) for row in data["rows"]),
                data.get("result"),
                _moment_from(data.get("started_at")),
                data.get("generation"),
                tuple(_wait_from(data["run_id"], wait) for wait in data.get("waits", ())),
                read(data.get("headers")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SerializationError(f"a part of it is missing or damaged: {error!r}") from error


def _row_json(row: HistoryRow) -> dict[str, Any]:
    whole = {
        "id": row.id,
        "type": row.type,
        "at": _moment(row.at),
        "data": row.data,
        "call": None if row.call is None else row.call.hex(),
        "binary": None if row.binary is None else row.binary.hex(),
        "redacted": row.redacted,
    }
    return {
        name: value for name, value in whole.items() if name == "data" or (value is not None and value is not False)
    }


def _row_from(data: Mapping[str, Any]) -> HistoryRow:
    call, binary = (None if data.get(name) is None else bytes.fromhex(data[name]) for name in ("call", "binary"))
    at, redacted = _moment_from(data.get("at")), bool(data.get("redacted"))
    return HistoryRow(data["id"], data["type"], data.get("data"), call, binary, at, redacted)


def _wait_json(wait: RegisteredWait) -> dict[str, Any]:
    return {"step": wait.activity_id, "channel": wait.channel, "until": _moment(wait.until)}


def _wait_from(run_id: str, data: Mapping[str, Any]) -> RegisteredWait:
    return RegisteredWait(run_id, data["step"], data.get("channel"), _moment_from(data.get("until")))


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _moment_from(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _dumped(data: Any) -> bytes | None:
    return None if data is None else json.dumps(data).encode()
