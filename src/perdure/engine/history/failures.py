"""Encoding of errors for the history, and their reconstruction.

An error is rebuilt as an instance of its own class, so that `except PaymentError` works in a body, if the class is
imported in this process and the rebuilt error has the same message. It is rebuilt by calling the class with the
recorded arguments if that returns an equal error; otherwise its arguments and attributes are restored without calling
the class, without the attributes that are not JSON. All other errors become a `RecordedError` or, from an activity, an
`ActivityError`, with type, message and traceback as text.

A row never makes this process import a module or execute anything but the constructor of an exception class.
"""

import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from perdure.engine.history.codec import encode
from perdure.errors import ActivityError, RecordedError, SerializationError, WorkflowCancelledError, WorkflowFailedError

MESSAGE_MAX = 64 * 1024
STACK_TRACE_MAX = 16 * 1024
ARGS_MAX = 64 * 1024
BODY = "workflow"  # the source of an error that a body raised, and not an activity

_CUT = "\n… {} bytes left out …\n"


class Failure(TypedDict):
    """The recorded form of an error."""

    error_type: str
    error_message: str
    stack_trace: str
    args: NotRequired[list[Any]]
    attributes: NotRequired[dict[str, Any]]  # of an error that is rebuilt without calling its class


def encode_failure(error: BaseException) -> Failure:
    """Return the recorded form of an error: JSON of limited size, with `args` if the error can be rebuilt."""
    failure: Failure = {
        "error_type": _type_name(error),
        "error_message": _bounded(_message(error), MESSAGE_MAX),
        "stack_trace": _bounded(_stack_trace(error), STACK_TRACE_MAX),
    }
    args = _args(error)
    if not _is_json(args):
        return failure
    if _is_same(error, _made(type(error), args)):
        failure["args"] = list(args)
        return failure
    attributes = {name: value for name, value in _attributes(error).items() if _is_json([value])}
    rebuilt = _rebuilt(type(error), args, attributes)
    if rebuilt is not None and _message(rebuilt) == _message(error):
        failure["args"], failure["attributes"] = list(args), attributes
    return failure


def decode_failure(data: Mapping[str, object]) -> Exception:
    """Return the recorded error: of its own class if it can be rebuilt, otherwise a `RecordedError`."""
    fields = data if isinstance(data, Mapping) else {}
    error_type, message, stack_trace = (_text(fields, key) for key in ("error_type", "error_message", "stack_trace"))
    args = fields.get("args")
    known = _known(error_type) if isinstance(args, list) else None
    if known is not None:
        attributes = fields.get("attributes")
        plain = not isinstance(attributes, Mapping)
        made = _made(known, args) if plain else _rebuilt(known, args, attributes)  # type: ignore[arg-type]
        if made is not None and _message(made) == message:
            return made
    kind = RecordedError if fields.get("source") == BODY else ActivityError
    return kind(message, error_type=error_type, stack_trace=stack_trace)


def with_own_message(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a recorded error, whose arguments were replaced, with the message that its class makes of them.

    So it is rebuilt as an instance of its class, as the original is. Any other error is returned unchanged.
    """
    args, attributes = data.get("args"), data.get("attributes")
    known = _known(_text(data, "error_type")) if isinstance(args, list) else None
    if known is None or not isinstance(args, list):
        return data
    made = _rebuilt(known, args, attributes) if isinstance(attributes, Mapping) else _made(known, args)
    return data if made is None else {**data, "error_message": _message(made)}


def cancelled(workflow_name: str, instance_id: str, reason: str) -> WorkflowCancelledError:
    """Return the error for code that waits for a cancelled run."""
    because = f": {reason}" if reason else ""
    return WorkflowCancelledError(f"run {instance_id!r} ({workflow_name}) was cancelled{because}")


def failed_run(workflow_name: str, instance_id: str, cause: BaseException) -> WorkflowFailedError:
    """Return the error for code that waits for a failed run."""
    kind = _type_name(cause).rpartition(".")[2]
    return WorkflowFailedError(f"run {instance_id!r} ({workflow_name}) failed: {kind}: {_message(cause)}")


def _type_name(error: BaseException) -> str:
    if isinstance(error, RecordedError) and error.error_type:
        return error.error_type  # re-raised: keep the type of the original error
    return _path(type(error))


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the class's own `__str__` fails: the text says so
        return f"<{type(error).__qualname__} whose message cannot be read>"


def _stack_trace(error: BaseException) -> str:
    if isinstance(error, RecordedError) and error.stack_trace:
        return error.stack_trace
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # the class's own `__str__` fails, which the recorded message says
        return ""


def _bounded(text: str, longest: int) -> str:
    """Return the head and tail of a text in at most `longest` bytes of UTF-8, with lone surrogates escaped."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= longest:
        return data.decode()
    cut = _CUT.format(len(data))
    half = (longest - len(cut.encode())) // 2
    cut = _CUT.format(len(data) - 2 * half)
    return data[:half].decode("utf-8", "ignore") + cut + data[-half:].decode("utf-8", "ignore")


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def _args(error: BaseException) -> Sequence[Any]:
    """Return the arguments of the error, as far as the error keeps them."""
    if isinstance(error, OSError):
        return OSError.__reduce__(error)[1]  # `args` lacks the file names
    return error.args if type(error.args) is tuple else (error.args,)


def _is_json(args: object) -> bool:
    """Return whether JSON restores the values exactly: no tuples, no subclasses, nothing too large."""
    try:
        return _is_exact(list(args)) and len(encode(list(args))) <= ARGS_MAX  # type: ignore[call-overload]
    except (SerializationError, RecursionError):
        return False


def _is_exact(value: object) -> bool:
    if type(value) is list:
        return all(map(_is_exact, value))
    if type(value) is dict:
        return all(type(key) is str and _is_exact(part) for key, part in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _known(error_type: str) -> type[Exception] | None:
    """Return the exception class with this name from a module that is imported already, or None."""
    parts = error_type.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if isinstance(module, types.ModuleType):
            return _inside(module, parts[length:], error_type)
    return None


def _inside(module: types.ModuleType, names: Sequence[str], error_type: str) -> type[Exception] | None:
    # Without getattr, because a lazy module could import something.
    found: object = types.ModuleType.__getattribute__(module, "__dict__").get(names[0])
    for name in names[1:]:
        found = type.__getattribute__(found, "__dict__").get(name) if isinstance(found, type) else None
    if isinstance(found, type) and issubclass(found, Exception) and _path(found) == error_type:
        return found
    return None


def _made(kind: type[BaseException], args: Sequence[Any]) -> Exception | None:
    """Return the class called with these arguments; None if the result is no error with the same arguments."""
    if not issubclass(kind, Exception):
        return None
    try:
        made = kind(*args)
        same = type(made) is kind and encode(list(_args(made))) == encode(list(args))
    except Exception:  # the class takes other arguments: None says so
        return None
    return made if same else None


def _rebuilt(kind: type[BaseException], args: Sequence[Any], attributes: Mapping[str, Any]) -> Exception | None:
    """Return an error made without calling its class, whose parameters may differ from the error's arguments."""
    if not issubclass(kind, Exception):
        return None
    try:
        made = Exception.__new__(kind, *args)  # raises for classes with their own memory layout
        made.__dict__.update(attributes)
    except Exception:  # None says so; such an error is raised as a `RecordedError` later
        return None
    return made


def _is_same(error: BaseException, made: Exception | None) -> bool:
    """Return whether message and attributes are equal, so that calling the class loses no attribute."""
    if made is None:
        return False
    try:
        return _message(made) == _message(error) and bool(_attributes(made) == _attributes(error))
    except Exception:  # values that cannot be compared count as different
        return False


def _attributes(error: BaseException) -> dict[str, object]:
    return {name: value for name, value in vars(error).items() if name != "__notes__"}
