"""The examples for brokers work with real ones."""

import json

import pytest

from perdure.brokers.cloudevents import received
from tests.brokers.servers import KafkaServer, NATSServer, RedisServer
from tests.brokers.test_publishers import receiving
from tests.support.programs import load_anew, no_other_program

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


async def test_example_for_webhooks(url: str) -> None:
    with receiving() as webhook:
        await run("webhook", url, webhook.url)
    ((headers, body),) = webhook.requests
    found = received(headers, body)
    assert found is not None
    assert found.id == headers["webhook-id"] == "shipped-A-1"
