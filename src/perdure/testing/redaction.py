"""Redacting the values of a history, so that it can leave production and still be replayed.

A replay compares the digest of each call with the recorded one. With other values the code computes other arguments, so
the digests of calls that depend on a redacted value no longer hold. If the workflow is defined in this process, the
calls of its code give new ones. Otherwise they are marked as redacted, and a replay compares only the steps there, not
their arguments.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from perdure.engine.api.step_reading import is_call
from perdure.engine.history import ids
from perdure.engine.history.digests import REDACTED, SIZE
from perdure.engine.history.records import (
    STATE,
    VALUES,
    AttemptFailed,
    Compensated,
    Completed,
    Failed,
    MessageReceived,
    Record,
    RunCancelled,
    RunFailed,
    Started,
    record_of,
)
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.errors import NonDeterminismError, PerdureError, SerializationError
from perdure.model.headers import read
from perdure.testing.history import History, HistoryRow
from perdure.testing.replaying import replay, resealed

Scalar = str | int | float | bool | None
Redact = Callable[[str, Scalar], Scalar]

REPLAYED = (Completed, Failed, AttemptFailed, Started, MessageReceived)  # a replay compares or decodes their values
SEEN = (Completed, Failed, MessageReceived)  # the body sees their values, so its later calls may depend on these


def redacted(history: History, redact: Redact, workflow: WorkflowDefinition | None) -> History:
    """Return a history whose values went through `redact`; see `export_history`."""
    changed = _replaced(history, redact)
    if workflow is None or not _replays(workflow, history):
        return changed
    try:
        return resealed(workflow, changed)
    except (NonDeterminismError, SerializationError) as error:
        raise SerializationError(
            f"the redacted history of run {history.run_id!r} cannot be replayed, because redact= changed a value that "
            f"the code of workflow {workflow.name!r} decides on or decodes: let redact= return a value of the same "
            f"type that leads to the same steps, and equal values for equal ones ({error})"
        ) from error


def _replays(workflow: WorkflowDefinition, history: History) -> bool:
    """Return whether the code of this process is that of the run, so that it can make the digests again."""
    try:
        replay(workflow, history)
    except PerdureError:
        return False
    return True


def _replaced(history: History, redact: Redact) -> History:
    """Return the history with all values replaced, and marks on the rows that these may influence."""
    given = _mapped("input", dict(history.input), redact)
    headers = read(_mapped("headers", dict(history.headers), redact))
    tainted = given != history.input or headers != history.headers
    rows = []
    for row in history.rows:
        record = record_of(row.event(history.run_id))
        data = _redacted(row, record, redact)
        binary = None if row.binary is None else b""
        changed = _known(data) != _known(row.data) or binary != row.binary
        rows.append(_marked(replace(row, data=data, binary=binary), record, tainted, changed))
        tainted = tainted or (changed and isinstance(record, SEEN))
    result = _mapped("result", history.result, redact)
    return replace(history, input=given, rows=tuple(rows), result=result, headers=headers)


def _known(data: Any) -> Any:
    """Return the data of a row without a stack trace, which no code decides on."""
    return {**data, "stack_trace": ""} if isinstance(data, Mapping) else data


def _marked(row: HistoryRow, record: Record, tainted: bool, changed: bool) -> HistoryRow:
    """Mark a row that does not record what the code would make of the redacted values before it."""
    if tainted and row.call is not None:
        row = replace(row, call=REDACTED + row.call[SIZE:])
    if tainted and isinstance(record, MessageReceived) and row.data is not None:
        row = replace(row, data={name: value for name, value in row.data.items() if name != "match"})
    return replace(row, redacted=isinstance(record, REPLAYED) and (tainted or changed))


# Which parts of a row are values.


def _redacted(row: HistoryRow, record: Record, redact: Redact) -> Any:
    """Return the data of a row with its values replaced; what the engine itself reads stays as it is."""
    if row.data is None:
        return None
    match record:
        case Completed(step) if is_call(ids.name_of(step)):
            return row.data  # the id of a run, or the name of a channel
        case Completed() | Started():
            return _mapped(row.id, row.data, redact)
        case Failed() | AttemptFailed() | RunFailed() | Compensated():
            return _failure(row.id, row.data, redact)
        case MessageReceived():
            return _message(row, record, redact)
        case RunCancelled():
            return _parts(row.id, row.data, ("reason",), redact)
    if row.type in (STATE, VALUES):
        return _parts("state", row.data, ("state",), redact)
    return row.data


def _message(row: HistoryRow, record: MessageReceived, redact: Redact) -> dict[str, Any]:
    whole = _parts(row.id, row.data, ("data", "payload", "metadata"), redact)
    if not ids.name_of(record.step).startswith(ids.CHILD_END):
        return whole
    end = row.data["data"]  # how a child ended, which the engine reads
    end = _parts(row.id, end, ("output", "reason"), redact)
    if "failure" in end:
        end["failure"] = _failure(row.id, end["failure"], redact)
    return {**row.data, "data": end}


def _failure(where: str, failure: Any, redact: Redact) -> dict[str, Any]:
    """Return a recorded error with other values. A message that is one of the arguments is replaced in the same way."""
    changed = _parts(where, failure, ("error_message", "error", "args", "attributes", "summary"), redact)
    if "stack_trace" in changed:
        changed["stack_trace"] = ""
    args = failure.get("args")
    if isinstance(args, list) and failure.get("error_message") in args:
        changed["error_message"] = changed["args"][args.index(failure["error_message"])]
    return changed


def _parts(where: str, data: Mapping[str, Any], names: tuple[str, ...], redact: Redact) -> dict[str, Any]:
    """Return an object with the parts of these names replaced, and the others as they are."""
    return {
        name: _mapped(where if name in ("data", "state") else f"{where}.{name}", value, redact)
        if name in names
        else value
        for name, value in data.items()
    }


def _mapped(where: str, value: Any, redact: Redact) -> Any:
    """Return a JSON value with every string, number and boolean in it replaced."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {name: _mapped(f"{where}.{name}", part, redact) for name, part in value.items()}
    if isinstance(value, list):
        return [_mapped(f"{where}.{place}", part, redact) for place, part in enumerate(value)]
    found = redact(where, value)
    if not (found is None or isinstance(found, str | int | float)):
        raise TypeError(f"redact({where!r}, …) must return a string, a number, a boolean or None, not {found!r}")
    return found
