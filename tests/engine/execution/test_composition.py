"""The tools of asyncio in a body: task groups, gather, wait, queues and locks."""

import asyncio
from datetime import timedelta

import pytest

from perdure import App, Retry, activity, set_state, sleep, wait_event, workflow
from tests.engine.orders import halve
from tests.engine.waiting import until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
DAY = timedelta(days=1)
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    done.clear()


@workflow(name="composition.parallel")
async def parallel(count: int) -> list[float]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_halved(number)) for number in range(count)]
    return [task.result() for task in tasks]


async def _halved(number: int) -> float:
    return await halve(float(number))


@pytest.mark.call("compose")
async def test_activities_run_concurrently_in_a_task_group(database: Database) -> None:
    async with App(database.url):
        handle = await parallel.start(40)
        assert await handle.result(SOON) == [number / 2 for number in range(40)]


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@workflow(name="composition.shouter")
async def shouter(what: str) -> str:
    set_state({"about to shout": what})
    return await shout(what)


@workflow(name="composition.composed")
async def composed() -> list[str]:
    queue: asyncio.Queue[str] = asyncio.Queue(1)
    lock = asyncio.Lock()

    async def produce(whats: str) -> None:
        for what in whats:
            await queue.put(await shout(what))

    async def guarded(what: str) -> str:
        async with lock:
            return await shout(what)

    said = list(await asyncio.gather(shout("a"), shouter("b"), guarded("c"), guarded("d")))
    async with asyncio.TaskGroup() as group:
        group.create_task(produce("ef"))
        said += [await queue.get(), await queue.get()]
    branches = {asyncio.create_task(sleep(DAY)), asyncio.create_task(_wait_for_message())}
    first, others = await asyncio.wait(branches, return_when=asyncio.FIRST_COMPLETED)
    for branch in others:
        branch.cancel()
    return [*said, *(str(branch.result()) for branch in first)]


async def _wait_for_message() -> str:
    return str((await wait_event("composition.tell")).data)


@pytest.mark.call("compose")
@pytest.mark.parametrize("resident", [0, 10])
async def test_gather_wait_queues_and_locks_work_in_a_body(database: Database, resident: int) -> None:
    async with App(database.url, max_cached_runs=resident) as app:
        handle = await composed.start()
        await until(lambda: len(done) == 6)
        await waiting(app, handle.id)
        await app.send_event("composition.tell", "g", to=handle.id)
        assert await handle.result(SOON) == ["A", "B", "C", "D", "E", "F", "g"]
        assert sorted(done) == list("abcdef")
