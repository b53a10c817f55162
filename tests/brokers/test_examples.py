"""The examples for brokers work with real ones."""

import asyncio
import base64
import json
from pathlib import Path

import pytest

from perdure import Client
from perdure.brokers.cloudevents import received
from perdure.http import http_app
from perdure.http.server import Server, listen
from perdure.http.signatures import Signatures
from tests.brokers.servers import KafkaServer, NATSServer, RedisServer
from tests.brokers.test_publishers import receiving
from tests.support.programs import load_anew, no_other_program
from tests.support.storages import storage_of

PAID = "A-1: 40 paid, shipped"


async def run(example: str, url: str, broker: str) -> None:
    with no_other_program():
        load_anew("examples.brokers.shop")
        await load_anew(f"examples.brokers.{example}").main(url, broker)


async def test_example_for_nats(url: str, nats_server: NATSServer, capsys: pytest.CaptureFixture[str]) -> None:
    await run("nats_orders", url, nats_server.url)
    paid, shipped = capsys.readouterr().out.splitlines()
    assert (paid, json.loads(shipped)["id"]) == (PAID, "shipped-A-1")


async def test_example_for_rabbitmq(url: str, rabbitmq_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    await run("rabbitmq_orders", url, rabbitmq_url)
    paid, shipped = capsys.readouterr().out.splitlines()
    assert (paid, json.loads(shipped)["id"]) == (PAID, "shipped-A-1")


async def test_example_for_kafka(url: str, kafka_server: KafkaServer, capsys: pytest.CaptureFixture[str]) -> None:
    await run("kafka_orders", url, kafka_server.url)
    paid, shipped = capsys.readouterr().out.splitlines()
    assert (paid, json.loads(shipped)["id"]) == (PAID, "shipped-A-1")


async def test_example_for_redis(url: str, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    await run("redis_orders", url, redis_server.url)
    paid, shipped = capsys.readouterr().out.splitlines()
    assert (paid, shipped) == (PAID, 'order.shipped shipped-A-1 {"order":"A-1"}')


async def test_example_for_webhooks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with receiving() as webhook:
        await run("webhook", url, webhook.url)
    ((headers, body),) = webhook.requests
    found = received(headers, body)
    assert found is not None
    assert (found.type, found.id) == ("order.shipped", headers["webhook-id"])
    said = capsys.readouterr().out
    assert Signatures(said.partition("needs this key: ")[2].split()[0]).verify(headers, body)
    assert said.endswith(f"accepted: {found.id}\n")


async def test_webhook_of_the_example_reaches_the_http_api(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "whsec_" + base64.b64encode(b"k" * 32).decode()
    monkeypatch.setenv("WEBHOOK_KEY", key)
    async with Client(f"sqlite:///{tmp_path}/receiver.db") as client:
        server = Server(http_app(client, webhook_keys=key), listen("127.0.0.1", 0))
        serving = asyncio.create_task(server.run(client))
        try:
            await run("webhook", url, f"{server.url}/v1/cloudevents")
        finally:
            server.stop()
            await serving
        (message,) = await storage_of(client).get_pending_channel_messages("order.shipped")
        assert json.loads(message.data or b"") == {"order": "A-1"}
