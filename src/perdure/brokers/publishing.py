"""Publishers: what passes the events of the outbox on."""

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Protocol, runtime_checkable

from perdure.brokers.http import HTTPPublisher
from perdure.brokers.kafka import KafkaPublisher
from perdure.brokers.nats import NATSPublisher
from perdure.brokers.rabbitmq import RabbitMQPublisher
from perdure.brokers.redis import RedisPublisher
from perdure.brokers.urls import by_scheme
from perdure.database.secret import Secret
from perdure.model.records import OutboxEvent


@runtime_checkable
class Publisher(Protocol):
    """What passes events on. Entering it connects, leaving it disconnects; the relay may do so any number of times.

    `publish` returns when the event is safe with the receiver. It is called for many events at once, but for one source
    always with one event after the other. It raises:

    - `BrokerUnavailableError` if no event can be published now. This counts as no attempt; the relay leaves the
      publisher, enters it again with back-off, and retries. `__aenter__` may raise it as well.
    - `TerminalError` if this event can never be published, so that it is parked at once.
    - any other error if this event was refused, so that it is retried with back-off, and parked after 20 attempts.
    """

    async def __aenter__(self) -> object:
        """Connect."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object:
        """Disconnect."""

    def publish(self, event: OutboxEvent, /) -> Awaitable[object]:
        """Pass one event on; an `async def`."""


PUBLISHERS: Mapping[str, Callable[[str], Publisher]] = {  # by the scheme of the URL
    "http": HTTPPublisher,
    "https": HTTPPublisher,
    "nats": NATSPublisher,
    "nats+tls": NATSPublisher,
    "tls": NATSPublisher,  # what NATS calls it
    "amqp": RabbitMQPublisher,
    "amqps": RabbitMQPublisher,
    "kafka": KafkaPublisher,
    "kafka+tls": KafkaPublisher,
    "redis": RedisPublisher,
    "rediss": RedisPublisher,
}


def publisher_for(url: str) -> Publisher:
    """Return the publisher for the URL of a broker or webhook. Nothing is connected yet.

    Raises `ConfigurationError` if the URL is malformed, or the extra of the broker is not installed.
    """
    url = Secret(url)  # a traceback shows arguments, and a URL may have a password
    return by_scheme(url, PUBLISHERS, "the URL of the publisher")(url)
