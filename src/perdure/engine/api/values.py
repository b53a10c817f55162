"""Decoding stored values for display: by type hints as far as they match, otherwise as plain JSON."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.engine.api.run_info import ErrorInfo
from perdure.engine.history.codec import decode
from perdure.errors import SerializationError

CANCELLED = "perdure.errors.WorkflowCancelledError"


def arguments_of(defined: Any, data: bytes | None) -> dict[str, Any]:
    """Return the arguments of a call by name; `defined` is the workflow or activity, or None if it is unknown."""
    try:
        texts = msgspec.json.decode(data or b"{}", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}
    hints: Mapping[str, Any] = {} if defined is None else defined.signature.hints
    return {name: _value(bytes(text), hints.get(name, Any)) for name, text in texts.items()}


def result_of(defined: Any, data: bytes | None) -> Any:
    """Return the result of a workflow or activity."""
    if data is None:
        return None
    return _value(data, Any if defined is None else defined.signature.hints.get("return", Any))


def error_of(failure: object) -> ErrorInfo:
    """Return a recorded error."""
    fields = failure if isinstance(failure, Mapping) else {}
    return ErrorInfo(*(str(fields.get(key) or "") for key in ("error_type", "error_message", "stack_trace")))


def _value(data: bytes, hint: Any) -> Any:
    try:
        return decode(data, hint)
    except SerializationError:  # of another version of the code
        return json.loads(data)
