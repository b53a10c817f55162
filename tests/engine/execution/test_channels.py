"""Channels: broadcast, competing and direct subscriptions."""

from datetime import timedelta

import pytest

from perdure import App, Retry, activity, publish, receive, send_to, subscribe, unsubscribe, workflow
from perdure.errors import NotSubscribedError
from tests.engine.waiting import until
from tests.support.storages import Database

SOON = timedelta(seconds=60)
calls: list[str] = []
DAY = timedelta(days=1)
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()
    done.clear()


@workflow(name="channels.listener")
async def listener(count: int) -> list[int]:
    await subscribe("news")
    await set_ready()
    return [(await receive("news", type=int)).data for _ in range(count)]


@activity
async def set_ready() -> None:
    calls.append("ready")


@workflow(name="channels.job_worker")
async def job_worker(count: int) -> list[int]:
    await subscribe("jobs", "competing")
    done: list[int] = []
    while len(done) < count:
        done.append((await receive("jobs", type=int)).data)
    return done


@workflow(name="channels.direct")
async def direct() -> str:
    await subscribe("mail", "direct")
    return str((await receive("mail")).data)


@workflow(name="channels.sender")
async def sender(to: str) -> None:
    await send_to(to, "mail", "hello")
    await publish("nobody", {"a": 1})


@pytest.mark.call("channels")
async def test_broadcast_reaches_all_subscribers_in_order(database: Database) -> None:
    async with App(database.url) as app:
        handles = [await listener.start(5) for _ in range(3)]
        await until(lambda: calls.count("ready") == 3)
        for number in range(5):
            await app.publish("news", number)
        assert [await handle.result(SOON) for handle in handles] == [list(range(5))] * 3


@pytest.mark.call("channels")
async def test_competing_subscribers_share_the_messages(database: Database) -> None:
    async with App(database.url) as app:
        handles = [await job_worker.start(5) for _ in range(3)]
        for number in range(15):
            await app.publish("jobs", number)
        done = [await handle.result(SOON) for handle in handles]
        assert sorted(number for some in done for number in some) == list(range(15))


@pytest.mark.call("channels")
async def test_direct_message_reaches_its_run(database: Database) -> None:
    async with App(database.url):
        one = await direct.options(id="one").start()
        await (await sender.start("one")).result(SOON)
        assert await one.result(SOON) == "hello"


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@workflow(name="channels.reader")
async def reader() -> list[object]:
    found: list[object] = []
    await subscribe("channels.news")
    try:
        await receive("channels.news", timeout=0)
    except TimeoutError:
        found.append("nothing yet")
    await shout("ready")
    message = await receive("channels.news", timeout=DAY)
    found += [message.data, dict(message.metadata)]
    await unsubscribe("channels.news")
    try:
        await receive("channels.news")
    except NotSubscribedError:
        found.append("no longer")
    return found


@workflow(name="channels.writer")
async def writer() -> None:
    await publish("channels.news", {"n": 1}, metadata={"by": "writer"})


@pytest.mark.call("channels")
async def test_publish_with_metadata_receive_with_timeout_and_unsubscribe(database: Database) -> None:
    async with App(database.url):
        handle = await reader.start()
        await until(lambda: done == ["ready"])
        await (await writer.start()).result(SOON)
        assert await handle.result(SOON) == ["nothing yet", {"n": 1}, {"by": "writer"}, "no longer"]
