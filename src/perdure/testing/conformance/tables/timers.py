"""Look at the tables: timers."""

from perdure.database.backends.base import Executor
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.timers import sleeping
from perdure.testing.conformance.tools import Shift


async def test_timers_of_other_frameworks_are_not_fired(storage: SQLStorage, sql: Executor, shift: Shift) -> None:
    await sleeping(storage, "i-1")
    await sql.execute("UPDATE workflow_timer_subscriptions SET framework = NULL")
    shift(storage, 11)
    assert await storage.find_expired_timers() == []
    assert not await storage.fire_timer("i-1", "t")
    assert await storage.next_due_at() is None
