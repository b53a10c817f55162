"""The clock of a database for tests."""

from datetime import UTC, datetime

from perdure.storage.stores import SQLStorage, stop_clock
from perdure.testing.conformance.tools import new

THEN = datetime(2031, 5, 6, 7, 8, 9, 123000, UTC)


async def test_stopped_clock_shows_the_same_time_until_it_runs_again(storage: SQLStorage) -> None:
    stop_clock(storage, THEN)
    assert [await storage.now() for _ in range(2)] == [THEN, THEN]
    await new(storage, "i-1")
    row = await storage.get_instance("i-1")
    assert row is not None
    assert row.started_at == THEN
    stop_clock(storage, None)
    assert await storage.now() < THEN
