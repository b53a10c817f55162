"""Non-deterministic calls are found in the source of a workflow under any name, and others are not reported."""

import concurrent.futures
import datetime as dt
import functools
import http.client
import io
import multiprocessing
import os
import random
import random as chance
import secrets
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.parse
import urllib.request
import uuid
import warnings
from collections.abc import Awaitable, Callable
from datetime import date, datetime
from pathlib import Path
from random import choice as pick
from random import random as dice
from time import time as t
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest

from perdure.engine.replay.source import NotDurableWarning, check_source
from perdure.errors import NotDurableError

now = datetime.now  # an alias of a class's method
generator = random.Random()


class Moment(datetime):
    """A user's own subclass, with a clock of its own."""

    @classmethod
    def utcnow(cls) -> "Moment":
        return cls(2020, 1, 1)


def found(function: Callable[..., object]) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotDurableWarning)
        return check_source(function, strict=False)


CALLS: list[tuple[Callable[[], object], str, str]] = []


def case(name: str, advice: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """A function whose only finding names this call and this durable way."""

    def note(function: Callable[[], object]) -> Callable[[], object]:
        CALLS.append((function, name, advice))
        return function

    return note


ACTIVITY, NOW, RANDOM, UUIDS = "into an activity", "perdure.now()", "perdure.random()", "perdure.uuid4()"


@case("time.time()", NOW)
def _() -> object:
    return time.time()


@case("t() (that is time.time)", NOW)
def _() -> object:
    return t()


@case("time.monotonic()", NOW)
def _() -> object:
    return time.monotonic()


@case("time.perf_counter()", NOW)
def _() -> object:
    return time.perf_counter()


@case("time.time_ns()", NOW)
def _() -> object:
    return time.time_ns()


@case("time.sleep()", "perdure.sleep()")
def _() -> object:
    time.sleep(1)
    return None


@case("datetime.now() (that is datetime.datetime.now)", NOW)
def _() -> object:
    return datetime.now(dt.UTC)


@case("dt.datetime.utcnow() (that is datetime.datetime.utcnow)", NOW)
def _() -> object:
    return dt.datetime.utcnow()


@case("datetime.today()", NOW)
def _() -> object:
    return datetime.today().date()


@case("date.today()", NOW)
def _() -> object:
    return date.today()


@case("now() (that is datetime.datetime.now)", NOW)
def _() -> object:
    return now()


@case("Moment.now() (that is datetime.datetime.now)", NOW)
def _() -> object:
    return Moment.now()


@case("random.random()", RANDOM)
def _() -> object:
    return random.random()


@case("chance.randint() (that is random.randint)", RANDOM)
def _() -> object:
    return chance.randint(1, 6)


@case("dice() (that is random.random)", RANDOM)
def _() -> object:
    return dice()


@case("pick() (that is random.choice)", RANDOM)
def _() -> object:
    return pick([1])


@case("random.Random()", RANDOM)
def _() -> object:
    return random.Random()


@case("random.SystemRandom()", RANDOM)
def _() -> object:
    return random.SystemRandom(1)


@case("generator.random()", RANDOM)
def _() -> object:
    return generator.random()


@case("uuid.uuid1()", UUIDS)
def _() -> object:
    return uuid.uuid1()


@case("uuid4() (that is uuid.uuid4)", UUIDS)
def _() -> object:
    return str(uuid4())


@case("secrets.token_hex()", RANDOM)
def _() -> object:
    return secrets.token_hex()


@case("secrets.choice()", RANDOM)
def _() -> object:
    return secrets.choice([1])


@case("os.urandom()", RANDOM)
def _() -> object:
    return os.urandom(1)


@case("os.system()", ACTIVITY)
def _() -> object:
    return os.system("true")


@case("open()", ACTIVITY)
def _() -> object:
    with open("x") as file:
        return file


@case("io.open() (that is open)", ACTIVITY)
def _() -> object:
    return io.open("x")  # noqa: UP020


@case("input()", ACTIVITY)
def _() -> object:
    return input()


@case("urllib.request.urlopen()", ACTIVITY)
def _() -> object:
    return urllib.request.urlopen("http://localhost")


@case("http.client.HTTPConnection()", ACTIVITY)
def _() -> object:
    return http.client.HTTPConnection("localhost")


@case("socket.create_connection()", ACTIVITY)
def _() -> object:
    return socket.create_connection(("localhost", 1))


@case("subprocess.run()", ACTIVITY)
def _() -> object:
    return subprocess.run(["true"])


@case("subprocess.Popen()", ACTIVITY)
def _() -> object:
    return subprocess.Popen(["true"])


@case("multiprocessing.Pool()", ACTIVITY)
def _() -> object:
    return multiprocessing.Pool()


@case("threading.Thread()", ACTIVITY)
def _() -> object:
    return threading.Thread()


@case("concurrent.futures.ThreadPoolExecutor()", ACTIVITY)
def _() -> object:
    return concurrent.futures.ThreadPoolExecutor()


@case("clock.time() (that is time.time)", NOW)
def _() -> object:
    import time as clock

    return clock.time()


@case("tick() (that is time.monotonic)", NOW)
def _() -> object:
    from time import monotonic as tick

    return tick()


@case("requests.get()", ACTIVITY)
def _() -> object:
    import requests  # type: ignore[import-untyped, import-not-found, unused-ignore]

    return requests.get("http://localhost")


@case("fetch() (that is httpx.get)", ACTIVITY)
def _() -> object:
    from httpx import get as fetch  # type: ignore[import-not-found, unused-ignore]

    return fetch("http://localhost")


@pytest.mark.parametrize(("function", "name", "advice"), CALLS, ids=[name for _, name, _ in CALLS])
def test_non_deterministic_call_is_found(function: Callable[[], object], name: str, advice: str) -> None:
    (sentence,) = found(function)
    assert f": {name}" in sentence
    assert sentence.endswith(advice) or advice in sentence.rpartition(": ")[2]
    lines = Path(__file__).read_text().splitlines()
    number = int(sentence.split(":")[0].removeprefix("line "))
    assert name.partition("(")[0] in lines[number - 1]


def user_function() -> int:
    return 1


def plain(order: Any, time: Any, *, random: Any = None) -> object:
    """Names that stand for something else here, and calls that are the same again."""
    time.time()
    random.random()
    order.open()
    seeded = chance.Random(7)
    seeded.random()
    chance.Random(x=7)
    uuid5(UUID(int=0), "x")
    datetime(2020, 1, 1).replace(day=2)
    datetime.fromisoformat("2020-01-01")
    date.fromordinal(1)
    urllib.parse.quote("x")
    secrets.compare_digest("a", "b")
    os.path.join("a", "b")
    Moment.utcnow()
    user_function()
    unknown_name()  # type: ignore[name-defined] # noqa: F821
    (lambda: 1)()
    [1][0].bit_length()
    raise subprocess.CalledProcessError(1, "x")


def test_deterministic_calls_are_not_reported() -> None:
    assert found(plain) == []


def shadowing() -> object:
    def open() -> int:
        return 1

    for input in [user_function]:
        input()
    with user_function() as print:  # type: ignore[attr-defined]
        print()
    return open()


def test_local_name_hides_a_builtin() -> None:
    assert found(shadowing) == []


def module_with(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    path = tmp_path / "written_workflow.py"
    path.write_text(source)
    module = types.ModuleType("written_workflow")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "written_workflow", module)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def test_function_named_like_a_builtin_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
def open(name): ...
def random(): ...
def now(): ...
def body():
    open("x"), random(), now()
"""
    assert found(module_with(source, tmp_path, monkeypatch).body) == []


def test_durable_calls_are_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `from perdure import now, random, uuid4, sleep` binds them: functions of another module."""
    durable = types.ModuleType("perdure.engine.execution.clock")
    exec("def now(): ...\ndef random(): ...\ndef uuid4(): ...\nasync def sleep(s): ...", durable.__dict__)
    monkeypatch.setitem(sys.modules, "durable_clock", durable)
    source = """
from durable_clock import now, random, sleep, uuid4
import durable_clock as perdure
async def body():
    now(), random(), uuid4(), perdure.now(), perdure.random()
    await sleep(1)
"""
    assert found(module_with(source, tmp_path, monkeypatch).body) == []


def test_source_with_unindented_strings_and_tabs_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'import time\nif True:\n\tdef body():\n\t\ttext = """\nat the margin\n"""\n\t\treturn time.time(), text\n'
    (sentence,) = found(module_with(source, tmp_path, monkeypatch).body)
    assert sentence.startswith("line 7: time.time()")


def test_lines_are_counted_from_the_first_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def body():\n    import time\n    return time.time()\n"
    (sentence,) = found(module_with(source, tmp_path, monkeypatch).body)
    assert sentence.startswith("line 3: time.time()")


def decorate(function: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    @functools.wraps(function)
    async def wrapper() -> object:
        return await function()

    return wrapper


@decorate
async def nested() -> object:
    numbers = [random.random() for _ in range(3)]

    async def inner() -> object:
        return {"at": time.time(), "ids": sorted(numbers, key=lambda _: uuid4())}

    return await inner()


def test_nested_code_is_checked_in_order() -> None:
    findings = found(nested)
    assert [finding.split(": ")[1].split("(")[0] for finding in findings] == ["random.random", "time.time", "uuid4"]


def test_names_of_a_closure_are_resolved() -> None:
    clock = time.time

    def body() -> object:
        return clock()

    (sentence,) = found(body)
    assert "clock() (that is time.time)" in sentence


def test_empty_closure_cell_is_accepted() -> None:
    def body() -> object:
        return later()

    assert found(body) == []
    later = user_function


def defaults(at: float = time.time()) -> float:
    return at


def test_defaults_and_decorators_are_not_checked() -> None:
    assert found(defaults) == []


def test_strict_raises_with_all_findings() -> None:
    with pytest.raises(NotDurableError) as caught:
        check_source(nested, strict=True)
    message = str(caught.value)
    assert message.startswith("nested ")
    for part in ("random.random()", "time.time()", "uuid4()", "perdure.now()", "perdure.uuid4()"):
        assert part in message


def test_strict_accepts_deterministic_code() -> None:
    assert check_source(plain, strict=True) == []


def test_each_finding_is_a_warning_with_its_line() -> None:
    with pytest.warns(NotDurableWarning) as caught:
        findings = check_source(nested, strict=False)
    assert len(caught) == len(findings) == 3
    assert {warning.filename for warning in caught} == {__file__}
    lines = Path(__file__).read_text().splitlines()
    assert "random.random()" in lines[caught[0].lineno - 1]
    assert str(caught[0].message).startswith("nested, line ")


def test_without_source_nothing_is_found() -> None:
    space: dict[str, Any] = {"time": time}
    exec("def body():\n    return time.time()", space)
    assert check_source(space["body"], strict=True) == []


@pytest.mark.parametrize("thing", [len, int, functools.partial(time.time), lambda: time.time(), object()])
def test_objects_without_python_source_are_not_checked(thing: Any) -> None:
    assert check_source(thing, strict=True) == []
