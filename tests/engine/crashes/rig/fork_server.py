"""The fork server: a process that has imported everything and forks workers, so that a restart costs little.

It has one thread and opens no storage, so what it forks is a process as good as new. Orders and answers are lines of
JSON. Workers are its children: it alone reaps them, so no process id is ever signalled after it was given away.
"""

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import time
import traceback
from asyncio.subprocess import PIPE, Process
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TextIO

from perdure import App
from perdure.database.backends import mysql, postgres, sqlite
from tests.engine.crashes.rig.clocks import block_notifications, shift
from tests.engine.crashes.rig.effect_log import EFFECTS
from tests.engine.crashes.rig.workflows import GATES, MIX, PROBE

PRELOADED = mysql, postgres, sqlite  # else a worker imports its own when it opens a storage
ROOT = Path(__file__).parents[4]
LEASE_SEC = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is to be."""

    url: str
    folder: str
    resident: int = 0
    max_runs: int = 1000
    probe: int | None = None
    lease_sec: float = LEASE_SEC
    clock_off_sec: float = 0.0  # of a pool of workers: at most, to either side
    without_notifications: bool = False


class ForkServer:
    """The fork server as a test sees it."""

    def __init__(self) -> None:
        self._process: Process

    async def __aenter__(self) -> Self:
        command = [sys.executable, "-m", "tests.engine.crashes.rig.fork_server"]
        self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=ROOT)
        return self

    async def __aexit__(self, *_: object) -> None:
        """All workers end with the fork server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), 20)

    async def fork(self, spec: WorkerSpec) -> int:
        """Start a worker and return its process id."""
        return int(await self._order("fork", asdict(spec)))

    async def kill(self, pid: int) -> float:
        """Kill a worker; return the time just before, on the monotonic clock."""
        return float(await self._order("kill", pid))

    async def stop(self, pid: int) -> float:
        """Stop a worker where it stands."""
        return float(await self._order("stop", pid))

    async def resume(self, pid: int) -> float:
        """Resume a stopped worker."""
        return float(await self._order("resume", pid))

    async def _order(self, name: str, about: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, about]).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(self._process.stdout.readline(), 30) or '{"error": "it ended"}')
        if "error" in answer:
            raise AssertionError(f"the fork server could not {name} {about}: {answer['error']}")
        return answer["done"]


class Orders:
    """The commands of the fork server."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def fork(self, spec: dict[str, Any]) -> int:
        pid = os.fork()
        if not pid:
            _be_worker(WorkerSpec(**spec))
        self.pids.add(pid)
        return pid

    def kill(self, pid: int) -> float:
        return self._signal(pid, signal.SIGKILL, 0)

    def stop(self, pid: int) -> float:
        return self._signal(pid, signal.SIGSTOP, os.WUNTRACED)

    def resume(self, pid: int) -> float:
        return self._signal(pid, signal.SIGCONT, os.WCONTINUED)

    def _signal(self, pid: int, number: signal.Signals, options: int) -> float:
        before = time.monotonic()
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            raise RuntimeError(f"worker {pid} had ended by itself")
        os.kill(pid, number)
        os.waitpid(pid, options)
        if number is signal.SIGKILL:
            self.pids.discard(pid)
        return before


def _be_worker(spec: WorkerSpec) -> None:
    """The life of a forked process; it never returns."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        folder = Path(spec.folder)
        _redirect(folder / "workers.log")
        GATES.folder = folder
        EFFECTS.open(folder / "effects")
        if spec.clock_off_sec:
            shift(spec.clock_off_sec)
        if spec.without_notifications:
            block_notifications()
        asyncio.run(_serve(spec))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _redirect(path: Path) -> None:
    """Nothing of the fork server's own pipes stays open here."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    handler = logging.StreamHandler()
    form = f"%(asctime)s {os.getpid()} %(levelname)s %(message)s %(instance)s %(error)s"
    handler.setFormatter(logging.Formatter(form, defaults={"instance": "", "error": ""}))
    logging.getLogger().addHandler(handler)


async def _serve(spec: WorkerSpec) -> None:
    app = App(
        spec.url,
        workflows=MIX if spec.probe is None else [*MIX, PROBE[spec.probe]],
        lease=timedelta(seconds=spec.lease_sec),
        max_cached_runs=spec.resident,
        max_runs=spec.max_runs,
        hooks=[EFFECTS.hook],
    )
    ready = asyncio.create_task(_tell_when_open(app))
    await app.serve()
    await ready


async def _tell_when_open(app: App) -> None:
    while not hasattr(app, "_worker") or not app._worker._tasks:  # noqa: ASYNC110 - serve() has no event for it
        await asyncio.sleep(0.002)
    EFFECTS.write("ready")


def main(orders: TextIO, answers: TextIO) -> None:
    """Follow orders until there are no more."""
    commands = Orders()
    for line in orders:
        name, about = json.loads(line)
        try:
            answer = {"done": getattr(commands, name)(about)}
        except Exception as error:
            answer = {"error": repr(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for pid in commands.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
