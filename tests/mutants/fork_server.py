"""A process that has imported pytest and all drivers, and forks a process for each run of tests.

It never imports perdure: each fork imports its own copy, with one change. Orders and answers are lines of JSON.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, TextIO

import pytest

# Whatever perdure and its tests import.
LIBRARIES = (
    *("aiomysql", "aiosqlite", "apsw", "asyncmy", "asyncpg", "cronsim", "cryptography", "hypothesis", "msgspec"),
    *("psycopg", "pydantic", "pymysql", "pytest_asyncio.plugin", "pytest_timeout", "sqlalchemy.ext.asyncio", "uvloop"),
    *("sqlalchemy.dialects.mysql.asyncmy", "sqlalchemy.dialects.postgresql.asyncpg"),
    *("_hypothesis_pytestplugin", "hypothesis.extra.pytestplugin", "anyio.pytest_plugin"),
)
OPTIONS = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist")
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


class Chosen:
    """A pytest plugin that runs only the given tests, in their order, and notes the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: position for position, test in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def follow(orders: TextIO, answers: TextIO) -> None:
    """Run tests for each order: an answer has the first failed test, or is empty."""
    for line in orders:
        answers.write(json.dumps(_execute(json.loads(line))) + "\n")
        answers.flush()


def _execute(order: dict[str, Any]) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _run_tests(order, writing)
    os.close(writing)
    code = _wait(pid, time.monotonic() + order["limit_sec"])
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what the tests started
    with os.fdopen(reading) as answer:
        said = answer.read()
    if code is None:
        return "time limit"
    return str(json.loads(said)) if said else f"the process ended with code {code}"


def _wait(pid: int, deadline: float) -> int | None:
    """Return the exit code, or None if the process had to be killed."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _run_tests(order: dict[str, Any], writing: int) -> None:
    """Be the process of one run; it never returns."""
    try:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        _redirect(order["log"])
        os.environ.update(order["environment"])
        os.chdir(order["root"])
        sys.path.insert(0, order["source"])
        chosen = Chosen(order["tests"])
        files = list(dict.fromkeys(test.partition("::")[0] for test in order["tests"]))
        code = int(pytest.main([*OPTIONS, f"--timeout={order['test_limit_sec']}", *files], plugins=[chosen]))
        if code not in PASSED and not chosen.failed:  # an error outside tests, such as in the import of conftest.py
            chosen.failed = f"pytest ended with code {code}"
        os.write(writing, json.dumps(chosen.failed).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _redirect(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)


if __name__ == "__main__":
    for library in LIBRARIES:
        with suppress(ImportError):
            import_module(library)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that gives the orders ends this one
    gc.freeze()
    follow(sys.stdin, sys.stdout)
