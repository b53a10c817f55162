"""The database's clock, as a worker estimates it between two answers of the database."""

from datetime import UTC, datetime, timedelta

from perdure.engine.execution.clock import Clock, SystemClock
from perdure.storage.contract import Storage


class DatabaseClock:
    """Estimates the database's clock with the local monotonic clock; changes of the local wall clock don't matter."""

    def __init__(self, storage: Storage, clock: Clock | None = None) -> None:
        self._storage = storage
        self._steady = (clock or SystemClock()).steady
        self._epoch = datetime.now(UTC) - timedelta(seconds=self._steady())  # until the first answer of the database

    def now(self) -> datetime:
        """Return an estimate of the database's clock, which is never ahead of it by more than the clocks' drift."""
        return self._epoch + timedelta(seconds=self._steady())

    async def set(self) -> None:
        """Read the database's clock. By the time of the answer it is later, so the estimate is a little behind."""
        self._epoch = await self._storage.now() - timedelta(seconds=self._steady())
