"""Brokers with TLS, a private CA and a password, and what is said if one of these is wrong."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
import nats
import pytest

from perdure import App, BrokerRefusedError, BrokerUnavailableError, Client, OutboxEvent, Subscription
from perdure.brokers import HTTPPublisher, publisher_for
from perdure.errors import ConfigurationError
from tests.brokers.brokers import GROUP, structured
from tests.brokers.certificates import Authority
from tests.brokers.conftest import make_broker
from tests.brokers.servers import BareNATSServer, BrokerServer, KafkaServer, NATSServer, RabbitMQServer, RedisServer
from tests.engine.waiting import until
from tests.support.leaks import kept
from tests.support.storages import storage_of

HOST = "127.0.0.1"
PASSWORD = "s3cr3t-w0rd"
WRONG = "wr0ng-w0rd"
EVENT = OutboxEvent("e-1", "order.paid", "/shop", b'{"n": 1}')
SCHEMES = {"nats": "tls", "rabbitmq": "amqps", "redis": "rediss"}
SERVERS: dict[str, type[BrokerServer]] = {"nats": NATSServer, "rabbitmq": RabbitMQServer, "redis": RedisServer}


@dataclass
class Secured:
    """A broker with TLS."""

    name: str
    port: int
    ca_file: Path
    login: str = ""  # with the "@"
    context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self.context = ssl.create_default_context(cafile=self.ca_file)

    def publisher(self, place: str, ca_file: Path | None = None, login: str | None = None, host: str = HOST) -> str:
        option = {"nats": f"subject={place}.x", "rabbitmq": f"routing_key={place}", "redis": f"stream={place}"}
        return self._url("", option.get(self.name, f"topic={place}"), ca_file, login, host)

    def subscription(self, place: str, ca_file: Path | None = None, login: str | None = None, host: str = HOST) -> str:
        option = {"nats": f"durable={GROUP}", "rabbitmq": f"queue={place}", "redis": f"stream={place}"}
        path = place if self.name in ("nats", "kafka") else ""
        return self._url(path, option.get(self.name, f"group={place}"), ca_file, login, host)

    def _url(self, path: str, option: str, ca_file: Path | None, login: str | None, host: str) -> str:
        trusted = f"&ca_file={ca_file}" if ca_file else ""
        account = self.login if login is None else login
        return f"{SCHEMES.get(self.name, 'kafka+tls')}://{account}{host}:{self.port}/{path}?{option}{trusted}"

    async def create(self, place: str) -> None:
        """Create what perdure expects to exist."""
        if self.name == "nats":
            client = await nats.connect(f"tls://{self.login}{HOST}:{self.port}", tls=self.context)
            await client.jetstream().add_stream(name=place, subjects=[f"{place}.>"])
            await client.close()
        elif self.name == "rabbitmq":
            async with await aio_pika.connect(
                f"amqps://{self.login}{HOST}:{self.port}/", ssl_context=self.context
            ) as c:
                await (await c.channel()).declare_queue(place, durable=True)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def ca_file(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    path.write_text(authority.certificate)
    return path


@pytest.fixture(scope="module")
def other_ca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "other.pem"
    path.write_text(Authority().certificate)
    return path


@pytest.fixture(scope="module", params=["nats", "rabbitmq", "redis"])
def server(request: pytest.FixtureRequest, authority: Authority, ca_file: Path) -> Iterator[Secured]:
    """A real server with TLS and a password."""
    with kept(), SERVERS[request.param](authority.server(), PASSWORD) as running:
        user = "" if request.param == "redis" else "perdure"
        yield Secured(request.param, running.port, ca_file, f"{user}:{PASSWORD}@")


@asynccontextmanager
async def encrypting(target: int, authority: Authority, folder: Path) -> AsyncIterator[int]:
    """Put TLS before a Kafka broker, whose answers then name this port instead of its own."""
    pair = authority.server()
    (folder / "chain.pem").write_text(pair.chain)
    (folder / "key.pem").write_text(pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    own, wires = struct.pack(">i", target), set[asyncio.Task[None]]()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wires.add(asyncio.current_task())  # type: ignore[arg-type]
        from_broker, to_broker = await asyncio.open_connection(HOST, target)
        shown = struct.pack(">i", port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, to_broker, b"", b""))
                group.create_task(_copy(from_broker, writer, own, shown))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            to_broker.transport.abort()

    listener = await asyncio.start_server(accepted, HOST, 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        listener.close()
        for wire in wires:
            wire.cancel()
        await asyncio.gather(*wires, return_exceptions=True)
        await listener.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, old: bytes, new: bytes) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk.replace(old, new) if old else chunk)
        await writer.drain()
    raise ConnectionError("closed")


async def passes(secured: Secured, place: str, ca_file: Path | None, url: str) -> bool:
    """Return whether an event that one app publishes is stored by the subscription of another."""
    await secured.create(place)
    subscription = Subscription(secured.subscription(place, ca_file))
    async with App(url, publisher=secured.publisher(place, ca_file), subscriptions=[subscription]) as app:
        await storage_of(app).add_outbox_event(EVENT)
        await until(lambda: subscription.stored == 1)
        messages = await storage_of(app).get_pending_channel_messages(EVENT.event_type)
        return [message.data for message in messages] == [b'{"n":1}']


async def refusal(connecting: Any) -> str:
    """Return why a publisher or a source cannot connect; client libraries finish closing the connection later."""
    selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    before = len(selector.get_map())
    with pytest.raises(BrokerRefusedError) as caught:
        async with connecting:
            pass
    await until(lambda: len(selector.get_map()) <= before)
    return str(caught.value)


async def refusals(secured: Secured, ca_file: Path | None, login: str | None = None, host: str = HOST) -> list[str]:
    return [
        await refusal(publisher_for(secured.publisher("x", ca_file, login, host))),
        await refusal(Subscription(secured.subscription("x", ca_file, login, host)).source),
    ]


async def test_event_passes_an_encrypted_broker_with_a_private_ca(server: Secured, place: str, url: str) -> None:
    assert await passes(server, place, server.ca_file, url)


async def test_without_a_ca_file_the_cas_of_the_system_count(
    server: Secured, place: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.ca_file))
    assert await passes(server, place, None, url)


async def test_certificate_of_an_unknown_ca_is_not_accepted(server: Secured) -> None:
    for said in await refusals(server, None):
        assert f"{HOST}:{server.port}" in said
        assert (
            "the certificate is not accepted: unable to get local issuer certificate; if a private CA has issued"
            in said
        )
        assert "set ca_file to" in said
        assert PASSWORD not in said


async def test_ca_file_names_the_only_cas(
    server: Secured, other_ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.ca_file))
    for said in await refusals(server, other_ca_file):
        assert "the certificate is not accepted" in said


async def test_certificate_of_another_host_is_not_accepted(server: Secured) -> None:
    for said in await refusals(server, server.ca_file, host="localhost"):
        assert "the certificate is not accepted: Hostname mismatch" in said
        assert "ca_file" not in said


@pytest.mark.parametrize("login", [f"perdure:{WRONG}@", ""])
async def test_wrong_login_is_refused(server: Secured, login: str) -> None:
    if server.name == "redis":
        login = login.replace("perdure", "")
    for said in await refusals(server, server.ca_file, login):
        assert f"{HOST}:{server.port}" in said
        assert "refuses the login: " in said
        assert said.endswith("; check the user and the password in the URL")
        assert WRONG not in said


async def test_event_passes_an_encrypted_kafka(
    kafka_server: KafkaServer, authority: Authority, ca_file: Path, tmp_path: Path, place: str, url: str, request: Any
) -> None:
    broker = make_broker(request, "kafka")
    await broker.create(place)
    async with encrypting(broker.port, authority, tmp_path) as port:
        secured = Secured("kafka", port, ca_file)
        assert await passes(secured, place, ca_file, url)
        for said in await refusals(secured, None):
            assert "the certificate is not accepted: unable to get local issuer certificate" in said


async def test_webhook_with_a_private_ca(authority: Authority, ca_file: Path, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    pair = authority.server()
    (tmp_path / "chain.pem").write_text(pair.chain)
    (tmp_path / "key.pem").write_text(pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
    async with await asyncio.start_server(answer, HOST, 0, ssl=context) as listener:
        address = f"https://{HOST}:{listener.sockets[0].getsockname()[1]}/hook"
        async with HTTPPublisher(address, ca_file=str(ca_file)) as publisher:
            await publisher.publish(EVENT)
        with pytest.raises(BrokerRefusedError, match="the certificate is not accepted"):
            async with HTTPPublisher(address) as publisher:
                await publisher.publish(EVENT)


@pytest.mark.parametrize("scheme", ["tls", "nats+tls", "amqps", "kafka+tls", "rediss"])
def test_ca_file_must_have_certificates(scheme: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path, why in (
        (empty, "no certificate in the PEM format"),
        (tmp_path / "none.pem", "No such file or directory"),
    ):
        with pytest.raises(ConfigurationError, match=rf"the ca_file of the \w+ URL cannot be read: '{path}': .*{why}"):
            publisher_for(f"{scheme}://host?ca_file={path}")


@pytest.mark.parametrize("url", ["nats://host", "amqp://host", "kafka://host", "redis://host"])
def test_ca_file_needs_an_encrypted_connection(url: str, ca_file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is only for encrypted connections: write \S+://"):
        publisher_for(f"{url}?ca_file={ca_file}")
    with pytest.raises(ConfigurationError, match=r"HTTPPublisher\(ca_file=\) is only for encrypted connections"):
        HTTPPublisher("http://host", ca_file=str(ca_file))


def test_encrypted_rabbitmq_has_its_own_port() -> None:
    assert [publisher_for(f"{scheme}://host").shown for scheme in ("amqp", "amqps")] == [  # type: ignore[attr-defined]
        "amqp://host:5672",
        "amqps://host:5671",
    ]


async def test_password_is_not_sent_to_a_nats_server_without_tls() -> None:
    received = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.0","max_payload":1000,"auth_required":true}\r\n')
        while found := await reader.read(1000):
            received.extend(found)
            writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        for scheme in ("tls", "nats+tls"):
            address = f"{scheme}://user:{PASSWORD}@{HOST}:{port}"
            for connecting in (publisher_for(address), Subscription(f"{address}/ORDERS").source):
                with pytest.raises(BrokerRefusedError, match="does not offer TLS: enable it at the server"):
                    async with connecting:
                        pass
    assert not received


# What a person has to create or to allow at the broker.


async def broker_state(client: Client) -> str | None:
    (found,) = [task.broker for task in (await client.health()).tasks if task.name == "subscription 1"]
    return found


async def is_in_state(client: Client, state: str) -> bool:
    return await broker_state(client) == state


@pytest.mark.parametrize(
    ("name", "what"),
    [("nats", "does not have the stream '{place}': create it"), ("rabbitmq", "does not have the queue '{place}'")],
)
async def test_missing_stream_or_queue_is_reported_until_it_exists(
    name: str, what: str, place: str, url: str, request: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.worker.outages.random.uniform", lambda *_: 0.02)
    caplog.set_level("INFO", "perdure.engine")
    broker = make_broker(request, name)
    subscription = Subscription(broker.subscription(place))
    async with App(url, subscriptions=[subscription]) as app:
        await until(lambda: is_in_state(app, "refused"))
        health = await app.health()
        assert health.ok  # runs are executed
        (said,) = [str(task.last_error) for task in health.tasks if task.broker]
        assert what.format(place=place) in said
        (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "cannot be used, its messages wait there; retrying until this is corrected: " in record.message
        assert what.format(place=place) in record.message
        assert "does not answer" not in caplog.text
        await broker.create(place)
        await broker.put(place, structured("e-1", 1))
        await until(lambda: subscription.stored == 1)
        assert await is_in_state(app, "available")


async def test_nats_without_jetstream_is_reported_and_no_event_is_at_fault(place: str) -> None:
    with BareNATSServer() as server:
        said = await refusal(Subscription(f"{server.url}/{place}").source)
        assert "does not have JetStream enabled: start nats-server with -js" in said
        publisher = publisher_for(server.url)
        async with publisher:
            with pytest.raises(BrokerRefusedError, match="does not have JetStream enabled"):
                await publisher.publish(EVENT)


async def test_stream_that_does_not_answer_is_unavailable_and_no_event_is_at_fault(place: str, request: Any) -> None:
    broker = make_broker(request, "nats")
    await broker.create(place)
    publisher: Any = publisher_for(broker.publisher(place))
    async with publisher:
        publisher._stream.publish = unanswered  # as without a leader of the stream
        with pytest.raises(BrokerUnavailableError, match=f"the stream '{place}' of .* accepts nothing now"):
            await publisher.publish(EVENT)


async def unanswered(*_: object, **__: object) -> None:
    raise nats.js.errors.NoStreamResponseError


async def test_missing_virtual_host_is_reported(place: str, request: Any) -> None:
    address = make_broker(request, "rabbitmq").url.rstrip("/")
    said = f"refuses the virtual host '{place}': create it, permit it to the user"
    assert said in await refusal(publisher_for(f"{address}/{place}"))
    assert said in await refusal(Subscription(f"{address}/{place}?queue=q").source)


async def test_missing_exchange_is_reported(place: str, request: Any) -> None:
    broker = make_broker(request, "rabbitmq")
    said = await refusal(publisher_for(broker.publisher(place, exchange=place)))
    assert f"does not have the exchange '{place}': create it, or choose another exchange=" in said


async def test_missing_stream_for_rejected_messages_is_reported(
    place: str, url: str, request: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.worker.outages.random.uniform", lambda *_: 0.02)
    broker = make_broker(request, "nats")
    await broker.create(place)
    await broker.put(place, b"not JSON")
    subscription = Subscription(broker.subscription(place, dead_letter=f"{place}none"))
    async with App(url, subscriptions=[subscription]):
        said = f"does not have a stream with the subject '{place}none' of dead_letter=: add the subject to a stream"
        await until(lambda: said in caplog.text)
        assert subscription.rejected == 0
