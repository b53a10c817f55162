"""The relay between the outbox and brokers: outages, poison events, order, and several relays at once."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import pytest

from perdure import App, BrokerUnavailableError, Client, OutboxEvent, Relay, TerminalError
from perdure.engine.worker import relay
from perdure.model.records import OutboxStatus
from perdure.storage.contract import Storage
from perdure.storage.stores import shift_clock
from tests.brokers.brokers import Broker
from tests.brokers.conftest import make_broker
from tests.chaos.proxy import ANYTHING, Proxy
from tests.engine.waiting import until
from tests.support.storages import storage_of


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.worker.outages.random.uniform", lambda *_: 0.02)
    monkeypatch.setattr(relay, "BUSY_SEC", 0.02)


async def add(storage: Storage, count: int, *sources: str, first: int = 0) -> None:
    """Store events whose ids have the source and a number, the sources by turns."""
    async with storage.transaction():
        for number in range(first, first + count):
            for source in sources:
                await storage.add_outbox_event(OutboxEvent(f"{source}-{number}", "t", source, b"1"))


def assert_ordered(ids: Sequence[str], count: int, *sources: str) -> None:
    """Check that all events arrived, and that no event came before an earlier one of its source came once."""
    first = dict.fromkeys(ids)
    for source in sources:
        numbers = [int(id.rpartition("-")[2]) for id in first if id.startswith(f"{source}-")]
        assert numbers == list(range(count)), source


async def all_published(client: Client, count: int) -> bool:
    found = Counter[str]()
    after = None
    while page := await storage_of(client).list_outbox_events(limit=1000, after=after):
        found.update(event.status for event in page)
        after = page[-1].event_id
    return found == {OutboxStatus.PUBLISHED: count}


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("name", ["nats", "rabbitmq", "redis"])
async def test_events_wait_while_the_broker_is_down_and_none_is_parked(
    name: str, place: str, url: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    proxy = Proxy(broker.port)
    caplog.set_level("INFO", "perdure.engine")
    async with proxy.listening() as port:
        proxy.go_down()
        async with App(url, publisher=broker.publisher(place, broker.at(port))) as app:
            await add(storage_of(app), 20, "a", "b")
            app.outbox_stored and app.outbox_stored()
            await until(lambda: "is unavailable, events wait in the outbox" in caplog.text)
            assert (await app.health()).ok
            proxy.come_back()
            await until(lambda: all_published(app, 40))
            proxy.go_down()
            await add(storage_of(app), 20, "a", "b", first=20)
            app.outbox_stored and app.outbox_stored()
            await until(lambda: caplog.text.count("is unavailable, events wait") >= 2)
            proxy.come_back()
            await until(lambda: all_published(app, 80))
            events = await storage_of(app).list_outbox_events()
    assert {event.retry_count for event in events} == {0}
    assert_ordered([each.id for each in await broker.events(place)], 40, "a", "b")
    assert caplog.text.count("is available again after") == 2
    assert "guest" not in caplog.text


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("name", ["nats", "rabbitmq", "redis"])
async def test_order_is_kept_when_connections_break_after_the_broker_accepted_an_event(
    name: str, place: str, url: str, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    proxy = Proxy(broker.port)

    async def lose_answers() -> None:
        while True:
            for wire in proxy.wires:
                wire.armed = ANYTHING
            await asyncio.sleep(0.02)

    async with proxy.listening() as port, App(url, publisher=broker.publisher(place, broker.at(port))) as app:
        losing = asyncio.create_task(lose_answers())
        await add(storage_of(app), 100, "a", "b", "c")
        app.outbox_stored and app.outbox_stored()
        await until(lambda: proxy.answers_lost >= 3)
        losing.cancel()
        for wire in proxy.wires:
            wire.armed = None
        await until(lambda: all_published(app, 300))
    assert_ordered([each.id for each in await broker.events(place)], 100, "a", "b", "c")


async def test_poison_event_is_parked_and_a_thousand_others_continue(url: str) -> None:
    sent = list[str]()

    async def publish(event: OutboxEvent) -> None:
        if event.event_id == "a-0":
            raise TerminalError("too large")
        sent.append(event.event_id)

    async with App(url, publisher=publish) as app:
        await add(storage_of(app), 1001, "a")
        app.outbox_stored and app.outbox_stored()
        await until(lambda: len(sent) == 1000)
        assert sent == [f"a-{number}" for number in range(1, 1001)]
        (parked,) = await storage_of(app).list_outbox_events(OutboxStatus.INVALID)
        assert (parked.event_id, parked.last_error) == ("a-0", "too large")


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("error", [ConnectionRefusedError("no broker"), BrokerUnavailableError("no broker")])
async def test_unavailable_receiver_counts_as_no_attempt(
    error: Exception, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relay, "ATTEMPTS_MAX", 2)
    calls = Counter[str]()
    sent = list[OutboxEvent]()

    async def publish(event: OutboxEvent) -> None:
        calls[event.event_source] += 1
        if event.event_source == "down" and calls["down"] <= 5:
            raise error
        sent.append(event)

    async with App(url, publisher=publish) as app:
        await add(storage_of(app), 3, "down", "up")
        app.outbox_stored and app.outbox_stored()
        await until(lambda: all_published(app, 6))
    assert [event.event_id for event in sent if event.event_source == "down"] == ["down-0", "down-1", "down-2"]
    assert {event.retry_count for event in sent} == {0}
    assert calls == {"down": 8, "up": 3}
    assert caplog.text.count("event down-0 (t) in the outbox waits, because its receiver is unavailable") == 5


@pytest.mark.usefixtures("_short_pauses")
async def test_publisher_that_hangs_delays_only_its_source(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PUBLISH_SEC", 0.5)
    sent = list[OutboxEvent]()
    hung = asyncio.Event()

    async def publish(event: OutboxEvent) -> None:
        if event.event_id == "slow-0" and not event.retry_count:
            hung.set()
            await asyncio.Event().wait()
        sent.append(event)

    async with App(url, publisher=publish) as app:
        await add(storage_of(app), 2, "slow")
        app.outbox_stored and app.outbox_stored()
        await hung.wait()
        for number in range(3):  # each is claimed while the other source hangs
            await app.send_event("t", 1, source="fast", id=f"fast-{number}")
        await until(lambda: len(sent) == 3)
        assert {event.event_source for event in sent} == {"fast"}
        await until(lambda: len(sent) == 5)
    assert [(event.event_id, event.retry_count) for event in sent[3:]] == [("slow-0", 1), ("slow-1", 0)]


async def test_two_relays_share_the_sources_and_keep_their_order(url: str) -> None:
    sent = defaultdict[str, list[str]](list)

    def publisher(name: str) -> "relay.PublishFunction":
        async def publish(event: OutboxEvent) -> None:
            await asyncio.sleep(0)
            sent[name].append(event.event_id)

        return publish

    sources = [f"s{number}" for number in range(10)]
    async with Relay(url, publisher=publisher("one")) as one, Relay(url, publisher=publisher("two")):
        for start in range(0, 60, 20):
            await add(storage_of(one), 20, *sources, first=start)
            one.outbox_stored and one.outbox_stored()
        await until(lambda: all_published(one, 600))
    everything = [*sent["one"], *sent["two"]]
    assert len(everything) == len(set(everything)) == 600
    for ids in sent.values():
        for source in sources:
            numbers = [int(id.rpartition("-")[2]) for id in ids if id.startswith(f"{source}-")]
            assert all(a < b for a, b in pairwise(numbers))


async def test_relay_without_a_worker_publishes_what_other_processes_send(broker: Broker, place: str, url: str) -> None:
    await broker.create(place)
    async with Client(url, outbox=True) as client, Relay(url, publisher=broker.publisher(place)) as alone:
        await client.send_event("paid", {"n": 1}, source="/shop", id="e-1")
        await until(lambda: all_published(client, 1))
        assert (await alone.health()).ok
        assert {task.name for task in (await alone.health()).tasks} >= {"outbox relay", "listener"}
    assert [each[:3] for each in await broker.events(place)] == [("e-1", "paid", "/shop")]


async def test_closing_relay_releases_what_it_has_not_published(url: str) -> None:
    sent, gate = list[str](), asyncio.Event()

    async def publish(event: OutboxEvent) -> None:
        sent.append(event.event_id)
        if len(sent) == 3:
            gate.set()
            await asyncio.sleep(0.05)

    async with Client(url, outbox=True) as client:
        await add(storage_of(client), 50, "a")
        async with Relay(url, publisher=publish):
            await gate.wait()
        states = Counter(event.status for event in await storage_of(client).list_outbox_events())
        assert states == {"published": 3, "pending": 47}
        async with Relay(url, publisher=publish):
            await until(lambda: all_published(client, 50))
    assert sent == [f"a-{number}" for number in range(50)]


async def test_relay_publishes_no_event_once_its_claim_may_have_ended(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "STARTING_SEC", 0.05)
    sent, claims = list[str](), set[object]()

    async def publish(event: OutboxEvent) -> None:
        await asyncio.sleep(0.02)
        claims.add(event.updated_at)
        sent.append(event.event_id)

    async with Relay(url, publisher=publish) as alone:
        await add(storage_of(alone), 12, "a")
        alone.outbox_stored and alone.outbox_stored()
        await until(lambda: all_published(alone, 12))
    assert sent == [f"a-{number}" for number in range(12)]
    assert len(claims) >= 3


async def test_events_of_a_relay_that_died_are_published_by_another(url: str) -> None:
    sent = list[str]()

    async def publish(event: OutboxEvent) -> None:
        sent.append(event.event_id)

    async with Client(url, outbox=True) as client:
        await add(storage_of(client), 3, "a")
        await storage_of(client).get_pending_outbox_events(relay_id="dead", lease_sec=relay.CLAIM_SEC)
        async with Relay(url, publisher=publish) as alone:
            await add(storage_of(client), 1, "b")
            await until(lambda: sent == ["b-0"])
            shift_clock(storage_of(alone), timedelta(seconds=relay.CLAIM_SEC + 1))
            alone.outbox_stored and alone.outbox_stored()
            await until(lambda: sent == ["b-0", "a-0", "a-1", "a-2"])


class Flaky:
    """A publisher of a user's own, which has to be opened again after each outage."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.sent = list[str]()

    async def __aenter__(self) -> "Flaky":
        self.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed += 1

    async def publish(self, event: OutboxEvent) -> None:
        if self.opened < 3:
            raise BrokerUnavailableError("not yet")
        self.sent.append(event.event_id)


@pytest.mark.usefixtures("_short_pauses")
async def test_own_publisher_is_opened_again_after_an_outage(url: str) -> None:
    publisher = Flaky()
    async with Relay(url, publisher=publisher) as alone:
        await add(storage_of(alone), 3, "a")
        alone.outbox_stored and alone.outbox_stored()
        await until(lambda: publisher.sent == ["a-0", "a-1", "a-2"])
    assert publisher.opened == publisher.closed == 3


async def test_publisher_that_crashes_when_it_opens_is_reported(url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Flaky):
        async def __aenter__(self) -> "Flaky":
            raise RuntimeError("a bug")

    async with Relay(url, publisher=Broken()) as alone:
        await until(lambda: "background task 'outbox relay' crashed" in caplog.text)
        assert not (await alone.health()).ok


@pytest.mark.parametrize("wrong", [5, None, Flaky, "nats:/host", "ftp://host"])
def test_wrong_publisher_is_refused(wrong: object, url: str) -> None:
    with pytest.raises((TypeError, Exception), match=r"publisher|malformed"):
        Relay(url, publisher=wrong)  # type: ignore[arg-type]
