"""What is stored to compensate a step later, and the functions of this process that can do it."""

import json
from typing import Any, get_args

from perdure.engine.history.codec import encode
from perdure.engine.replay.definitions import COMPENSATIONS, UNDOABLE_WORKFLOWS, ActivityDefinition
from perdure.errors import EngineError
from perdure.model.limits import PAYLOAD_MAX
from perdure.model.records import CompensationEntry

RECORDED = "recorded"  # replaces an input and a result that are too large together; the history has both


def compensation_of(run_id: str, step: str, name: str, given: bytes, result: bytes) -> CompensationEntry:
    """Return the compensation to store with the result of an activity; see `RECORDED`."""
    args = b'{"input": ' + given + b', "result": ' + result + b"}"
    if len(args) > PAYLOAD_MAX:
        args = encode({RECORDED: True})
    return CompensationEntry(run_id, step, name, args)


def registered_activity(name: str) -> tuple[ActivityDefinition, ActivityDefinition]:
    """Return an activity and its compensation; raise `EngineError` if this process does not have them."""
    activity = COMPENSATIONS.get(name)
    if activity is None or activity.undo is None:
        raise EngineError(_unregistered(name))
    return activity, activity.undo


def workflow_compensation(name: str) -> ActivityDefinition:
    """Return the compensation of a child workflow; raise `EngineError` if this process does not have it."""
    workflow = UNDOABLE_WORKFLOWS.get(name)
    if workflow is None:
        raise EngineError(_unregistered(name))
    assert workflow.undo is not None
    return workflow.undo


def _unregistered(name: str) -> str:
    return f"no compensation for {name!r} is registered in this process: start a worker that imports it"


def accepts_no_result(compensation: ActivityDefinition) -> bool:
    """Return whether a compensation can be called with `result=None`, for a step whose outcome is unknown."""
    hint = compensation.signature.hints.get("result", Any)
    return hint in (Any, None, type(None)) or type(None) in get_args(hint)


def arguments(activity: ActivityDefinition, given: dict[str, Any], result: object, **more: object) -> bytes:
    """Return the arguments of a compensation or handler: those of the call, the result and more that it names."""
    known = {**given, **more, "result": result}
    return json.dumps({name: known[name] for name in activity.signature.hints if name in known}).encode()
