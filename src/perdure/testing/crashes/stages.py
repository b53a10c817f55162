"""Where plays take place: in memory, or on a database that is emptied before each play."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import cast

from perdure.errors import ConfigurationError
from perdure.model.states import TERMINAL
from perdure.storage.contract import Storage
from perdure.storage.stores import SQLStorage, stop_clock
from perdure.testing.crashes.outcomes import all_runs
from perdure.testing.crashes.virtual_clock import Timeline
from perdure.testing.databases import TestDatabase
from perdure.testing.reference import Reference, World

BEGAN = datetime(2030, 1, 7, 9, 0, tzinfo=UTC)  # by the virtual clock, a Monday
PAGE = 100

Prepare = Callable[[], Awaitable[tuple[Storage, Timeline]]]


@asynccontextmanager
async def open_stage(database: str | None) -> AsyncIterator[Prepare]:
    """Provide a function that prepares an empty storage for the next play, with its time.

    On a server it uses a new schema or database, which is dropped at the end. A SQLite database must have no runs.
    """
    if database is None:
        yield _in_memory
        return
    async with TestDatabase(database, "crash_everywhere").open() as storage:
        assert isinstance(storage, SQLStorage), "a URL opens nothing else"
        if await storage.count_instances(limit=1):
            raise ConfigurationError(
                "the database given to crash_everywhere(database=) has runs, and it would delete them: give it an "
                "empty database, such as 'sqlite:///:memory:'"
            )
        try:
            yield lambda: _on_database(storage)
        finally:
            await _empty(storage)


async def _in_memory() -> tuple[Storage, Timeline]:
    timeline = Timeline(BEGAN)
    return cast(Storage, Reference(World(timeline.now))), timeline


async def _on_database(storage: SQLStorage) -> tuple[Storage, Timeline]:
    await _empty(storage)
    return storage, Timeline(BEGAN, lambda now: stop_clock(storage, now))


async def _empty(storage: Storage) -> None:
    """Delete what the last play has left. Its clock stands still, and later than all messages."""
    runs = await all_runs(storage)
    for run in runs:
        if run.status not in TERMINAL:
            await storage.cancel_instance(run.instance_id)
    for first in range(0, len(runs), PAGE):
        await storage.delete_ended([run.instance_id for run in runs[first : first + PAGE]])
    while await storage.cleanup_old_channel_messages(timedelta(0), force=True):
        pass
