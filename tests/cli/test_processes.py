"""The program as a process: start, signals, pipes, terminals, workers."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Client
from tests.cli.programs import COMMAND, begin, environment, line_with, program
from tests.cli.test_reading import fill
from tests.engine.waiting import until
from tests.support.storages import Database

APP = """
import os
from perdure import App, activity, workflow

@activity(name="cli.version")
async def version() -> str:
    return "one"

@workflow(name="cli.versioned")
async def versioned() -> str:
    return await version()

app = App("sqlite:///shop.db")
"""


def test_version_imports_neither_the_engine_nor_the_packages_of_the_command_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['perdure', '--version']; import perdure_command; assert perdure_command.main() == 0; "
        "print(len(sys.modules), [name for name in ('perdure', 'asyncio', 'msgspec', 'cyclopts', 'rich', 'sqlite3') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    version, counts = done.stdout.splitlines()
    assert version == "perdure 0.1.0"
    number, _, names = counts.partition(" ")
    assert names == "[]"
    assert int(number) < 200


def test_version_of_the_module_is_the_same(tmp_path: Path) -> None:
    assert program(tmp_path, "--version").out == "perdure 0.1.0\n"


async def test_closed_pipe_ends_quietly(file: Database, tmp_path: Path) -> None:
    process = await begin(tmp_path, "runs", "--watch", "--every", "0.1", "-o", "json", "--database", file.url)
    assert process.stdout is not None
    await process.stdout.readline()
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, errors) == (0, b"")


async def test_interrupt_ends_quietly_with_130(file: Database, tmp_path: Path) -> None:
    process = await begin(tmp_path, "runs", "--watch", "-o", "jsonl", "--count", "--database", file.url)
    await line_with(process.stdout, "count")
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, errors) == (130, b"")


async def test_terminal_gets_colours_and_its_width(file: Database, tmp_path: Path) -> None:
    await fill(file)
    plain = _in_terminal(tmp_path, "runs", "--database", file.url, NO_COLOR="1", COLUMNS="60")
    assert max(map(len, plain.splitlines())) <= 60
    assert "o-1/2" in plain
    assert "\x1b" not in plain
    coloured = _in_terminal(tmp_path, "runs", "--database", file.url, TERM="xterm", COLUMNS="60")
    assert "\x1b[31mfailed" in coloured
    top = _in_terminal(tmp_path, "top", "--database", file.url, TERM="xterm", COLUMNS="100", until="workers")
    assert "\x1b[?1049h" in top  # the other screen
    assert "\x1b[?1049l" in top


def _in_terminal(folder: Path, *arguments: str, until: str = "", **more: str) -> str:
    """Run a command in a terminal and return what it wrote; with `until`, interrupt it once it wrote that."""
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env=environment(folder, **more),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(follower)
        seen = b""
        is_interrupted = False
        try:
            while block := os.read(leader, 65536):
                seen += block
                if until and not is_interrupted and until.encode() in seen:
                    process.send_signal(signal.SIGINT)
                    is_interrupted = True
        except OSError:  # Linux: the other side is closed
            pass
        assert process.wait(60) == (130 if until else 0), seen
        return seen.decode().replace("\r\n", "\n")
    finally:
        os.close(leader)


async def test_bulk_change_asks_in_a_terminal(file: Database, tmp_path: Path) -> None:
    await fill(file)
    leader, follower = pty.openpty()
    try:
        os.write(leader, b"n\n")
        done = subprocess.run(
            [*COMMAND, "cancel", "--filter", "workflow:cli.order", "--database", file.url],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=follower,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, done.stderr) == (1, "cancel 1 runs? [y/N] perdure: nothing was changed\n")


@pytest.mark.parametrize("name", ["shop:app", "shop"])
async def test_worker_executes_runs_until_a_signal(tmp_path: Path, name: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    worker = await begin(tmp_path, "worker", name)
    try:
        await line_with(worker.stderr, "started")
        done = program(tmp_path, "start", "cli.versioned", "--wait", "--database", "sqlite:///shop.db")
        assert done.out == "one\n"
        worker.send_signal(signal.SIGTERM)
        await asyncio.wait_for(worker.communicate(), 60)
        assert worker.returncode == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["serve", "shop:app", "--port", "0"], "the HTTP API listens on http://127.0.0.1:"),
        (
            ["dashboard", "--port", "0", "--database", "sqlite:///shop.db", "--log-level", "INFO"],
            "the dashboard listens on http://127.0.0.1:",
        ),
        (
            ["relay", "--publisher", "http://127.0.0.1:1/events", "--database", "sqlite:///shop.db"],
            "it publishes the outbox",
        ),
    ],
    ids=["serve", "dashboard", "relay"],
)
async def test_command_runs_until_a_signal(tmp_path: Path, command: list[str], says: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    async with Client(f"sqlite:///{tmp_path}/shop.db"):
        pass  # migrates it
    process = await begin(tmp_path, *command)
    try:
        await line_with(process.stderr, says)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_dev_restarts_the_worker_when_a_file_changes(tmp_path: Path) -> None:
    module = tmp_path / "shop.py"
    module.write_text(APP)
    (tmp_path / "pyproject.toml").write_text('[tool.perdure]\napp = "shop:app"\n')
    dev = await begin(tmp_path, "dev")
    try:
        await line_with(dev.stderr, "started")
        module.write_text("broken(\n")
        await line_with(dev.stderr, "starts again when a source file changes")
        module.write_text(APP.replace('"one"', '"two"'))
        await line_with(dev.stderr, "started")
        async with Client(f"sqlite:///{tmp_path}/shop.db") as client:
            await until(lambda: _is_served(client))
        assert program(tmp_path, "start", "cli.versioned", "--wait").out == "two\n"
        dev.send_signal(signal.SIGINT)
        await asyncio.wait_for(dev.communicate(), 60)
        assert dev.returncode == 0
        async with Client(f"sqlite:///{tmp_path}/shop.db") as client:
            assert not await _is_served(client)  # the worker has drained
    finally:
        if dev.returncode is None:
            dev.send_signal(signal.SIGTERM)
            await dev.wait()


async def _is_served(client: Client) -> bool:
    from perdure.inspection import list_workers

    return any(worker.is_live for worker in await list_workers(client))


def test_new_project_has_a_test_that_passes(tmp_path: Path) -> None:
    program(tmp_path, "init", "my-shop")
    folder = tmp_path / "my-shop"
    assert "choose a new folder" in program(tmp_path, "init", "my-shop", code=2).err
    assert "no name of a project" in program(tmp_path, "init", "1 2", code=2).err
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed" in tests.stdout, tests.stdout + tests.stderr


def test_demo_shows_that_nothing_is_lost(tmp_path: Path) -> None:
    done = program(tmp_path, "demo", "--orders", "4", "-o", "json")
    assert done.json == {**done.json, "orders": 4, "is_right": True}
    assert "kill -9" in done.err


def test_bench_measures_in_a_file_of_its_own(tmp_path: Path) -> None:
    done = program(tmp_path, "bench", "--runs", "5", "--steps", "2", "-o", "json", "--database", "sqlite:///shop.db")
    assert done.json == {**done.json, "dialect": "sqlite", "runs": 5, "steps": 2}
    assert done.json["runs_per_sec"] > 0
    assert list(tmp_path.iterdir()) == []
