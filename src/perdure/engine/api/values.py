"""Decoding stored values for display: by type hints as far as they match, otherwise as plain JSON."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.engine.api.run_info import ErrorInfo
from perdure.engine.history.codec import decode
from perdure.errors import SerializationError
from perdure.model.envelopes import PREFIX, unreadable, unreadable_fields

CANCELLED = "perdure.errors.WorkflowCancelledError"
UNREADABLE = "perdure.codecs.Unreadable"  # the type of an error that cannot be decoded here


def arguments_of(defined: Any, data: bytes | None) -> dict[str, Any]:
    """Return the arguments of a call by name; `defined` is the workflow or activity, or None if it is unknown.

    Arguments that cannot be decoded here are one `Unreadable`, by the name `*`.
    """
    if (hidden := unreadable(data)) is not None:
        return {"*": hidden}
    try:
        texts = msgspec.json.decode(data or b"{}", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}
    hints: Mapping[str, Any] = {} if defined is None else defined.signature.hints
    return {name: _value(bytes(text), hints.get(name, Any)) for name, text in texts.items()}


def result_of(defined: Any, data: bytes | None) -> Any:
    """Return the result of a workflow or activity; an `Unreadable` if it cannot be decoded here."""
    if data is None:
        return None
    return _value(data, Any if defined is None else defined.signature.hints.get("return", Any))


def error_of(failure: object) -> ErrorInfo:
    """Return a recorded error."""
    fields = failure if isinstance(failure, Mapping) else {}
    if (hidden := unreadable_fields(fields)) is not None:
        return ErrorInfo(UNREADABLE, str(hidden))
    return ErrorInfo(*(str(fields.get(key) or "") for key in ("error_type", "error_message", "stack_trace")))


def shown(text: str) -> str:
    """Return a stored text; how it is stored if it cannot be decoded here."""
    hidden = unreadable(text.encode()) if text.startswith(PREFIX) else None
    return text if hidden is None else str(hidden)


def _value(data: bytes, hint: Any) -> Any:
    if (hidden := unreadable(data)) is not None:
        return hidden
    try:
        return decode(data, hint)
    except SerializationError:  # of another version of the code
        return json.loads(data)
