"""Work on SQLite in a process whose syncs fail: python -m tests.chaos.disk_worker URL LOG TRACE SEED FAILURES.

It ends as a crash would, once so many failures have occurred and work has continued. What was acknowledged to it is in
LOG; the calls that were made to fail are in TRACE, since several writers may get the error of one call.
"""

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

from perdure.errors import CommitUnknownError
from perdure.storage.stores import open_storage
from tests.chaos.disk_servers import failing, injected
from tests.chaos.power_checks import Acknowledgements
from tests.chaos.power_load import EFFECTS, Load
from tests.chaos.rigs import Outcome

ROOT = Path(__file__).parents[2]
WRITERS = 4
STEPS = 20
PROGRESS = 40
PATIENCE_SEC = 120.0


async def fail_syncs(
    url: str, folder: Path, outcome: Outcome, acknowledged: Acknowledgements, chance: random.Random, count: int
) -> None:
    """Let a worker meet so many failures; add what was acknowledged to it."""
    async with open_storage(url) as storage:
        await storage.conn().execute(EFFECTS)
    trace, log = folder / "trace", folder / "acknowledged"
    command = [*failing(trace, chance.randint(5, 15)), sys.executable, "-m", "tests.chaos.disk_worker"]
    arguments = (url, log, trace, chance.getrandbits(32), count)
    worker = await asyncio.create_subprocess_exec(*map(str, (*command, *arguments)), cwd=ROOT)
    try:
        async with asyncio.timeout(PATIENCE_SEC):
            code = await worker.wait()
    except BaseException:
        worker.kill()
        raise
    assert code == -signal.SIGKILL, f"the worker ended with {code}"
    for line in log.read_text().splitlines():
        about = json.loads(line)
        if about["what"] == "trouble":
            outcome.wrong += [] if about["kind"] == CommitUnknownError.__name__ else [f"wrong error: {about}"]
        else:
            acknowledged.acknowledge(about.pop("what"), **about)
    outcome.figures["failed syncs"] = injected(trace)
    outcome.done += min(count, injected(trace))


class _Worker:
    def __init__(self, log: Path, chance: random.Random) -> None:
        self._log = log.open("a", buffering=1)
        self.acknowledged = 0
        self.load = Load(self._acknowledge, chance)

    def _acknowledge(self, what: str, /, **about: object) -> None:
        self._log.write(json.dumps({"what": what, **about}) + "\n")
        self.acknowledged += 1

    async def run(self, url: str, trace: Path, failures: int) -> None:
        async with open_storage(url) as storage, asyncio.TaskGroup() as writers:
            for number in range(WRITERS):
                writers.create_task(self.load.write_runs(storage, f"writer{number}", STEPS))
            while min(self.load.troubles.total(), injected(trace)) < failures:  # noqa: ASYNC110 - the writers count
                await asyncio.sleep(0.01)
            wanted = self.acknowledged + PROGRESS
            while self.acknowledged < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for words in self.load.troubles:
                self._acknowledge("trouble", kind=words.split(":")[0], words=words)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    worker = _Worker(Path(sys.argv[2]), random.Random(int(sys.argv[4])))
    asyncio.run(worker.run(sys.argv[1], Path(sys.argv[3]), int(sys.argv[5])))
