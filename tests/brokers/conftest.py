"""Fixtures: real brokers, one of each for a process of the tests.

A RabbitMQ that answers on its usual port is used, because its start takes some seconds; PERDURE_TEST_RABBITMQ_URL names
another one. A broker that can be neither started nor reached is an error.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from tests.brokers.brokers import NATS, Broker, Kafka, RabbitMQ, Redis
from tests.brokers.servers import KafkaServer, NATSServer, RabbitMQServer, RedisServer

USUAL = "amqp://guest:guest@127.0.0.1:5672/"
BROKERS = ("nats", "rabbitmq", "kafka", "redis")


def _rabbitmq_url() -> str | None:
    if given := os.environ.get("PERDURE_TEST_RABBITMQ_URL"):
        return given
    with suppress(OSError), socket.create_connection(("127.0.0.1", 5672), timeout=2) as connection:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        return USUAL if connection.recv(1) == b"\x01" else None
    return None


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NATSServer]:
    with NATSServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    if found := _rabbitmq_url():
        yield found
        return
    with RabbitMQServer() as server:
        yield server.url


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn."""
    return make_broker(request, request.param)


def make_broker(request: pytest.FixtureRequest, name: str) -> Broker:
    """Return a broker; its server is started if it is not running."""
    if name == "rabbitmq":
        return RabbitMQ(request.getfixturevalue("rabbitmq_url"))
    kinds: dict[str, Any] = {"nats": NATS, "kafka": Kafka, "redis": Redis}
    url: str = request.getfixturevalue(f"{name}_server").url
    return kinds[name](url)  # type: ignore[no-any-return]


@pytest.fixture
def place() -> str:
    """The name of a stream, queue or topic that no other test uses."""
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def url(tmp_path: Any) -> str:
    """A database of this test's own."""
    return f"sqlite:///{tmp_path}/test.db"
