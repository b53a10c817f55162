"""The time that a body sees: the database's, whatever the worker's own clock says; and it goes on while steps run."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure import App, WorkflowStatus, now, sleep_until, workflow
from perdure.storage.stores import shift_clock
from tests.engine.waiting import waiting
from tests.storages import Database

HOUR = timedelta(hours=1)
SOON = timedelta(minutes=5)  # a loaded machine is not off by that


@workflow(name="clocks.sleeper")
async def sleeper(until: datetime) -> datetime:
    seen = now()
    await sleep_until(until)
    return seen


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_now_and_sleep_until_go_by_the_databases_clock(database: Database, ahead: timedelta) -> None:
    """B6: on a worker an hour ahead, a sleep of 30 minutes was over at once."""
    async with App(database.url) as app:
        shift_clock(app._storage, -ahead)  # the same as a worker's clock that is off by `ahead`
        await app._worker._set_clock()
        time = datetime.now(UTC) - ahead
        later = await sleeper.start(time + HOUR / 2, id="later")
        assert await waiting(app, later.id) is WorkflowStatus.WAITING_FOR_TIMER
        timers = await app._storage.db().fetch("SELECT timer_id FROM workflow_timer_subscriptions")
        assert len(timers) == 1
        seen = await (await sleeper.start(time - HOUR / 2)).result(20)
        assert abs(seen - time) < SOON
