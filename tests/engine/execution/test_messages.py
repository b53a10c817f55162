"""Events and messages: each is sent once, and reaches the runs that wait for it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    OutsideWorkflowError,
    Retry,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    publish,
    receive,
    send_event,
    send_to,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.worker import work_loop
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.engine.waiting import row_of, waiting
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)


@activity(retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def announcing(good_from: int) -> int:
    attempt = activity_info().attempt
    await publish("told", attempt)
    await send_event("told.event", attempt)
    await send_to("listener", "told.direct", attempt)
    if attempt < good_from:
        raise ValueError("after the publish")
    return attempt


@workflow(name="messages.announcing")
async def announced(good_from: int) -> int:
    return await announcing(good_from)


@activity
async def misplaced() -> list[str]:
    refused = []
    for call in (lambda: sleep(1), lambda: wait_event("x"), lambda: receive("x"), lambda: subscribe("x")):
        try:
            await call()
        except OutsideWorkflowError as error:
            refused.append(str(error))
    return refused


@workflow(name="messages.misplaced")
async def misplaced_waits() -> list[str]:
    return await misplaced()


@workflow(name="messages.publishing")
async def publishing() -> str:
    await publish("told", "from the body")
    await wait_event("go")
    return "done"


async def _published(storage: SQLStorage, channel: str) -> list[bytes | None]:
    return [message.data for message in await storage.get_pending_channel_messages(channel)]


@pytest.mark.guarantee(4)
async def test_messages_of_an_activity_commit_with_its_result(database: Database) -> None:
    async with App(database.url) as app:
        await app._storage.create_instance(WorkflowInstance("listener", "messages.listener"))
        assert await (await announced.start(2)).result(SOON) == 2
        for channel in ("told", "told.event", "told.direct:listener"):
            assert await _published(storage_of(app), channel) == [b"2"], channel


@pytest.mark.guarantee(4)
async def test_failed_activity_sends_nothing(database: Database) -> None:
    async with App(database.url) as app:
        await app._storage.create_instance(WorkflowInstance("listener", "messages.listener"))
        with pytest.raises(WorkflowFailedError, match="after the publish"):
            await (await announced.start(9)).result(SOON)
        for channel in ("told", "told.event", "told.direct:listener"):
            assert await _published(storage_of(app), channel) == [], channel


@pytest.mark.guarantee(4)
async def test_waits_in_an_activity_are_refused(database: Database) -> None:
    async with App(database.url):
        refused = await (await misplaced_waits.start()).result(SOON)
    assert len(refused) == 4
    assert all("in an activity" in each for each in refused)


@pytest.mark.guarantee(4)
async def test_body_publishes_once_however_often_it_is_replayed(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await publishing.options(id="a").start()
        assert await waiting(app, "a") is WorkflowStatus.WAITING_FOR_MESSAGE
        await app.send_event("go", None)
        assert await app.get("a").result(SOON) == "done"
        assert await _published(storage_of(app), "told") == [b'"from the body"']


async def messages(storage: SQLStorage, channel: str) -> int:
    return len(await storage.get_pending_channel_messages(channel))


@workflow(name="messages.waiting")
async def waits_for(kind: str) -> Any:
    return (await wait_event(kind)).data


@workflow(name="messages.listening")
async def listening(channel: str, count: int) -> list[Any]:
    await subscribe(channel)
    return [(await receive(channel)).data for _ in range(count)]


@pytest.mark.pitfall(5)
async def test_message_sent_while_a_run_starts_to_wait_is_not_lost(database: Database) -> None:
    async with App(database.url) as app:
        handles = await asyncio.gather(*(waits_for.options(id=f"w{n}").start("ready") for n in range(30)))
        await asyncio.gather(*(app.send_event("ready", n, to=f"w{n}") for n in range(30)))
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == list(range(30))


@pytest.mark.pitfall(6)
async def test_concurrent_publishers_cause_no_skipped_message(database: Database) -> None:
    async with App(database.url) as app:
        handles = [await listening.options(id=f"l{n}").start("news", 30) for n in range(3)]
        await waiting(app, *(handle.id for handle in handles))
        await asyncio.gather(*(app.publish("news", number) for number in range(30)))
        found = [await handle.result(SOON) for handle in handles]
    assert sorted(found[0]) == list(range(30))
    assert found == [found[0]] * 3


@pytest.mark.behaviour("background tasks")
@pytest.mark.pitfall(9)
async def test_message_from_another_process_wakes_its_receiver(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = timedelta(minutes=10)  # longer than a test may take
    monkeypatch.setattr(work_loop, "LOOK_SEC", endless.total_seconds())
    async with App(shared.url, lease=endless) as app:
        handle = await waits_for.options(id="a").start("call")
        await waiting(app, "a")
        async with Client(shared.url) as other:
            await other.send_event("call", 7)
            assert await app.get(handle.id).result(SOON) == 7  # and not when the worker looks again


@pytest.mark.pitfall(16)
async def test_message_to_an_ended_run_changes_nothing(database: Database) -> None:
    async with App(database.url) as app:
        await waits_for.options(id="a").start("once")
        await app.send_event("once", 1, to="a")
        assert await app.get("a").result(SOON) == 1
        before = await row_of(app, "a")
        await app.send_event("once", 2, to="a")
        await app.send_event("once", 3)
        await app._storage.deliver_pending()
        assert await app._storage.get_history_count("a") == 1
        assert await row_of(app, "a") == before


@workflow(name="messages.sending")
async def sending() -> str:
    await subscribe("inbox")
    await publish("out", 1)
    await send_to("somebody", "mail", 2)
    await send_event("told", 3)
    await wait_event("first")
    await publish("out", 4)
    await wait_event("second")
    return "done"


@pytest.mark.pitfall(19)
async def test_replay_repeats_no_message_or_subscription(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await app._storage.create_instance(WorkflowInstance("somebody", "messages.somebody"))
        handle = await sending.options(id="a").start()
        await waiting(app, "a")
        await app.send_event("first", None, to="a")
        await app.send_event("second", None, to="a")
        assert await handle.result(SOON) == "done"
        assert [await messages(storage_of(app), each) for each in ("out", "mail:somebody", "told")] == [2, 1, 1]


@pytest.mark.pitfall(22)
async def test_event_to_one_run_is_invisible_to_other_runs(database: Database) -> None:
    async with App(database.url) as app:
        await waits_for.options(id="a").start("for.one")
        await waits_for.options(id="b").start("for.one")
        await waiting(app, "a", "b")
        await app.send_event("for.one", "a's", to="a")
        assert await app.get("a").result(SOON) == "a's"
        assert (await app.get("b").info()).status is WorkflowStatus.WAITING_FOR_MESSAGE
        await app.send_event("for.one", "everybody's")
        assert await app.get("b").result(SOON) == "everybody's"


@workflow(name="messages.anything")
async def anything(count: int) -> list[str]:
    await subscribe("mixed")
    found = [repr((await receive("mixed")).data) for _ in range(count)]
    await wait_event("go")
    return found


@pytest.mark.pitfall(41)
async def test_bytes_lists_and_scalars_arrive_unchanged_and_replay(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await anything.options(id="a").start(5)
        await waiting(app, "a")
        await app._storage.publish_to_channel("mixed", b"\x00\xff{", binary=True)
        for data in ([1, 2], 7, None, "text"):
            await app.publish("mixed", data)
        await app.send_event("go", None, to="a")
        assert await app.get("a").result(SOON) == [repr(b"\x00\xff{"), "[1, 2]", "7", "None", "'text'"]


@workflow(name="messages.stamped")
async def stamped() -> datetime | None:
    await subscribe("stamps")
    return (await receive("stamps")).published_at


@pytest.mark.pitfall(49)
async def test_message_has_its_time_of_publication(database: Database) -> None:
    async with App(database.url) as app:
        await stamped.options(id="a").start()
        await waiting(app, "a")
        await app.publish("stamps", 1)
        found = await app.get("a").result(SOON)
        assert abs(datetime.now(UTC) - datetime.fromisoformat(found)) < timedelta(minutes=1)


@activity
async def shouting(number: int) -> int:
    await publish("shouts", number)
    return number


@workflow(name="messages.shouting")
async def shouted(number: int) -> int:
    return await shouting(number)


@pytest.mark.pitfall(39)
async def test_sending_activities_do_not_exhaust_the_connection_pool(shared: Database) -> None:
    async with App(shared.url) as app:
        handles = await asyncio.gather(*(shouted.start(n) for n in range(60)))
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == list(range(60))
        assert await messages(storage_of(app), "shouts") == 60


@activity
async def count() -> int:
    return 3
