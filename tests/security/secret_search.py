"""Search for a secret in an error and its causes, in log records, and in objects of perdure."""

import logging
import pickle
import reprlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perdure.engine.history.failures import encode_failure

TESTS = str(Path(__file__).parent.parent)

_whole = reprlib.Repr()
_whole.maxstring = _whole.maxother = _whole.maxlong = 10_000
_whole.maxdict = _whole.maxlist = _whole.maxtuple = _whole.maxset = 1_000


def in_error(error: BaseException, marker: str) -> list[str]:
    """Where an error shows the marker; the local variables of all frames but those of tests are looked at, too."""
    shown = {
        "traceback": "".join(traceback.format_exception(error)),
        "row": repr(encode_failure(error)),
        "pickle": _pickled(error),
    }
    for n, each in enumerate(_chain(error)):
        shown[f"repr {n}"], shown[f"text {n}"], shown[f"args {n}"] = repr(each), str(each), repr(each.args)
        shown[f"vars {n}"] = repr(vars(each))
        for frame, line in traceback.walk_tb(each.__traceback__):
            code = frame.f_code
            if not code.co_filename.startswith(TESTS):
                for name, value in frame.f_locals.items():
                    shown[f"{name} of {code.co_filename}:{line} {code.co_name}"] = (
                        f"{_repr(value)} {_whole.repr(value)}"
                    )
    return [where for where, text in shown.items() if marker in text]


def in_records(records: Iterable[logging.LogRecord], marker: str) -> list[str]:
    """The log records that show the marker, in whatever a handler may print."""
    form = logging.Formatter()
    return [
        f"{record.name}: {record.msg}"
        for record in records
        if marker in form.format(record) + _repr(vars(record))
        or (record.exc_info and record.exc_info[1] and in_error(record.exc_info[1], marker))
    ]


def in_object(start: object, marker: str) -> list[str]:
    """Which attributes, however deep, of an object of perdure show the marker."""
    seen: set[int] = set()
    found: list[str] = []
    pending = [("", start)]
    while pending:
        where, value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if marker in _repr(value):
            found.append(f"{where or 'itself'}: {type(value).__name__}")
        pending += [(f"{where}.{name}", inner) for name, inner in _inside(value)]
    assert len(seen) > 1, "something was looked at"
    return found


def _inside(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((str(key)[:20], inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(n), inner) for n, inner in enumerate(value))
    elif type(value).__module__.startswith("perdure."):
        yield from getattr(value, "__dict__", {}).items()
        for kind in type(value).__mro__:
            names = kind.__dict__.get("__slots__", ())
            yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and each not in found:
            found.append(each)
            pending += [each.__cause__, each.__context__]
            pending += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return found


def _pickled(value: object) -> str:
    try:
        return repr(pickle.dumps(value))
    except Exception as error:
        return "".join(traceback.format_exception(error))


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<no repr: {error!r}>"
