"""What is stored to compensate a step later."""

from perdure.engine.history.codec import encode
from perdure.model.limits import PAYLOAD_MAX
from perdure.model.records import CompensationEntry

RECORDED = "recorded"  # replaces an input and a result that are too large together; the history has both


def compensation_of(run_id: str, step: str, name: str, given: bytes, result: bytes) -> CompensationEntry:
    """Return the compensation to store with the result of an activity; see `RECORDED`."""
    args = b'{"input": ' + given + b', "result": ' + result + b"}"
    if len(args) > PAYLOAD_MAX:
        args = encode({RECORDED: True})
    return CompensationEntry(run_id, step, name, args)
