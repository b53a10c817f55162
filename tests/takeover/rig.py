"""The rig: plays a feature with a change of worker at one of its points, and compares it with the undisturbed run."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from perdure.engine.worker import work_loop
from perdure.storage.stores import SQLStorage
from tests.faults.table_snapshots import Watcher, watch
from tests.support.storages import Database
from tests.takeover.definitions import LEDGER
from tests.takeover.deployment import Deployment
from tests.takeover.features import FEATURES, Change, Feature
from tests.takeover.log import LOG
from tests.takeover.outcomes import Outcome, differences, unexpected
from tests.takeover.plays import CaseError, Play
from tests.takeover.workers import POLL_SEC


@dataclass(frozen=True, slots=True)
class Case:
    """One change at one point of one feature."""

    feature: str
    change: Change
    point: str

    def __str__(self) -> str:
        return f"{self.feature}/{self.change}/{self.point}"

    @classmethod
    def parse(cls, text: str) -> "Case":
        feature, change, point = text.split("/", 2)
        return cls(feature, Change(change), point)


@dataclass(slots=True)
class Player:
    """Plays one case after the other on one database."""

    url: str
    storage: SQLStorage
    watcher: Watcher
    deployment: Deployment = field(default_factory=Deployment)
    _undisturbed: dict[str, Outcome] = field(default_factory=dict)

    async def cases(self, feature: str) -> list[Case]:
        """All cases of a feature."""
        points = (await self.undisturbed(feature)).points
        return [Case(feature, change, point) for change in Change for point in points]

    async def undisturbed(self, feature: str) -> Outcome:
        """The outcome without a change; played once."""
        if feature not in self._undisturbed:
            outcome = await self._play(FEATURES[feature], None, "")
            wrong = unexpected(FEATURES[feature], outcome)
            assert not wrong, "\n".join([f"{feature} without a change:", *wrong])
            self._undisturbed[feature] = outcome
        return self._undisturbed[feature]

    async def play(self, case: Case) -> list[str]:
        """Play a case and return the differences from the undisturbed run that are not legitimate."""
        expected, feature = await self.undisturbed(case.feature), FEATURES[case.feature]
        try:
            found = await self._play(feature, case.change, case.point)
        except CaseError as error:
            return [str(error)]
        return differences(feature, case.change, expected, found)

    async def clear(self) -> None:
        """Forget the last case."""
        await self.watcher.wipe()
        await self.storage.db().execute(f"DELETE FROM {LEDGER}")
        LOG.clear()
        self.deployment.reset()

    async def _play(self, feature: Feature, change: Change | None, point: str) -> Outcome:
        await self.clear()
        play = Play(self.url, self.storage, self.deployment, feature, change, point)
        try:
            return await play.run()
        finally:
            await play.close()


@contextmanager
def _eager_workers() -> Iterator[None]:
    """Let workers look for work without the pause between two searches."""
    before, work_loop.CALM_SEC = work_loop.CALM_SEC, POLL_SEC
    try:
        yield
    finally:
        work_loop.CALM_SEC = before


@asynccontextmanager
async def open_player(database: Database) -> AsyncIterator[Player]:
    """A player on a database of its own."""
    storage = await database.storage()
    await storage.db().execute(f"CREATE TABLE IF NOT EXISTS {LEDGER} (what VARCHAR(100) NOT NULL)")
    watcher = await watch(database.backend, database.url)
    try:
        with _eager_workers():
            yield Player(database.url, storage, watcher)
    finally:
        await watcher.close()
        await storage.db().execute(f"DROP TABLE {LEDGER}")
