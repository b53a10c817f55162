"""Running the command line in this process, and as a process of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from perdure.cli.main import run

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-W", "error", "-m", "perdure"]


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        return json.loads(self.err)


Cli = Callable[..., Awaitable[Done]]


async def call(capture: Any, arguments: Sequence[str]) -> Done:
    """Run a command in a thread, because it has an event loop of its own."""
    capture.readouterr()
    code = await asyncio.to_thread(run, arguments)
    out, err = capture.readouterr()
    return Done(code, out, err)


def environment(folder: Path, **more: str) -> Mapping[str, str]:
    """Return the environment of a process: without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PERDURE_URL", "DATABASE_URL")}
    return {**kept, "HOME": str(folder), "PYTHONPATH": str(ROOT / "src"), **more}


def program(folder: Path, *arguments: str, code: int = 0, **more: str) -> Done:
    """Run a command as a process in a folder."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


async def begin(folder: Path, *arguments: str, **more: str) -> asyncio.subprocess.Process:
    """Start a command as a process, with its standard error readable."""
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        cwd=folder,
        env=environment(folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """Wait for a line that contains a text."""
    assert stream is not None
    seen: list[str] = []
    async with asyncio.timeout(60):
        while line := await stream.readline():
            seen.append(line.decode())
            if text in seen[-1]:
                return seen[-1]
    raise AssertionError(f"{text!r} is not in:\n" + "".join(seen))


async def runs_page(command: str, folder: Path) -> str:
    """Run a command that serves the dashboard as it was printed, on a free port, and return its page of runs."""
    process = await asyncio.create_subprocess_shell(
        f"exec {command} --port 0 --log-level INFO", cwd=folder, env=environment(folder), stderr=subprocess.PIPE
    )
    try:
        url = (await line_with(process.stderr, "the dashboard listens on")).split()[-1]
        async with httpx.AsyncClient(timeout=60, headers={"Accept": "text/html"}) as http:
            return (await http.get(f"{url}/runs")).text
    finally:
        process.terminate()
        await process.communicate()
