"""Tests wait for a condition or move the clock: a pause is too short on a busy machine, and too long on every other."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
LONG_SEC = 0.1
MODULES = {"asyncio", "time"}
# Their pauses are no guesses: how often something is looked at or shown, or code that must never be executed.
ALLOWED = {
    "support/blocking.py": "MySQL renews its list of transactions only if nobody has asked for 0.1 s",
    "soak/soak.py": "looks again whether a condition holds",
    "chaos/progress.py": "shows the progress",
    "engine/replay": "the time of a body is that of its history",
    "mistakes": "bodies that must not sleep",
    "database/test_idle_transactions.py": "a session must be idle for so long that the server ends it",
}


def long_sleeps(text: str) -> Iterator[int]:
    """Yield the lines with a pause of a fixed time."""
    for node in ast.walk(ast.parse(text if ".sleep(" in text else "")):
        match node:
            case ast.Call(ast.Attribute(ast.Name(module), "sleep"), [ast.Constant(int() | float() as seconds), *_]):
                if module in MODULES and seconds >= LONG_SEC:
                    yield node.lineno


def test_tests_do_not_sleep() -> None:
    files = {path.relative_to(TESTS).as_posix(): path for path in TESTS.rglob("*.py")}
    found = {name: list(long_sleeps(path.read_text())) for name, path in files.items()}
    sleeping = {name: lines for name, lines in found.items() if lines}
    assert {name: lines for name, lines in sleeping.items() if not _is_allowed(name)} == {}
    assert all(any(name.startswith(allowed) for name in sleeping) for allowed in ALLOWED), "no longer needed"


def _is_allowed(name: str) -> bool:
    return name.startswith(tuple(ALLOWED))


def test_a_long_pause_is_found() -> None:
    assert list(long_sleeps("import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n")) == [3]
    assert list(long_sleeps("import time\ntime.sleep(2)\ntime.sleep(0.05)\nsleep(3)\n")) == [2]
