"""Blocking programs as processes of their own, with a worker in another process: forks, gunicorn, Ctrl-C, exit."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest

from perdure import SyncClient
from tests.engine.api import blocking_shop
from tests.support.storages import Database

ROOT = Path(__file__).parents[3]
SHOP = "tests.engine.api.blocking_shop"
LIMIT_SEC = 60
LATENCY_MS = 20.0
THREADS_AND_FORKS = "ignore:This process:DeprecationWarning"  # of Python 3.12 and later

everywhere = pytest.mark.parametrize("shared", ["sqlite", "postgresql", "mysql"], indirect=True)
on_sqlite = pytest.mark.parametrize("shared", ["sqlite"], indirect=True)


@pytest.fixture
def worker(shared: Database) -> Iterator[str]:
    """A process that executes the runs of the shop; returns the URL."""
    with process([sys.executable, "-m", SHOP, "serve", shared.url], {}, subprocess.PIPE) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == b"ready\n"
        yield shared.url


@contextmanager
def process(
    command: list[str], environment: dict[str, str], out: int | None = None
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a process, and end it."""
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=out) as started:
        try:
            yield started
        finally:
            started.terminate()
            started.wait(LIMIT_SEC)


def play(what: str, url: str) -> str:
    """Run a script of the shop until it ends; return what it printed."""
    command = [sys.executable, "-W", "error", "-W", THREADS_AND_FORKS, "-m", SHOP, what, url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SEC, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.behaviour("SyncClient")
@everywhere
def test_client_that_was_used_before_a_fork_works_in_both_processes(worker: str) -> None:
    assert play("forks", worker) == "forked\n"


@pytest.mark.behaviour("SyncClient")
@on_sqlite
def test_ctrl_c_ends_a_wait_and_leaves_the_client_usable(worker: str) -> None:
    assert play("interrupt", worker) == "interrupted\n"


@everywhere
def test_process_exits_without_closing_its_client(worker: str) -> None:
    assert play("exits", worker) == "exits\n"


@pytest.mark.behaviour("SyncClient")
@pytest.mark.parametrize(
    ("shared", "preload"),
    [("sqlite", False), ("sqlite", True), ("postgresql", True), ("mysql", True)],
    indirect=["shared"],
)
def test_workers_of_gunicorn_start_runs(worker: str, preload: bool, tmp_path: Path) -> None:
    """With --preload the client is made and used before the fork."""
    log = tmp_path / "gunicorn.log"
    options = ["--workers=2", "--bind=127.0.0.1:0", f"--error-logfile={log}", "--no-control-socket"]
    environment = {"PERDURE_TEST_URL": worker}
    if preload:
        options.append("--preload")
        environment["PERDURE_TEST_USED"] = "yes"
    command = [sys.executable, "-m", "gunicorn", *options, f"{SHOP}:application"]
    with process(command, environment) as server:
        address = address_in(log)
        processes = set[str]()
        until = time.monotonic() + LIMIT_SEC
        while len(processes) < 2:
            assert time.monotonic() < until
            with urllib.request.urlopen(address, timeout=LIMIT_SEC) as answer:
                result, pid = answer.read().decode().split()
            assert result == "42"
            processes.add(pid)
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_SEC) == 0
    assert str(server.pid) not in processes
    assert "ERROR" not in log.read_text()


def address_in(log: Path) -> str:
    """Return where gunicorn listens, once its log says so."""
    until = time.monotonic() + LIMIT_SEC
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            if found := re.search(r"Listening at: (\S+)", log.read_text()):
                return found[1]
        time.sleep(0.01)
    raise AssertionError("gunicorn does not listen")


@on_sqlite
def test_result_of_a_run_in_another_process_takes_at_most_20_ms(worker: str) -> None:
    """In the best of a few rounds: other programs may slow a round down."""
    with SyncClient(worker) as client:
        rounds = iter(range(10))
        while (found := median(latency(client, number) for number in range(20))) > LATENCY_MS:
            assert next(rounds, None) is not None, f"{found:.1f} ms"


def latency(client: SyncClient, number: int) -> float:
    before = time.perf_counter()
    assert client.start(blocking_shop.order, number).result(LIMIT_SEC) == 2 * number
    return (time.perf_counter() - before) * 1000
