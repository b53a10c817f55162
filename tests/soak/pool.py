"""Three worker processes: one lives as long as the test, so that its memory shows; two are killed and deployed anew."""

import asyncio
import random
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from perdure.storage.stores import SQLStorage
from tests.engine.crashes.rig.worker_pool import until
from tests.soak.worker import WorkerOptions, worker_id

ROOT = Path(__file__).parents[2]
READY_SEC = DRAIN_SEC = 120.0  # on a busy machine


@dataclass(slots=True)
class Worker:
    """One process."""

    process: Process
    started: float  # on the monotonic clock

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(slots=True)
class Pool:
    """The workers on one database."""

    options: WorkerOptions
    storage: SQLStorage
    chance: random.Random
    replaced: list[Worker] = field(default_factory=list)
    kills: int = 0
    long_lived: Worker = field(init=False)

    @property
    def workers(self) -> list[Worker]:
        return [self.long_lived, *self.replaced]

    async def __aenter__(self) -> Self:
        self.long_lived = await self._launch(replace(self.options, serves_all=False))
        self.replaced = [await self._launch(self.options) for _ in range(2)]
        await self._are_ready(self.workers)
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            if worker.process.returncode is None:
                worker.process.kill()
                await worker.process.wait()

    async def kill_one(self) -> None:
        """Kill a worker, start another one, and wait until it is ready."""
        number = self.chance.randrange(len(self.replaced))
        self.replaced[number].process.kill()
        await self.replaced[number].process.wait()
        self.kills += 1
        self.replaced[number] = await self._launch(self.options)
        await self._are_ready(self.replaced)

    async def deploy(self) -> None:
        """Replace one worker after the other by one with new code, as a rolling deployment does."""
        self.options = replace(self.options, version=self.options.version + 1)
        for number, old in enumerate(self.replaced):
            new = await self._launch(self.options)
            await self._are_ready([new])
            self.replaced[number] = new
            await self._end(old)

    async def stop(self) -> None:
        """Let all workers drain and end."""
        await asyncio.gather(*map(self._end, self.workers))

    async def _launch(self, options: WorkerOptions) -> Worker:
        with (Path(options.folder) / "workers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*options.command(), stdout=log, stderr=log, cwd=ROOT)
        return Worker(process, time.monotonic())

    async def _are_ready(self, workers: Sequence[Worker]) -> None:
        """Wait until the workers have registered in the database, which they do before they look for work."""
        wanted = {worker_id(worker.pid) for worker in workers}

        async def are_registered() -> bool:
            found = await self.storage.db().fetch("SELECT worker_id FROM perdure_workers")
            return wanted <= {id for (id,) in found}

        await until(are_registered, "workers to start", READY_SEC, 0.1)

    async def _end(self, worker: Worker) -> None:
        worker.process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(worker.process.wait(), DRAIN_SEC)
        if code != 0:
            raise AssertionError(f"worker {worker.pid} ended with code {code}")
