"""Watch the calls of activities in the workers of a play, stubbed or not."""

import asyncio
from collections.abc import Callable

from perdure.engine.execution.interfaces import Attempt, Done, Record
from perdure.engine.replay.context import ActivityInfo
from perdure.engine.worker.activities import Executor
from perdure.storage.contract import Storage


class WatchedActivities:
    """Executes the attempts of one worker, while it `is_alive`; `seen` is called before each of them."""

    def __init__(
        self, activities: Executor, is_alive: Callable[[], bool], seen: Callable[[ActivityInfo], object]
    ) -> None:
        self._activities, self._is_alive, self._seen = activities, is_alive, seen

    async def execute(self, attempt: Attempt) -> Done:
        """Execute an attempt."""
        self._begin(attempt)
        return await self._activities.execute(attempt)

    async def transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        """Execute an attempt in a transaction that also records its result."""
        self._begin(attempt)
        return await self._activities.transact(attempt, storage, record)

    def close(self) -> None:
        """Let the threads end."""
        self._activities.close()

    def _begin(self, attempt: Attempt) -> None:
        if not self._is_alive():
            raise asyncio.CancelledError  # a dead process does nothing any more
        self._seen(attempt.info)
