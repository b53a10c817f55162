"""Episodes on a small disk: python -m tests.chaos.disk_process KIND BACKEND SEED COUNT prints what came of them.

It is meant for a mount namespace of its own; see `disk`.
"""

import asyncio
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

from perdure.errors import StorageError
from perdure.storage.stores import SQLStorage, open_storage
from tests.chaos.disk_engine import engine
from tests.chaos.disk_servers import FailingMySQL, FailingPostgres, FailingServer
from tests.chaos.disk_space import MIB, Space, small_space
from tests.chaos.disk_worker import fail_syncs
from tests.chaos.power_checks import QUERIES, Acknowledgements, violations
from tests.chaos.power_load import EFFECTS, Load
from tests.chaos.rigs import Outcome
from tests.engine.crashes.rig.worker_pool import until

SIZES = {"sqlite": 32 * MIB, "postgresql": 160 * MIB, "mysql": 260 * MIB}
LEFT_MAX = {"sqlite": 1 * MIB, "postgresql": 4 * MIB, "mysql": 8 * MIB}
CLEAR = re.compile("full|room|space", re.IGNORECASE)  # what a person has to read when the disk is full
GONE = re.compile("server|connection|answer|commit", re.IGNORECASE)
WRITERS = 6
STEPS = 20
TROUBLES = 6
PROGRESS = 40
LOG_FILES = 4
PATIENCE_SEC = 60.0  # less than a test may take


class Episodes:
    """One storage that stays open through all of them."""

    def __init__(
        self, outcome: Outcome, chance: random.Random, server: FailingServer | None, room: Callable[[], int]
    ) -> None:
        self.outcome, self.chance, self.server, self.acknowledged = outcome, chance, server, Acknowledgements()
        self.room = room
        self.load = Load(self.acknowledged.acknowledge, chance, pad_max=40_000)

    async def play(
        self, storage: SQLStorage, count: int, harm: Callable[[], Awaitable[None]], mend: Callable[[], None]
    ) -> None:
        """Cause a fault under load until it has an effect, remove it, and wait until work continues."""
        async with asyncio.TaskGroup() as writers:
            for number in range(WRITERS):
                writers.create_task(self.load.write_runs(storage, f"writer{number}", STEPS))
            for _ in range(count):
                await self._progress()
                await harm()
                wanted = self.load.troubles.total() + TROUBLES
                await self._until(lambda wanted=wanted: self._gone() or self.load.troubles.total() >= wanted, "trouble")  # type: ignore[misc]
                await asyncio.to_thread(mend)
                await asyncio.to_thread(self._revive)
                await self._progress()
                self.outcome.done += 1
            self.load.stopping.set()

    def _gone(self) -> bool:
        return self.server is not None and self.server.pid is None

    def _revive(self) -> None:
        """A server that ended itself is started again, as its keeper would do it."""
        if self.server is not None and self._gone():
            self.server.kill()
            self.server.start()
            self.outcome.figures["restarts"] = self.outcome.figures.get("restarts", 0) + 1

    def judge_words(self) -> None:
        """A server may end itself, or its connections, rather than continue: then that is the error."""
        clear = [words for words in self.load.troubles if CLEAR.search(words)]
        for words in self.load.troubles:
            if words not in clear and (self.server is None or not GONE.search(words)):
                self.outcome.wrong.append(f"the error does not say that the disk is full: {words}")
        if not clear and self.outcome.figures.get("restarts", 0) < self.outcome.done:
            self.outcome.wrong.append(f"no error says that the disk is full: {list(self.load.troubles)}")

    async def check(self, storage: SQLStorage) -> None:
        rows = {sql: await storage.conn().fetch(sql) for sql in QUERIES}
        self.outcome.wrong += violations(self.acknowledged, rows.__getitem__)
        self.outcome.figures |= {"acknowledged": self.acknowledged.count, "troubles": self.load.troubles.total()}

    async def _progress(self) -> None:
        wanted = self.acknowledged.count + PROGRESS
        await self._until(lambda: self.acknowledged.count >= wanted, "work to continue")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            await until(condition, what, PATIENCE_SEC)
        except AssertionError as error:
            raise AssertionError(f"{error}; heard: {self.load.troubles}; {self.room()} bytes left") from error


async def full(backend: str, url: str, space: Space, episodes: Episodes, count: int) -> None:
    """The disk fills up; PostgreSQL, which keeps room for its log, every second time runs out of that, too."""
    async with open_storage(url) as storage:
        await storage.conn().execute(EFFECTS)

        async def harm() -> None:
            space.fill(episodes.chance.randrange(LEFT_MAX[backend]))
            if backend == "postgresql" and episodes.outcome.done % 2:
                for _ in range(LOG_FILES):
                    with suppress(StorageError):
                        await storage.conn().fetch("SELECT pg_switch_wal()")

        await episodes.play(storage, count, harm, space.free)
    episodes.judge_words()


async def failing(url: str, server: FailingServer, episodes: Episodes, count: int) -> None:
    """Syncs of the server fail, which it takes for the end of the world."""
    async with open_storage(url) as storage:
        await storage.conn().execute(EFFECTS)

        async def harm() -> None:
            server.fails_at = episodes.chance.randint(30, 80)  # more than an orderly start needs
            failed = server.failed
            await asyncio.to_thread(server.restart)
            await until(lambda: server.failed > failed, "a sync to fail", PATIENCE_SEC)

        def mend() -> None:
            server.kill()
            server.fails_at = 0

        await episodes.play(storage, count, harm, mend)
    episodes.outcome.figures["failed syncs"] = server.failed


@contextmanager
def database(backend: str, space: Space, *, durable: bool) -> Iterator[tuple[str, FailingServer | None]]:
    """A URL on the small disk, and the server behind it."""
    if backend == "sqlite":
        yield f"sqlite:///{space.folder}/perdure.db", None
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(space.folder)  # where servers have their data
    with FailingPostgres(durable=durable) if backend == "postgresql" else FailingMySQL(durable=durable) as server:
        yield server.url, server


async def play(kind: str, backend: str, seed: int, count: int) -> Outcome:
    """Episodes of one kind, and what the database holds after them."""
    outcome, chance = Outcome(0), random.Random(seed)
    with (
        small_space(SIZES[backend]) as space,
        database(backend, space, durable=kind == "failing") as (url, server),
    ):
        if kind == "engine":
            await engine(url, space, outcome, chance, count)
            return outcome
        episodes = Episodes(outcome, chance, server, space.room)
        if kind == "full":
            await full(backend, url, space, episodes, count)
        elif server is not None:
            await failing(url, server, episodes, count)
        else:
            await fail_syncs(url, space.folder, outcome, episodes.acknowledged, chance, count)
        async with open_storage(url) as storage:
            await episodes.check(storage)
    return outcome


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(play(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))))
