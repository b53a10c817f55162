"""Replaying a recorded history against the code of this process: nothing is executed, nothing is written.

The body of the workflow runs on the replayer alone, without a database and without a worker. Its steps get the recorded
results; what it wants beyond the end of the history is reported and not done.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.digests import REDACTED, SIZE
from perdure.engine.history.failures import with_own_message
from perdure.engine.history.records import (
    AttemptFailed,
    Completed,
    Failed,
    MessageReceived,
    Record,
    RunCancelled,
    RunFailed,
    Started,
    Taken,
    record_of,
)
from perdure.engine.replay.body import Recur
from perdure.engine.replay.commands import Apply, Await, Command, Execute, Pause, SetTimer
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.replay.replayer import Replayer
from perdure.engine.replay.steps import ActivityStep, EffectStep, WaitStep
from perdure.model import names
from perdure.model.matching import match_of
from perdure.testing.history import History, HistoryRow

Outcome = Literal["completed", "failed", "recurred", "open"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay led to; returned by `replay()`.

    - `outcome`: how the body ended (`"completed"`, `"failed"`, `"recurred"`), or `"open"` if it has not.
    - `result`, `error`: what the body returned or raised; `recurs_with`: the new input of a body that recurs.
    - `next`: what an open run does next, in the words of `History.steps`: `["charge", "wait_event shipped"]`.
    """

    outcome: Outcome
    result: Any = None
    error: BaseException | None = None
    recurs_with: Mapping[str, Any] | None = None
    next: list[str] = field(default_factory=list)


def replay(workflow: WorkflowDefinition, history: History) -> Replayed:
    """Replay a recorded history against the code of a workflow, and return what the run would do next, or its outcome.

    Nothing is executed: activities, messages and children have their recorded outcomes. The history may be that of any
    run. Of a failed or cancelled run, the part before the failure or cancellation is replayed: a rollback does not
    depend on the body. If the code goes on where a completed run had ended, the replay is `open` and raises nothing,
    because no worker replays a run that has ended, and a run that has not come so far takes the new path.

    Raises `NonDeterminismError`, with the step and both sides, if the code makes other calls than the history records;
    `SerializationError` if a recorded value does not match the type hints of the code; and `ValueError` if the history
    is that of another workflow.
    """
    if workflow.name != history.workflow:
        raise ValueError(
            f"the history of run {history.run_id!r} is that of workflow {history.workflow!r}, not of {workflow.name!r}"
        )
    replayer = _replayer(workflow, history)
    try:
        for _ in _fed(replayer, history):
            pass
        return _replayed(replayer, replayer.catch_up())
    finally:
        replayer.evict()


def resealed(workflow: WorkflowDefinition, history: History) -> History:
    """Return a redacted history with the digests of the calls that the code makes with the redacted values.

    Raises what `replay` raises.
    """
    replayer = _replayer(workflow, history)
    try:
        fed = {row.id: row for row in _fed(replayer, history)}
        replayer.catch_up()
    finally:
        replayer.evict()
    rows = (fed.get(row.id) or replace(row, redacted=False) for row in history.rows)
    return replace(history, rows=tuple(rows))


def _replayer(workflow: WorkflowDefinition, history: History) -> Replayer:
    given = encode(dict(history.input))
    return Replayer(workflow, history.run_id, given, history.generation, headers=history.headers)


def _fed(replayer: Replayer, history: History) -> Iterator[HistoryRow]:
    """Pass the rows to the body one by one; yield each, completed by what the code knows of redacted values."""
    for row in history.rows:
        record = record_of(row.event(history.run_id))
        if isinstance(record, RunFailed | RunCancelled):
            return
        if isinstance(record, Taken):
            replayer.feed(record)
        elif not row.id.startswith(ids.OWN):
            replayer.pass_held()
            if row.redacted:
                row = _completed(replayer, row, record)
                record = record_of(row.event(history.run_id))
            yield row
            replayer.feed(record)


# Redacted rows.


def _completed(replayer: Replayer, row: HistoryRow, record: Record) -> HistoryRow:
    """Return a redacted row as the code would have made it, from the call that the code waits for."""
    if isinstance(record, MessageReceived):
        wait = replayer.steps.get(record.step)
        if not isinstance(wait, WaitStep) or row.data is None:
            return row
        return replace(row, data=_matching(wait, record), redacted=False)
    if isinstance(record, Failed | AttemptFailed):
        row = replace(row, data=dict(with_own_message(row.data or {})))
    if not isinstance(record, Completed | Failed | AttemptFailed | Started):
        return row
    step = replayer.steps.get(record.step)
    if isinstance(step, ActivityStep | EffectStep) and row.call is not None and row.call.startswith(REDACTED):
        row = replace(row, call=step.call.digest + row.call[SIZE:])
    return replace(row, redacted=False)


def _matching(wait: WaitStep, record: MessageReceived) -> dict[str, Any]:
    """Return the envelope of a redacted message with the values that the code waits for.

    The message was selected by these values, so the original has them. The key by which it was selected is missing only
    if redacted values may be among these.
    """
    envelope = dict(record.envelope or {})
    if ids.name_of(wait.id).startswith(ids.CHILD_END) and "failure" in envelope["data"]:
        return {**envelope, "data": {**envelope["data"], "failure": with_own_message(envelope["data"]["failure"])}}
    if not wait.where:
        return envelope
    key = "data" if "data" in envelope else "payload"
    for path, value in wait.where.items():
        envelope[key] = _with_value(envelope.get(key), path.split("."), value)
    return {"match": match_of(str(record.channel), wait.where).key, **envelope}


def _with_value(document: object, path: list[str], value: object) -> object:
    if not path:
        return value
    known = document if isinstance(document, Mapping) else {}
    return {**known, path[0]: _with_value(known.get(path[0]), path[1:], value)}


# The result.


def _replayed(replayer: Replayer, commands: list[Command]) -> Replayed:
    if not replayer.done:
        return Replayed("open", next=[text for text in map(_label, commands) if text])
    try:
        result, error = replayer.outcome()
    except Recur as recur:
        return Replayed("recurred", recurs_with=json.loads(recur.input_data))
    return Replayed("completed", result) if error is None else Replayed("failed", error=error)


def _label(command: Command) -> str:
    """Return what a command is about, as `History.steps` says it; nothing for commands that are no step."""
    match command:
        case Execute(step) | Pause(step):
            return step.activity.name + (f" (attempt {step.attempt})" if step.attempt > 1 else "")
        case Apply(step):
            return ids.name_of(step.id)
        case SetTimer(step):
            return ids.name_of(step.id)
        case Await(step):
            return _awaited(step)
    return ""


def _awaited(step: WaitStep) -> str:
    name = ids.name_of(step.id)
    if name.startswith(ids.CHILD_END):
        return f"child {name.removeprefix(ids.CHILD_END)}"
    return f"{name} {names.public(step.kind or step.channels[0].partition(':')[0])}"
