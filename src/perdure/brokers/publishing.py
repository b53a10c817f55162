"""Publishers: what passes the events of the outbox on."""

from collections.abc import Awaitable, Callable
from importlib import import_module
from types import TracebackType
from typing import Protocol, cast, runtime_checkable

from perdure.database.secret import Secret
from perdure.errors import ConfigurationError
from perdure.model.records import OutboxEvent

_MODULES = {
    "http": "http",
    "https": "http",
    "nats": "nats",
    "nats+tls": "nats",
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "kafka": "kafka",
    "kafka+tls": "kafka",
    "redis": "redis",
    "rediss": "redis",
}


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


def module_of(url: str, what: str) -> str:
    """Return the name of the module for the scheme of a URL; raise `ConfigurationError` if there is none."""
    scheme = str(Secret(url).partition("://")[0]).lower()
    if scheme not in _MODULES:
        raise ConfigurationError(f"{what} has an unknown scheme: use one of {', '.join(f'{s}://' for s in _MODULES)}")
    return f"perdure.brokers.{_MODULES[scheme]}"


def publisher_for(url: str) -> Publisher:
    """Return the publisher for the URL of a broker or webhook. Nothing is connected yet.

    Raises `ConfigurationError` if the URL is malformed, or the extra of the broker is not installed.
    """
    url = Secret(url)  # a traceback shows arguments, and a URL may have a password
    module = module_of(url, "the URL of the publisher")
    return cast(Callable[[str], Publisher], import_module(module).open_publisher)(url)
