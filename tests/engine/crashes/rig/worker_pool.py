"""A pool of worker processes on one database, some of which are killed or stopped."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from tests.engine.crashes.rig.effect_log import Effects, Line
from tests.engine.crashes.rig.fork_server import ForkServer, WorkerSpec

PATIENCE_SEC = 60.0


@dataclass(slots=True)
class WorkerPool:
    """Workers by process id, and when they were killed."""

    spec: WorkerSpec
    chance: random.Random
    fork_server: ForkServer = field(default_factory=ForkServer)
    alive: list[int] = field(default_factory=list)
    kills: dict[int, float] = field(default_factory=dict)  # when, on the monotonic clock
    effects: Effects = field(init=False)

    def __post_init__(self) -> None:
        self.effects = Effects(self.folder / "effects")

    @property
    def folder(self) -> Path:
        return Path(self.spec.folder)

    async def __aenter__(self) -> Self:
        await self.fork_server.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.fork_server.__aexit__()
        if kind is not None:
            print(*self.troubles()[-40:], sep="\n")

    async def start_worker(self, *, max_runs: int = 1000, probe: int | None = None) -> int:
        """Start a worker; every second one, by chance, keeps parked runs in memory."""
        spec = replace(self.spec, resident=self.chance.choice((0, 1000)), max_runs=max_runs, probe=probe)
        if spec.clock_off_sec:
            spec = replace(spec, clock_off_sec=self.chance.uniform(-1, 1) * spec.clock_off_sec)
        pid = await self.fork_server.fork(spec)
        self.alive.append(pid)
        return pid

    async def kill(self, pid: int) -> None:
        """Kill a worker."""
        self.kills[pid] = await self.fork_server.kill(pid)
        self.alive.remove(pid)

    def ready(self) -> list[int]:
        """Those alive that have begun to look for work."""
        begun = {line.pid for line in self.effects.look() if line.what == "ready"}
        return [pid for pid in self.alive if pid in begun]

    async def until_ready(self, count: int) -> None:
        """Wait until so many are at work."""
        await until(lambda: len(self.ready()) >= count, f"{count} workers at work")

    async def seen(self, fits: Callable[[Line], bool], what: str) -> Line:
        """Wait for a line in the effect log."""
        await until(lambda: any(map(fits, self.effects.look())), what)
        return next(filter(fits, self.effects.lines))

    def troubles(self) -> list[str]:
        """What workers wrote to their own log."""
        path = self.folder / "workers.log"
        return path.read_text().splitlines() if path.exists() else []


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    what: str,
    patience_sec: float = PATIENCE_SEC,
    pause_sec: float = 0.01,
) -> None:
    """Wait for a condition, and fail when it does not come true."""
    try:
        async with asyncio.timeout(patience_sec):
            while not await _value(condition()):  # noqa: ASYNC110 - other processes make it true
                await asyncio.sleep(pause_sec)
    except TimeoutError:
        raise AssertionError(f"waited {patience_sec} s in vain for {what}") from None


async def _value(answer: bool | Awaitable[bool]) -> bool:
    return answer if isinstance(answer, bool) else await answer
