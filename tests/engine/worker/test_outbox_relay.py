"""The outbox: events are stored with the step that sent them, and published in the order of their source."""

import asyncio
from collections import defaultdict
from datetime import timedelta

import pytest

from perdure import (
    App,
    Client,
    OutboxEvent,
    Retry,
    TerminalError,
    WorkflowFailedError,
    activity,
    send_event,
    wait_event,
    workflow,
)
from perdure.engine.worker import relay
from perdure.errors import LimitError
from perdure.model.records import OutboxStatus
from perdure.storage.stores import SQLStorage, shift_clock
from tests.engine.crashes.rig.effect_table import run_sql
from tests.engine.waiting import row_of, until
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
ONCE = Retry(attempts=1)
sent: list[OutboxEvent] = []
broken: defaultdict[str, list[Exception]] = defaultdict(list)


@pytest.fixture(autouse=True)
def forget() -> None:
    sent.clear()
    broken.clear()


async def publish(event: OutboxEvent) -> None:
    if broken[event.event_type]:
        raise broken[event.event_type].pop()
    sent.append(event)


def types() -> list[str]:
    return [event.event_type for event in sent]


async def states(storage: SQLStorage) -> dict[str, str]:
    return {event.event_type: event.status for event in await storage.list_outbox_events()}


async def empty_table(app: App) -> None:
    sql = app._storage.db()
    await sql.execute("CREATE TABLE IF NOT EXISTS payments (amount INTEGER)")
    await sql.execute("DELETE FROM payments")


@activity(retry=ONCE)
async def ship(fails: bool) -> None:
    await send_event("shipped", {"parcel": 1}, id="parcel-1")
    if fails:
        raise ValueError("lost")


@activity(retry=ONCE, transactional=True)
async def pay(fails: bool) -> None:
    await run_sql("INSERT INTO payments (amount) VALUES (1)")
    await send_event("paid", {"amount": 1})
    if fails:
        raise ValueError("no money")


@workflow(name="outbox.order")
async def order(fails: bool) -> None:
    await send_event("ordered", {"order": 1}, source="shop")
    await pay(fails)
    await ship(fails)


@workflow(name="outbox.shipping")
async def shipping() -> None:
    await send_event("due", {"parcel": 1})
    await ship(False)


@workflow(name="outbox.waiting")
async def waiting() -> str:
    event = await wait_event("news")
    return f"{event.id} {event.source} {event.data}"


@pytest.mark.behaviour("events")
async def test_events_go_to_the_outbox_if_a_publisher_is_configured(database: Database) -> None:
    async with App(database.url, publisher=publish) as app:
        await empty_table(app)
        await (await order.start(False)).result(SOON)
        await until(lambda: len(sent) == 3)
        assert sorted(types()) == ["ordered", "paid", "shipped"]
        by_type = {event.event_type: event for event in sent}
        assert (by_type["ordered"].event_source, by_type["ordered"].event_data) == ("shop", b'{"order":1}')
        assert (by_type["shipped"].event_source, by_type["shipped"].event_id) == ("outbox.order", "parcel-1")
        assert by_type["paid"].event_id

        async def all_published() -> bool:
            return set((await states(storage_of(app))).values()) == {OutboxStatus.PUBLISHED}

        await until(all_published)


async def test_events_in_the_outbox_keep_the_headers_of_their_run(database: Database) -> None:
    async with App(database.url, publisher=publish) as app:
        await (await shipping.options(headers={"tenant": "acmé"}).start()).result(SOON)
        await app.send_event("other", 1)
        await until(lambda: len(sent) == 3)
        headers = '{"tenant": "acmé"}'.encode()
        assert {event.event_type: event.headers for event in sent} == {
            "due": headers,
            "shipped": headers,
            "other": None,
        }


@pytest.mark.call("transactions")
async def test_outbox_events_commit_with_the_result(database: Database) -> None:
    async with App(database.url, publisher=publish) as app:
        await empty_table(app)
        with pytest.raises(WorkflowFailedError, match="no money"):
            await (await order.start(True)).result(SOON)
        assert list(await states(storage_of(app))) == ["ordered"]
        assert await app._storage.db().fetch("SELECT amount FROM payments") == []


@pytest.mark.behaviour("events")
async def test_event_in_the_outbox_also_reaches_runs_of_this_database(database: Database) -> None:
    async with App(database.url, publisher=publish) as app:
        handle = await waiting.start()
        await until(lambda: is_waiting(app, handle.id))
        await app.send_event("news", 5, source="paper")
        await until(lambda: len(sent) == 1)
        assert await handle.result(SOON) == f"{sent[0].event_id} paper 5"


async def is_waiting(app: Client, id: str) -> bool:
    return (await row_of(app, id)).status.value.startswith("waiting")


async def test_event_to_one_run_is_not_published(database: Database) -> None:
    async with App(database.url, publisher=publish) as app:
        handle = await waiting.start()
        await app.send_event("news", 6, to=handle.id)
        assert (await handle.result(SOON)).endswith("6")
        assert await states(storage_of(app)) == {}


@pytest.mark.behaviour("events")
async def test_without_a_publisher_the_outbox_stays_empty(database: Database) -> None:
    async with App(database.url) as app:
        await app.send_event("news", 7)
        assert await states(storage_of(app)) == {}


async def test_repeated_event_is_published_once_and_a_different_event_with_its_id_is_refused(
    database: Database,
) -> None:
    async with App(database.url, publisher=publish) as app:
        for _ in range(2):
            await app.send_event("news", 8, id="e-1")
        with pytest.raises(LimitError, match="consumers would drop this one as a duplicate: use another id"):
            await app.send_event("olds", 9, id="e-1")
        await app.send_event("last", 0)
        await until(lambda: "last" in types())
        assert types() == ["news", "last"]


@pytest.fixture
def brief_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "BACK_OFF_MAX_SEC", 0.2)
    monkeypatch.setattr(relay, "BUSY_SEC", 0.02)


@pytest.mark.usefixtures("brief_back_off")
async def test_failed_event_is_retried_and_later_events_wait(database: Database) -> None:
    async with App(database.url, publisher=publish) as app:
        broken["first"].append(RuntimeError("refused"))
        for kind in ("first", "second"):
            await app.send_event(kind, None, source="shop")
        await app.send_event("other", None, source="elsewhere")
        await until(lambda: len(sent) == 3)
        assert types().index("first") < types().index("second")
        (event,) = [event for event in sent if event.event_type == "first"]
        assert event.retry_count == 1
        assert event.last_error == "refused"


@pytest.mark.usefixtures("brief_back_off")
async def test_event_that_keeps_failing_is_parked_and_blocks_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "ATTEMPTS_MAX", 2)
    async with App(database.url, publisher=publish) as app:
        broken["bad"] += [RuntimeError("refused"), RuntimeError("refused")]
        broken["worse"].append(TerminalError("no such topic"))
        for kind in ("bad", "worse", "good"):
            await app.send_event(kind, None, source="shop")
        await until(lambda: types() == ["good"])

        async def all_settled() -> bool:
            return await states(storage_of(app)) == {"bad": "invalid", "worse": "invalid", "good": "published"}

        await until(all_settled)


async def test_events_of_a_client_are_published_by_an_app(shared: Database) -> None:
    async with Client(shared.url, outbox=True) as client:
        await client.send_event("from a client", 1)
        assert await states(storage_of(client)) == {"from a client": "pending"}
    async with App(shared.url, publisher=publish):
        await until(lambda: types() == ["from a client"])


@pytest.mark.behaviour("background tasks")
async def test_events_claimed_by_a_dead_worker_are_published_by_another(shared: Database) -> None:
    async with Client(shared.url, outbox=True) as client:
        await client.send_event("kept", 1)
        (claimed,) = await client._storage.get_pending_outbox_events(relay_id="gone")
        assert claimed.event_type == "kept"
        async with App(shared.url, publisher=publish) as app:
            await client.send_event("later", 2, source="elsewhere")
            await until(lambda: types() == ["later"])

            async def is_recorded() -> bool:
                return (await states(storage_of(app)))["later"] == "published"

            await until(is_recorded)  # else its claim ends as well, and it is published twice
            shift_clock(storage_of(app), timedelta(seconds=relay.CLAIM_SEC + 1))
            app._worker.relay.wake()  # type: ignore[union-attr]
            await until(lambda: types() == ["later", "kept"])


@pytest.mark.guarantee(10)
async def test_running_publisher_may_finish_on_shutdown(shared: Database) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def slow(event: OutboxEvent) -> None:
        inside.set()
        await gate.wait()
        sent.append(event)

    async with App(shared.url, publisher=slow) as app:
        await app.send_event("slow", 1)
        await inside.wait()
        asyncio.get_running_loop().call_later(0.1, gate.set)
    async with Client(shared.url) as client:
        assert await states(storage_of(client)) == {"slow": "published"}
    assert types() == ["slow"]
