"""Messages of a broker on their way into the database."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from perdure.model.headers import Headers, none


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    """A message as the broker delivered it.

    - `body`: the content.
    - `headers`: headers, properties or fields, by lower-case names.
    - `subject`: the subject (NATS), routing key (RabbitMQ), topic (Kafka) or stream (Redis).
    - `id`: the same in each delivery of the message; None if the broker has none.
    - `source`: what the id is unique in, such as `nats:broker.example.com:4222/ORDERS`.
    """

    body: bytes
    headers: Mapping[str, str]
    subject: str
    id: str | None
    source: str
    handle: object = field(default=None, repr=False, compare=False)  # of the broker's client library


@dataclass(frozen=True, slots=True)
class ToEvent:
    """Store a message as an event, as `send_event()` does.

    - `type`: the type of the event.
    - `data`: its data, as for `send_event()`.
    - `id`, `source`: an event is stored once for each pair (default: those of the message).
    - `subject`: the subject of the event (default: none).
    - `to`: the id of the only run that receives it (default: all that wait for the type).
    - `headers`: the headers of the event (default: the trace in the headers of the message, if there is one).
    """

    type: str
    data: object
    id: str | None = None
    source: str | None = None
    subject: str | None = None
    to: str | None = None
    headers: Headers = field(default_factory=none)


@dataclass(frozen=True, slots=True)
class ToChannel:
    """Store a message on a channel, as `publish()` and `send_to()` do.

    - `channel`: the channel.
    - `data`: the data of the channel message, as for `publish()`.
    - `metadata`: its metadata (default: none).
    - `id`, `source`: a message is stored once for each pair (default: those of the broker's message).
    - `to`: the id of the only run that receives it (default: all subscribers).
    - `headers`: the headers of the channel message (default: the trace in the headers of the broker's message, if there
      is one).
    """

    channel: str
    data: object
    metadata: Mapping[str, object] | None = None
    id: str | None = None
    source: str | None = None
    to: str | None = None
    headers: Headers = field(default_factory=none)


class Source(Protocol):
    """Where a subscription gets its messages. Entering it connects; what is not acknowledged is delivered again.

    Each method raises `BrokerUnavailableError` if the broker does not answer.
    """

    @property
    def shown(self) -> str:
        """Return the name for messages and logs, without a password."""

    async def __aenter__(self) -> object:
        """Connect."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object:
        """Disconnect."""

    async def fetch(self) -> Sequence[BrokerMessage]:
        """Wait for messages and return them, in order; return nothing after some time without any."""

    async def acknowledge(self, messages: Sequence[BrokerMessage], /) -> None:
        """Report that these messages are stored. They are the next ones, in the order of the fetch."""

    async def reject(self, message: BrokerMessage, reason: str, /) -> None:
        """Give up a message, so that it is not delivered again: to the dead-letter address, if there is one."""
