"""Publishers pass events of the outbox to real brokers, and say what went wrong."""

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import nats
import pytest
import redis.exceptions

from perdure import BrokerRefusedError, BrokerUnavailableError, OutboxEvent, TerminalError
from perdure.brokers import HTTPPublisher, Publisher, publisher_for
from perdure.brokers.cloudevents import received, structured
from perdure.http.signatures import Signatures
from tests.brokers.brokers import Arrived, Broker, RabbitMQ
from tests.brokers.conftest import make_broker
from tests.brokers.servers import RabbitMQServer, RestrictedNATSServer
from tests.chaos.proxy import ANYTHING, Proxy
from tests.engine.waiting import until

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def event(id: str = "e-1", data: bytes = b'{"n":1}', **fields: Any) -> OutboxEvent:
    return OutboxEvent(id, "order.paid", "/shop", data, created_at=WHEN, **fields)


async def test_published_event_arrives_as_a_cloudevent(broker: Broker, place: str) -> None:
    await broker.create(place)
    publisher = publisher_for(broker.publisher(place))
    assert isinstance(publisher, Publisher)
    for number in (1, 2):  # a publisher can be opened any number of times
        async with publisher:
            await publisher.publish(event(f"e-{number}"))
    assert await broker.events(place) == [Arrived(f"e-{n}", "order.paid", "/shop", {"n": 1}) for n in (1, 2)]


@pytest.mark.parametrize("name", ["nats", "rabbitmq", "kafka"])
async def test_binary_mode_puts_the_attributes_into_headers(
    name: str, place: str, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    publisher = publisher_for(broker.publisher(place, mode="binary"))
    async with publisher:
        await publisher.publish(event(headers=b'{"traceparent": "00-a-b-01", "tenant": "acm\xc3\xa9 5%"}'))
        await publisher.publish(OutboxEvent("e-2", "raw", "/shop", None, b"\x00\xff", "binary", "image/png"))
    messages = await broker.bodies(place)
    assert [body for _, body in messages] == [b'{"n":1}', b"\x00\xff"]
    assert await broker.events(place) == ([] if name == "rabbitmq" else [*map(_arrived, messages)])  # a queue is empty
    assert [_arrived(message) for message in messages] == [
        Arrived("e-1", "order.paid", "/shop", {"n": 1}),
        Arrived("e-2", "raw", "/shop", "AP8="),
    ]
    first, second = [received(*message) for message in messages]
    assert first is not None
    assert second is not None
    assert (first.headers, second.headers) == ({"traceparent": "00-a-b-01", "tenant": "acmé 5%"}, {})


def _arrived(message: tuple[dict[str, str], bytes]) -> Arrived:
    found = received(*message)
    assert found is not None
    return Arrived(found.id, found.type, found.source, found.data)


async def test_unreachable_broker_is_unavailable(broker: Broker, place: str) -> None:
    publisher = publisher_for(broker.publisher(place, broker.at(1)))
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        async with publisher:
            pass


@pytest.mark.parametrize("name", ["nats", "rabbitmq", "redis"])
async def test_lost_connection_is_unavailable_even_if_the_broker_accepted_the_event(
    name: str, place: str, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    proxy = Proxy(broker.port)
    async with proxy.listening() as port:
        publisher = publisher_for(broker.publisher(place, broker.at(port)))
        async with publisher:
            for wire in proxy.wires:
                wire.armed = ANYTHING  # the answer to what is said next gets lost
            with pytest.raises(BrokerUnavailableError):
                await publisher.publish(event())
        async with publisher:
            await publisher.publish(event())
    assert {each.id for each in await broker.events(place)} == {"e-1"}
    assert proxy.answers_lost == 1


async def test_nats_drops_an_event_that_is_published_again(place: str, request: pytest.FixtureRequest) -> None:
    broker = make_broker(request, "nats")
    await broker.create(place)
    publisher = publisher_for(broker.publisher(place))
    async with publisher:
        for _ in range(3):
            await publisher.publish(event())
    assert len(await broker.events(place)) == 1


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("nats", {"subject": "nowhere.{type}"}, "no stream of .* has the subject 'nowhere.order.paid': add it"),
        ("rabbitmq", {"routing_key": "nowhere"}, "the default exchange of .* 'nowhere' to no queue: create a queue"),
        ("rabbitmq", {"exchange": "amq.topic"}, "exchange 'amq.topic' of .* to no queue: bind a queue to it"),
    ],
)
async def test_event_without_a_destination_is_refused(
    name: str, options: dict[str, str], why: str, place: str, request: pytest.FixtureRequest
) -> None:
    publisher = publisher_for(make_broker(request, name).publisher(place, **options))
    async with publisher:
        with pytest.raises((LookupError, ValueError), match=why):
            await publisher.publish(event())


@pytest.mark.parametrize("name", ["nats", "kafka"])
async def test_event_that_is_too_large_can_never_be_published(
    name: str, place: str, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    publisher = publisher_for(broker.publisher(place))
    async with publisher:
        with pytest.raises(TerminalError, match="too large"):
            await publisher.publish(event(data=b'"%s"' % (b"x" * (1 << 20))))
        await publisher.publish(event("e-2"))
    assert [each.id for each in await broker.events(place)] == ["e-2"]


async def test_event_that_is_too_large_for_nats_with_its_headers_can_never_be_published(
    place: str, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, "nats")
    await broker.create(place)
    headers = b"NATS/1.0\r\ncontent-type: application/cloudevents+json\r\nNats-Msg-Id: e-2\r\n\r\n"
    most = (1 << 20) - len(headers) - len(structured(event(data=b'""')))  # of the data: the server's limit is 1 MiB
    publisher = publisher_for(broker.publisher(place))
    async with publisher:
        with pytest.raises(TerminalError, match="too large"):
            await publisher.publish(event("e-1", b'"%s"' % (b"x" * (most + 1))))
        await publisher.publish(event("e-2", b'"%s"' % (b"x" * most)))
    assert [each.id for each in await broker.events(place)] == ["e-2"]


async def test_event_that_is_too_large_for_rabbitmq_can_never_be_published(place: str) -> None:
    class SmallRabbitMQ(RabbitMQServer):
        def _config(self) -> str:
            return super()._config() + "max_message_size = 2000\n"

    with SmallRabbitMQ() as server:
        broker = RabbitMQ(server.url)
        await broker.create(place)
        publisher = publisher_for(broker.publisher(place))
        async with publisher:
            large = publisher.publish(event(data=b'"%s"' % (b"x" * 3000)))
            small = publisher.publish(event("e-2"))
            refused, other = await asyncio.gather(large, small, return_exceptions=True)
        assert isinstance(refused, TerminalError)
        assert "the event is too large" in str(refused)
        assert other is None or isinstance(other, BrokerUnavailableError)  # the server closes the channel of both
        async with publisher:
            await publisher.publish(event("e-3"))
        assert "e-3" in [each.id for each in await broker.events(place)]


async def test_type_of_an_event_is_no_command_for_nats(place: str, request: pytest.FixtureRequest) -> None:
    broker = make_broker(request, "nats")
    await broker.create(place)
    await broker.put(place, b"1")
    publisher = publisher_for(broker.publisher(place, subject="{type}"))
    async with publisher:
        with pytest.raises(TerminalError, match="is reserved: choose another subject= or event type"):
            await publisher.publish(OutboxEvent("e-1", f"$JS.API.STREAM.PURGE.{place}", "/shop", b"{}"))
    assert len(await broker.bodies(place)) == 1


async def test_event_whose_type_is_no_nats_subject_can_never_be_published(
    place: str, request: pytest.FixtureRequest
) -> None:
    publisher = publisher_for(make_broker(request, "nats").publisher(place))
    async with publisher:
        with pytest.raises(TerminalError, match="is no subject of NATS: choose another subject= or event type"):
            await publisher.publish(OutboxEvent("e-1", "order paid", "/shop", b"1"))


async def test_kafka_event_of_a_source_has_its_key(place: str, request: pytest.FixtureRequest) -> None:
    broker: Any = make_broker(request, "kafka")
    await broker.create(place)
    publisher = publisher_for(broker.publisher(place, key="{source}/{type}"))
    async with publisher:
        await publisher.publish(event())
    consumer = __import__("aiokafka").AIOKafkaConsumer(
        place, bootstrap_servers=broker.servers, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        assert (await consumer.getone()).key == b"/shop/order.paid"
    finally:
        await consumer.stop()


async def test_redis_stream_is_trimmed(place: str, request: pytest.FixtureRequest) -> None:
    broker: Any = make_broker(request, "redis")
    publisher = publisher_for(broker.publisher(place, maxlen="100"))
    async with publisher:
        for number in range(400):
            await publisher.publish(event(f"e-{number}"))
    assert 100 <= len(await broker.events(place)) < 400


async def test_redis_without_memory_is_unavailable(place: str, request: pytest.FixtureRequest) -> None:
    broker: Any = make_broker(request, "redis")
    publisher = publisher_for(broker.publisher(place))
    async with broker.connected() as client, publisher:
        await client.config_set("maxmemory", 1)
        try:
            with pytest.raises(BrokerUnavailableError, match=r"accepts nothing now: .*'maxmemory'"):
                await publisher.publish(event())
        finally:
            await client.config_set("maxmemory", 0)
        await publisher.publish(event())


async def test_redis_that_executes_a_script_is_unavailable(place: str, request: pytest.FixtureRequest) -> None:
    broker: Any = make_broker(request, "redis")
    publisher = publisher_for(broker.publisher(place))
    async with broker.connected() as busy, broker.connected() as client, publisher:
        usual = (await client.config_get("lua-time-limit"))["lua-time-limit"]
        await client.config_set("lua-time-limit", 1)
        script = asyncio.create_task(busy.eval("while true do end", 0))
        try:
            await until(lambda: _is_busy(client))
            with pytest.raises(BrokerUnavailableError, match="accepts nothing now: BUSY "):
                await publisher.publish(event())
        finally:
            await client.script_kill()
            await asyncio.wait([script])
            await client.config_set("lua-time-limit", usual)
        assert "killed" in str(script.exception())


async def _is_busy(client: Any) -> bool:
    try:
        return not await client.ping()
    except redis.exceptions.ResponseError:
        return True


@pytest.mark.parametrize(
    ("rights", "stream", "error"),
    [
        ("-@all +ping +client ~*", "{{source}}", BrokerRefusedError),
        ("+@all ~elsewhere", "{place}", BrokerRefusedError),
        ("+@all ~elsewhere", "{{source}}", redis.exceptions.NoPermissionError),  # another stream may be permitted
    ],
)
async def test_permission_at_redis_that_all_events_lack_is_no_fault_of_an_event(
    rights: str, stream: str, error: type[Exception], place: str, request: pytest.FixtureRequest
) -> None:
    broker: Any = make_broker(request, "redis")
    address = broker.publisher(place, stream=stream.format(place=place)).replace("://", f"://{place}:pass@")
    publisher = publisher_for(address)
    async with broker.connected() as client:
        await client.execute_command("ACL", "SETUSER", place, "on", ">pass", *rights.split())
        try:
            async with publisher:
                with pytest.raises(error):
                    await publisher.publish(event())
        finally:
            await client.acl_deluser(place)


@pytest.mark.parametrize(
    ("key", "error"),
    [("{place}", BrokerUnavailableError), ("{place}{{source}}", ValueError)],  # a single queue, or several
)
async def test_full_queue_of_rabbitmq_is_an_outage_if_all_events_go_there(
    key: str, error: type[Exception], place: str, request: pytest.FixtureRequest
) -> None:
    broker: Any = make_broker(request, "rabbitmq")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish", "x-expires": 600_000}
    async with broker.connected() as channel:
        for name in (place, f"{place}/shop"):
            await channel.declare_queue(name, durable=True, arguments=arguments)
    publisher = publisher_for(broker.publisher(place, routing_key=key.format(place=place)))
    async with publisher:
        await publisher.publish(event())
        with pytest.raises(error, match=r"a queue of .* does not accept the event"):
            await publisher.publish(event("e-2"))


@pytest.mark.parametrize(
    ("id", "type", "why"),
    [("ü" * 128, "t", "the id of the event 'ü+' is longer"), ("e-1", "😀" * 64, "the event type '😀+' is longer")],
)
async def test_event_with_a_name_too_long_for_rabbitmq_can_never_be_published(
    id: str, type: str, why: str, place: str, request: pytest.FixtureRequest
) -> None:
    broker = make_broker(request, "rabbitmq")
    await broker.create(place)
    publisher = publisher_for(broker.publisher(place))
    async with publisher:
        with pytest.raises(TerminalError, match=f"{why} than 255 bytes"):
            await publisher.publish(OutboxEvent(id, type, "/shop", b"1"))
        await publisher.publish(OutboxEvent("ü" * 127, "😀" * 63, "/shop", b"1"))
    assert [each.id for each in await broker.events(place)] == ["ü" * 127]


async def test_event_that_is_too_large_for_its_nats_stream_can_never_be_published(
    place: str, request: pytest.FixtureRequest
) -> None:
    broker: Any = make_broker(request, "nats")
    async with broker.connected() as stream:
        await stream.add_stream(name=place, subjects=[f"{place}.>"], max_msg_size=1000)
    publisher = publisher_for(broker.publisher(place))
    async with publisher:
        with pytest.raises(TerminalError, match="the event is too large for its stream"):
            await publisher.publish(event(data=b'"%s"' % (b"x" * 2000)))
        await publisher.publish(event("e-2"))
    assert [each.id for each in await broker.events(place)] == ["e-2"]


async def test_subject_that_nats_does_not_permit_concerns_its_event_only_unless_it_is_fixed() -> None:
    with RestrictedNATSServer() as server:
        connection = await nats.connect(server.url)
        await connection.jetstream().add_stream(name="all", subjects=["permitted.*", "denied.*"])
        await connection.close()
        address = server.url.replace("://", "://limited:limited@")
        publisher = publisher_for(f"{address}?subject={{type}}")
        async with publisher:
            async with asyncio.timeout(5):  # the library itself waits for ten seconds
                denied = publisher.publish(OutboxEvent("e-1", "denied.order", "/shop", b"1"))
                permitted = publisher.publish(OutboxEvent("e-2", "permitted.order", "/other", b"1"))
                refused, published = await asyncio.gather(denied, permitted, return_exceptions=True)
            assert published is None
            assert isinstance(refused, ValueError)
            said = str(refused).lower()
            assert "refused the event for subject 'denied.order': " in said
            assert 'permissions violation for publish to "denied.order"' in said
            await publisher.publish(OutboxEvent("e-3", "permitted.order", "/shop", b"1"))
        publisher = publisher_for(f"{address}?subject=denied.order")
        async with publisher:
            with pytest.raises(BrokerRefusedError, match="does not permit this to the user of the URL"):
                await publisher.publish(event())


async def test_nats_user_who_gets_no_answers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.brokers.nats.ANSWER_SEC", 0.5)
    with RestrictedNATSServer() as server:
        publisher = publisher_for(server.url.replace("://", "://unanswered:unanswered@"))
        async with publisher:
            with pytest.raises(BrokerRefusedError, match=r"does not permit this .*[Vv]iolation for [Ss]ubscription to"):
                await publisher.publish(event())


# Webhooks.


@dataclass
class Webhook:
    """A receiver of webhooks: what it got, and what it answers."""

    url: str = ""
    status: int = 200
    answer: tuple[str, bytes] = ("text/plain", b"because")
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def receiving() -> Iterator[Webhook]:
    webhook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            webhook.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            webhook.paths.append(self.path)
            self.send_response(webhook.status)
            self.send_header("content-type", webhook.answer[0])
            self.end_headers()
            self.wfile.write(webhook.answer[1])

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    webhook.url = f"http://127.0.0.1:{server.server_port}/hook?token=secret"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield webhook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("mode", ["structured", "binary"])
async def test_webhook_gets_a_cloudevent(mode: str) -> None:
    with receiving() as webhook:
        async with HTTPPublisher(webhook.url, mode=mode) as publisher:
            await publisher.publish(event())
    ((headers, body),) = webhook.requests
    found = received(headers, body)
    assert found is not None
    assert (found.id, found.type, found.source, found.data) == ("e-1", "order.paid", "/shop", {"n": 1})
    expected = {"structured": "application/cloudevents+json", "binary": "application/json"}
    assert headers["content-type"] == expected[mode]
    if mode == "structured":
        assert json.loads(body)["time"] == "2026-01-02T03:04:05.678000Z"


async def test_attributes_in_headers_of_a_webhook_are_percent_encoded() -> None:
    with receiving() as webhook:
        async with HTTPPublisher(webhook.url, mode="binary") as publisher:
            await publisher.publish(OutboxEvent("e-1", "paid", "Zürich 5%", b"1", headers=b'{"tenant": "a"}'))
    ((headers, _),) = webhook.requests
    assert (headers["ce-type"], headers["ce-source"]) == ("paid", "Z%C3%BCrich%205%25")
    assert headers["ce-perdureheaders"] == "{%22tenant%22:%20%22a%22}"


async def test_webhook_is_signed() -> None:
    key = b"k" * 32
    with receiving() as webhook:
        signing_key = "whsec_" + base64.b64encode(key).decode()
        async with HTTPPublisher(webhook.url, signing_key=signing_key) as publisher:
            await publisher.publish(event())
    ((headers, body),) = webhook.requests
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert (headers["webhook-id"], headers["webhook-signature"]) == ("e-1", f"v1,{digest}")


@pytest.mark.parametrize(
    ("id", "sent"),
    [
        ("ü%1", "%C3%BC%251"),
        ("a%b c", "a%b c"),
        ("ü" * 100, hashlib.sha256(("ü" * 100).encode()).hexdigest()),  # longer than receivers accept
    ],
)
async def test_id_of_a_signed_webhook_is_ascii(id: str, sent: str) -> None:
    key = "whsec_" + base64.b64encode(b"k" * 32).decode()
    with receiving() as webhook:
        async with HTTPPublisher(webhook.url, signing_key=key) as publisher:
            await publisher.publish(event(id))
    ((headers, body),) = webhook.requests
    assert headers["webhook-id"] == sent
    assert Signatures(key).verify(headers, body) == sent
    assert json.loads(body)["id"] == id


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (503, BrokerUnavailableError),
        (429, BrokerUnavailableError),
        (500, ValueError),
        (400, ValueError),
        (302, ValueError),
    ],
)
async def test_status_of_a_webhook_says_whether_the_event_was_refused(status: int, error: type[Exception]) -> None:
    with receiving() as webhook:
        webhook.status = status
        async with HTTPPublisher(webhook.url) as publisher:
            with pytest.raises(error, match=f"status {status}") as caught:
                await publisher.publish(event())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("type", "body", "said"),
    [
        ("text/plain", b"x" * 1000, "x" * 300),
        ("application/problem+json", b'{"type": "about:blank", "detail": "no such order"}', "no such order"),
        ("application/problem+json; charset=utf-8", b'{"title": "no"}', '{"title": "no"}'),
        ("application/problem+json", b"[", "["),
        ("application/problem+json", b"\xff", "\ufffd"),
    ],
)
async def test_refusal_of_a_webhook_is_quoted(type: str, body: bytes, said: str) -> None:
    with receiving() as webhook:
        webhook.status, webhook.answer = 400, (type, body)
        async with HTTPPublisher(webhook.url) as publisher:
            with pytest.raises(ValueError, match="refused the event with status 400: ") as caught:
                await publisher.publish(event())
    assert str(caught.value).endswith(f": {said}")


@pytest.mark.parametrize("status", [200, 302, 400])
async def test_address_of_a_webhook_is_in_no_log(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")  # of all libraries
    with receiving() as webhook:
        webhook.status = status
        address = webhook.url.replace("://", "://user:pa55word@")
        async with HTTPPublisher(address) as publisher:
            with nullcontext() if status == 200 else pytest.raises(ValueError, match="refused the event"):
                await publisher.publish(event())
        (headers, _) = webhook.requests[0]
        assert headers["authorization"].startswith("Basic ")
        assert webhook.paths == ["/hook?token=secret"]
    assert "HTTP Request: POST http://127.0.0.1:" in caplog.text
    for secret in ("token", "secret", "pa55word", "/hook"):
        assert secret not in caplog.text


async def test_unreachable_webhook_is_unavailable() -> None:
    async with HTTPPublisher("http://127.0.0.1:1/x?token=secret") as publisher:
        with pytest.raises(BrokerUnavailableError, match=r"cannot connect to http://127\.0\.0\.1:1: ") as caught:
            await publisher.publish(event())
    assert "secret" not in f"{caught.value}{publisher!r}"


async def test_webhook_that_does_not_answer_counts_as_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.brokers.http.TIMEOUT_SEC", 0.2)
    held = list[asyncio.StreamWriter]()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with HTTPPublisher(f"http://127.0.0.1:{port}/") as publisher:
            with pytest.raises(TimeoutError, match="did not answer"):
                await publisher.publish(event())
        for writer in held:
            writer.close()
