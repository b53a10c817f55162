"""Subscriptions store the messages of real brokers once, and acknowledge them only then."""

import asyncio
import gc
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from perdure import App, Subscription, receive, subscribe, wait_event, workflow
from perdure.brokers import BrokerMessage, ToChannel, ToEvent
from perdure.brokers.failures import IN_HEADER_MAX
from perdure.brokers.incoming import Source
from perdure.engine.worker import subscriber
from perdure.errors import BrokerUnavailableError, DatabaseUnavailableError
from perdure.model.limits import NAME_MAX
from tests.brokers.brokers import Broker, structured
from tests.brokers.conftest import make_broker
from tests.chaos.proxy import Proxy
from tests.engine.waiting import until
from tests.support.storages import storage_of

CLOSINGS = 5
FETCHES = 10  # more than the tasks of an App that wait for an event
TYPE = "order.paid"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.worker.outages.random.uniform", lambda *_: 0.02)


@workflow(name="brokers.order")
async def order() -> object:
    return (await wait_event(TYPE)).data


@workflow(name="brokers.listener")
async def listener() -> object:
    await subscribe("parcels")
    return (await receive("parcels")).data


async def stored(app: App, channel: str = TYPE) -> list[Any]:
    """Return the data of all stored events of a type, or messages of a channel."""
    found = await storage_of(app).get_pending_channel_messages(channel, limit=1000)
    return [json.loads(message.data or b"null") for message in found]


async def has(app: App, expected: Sequence[object], channel: str = TYPE) -> bool:
    return await stored(app, channel) == list(expected)


async def test_cloudevent_of_a_broker_reaches_the_run_that_waits_for_it(broker: Broker, place: str, url: str) -> None:
    await broker.create(place)
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]) as app:
        run = await order.start()
        await broker.put(place, structured("e-1", {"n": 1}))
        assert await run.result(20) == {"n": 1}
        await until(lambda: subscription.stored == 1)
        assert (await app.health()).ok
    assert await broker.left(place) == 0


async def test_event_that_comes_twice_is_stored_once(broker: Broker, place: str, url: str) -> None:
    await broker.create(place)
    for id, data in (("e-1", 1), ("e-1", 1), ("e-2", 2)):
        await broker.put(place, structured(id, data))
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: subscription.stored == 3)
        assert await stored(app) == [1, 2]
    assert await broker.left(place) == 0


@pytest.mark.parametrize("kind", ["event", "channel"])
async def test_message_whose_acknowledgement_is_lost_is_stored_once(
    kind: str, broker: Broker, place: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.create(place)
    for number in range(3):
        await broker.put(place, json.dumps(number).encode(), {"id": f"m-{number}"})
    to: dict[str, Any] = {kind: TYPE}
    subscription = Subscription(broker.subscription(place), **to)
    acknowledge, calls = subscription.source.acknowledge, Counter[str]()

    async def lose(messages: Sequence[BrokerMessage]) -> None:
        calls["acknowledge"] += 1
        if calls["acknowledge"] == 1:
            raise BrokerUnavailableError("the connection was lost")
        await acknowledge(messages)

    monkeypatch.setattr(subscription.source, "acknowledge", lose)
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: subscription.stored == 3)
        assert await stored(app) == [0, 1, 2]
    assert await broker.left(place) == 0


async def test_message_that_cannot_be_stored_blocks_no_other(
    broker: Broker, place: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.create(place)
    bodies = [structured("e-1", 1), b"\xff not JSON", b'{"specversion":"1.0"}', structured("e-2", 2)]
    for body in bodies:
        await broker.put(place, body)
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: has(app, [1, 2]))
        await until(lambda: subscription.rejected == 2)
    assert caplog.text.count("was rejected, because it cannot be stored: ValueError:") == 2
    assert await broker.left(place) == 0
    assert [body for _, body in await broker.bodies(f"{place}-dead")] == bodies[1:3]


@pytest.mark.parametrize(
    ("reason", "copied"),
    [
        ("ValueError: the state is \ud800 \x00 \n", r"ValueError: the state is \ud800 ?"),
        ("x" * 200_000, "x" * (IN_HEADER_MAX - 3) + "..."),
    ],
    ids=["unusual", "long"],
)
async def test_message_can_be_rejected_for_any_reason(broker: Broker, place: str, reason: str, copied: str) -> None:
    await broker.create(place)
    await broker.put(place, b"not JSON", {"id": "m-1"})
    source = Subscription(broker.subscription(place)).source
    async with source:
        (message,) = await _next_of(source)
        await source.reject(message, reason)
    assert await broker.left(place) == 0
    ((headers, body),) = await broker.bodies(f"{place}-dead")
    assert body == b"not JSON"
    if broker.name != "rabbitmq":  # which says itself why
        assert headers["ce-perdure-reason" if broker.name == "redis" else "perdure-reason"] == copied


async def _next_of(source: Source) -> Sequence[BrokerMessage]:
    while not (found := await source.fetch()):
        pass
    return found


@pytest.mark.parametrize("name", ["nats", "kafka"])
async def test_rejected_message_of_any_size_goes_to_the_dead_letter_address(
    name: str, place: str, url: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broker: Any = make_broker(request, name)
    await broker.create(place)
    body = b"x" * (1 << 20)  # the maximum of the NATS server, and more than producers of Kafka send by default
    if name == "kafka":
        async with broker.produced(max_request_size=1 << 24) as producer:
            await producer.send_and_wait(place, body)
    else:
        await broker.put(place, body)
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]):
        await until(lambda: subscription.rejected == 1)
    assert "is unavailable" not in caplog.text
    assert await broker.left(place) == 0
    assert [found for _, found in await broker.bodies(f"{place}-dead")] == [body]


async def test_headers_for_a_nats_stream_are_not_sent_to_that_of_rejected_messages(
    place: str, url: str, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, "nats")
    await broker.create(place)
    await broker.put(place, b"not JSON", {"Nats-Expected-Stream": place, "Tenant": "acme"})
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]):
        await until(lambda: subscription.rejected == 1)
    ((headers, body),) = await broker.bodies(f"{place}-dead")
    assert (headers["tenant"], body) == ("acme", b"not JSON")
    assert "nats-expected-stream" not in headers


@pytest.mark.parametrize("status", ["shipped", "404", "100"])
async def test_nats_message_may_have_a_header_that_the_server_uses_itself(
    status: str, place: str, url: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(request, "nats")
    await broker.create(place)
    for number in range(3):
        await broker.put(place, structured(f"e-{number}", number), {"Status": status})
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: has(app, [0, 1, 2]))
        await until(lambda: subscription.stored == 3)
    assert "cannot be used" not in caplog.text
    assert await broker.left(place) == 0


async def test_message_is_stored_once_whatever_its_id(place: str, url: str, request: pytest.FixtureRequest) -> None:
    broker = make_broker(request, "nats")
    await broker.create(place)
    for number, id in enumerate(("", "x" * 300, "y" * 300, "é" * 10)):
        await broker.put(place, str(number).encode(), {"Nats-Msg-Id": id})
    subscriptions = [Subscription(broker.subscription(place, durable=f"d{n}"), event=TYPE) for n in (1, 2)]
    async with App(url, subscriptions=subscriptions) as app:  # each gets all messages
        await until(lambda: [each.stored for each in subscriptions] == [4, 4])
        assert sorted(await stored(app)) == [0, 1, 2, 3]


async def test_nothing_is_acknowledged_while_the_database_is_away(
    broker: Broker, place: str, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.create(place)
    for number in range(3):
        await broker.put(place, structured(f"e-{number}", number))
    subscription = Subscription(broker.subscription(place))
    acknowledged = list[str | None]()
    acknowledge, send, calls = subscription.source.acknowledge, App.send, Counter[str]()

    async def fail(app: App, outgoing: Any) -> None:
        calls["send"] += 1
        if 2 <= calls["send"] <= 3:
            raise DatabaseUnavailableError("no answer")
        await send(app, outgoing)

    async def note(messages: Sequence[BrokerMessage]) -> None:
        acknowledged.extend(json.loads(message.body)["id"] for message in messages)
        if calls["send"] < 4:
            assert acknowledged == ["e-0"]
        await acknowledge(messages)

    monkeypatch.setattr(subscriber, "HOLD_SEC", -1)
    monkeypatch.setattr(App, "send", fail)
    monkeypatch.setattr(subscription.source, "acknowledge", note)
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: subscription.stored == 3)
        assert sorted(await stored(app)) == [0, 1, 2]
    assert sorted(map(str, acknowledged)) == ["e-0", "e-1", "e-2"]
    assert await broker.left(place) == 0
    assert caplog.text.count("the database is unavailable") == 2


async def test_message_is_held_while_the_database_is_away_for_a_moment(
    place: str, url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(request, "redis")
    await broker.put(place, structured("e-1", 1))
    subscription = Subscription(broker.subscription(place))
    send, calls = App.send, Counter[str]()

    async def fail(app: App, outgoing: Any) -> None:
        calls["send"] += 1
        if calls["send"] <= 2:
            raise DatabaseUnavailableError("no answer")
        await send(app, outgoing)

    monkeypatch.setattr(App, "send", fail)
    monkeypatch.setattr(subscriber, "HOLD_PAUSE_SEC", 0.01)
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: subscription.stored == 1)
        assert await stored(app) == [1]
    assert calls["send"] == 3


async def test_kafka_delivers_a_rejected_message_at_the_end_of_a_batch_once(
    place: str, url: str, request: pytest.FixtureRequest
) -> None:
    broker: Any = make_broker(request, "kafka")
    await broker.create(place)
    async with broker.produced() as producer:
        batch = producer.create_batch()
        for body in (structured("e-1", 1), structured("e-2", 2), b"not JSON"):
            batch.append(key=None, value=body, timestamp=None)
        await (await producer.send_batch(batch, place, partition=0))
    subscription = Subscription(broker.subscription(place))
    fetch, fetched = subscription.source.fetch, list[int]()

    async def count() -> Sequence[BrokerMessage]:
        found = await fetch()
        fetched.append(len(found))
        return found

    subscription.source.fetch = count  # type: ignore[method-assign]
    async with App(url, subscriptions=[subscription]):
        await until(lambda: (subscription.stored, subscription.rejected) == (2, 1))
    assert 3 in fetched  # at once
    assert await broker.left(place) == 0


@pytest.mark.parametrize("name", ["nats", "rabbitmq", "redis"])
def test_source_of_a_message_names_its_broker(name: str) -> None:
    """Two brokers may have places of the same name, and there messages with the same ids."""
    addresses = {
        "nats": ["nats://a/S", "nats://b/S", "nats://a:1/S", "nats://a,b/S", "nats://a/T"],
        "rabbitmq": ["amqp://a/?queue=q", "amqp://b/?queue=q", "amqp://a/v?queue=q", "amqp://a/v%2Fv?queue=q"],
        "redis": ["redis://a/0?stream=s", "redis://b/0?stream=s", "redis://a/1?stream=s", "redis://a/0?stream=t"],
    }[name]
    origins = [_origin(address) for address in addresses]
    assert len({*origins}) == len(addresses)
    assert all(origin.startswith(f"{name}:") for origin in origins)


def test_source_of_a_message_is_independent_of_the_form_of_the_url() -> None:
    assert _origin("nats://a,b/S") == _origin("tls://user:password@b:4222,a:4222/S?durable=d") == "nats:a:4222,b:4222/S"
    assert _origin("redis://a?stream=s") == _origin("redis://A:6379/0?stream=s") == "redis:a:6379/0/s"
    assert _origin("amqp://a?queue=q") == _origin("amqp://a:5672/%2F?queue=q") == "rabbitmq:a:5672/%2F/q"
    many = ",".join(f"host-{number}.broker.example.com" for number in range(20))
    assert len(_origin(f"nats://{many}/S")) <= NAME_MAX


def _origin(address: str) -> str:
    source: Any = Subscription(address).source
    return str(source._origin)


async def test_messages_of_two_databases_of_redis_are_not_taken_for_duplicates(
    place: str, url: str, request: pytest.FixtureRequest
) -> None:
    broker: Any = make_broker(request, "redis")
    addresses = [broker.subscription(place, broker.url.replace("/0", f"/{number}")) for number in (0, 1)]
    for number in (0, 1):
        async with redis.asyncio.Redis(port=broker.port, db=number) as client:
            await client.xadd(place, {"data": str(number)}, id="1-1")
    subscriptions = [Subscription(address, event=TYPE) for address in addresses]
    async with App(url, subscriptions=subscriptions) as app:
        await until(lambda: [each.stored for each in subscriptions] == [1, 1])
        assert sorted(await stored(app)) == [0, 1]


@pytest.mark.parametrize("name", ["nats", "rabbitmq", "redis"])
async def test_subscription_continues_after_an_outage_of_the_broker(
    name: str, place: str, url: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    proxy = Proxy(broker.port)
    async with proxy.listening() as port:
        proxy.go_down()
        subscription = Subscription(broker.subscription(place, broker.at(port)))
        async with App(url, subscriptions=[subscription]) as app:
            await until(lambda: "is unavailable, its messages wait there" in caplog.text)
            await broker.put(place, structured("e-0", 0))
            proxy.come_back()
            await until(lambda: subscription.stored == 1)
            proxy.go_down()
            await broker.put(place, structured("e-1", 1))
            await until(lambda: caplog.text.count("is unavailable, its messages wait") >= 2)
            proxy.come_back()
            await until(lambda: has(app, [0, 1]))
            await until(lambda: subscription.stored >= 2)
    assert await broker.left(place) == 0


async def test_closing_app_leaves_the_rest_to_the_next(broker: Broker, place: str, url: str) -> None:
    await broker.create(place)
    for number in range(30):
        await broker.put(place, structured(f"e-{number}", number))
    first = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[first]) as app:
        await until(lambda: has_some(app))
    async with App(url, subscriptions=[Subscription(broker.subscription(place))]) as app:
        await until(lambda: has_all(app, 30))
    assert await broker.left(place) == 0


async def has_some(app: App) -> bool:
    return bool(await stored(app))


async def has_all(app: App, count: int) -> bool:
    found = await stored(app)
    assert len(found) == len(set(found))
    return len(found) == count


async def test_consumer_killed_between_store_and_acknowledgement_stores_nothing_twice(
    broker: Broker, place: str, url: str
) -> None:
    await broker.create(place)
    for number in range(5):
        await broker.put(place, json.dumps(number).encode(), {"id": f"m-{number}"})
    options = {"claim_after": "0.1"} if broker.name == "redis" else {"ack_wait": "0.5"} if broker.name == "nats" else {}
    address = broker.subscription(place, **options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.brokers.dying_consumer", url, address, TYPE
    )
    assert await process.wait() == -9
    subscription = Subscription(address, event=TYPE)
    async with App(url) as app:
        assert await stored(app)  # by the process that was killed
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: subscription.stored == 5)  # none was acknowledged
        assert await has_all(app, 5)
    assert await broker.left(place) == 0


async def test_abandoned_entries_of_redis_are_claimed(place: str, url: str, request: pytest.FixtureRequest) -> None:
    broker: Any = make_broker(request, "redis")
    await broker.put(place, structured("e-1", 1))
    async with broker.connected() as client:
        await client.xgroup_create(place, "tests", id="0")
        await client.xreadgroup("tests", "gone", {place: ">"})
    async with App(url, subscriptions=[Subscription(broker.subscription(place, claim_after="0.1"))]) as app:
        await until(lambda: has(app, [1]))
    assert await broker.left(place) == 0


async def test_received_event_is_not_published_again(place: str, url: str, request: pytest.FixtureRequest) -> None:
    broker = make_broker(request, "redis")
    await broker.put(place, structured("e-1", 1))
    subscription = Subscription(broker.subscription(place))
    async with App(url, publisher=broker.publisher(place), subscriptions=[subscription]) as app:
        await until(lambda: has(app, [1]))
        assert await storage_of(app).list_outbox_events() == []


async def test_messages_without_an_id_are_warned_of_once(
    place: str,
    url: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = make_broker(request, "rabbitmq")
    await broker.create(place)
    for number in range(2):
        await broker.put(place, str(number).encode())
    subscription = Subscription(broker.subscription(place), event=TYPE)
    fetch = subscription.source.fetch

    async def without_ids() -> list[BrokerMessage]:  # the client library of the test gives each message one
        return [replace(message, id=None) for message in await fetch()]

    monkeypatch.setattr(subscription.source, "fetch", without_ids)
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: has(app, [0, 1]))
    assert caplog.text.count("have no id: one that is delivered again is stored again") == 1


async def test_subscription_can_store_on_a_channel(place: str, url: str, request: pytest.FixtureRequest) -> None:
    broker = make_broker(request, "redis")
    async with App(url, subscriptions=[Subscription(broker.subscription(place), channel="parcels")]) as app:
        run = await listener.start()

        async def is_subscribed() -> bool:
            return await storage_of(app).get_channel_subscription(run.id, "parcels") is not None

        await until(is_subscribed)
        await broker.put(place, b'{"parcel": 7}')
        assert await run.result(20) == {"parcel": 7}


# What becomes of a message.

MESSAGE = BrokerMessage(b'{"n": 1}', {}, "orders.new", "m-1", "redis:orders")


def reading(message: BrokerMessage = MESSAGE, **options: Any) -> object:
    return Subscription("redis://host/0?stream=orders", **options).read(message)


def test_json_message_becomes_an_event_of_the_given_type() -> None:
    expected = ToEvent("order.new", {"n": 1}, "m-1", "redis:orders")
    assert reading(event="order.new") == expected
    assert reading(event="shop.{subject}") == ToEvent("shop.orders.new", {"n": 1}, "m-1", "redis:orders")


def test_message_becomes_a_channel_message() -> None:
    assert reading(channel="parcels") == ToChannel("parcels", {"n": 1}, id="m-1", source="redis:orders")
    event = BrokerMessage(structured("e-1", 5), {}, "s", "m-1", "redis:orders")
    assert reading(event, channel="parcels") == ToChannel("parcels", 5, id="e-1", source="/shop")


def test_function_decides_what_a_message_becomes() -> None:
    assert reading(convert=lambda message: None) is None
    found = reading(convert=lambda message: ToEvent(message.subject, len(message.body), id="own", to="run-1"))
    assert found == ToEvent("orders.new", 8, "own", "redis:orders", to="run-1")
    with pytest.raises(ValueError, match="convert= returned int, not ToEvent, ToChannel or None"):
        reading(convert=lambda message: 5)


def test_json_message_without_a_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="it is no CloudEvent, and Subscription"):
        reading()
    with pytest.raises(ValueError, match=r"the body is empty: .*in a stream of Redis, the field 'data'"):
        reading(replace(MESSAGE, body=b""), event="order.new")


async def asynchronous(message: BrokerMessage) -> None: ...


class Asynchronous:
    async def __call__(self, message: BrokerMessage) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"event": "a", "channel": "b"}, "only one of event="),
        ({"event": ""}, "must be a text that is not empty"),
        ({"convert": 5}, "must be a function"),
        ({"convert": asynchronous}, "must be a plain function"),
        ({"convert": Asynchronous()}, "must be a plain function"),
    ],
)
def test_wrong_setting_of_a_subscription_is_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        reading(**arguments)


@pytest.mark.parametrize("wrong", ["nats://host/S", [5], {}])
def test_wrong_list_of_subscriptions_is_refused(wrong: Any, url: str) -> None:
    with pytest.raises(TypeError, match=r"App\(subscriptions=\) must be a list of subscriptions"):
        App(url, subscriptions=wrong)


def test_same_subscription_twice_is_refused(url: str) -> None:
    one = Subscription("redis://host/0?stream=orders")
    with pytest.raises(TypeError, match="the same subscription twice"):
        App(url, subscriptions=[one, one])


def test_sources_have_the_protocol() -> None:
    for address in ("nats://h/S", "amqp://h/?queue=q", "kafka://h/t", "redis://h/0?stream=s"):
        source: Source = Subscription(address).source
        assert source.shown.startswith(address.partition("?")[0].partition("h/")[0])


async def test_subscriber_keeps_no_task_of_a_fetch_that_is_over(broker: Broker, place: str, url: str) -> None:
    def waits() -> int:
        return sum("Event.wait" in str(task.get_coro()) for task in asyncio.all_tasks())

    def has_stored(count: int) -> bool:
        return subscription.stored == count

    await broker.create(place)
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]):
        for number in range(FETCHES):
            await broker.put(place, structured(f"e-{number}", number))
            await until(partial(has_stored, number + 1))
        await until(lambda: waits() < FETCHES, 20)


async def test_closing_app_leaves_no_error_of_a_fetch_under_way(
    broker: Broker, place: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.create(place)
    for number in range(CLOSINGS):
        # A new group in Kafka, because its mock cluster lets a member wait that joins an old one.
        options = {"group": f"{place}-{number}"} if broker.name == "kafka" else {}
        subscription = Subscription(broker.subscription(place, **options))
        async with App(url, subscriptions=[subscription]) as app:
            await until(partial(_is_available, app))
        gc.collect()  # asyncio reports an exception that was never retrieved when its task is deleted
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def _is_available(app: App) -> bool:
    return [task.broker for task in (await app.health()).tasks if task.broker] == ["available"]
