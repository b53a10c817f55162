"""Errors as rows and back: the same error or an `ActivityError`, never an import or another exception."""

import asyncio
import importlib.util
import json
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.engine.history.codec import decode, encode
from perdure.engine.history.failures import (
    MESSAGE_MAX,
    STACK_TRACE_MAX,
    decode_failure,
    encode_failure,
    with_own_message,
)
from perdure.errors import ActivityError, RecordedError, TerminalError


class Refused(Exception):
    class Inner(ValueError):
        pass


class Coded(Exception):
    def __init__(self, code: int, reason: str = "none") -> None:
        super().__init__(code, reason)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class NeedsKeyword(Exception):
    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Optional(Exception):
    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class Rephrasing(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(f"no {what}")


class Exploding(Exception):
    armed = False

    def __init__(self, *args: object) -> None:
        if self.armed:
            raise RuntimeError("not again")
        super().__init__(*args)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Disguised(Exception):
    def __new__(cls, *args: object) -> Any:
        return ValueError(*args)


class Stop(BaseException):
    pass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def there_and_back(error: BaseException) -> Exception:
    """Through the JSON of a row."""
    return decode_failure(decode(encode(encode_failure(raised(error)))))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ValueError(),
        ValueError("a\0é😀", 1, None, True, 1.5, [1, {"a": []}]),
        KeyError("key"),
        Refused("x"),
        Refused.Inner("nested"),
        Coded(5, "why"),
        TerminalError("enough"),
        TimeoutError("late"),
        OSError(2, "No such file", "/tmp/x"),
        FileNotFoundError(2, "No such file", "/tmp/x"),
        OSError(18, "Cross-device", "/a", None, "/b"),
        OSError("just text"),
        StopIteration(3),
        ZeroDivisionError("division by zero"),
        json.JSONDecodeError.__mro__[1]("plain ValueError"),
        asyncio.QueueFull("full"),
    ],
    ids=repr,
)
def test_error_round_trips(error: Exception) -> None:
    back = there_and_back(error)
    assert type(back) is type(error)
    assert back.args == error.args
    assert [type(arg) for arg in back.args] == [type(arg) for arg in error.args]
    assert str(back) == str(error)


def test_file_names_of_os_errors_round_trip() -> None:
    back = there_and_back(OSError(18, "Cross-device", "/a", None, "/b"))
    assert isinstance(back, OSError)
    assert (back.errno, back.filename, back.filename2) == (18, "/a", "/b")


def make_local() -> Exception:
    class Local(Exception):
        pass

    return Local("here")


@pytest.mark.behaviour("errors")
@pytest.mark.parametrize(
    "error",
    [
        ValueError(Path("/tmp")),
        ValueError((1, 2)),
        ValueError({1: 2}),
        ValueError(float("nan")),
        ValueError(b"bytes"),
        ValueError("\ud800"),
        ValueError(object()),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
        BaseExceptionGroup("many", [Stop("a")]),
        make_local(),
        KeyboardInterrupt(),
        SystemExit(3),
        asyncio.CancelledError("by whom"),
        GeneratorExit(),
        Stop("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_do_not_round_trip_are_activity_errors(error: BaseException) -> None:
    back = there_and_back(error)
    assert type(back) is ActivityError
    assert back.error_type == f"{type(error).__module__}.{type(error).__qualname__}"
    assert type(error).__name__ in back.stack_trace


class Answered(Exception):
    def __init__(self, message: str, *, response: object, status: int) -> None:
        super().__init__(message)
        self.response, self.status = response, status


@pytest.mark.behaviour("errors")
@pytest.mark.parametrize(
    "error",
    [
        NeedsKeyword("m", status=4),
        Optional("m", 404),
        Rephrasing("money"),
        json.JSONDecodeError("bad", "{", 1),
        Answered("no", response={"code": [1]}, status=404),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_with_other_constructor_arguments_are_rebuilt_without_calling_the_constructor(error: Exception) -> None:
    back = there_and_back(error)
    assert type(back) is type(error)
    assert (back.args, str(back), vars(back)) == (error.args, str(error), vars(error))


def test_attributes_that_are_not_json_are_left_out() -> None:
    back = there_and_back(Answered("no", response=object(), status=404))
    assert type(back) is Answered
    assert vars(back) == {"status": 404}


def test_error_of_a_body_is_not_an_activity_error() -> None:
    failure = {"error_type": "unknown.Error", "error_message": "x", "source": "workflow"}
    assert type(decode_failure(failure)) is RecordedError
    assert type(decode_failure({**failure, "source": None})) is ActivityError


def test_error_whose_str_raises_is_stored() -> None:
    failure = encode_failure(raised(Mute("x")))
    assert failure["error_message"] == "<Mute whose message cannot be read>"
    assert type(decode_failure(failure)) is Mute


def test_attribute_with_its_default_does_not_prevent_a_round_trip() -> None:
    back = there_and_back(Optional("m"))
    assert isinstance(back, Optional)
    assert back.status == 500


def test_stored_error_has_the_documented_keys() -> None:
    failure = encode_failure(raised(Refused.Inner("x")))
    assert set(failure) == {"error_type", "error_message", "stack_trace", "args"}
    assert failure["error_type"] == f"{__name__}.Refused.Inner"
    assert failure["error_message"] == "x"
    assert failure["args"] == ["x"]
    assert "raise error" in str(failure["stack_trace"])
    assert "args" not in encode_failure(ValueError(object()))


def test_error_that_cannot_be_rebuilt_is_stored_without_arguments() -> None:
    failure = encode_failure(raised(SystemExit(None)))
    assert failure["error_message"] == "None"  # the message of an error, and not the lack of one
    assert set(failure) == {"error_type", "error_message", "stack_trace"}


def test_causes_and_notes_are_in_the_stack_trace() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("the cause")
    error.add_note("and a note")
    failure = encode_failure(error)
    assert "the cause" in str(failure["stack_trace"])
    assert "and a note" in str(failure["stack_trace"])
    assert type(decode_failure(failure)) is ValueError
    optional = Optional("m")
    optional.add_note("and a note")
    assert encode_failure(optional).keys() == encode_failure(Optional("m")).keys()  # it is made by its class


def test_activity_error_keeps_the_original_error() -> None:
    back = there_and_back(ActivityError("m", error_type="gone.Error", stack_trace="as it was"))
    assert type(back) is ActivityError
    assert (str(back), back.error_type, back.stack_trace) == ("m", "gone.Error", "as it was")


def test_long_messages_and_tracebacks_are_cut_in_the_middle() -> None:
    failure = encode_failure(raised(ValueError("<" + "é" * 100_000 + ">")))
    message, trace = str(failure["error_message"]), str(failure["stack_trace"])
    assert len(message.encode()) <= MESSAGE_MAX
    assert len(trace.encode()) <= STACK_TRACE_MAX
    assert message.startswith("<é")
    assert message.endswith("é>")
    assert "bytes left out" in message
    assert trace.startswith("Traceback")
    assert trace.rstrip().endswith("é>")
    assert type(decode_failure(failure)) is ActivityError


def test_message_of_the_maximum_length_is_stored_whole() -> None:
    assert encode_failure(ValueError("x" * MESSAGE_MAX))["error_message"] == "x" * MESSAGE_MAX


def test_lone_surrogate_can_be_stored() -> None:
    failure = encode_failure(ValueError("a\ud800"))
    assert failure["error_message"] == "a\\ud800"
    encode(failure)


def test_unprintable_traceback_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: BaseException) -> list[str]:
        raise RuntimeError("traceback")

    monkeypatch.setattr(traceback, "format_exception", broken)
    assert encode_failure(ValueError("x"))["stack_trace"] == ""


def test_circular_arguments_give_an_activity_error() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert "args" not in encode_failure(ValueError(loop))


def test_class_whose_constructor_raises_gives_an_activity_error(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = encode_failure(Exploding("x"))
    monkeypatch.setattr(Exploding, "armed", True)
    assert type(decode_failure(failure)) is ActivityError


def row(error_type: object, *args: object, message: str = "x") -> dict[str, object]:
    return {"error_type": error_type, "error_message": message, "stack_trace": "t", "args": list(args)}


@pytest.mark.parametrize(
    "data",
    [
        row("builtins.KeyboardInterrupt", message=""),
        row("builtins.SystemExit", 3, message="3"),
        row("builtins.BaseException", "x"),
        row("asyncio.exceptions.CancelledError", "x"),
        row("builtins.print", "x"),
        row("builtins.eval", "1/0"),
        row("builtins.str", "x"),
        row("os.system", "false"),
        row("os.error", "x"),
        row(f"{__name__}.Stop", "x"),
        row(f"{__name__}.Disguised", "x"),
        row(f"{__name__}.NeedsKeyword", "x"),
        row(f"{__name__}.make_local.<locals>.Local", "x"),
        row(f"{__name__}.Refused.Nothing", "x"),
        row(f"{__name__}.Refused.__class__", "x"),
        row(f"{__name__}.Refused.Inner.__init__", "x"),
        row("builtins.ValueError", "y"),
        row("builtins.ValueError", "x", "z"),
        row("ValueError", "x"),
        row(".ValueError", "x"),
        row("builtins..ValueError", "x"),
        row("builtins.", "x"),
        row("", "x"),
        row("..", "x"),
        row(None, "x"),
        row(["builtins.ValueError"], "x"),
        {**row("builtins.ValueError"), "args": "x"},
        {**row("builtins.ValueError"), "args": {"x": 1}},
        {**row("builtins.ValueError"), "args": None},
        {"error_type": "builtins.ValueError", "error_message": "x", "stack_trace": "t"},
        {**row("builtins.ValueError", "x"), "error_message": 5},
        {**row("builtins.ExceptionGroup", "x", []), "stack_trace": 5},
        {},
        None,
        [],
        "text",
    ],
    ids=str,
)
def test_malformed_rows_give_an_activity_error(data: Any) -> None:
    assert type(decode_failure(data)) is ActivityError


def test_activity_error_has_the_fields_of_the_row() -> None:
    error = decode_failure(row("gone.Error", "x"))
    assert isinstance(error, ActivityError)
    assert (str(error), error.error_type, error.stack_trace) == ("x", "gone.Error", "t")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(
    [f"{kind.__module__}.{kind.__qualname__}" for kind in (ValueError, OSError, UnicodeDecodeError, Coded, SystemExit)]
)
KEYS = st.sampled_from(["error_type", "error_message", "stack_trace", "args", "attributes", "source"])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(KEYS, JSON_VALUES | TYPES))
def test_no_stored_row_makes_decoding_raise(data: dict[str, object]) -> None:
    error = decode_failure(data)
    assert isinstance(error, Exception)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([ValueError, KeyError, Refused, OSError, RuntimeError]), st.lists(JSON_VALUES, max_size=5))
def test_random_error_round_trips_or_is_an_activity_error(kind: type[Exception], args: list[object]) -> None:
    error = kind(*args)
    back = there_and_back(error)
    if type(back) is not ActivityError:
        assert type(back) is type(error)
        assert repr(back.args) == repr(error.args)
        assert str(back) == str(error)


@pytest.mark.behaviour("errors")
def test_stored_error_never_causes_an_import() -> None:
    assert "this" not in sys.modules
    before = set(sys.modules)
    decode_failure(row("this.Error", "x"))
    decode_failure(row("wsgiref.handlers.Error", "x"))
    assert set(sys.modules) == before


def test_lazy_module_stays_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking an attribute up would load it."""
    source = tmp_path / "lazy_errors.py"
    source.write_text("raise SystemExit('loaded because of a row')\n")
    spec = importlib.util.spec_from_file_location("lazy_errors", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_errors", module)
    importlib.util.LazyLoader(spec.loader).exec_module(module)
    assert type(decode_failure(row("lazy_errors.Error", "x"))) is ActivityError


def test_module_level_getattr_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("eager_errors")
    module.__getattr__ = lambda name: pytest.fail(f"asked for {name}")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "eager_errors", module)
    assert type(decode_failure(row("eager_errors.Error", "x"))) is ActivityError


def test_unusual_entries_in_sys_modules_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hollow", None)
    monkeypatch.setitem(sys.modules, "odd", object())
    for name in ("hollow.Error", "odd.Error"):
        assert type(decode_failure(row(name, "x"))) is ActivityError


def test_class_of_the_main_module_round_trips() -> None:
    program = """
from perdure.engine.history.failures import decode_failure, encode_failure
class Boom(Exception):
    pass
failure = encode_failure(Boom("x"))
assert failure["error_type"] == "__main__.Boom", failure
assert type(decode_failure(failure)) is Boom
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_error_with_other_arguments_gets_the_message_of_its_class() -> None:
    failure = {**encode_failure(Coded(1)), "args": [2, "other"]}
    changed = with_own_message(failure)
    assert changed == {**failure, "error_message": "code 2"}
    found = decode_failure(changed)
    assert isinstance(found, Coded)
    assert found.code == 2


@pytest.mark.parametrize(
    "changes",
    [{"args": []}, {"error_type": "unknown.Error"}, {"args": None}],
    ids=["arguments", "class", "no arguments"],
)
def test_message_of_an_error_that_cannot_be_rebuilt_is_kept(changes: dict[str, object]) -> None:
    failure = {**encode_failure(Coded(1)), **changes}
    assert with_own_message(failure) == failure
