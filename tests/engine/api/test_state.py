"""The state that a workflow shows with set_state()."""

from datetime import timedelta

import pytest

from perdure import App, Retry, WorkflowStatus, activity, set_state, sleep, workflow
from tests.engine.waiting import status_of
from tests.support.storages import Database

SOON = timedelta(seconds=60)
DAY = timedelta(days=1)
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@workflow(name="state.shouter")
async def shouter(what: str) -> str:
    set_state({"about to shout": what})
    return await shout(what)


@workflow(name="state.sleeper")
async def sleeper(what: str) -> None:
    set_state(what)
    await sleep(DAY)


@pytest.mark.call("limits")
@pytest.mark.call("run")
async def test_state_of_a_run_can_be_read_while_it_waits_and_after_it_ended(database: Database) -> None:
    async with App(database.url):
        handle = await sleeper.start("asleep")
        await status_of(handle, WorkflowStatus.WAITING_FOR_TIMER)
        assert await handle.state() == "asleep"
        ended = await shouter.start("a")
        await ended.result(SOON)
        assert await ended.state() == {"about to shout": "a"}
