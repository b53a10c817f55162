"""The process whose power is cut: perdure's storage and engine on recorded files, with apsw as its only SQLite.

    python -m tests.chaos.power_process FOLDER SEED LIVES SYNCHRONOUS FAILING

leaves the recording in FOLDER. LIVES is how many instances end of all writers together.
"""

import asyncio
import logging
import random
import sys
from datetime import timedelta
from pathlib import Path

from perdure import App
from perdure.database.backends.sqlite import backend as sqlite
from perdure.storage.stores import SQLStorage, open_storage
from tests.chaos.power_load import EFFECTS, Load
from tests.chaos.power_log import Log
from tests.chaos.power_vfs import Connection, RecordedDisk
from tests.chaos.power_workflow import order

WRITERS = 4
STEPS = 8
ENGINE_WRITERS = 2
LEASE = timedelta(seconds=2)


class Recorder:
    """The load of one recording."""

    def __init__(self, url: str, log: Log, disk: RecordedDisk, chance: random.Random) -> None:
        self.url, self.log, self.disk = url, log, disk
        self.load = Load(self._acknowledge, chance)
        self.ended = 0

    def _acknowledge(self, what: str, /, **about: object) -> None:
        self.log.acknowledge(what, **about)
        self.ended += what == "done"

    async def run(self, lives: int, failing: float) -> None:
        async with open_storage(self.url) as storage:
            await storage.conn().execute(EFFECTS)
            self.log.acknowledge("pragmas", **await _pragmas(storage))
            async with App(self.url, workflows=[order], lease=LEASE):
                self.log.acknowledge("ready")
                self.disk.failing = failing
                async with asyncio.TaskGroup() as writers:
                    for number in range(WRITERS):
                        writers.create_task(self.load.write_runs(storage, f"writer{number}", STEPS))
                    for number in range(ENGINE_WRITERS):
                        writers.create_task(self._orders(number))
                    writers.create_task(self._stop_after(lives))
                self.disk.failing = 0

    async def _orders(self, write_runs: int) -> None:
        number = write_runs
        while not self.load.stopping.is_set():
            run = f"order{number}"
            handle = await self.load.persist(lambda number=number, run=run: order.options(id=run).start(number))  # type: ignore[misc]
            self._acknowledge("started", run=run, number=number)
            result = await self.load.persist(lambda handle=handle: handle.result(60))  # type: ignore[misc]
            self._acknowledge("result", run=run, result=result)
            number += ENGINE_WRITERS

    async def _stop_after(self, lives: int) -> None:
        while self.ended < lives:  # noqa: ASYNC110 - the writers count
            await asyncio.sleep(0.01)
        self.load.stopping.set()


async def _pragmas(storage: SQLStorage) -> dict[str, object]:
    names = ("journal_mode", "synchronous", "foreign_keys")
    return {name: (await storage.conn().fetch(f"PRAGMA {name}"))[0][0] for name in names}


def main(folder: Path, seed: int, lives: int, synchronous: int, failing: float) -> None:
    database = str(folder / "live.db")
    log, chance = Log(folder / "recording"), random.Random(seed)
    disk = RecordedDisk(database, log, random.Random(chance.random()))
    sqlite.connect = Connection  # type: ignore[assignment]
    sqlite._PRAGMAS["synchronous"] = synchronous
    if failing:
        logging.disable()  # the engine logs every sync that fails
    asyncio.run(Recorder(f"sqlite:///{database}", log, disk, chance).run(lives, failing))
    log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
