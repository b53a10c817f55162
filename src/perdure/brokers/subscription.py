"""Subscriptions: which messages of a broker are stored, and as what."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b

from perdure.brokers import cloudevents
from perdure.brokers.incoming import BrokerMessage, Source, ToChannel, ToEvent
from perdure.brokers.kafka import KafkaSource
from perdure.brokers.nats import NATSSource
from perdure.brokers.rabbitmq import RabbitMQSource
from perdure.brokers.redis import RedisSource
from perdure.brokers.urls import by_scheme
from perdure.database.secret import Secret
from perdure.errors import ConfigurationError, LimitError
from perdure.model import limits
from perdure.model.header_attributes import TRACE, from_attributes
from perdure.model.headers import Headers

SOURCES: Mapping[str, Callable[[str], Source]] = {  # by the scheme of the URL
    "nats": NATSSource,
    "nats+tls": NATSSource,
    "tls": NATSSource,  # what NATS calls it
    "amqp": RabbitMQSource,
    "amqps": RabbitMQSource,
    "kafka": KafkaSource,
    "kafka+tls": KafkaSource,
    "redis": RedisSource,
    "rediss": RedisSource,
}

Convert = Callable[[BrokerMessage], ToEvent | ToChannel | None]


class Subscription:
    """Store the messages of a broker as events, or on a channel: `App(…, subscriptions=[Subscription(url)])`.

    - `url`: where the messages come from, such as `"nats://host/ORDERS?durable=shop"`.
    - `event`: the type of the event that a JSON message becomes; `{subject}` in it is replaced by the subject, routing
      key, topic or stream (default: none, only CloudEvents are stored).
    - `channel`: store the data of all messages, also CloudEvents, on this channel instead (default: none).
    - `convert`: a function that gets a `BrokerMessage` and returns `ToEvent(…)`, `ToChannel(…)` or None to skip it
      (default: none). It must not block and should depend on the message only; an error in it rejects the message.

    At most one of `event`, `channel` and `convert` can be given. Without `channel` and `convert`, CloudEvents keep
    their type, id and source. `stored` and `rejected` count messages since the object was created; a message that is
    delivered twice counts twice. Raises `ConfigurationError` for a URL that cannot work.
    """

    shown = ""  # the address for messages and logs, once the URL is checked

    def __init__(
        self, url: str, *, event: str | None = None, channel: str | None = None, convert: Convert | None = None
    ) -> None:
        url = Secret(url) if isinstance(url, str) else url  # a traceback shows arguments, and it may have a password
        if sum(each is not None for each in (event, channel, convert)) > 1:
            raise TypeError("Subscription(…) takes only one of event=, channel= and convert=")
        for name, given in (("event", event), ("channel", channel)):
            if given is not None and (not isinstance(given, str) or not given):
                raise TypeError(f"Subscription({name}=) must be a text that is not empty, not {given!r}")
        if convert is not None and not callable(convert):
            raise TypeError(f"Subscription(convert=) must be a function, not {convert!r}")
        called = getattr(convert, "__call__", None)  # noqa: B004 - of an object that is no function itself
        if any(map(inspect.iscoroutinefunction, (convert, called))):  # every message would be rejected
            raise TypeError("Subscription(convert=) must be a plain function: write `def`, not `async def`")
        self._source = _source_for(url)
        self.shown = self._source.shown
        self._event, self._channel, self._convert = event, channel, convert
        self.stored = self.rejected = 0

    def __repr__(self) -> str:
        return f"Subscription({self.shown!r})"

    @property
    def source(self) -> Source:
        """Return what delivers the messages."""
        return self._source

    def read(self, message: BrokerMessage) -> ToEvent | ToChannel | None:
        """Return what to store of a message, or None; raise `ValueError` or what `convert` raises if it cannot be."""
        if self._convert is not None:
            return _completed(self._convert(message), message)
        found = cloudevents.received(message.headers, message.body)
        if found is not None and self._channel is None:
            return ToEvent(found.type, found.data, found.id, found.source, found.subject, headers=found.headers)
        if found is not None and self._channel is not None:
            return ToChannel(self._channel, found.data, id=found.id, source=found.source, headers=found.headers)
        data = cloudevents.plain(message.headers, message.body)
        if self._channel is not None:
            return _completed(ToChannel(self._channel, data), message)
        if self._event is None:
            raise ValueError("it is no CloudEvent, and Subscription(…) has no event=, channel= or convert=")
        return _completed(ToEvent(self._event.replace("{subject}", message.subject), data), message)


def _completed(found: object, message: BrokerMessage) -> ToEvent | ToChannel | None:
    """Return what to store with the ids and the trace of the message, unless it has its own."""
    if found is None:
        return None
    if not isinstance(found, ToEvent | ToChannel):
        raise ValueError(f"convert= returned {type(found).__name__}, not ToEvent, ToChannel or None")
    id = _storable(message.id) if found.id is None else found.id
    source = message.source if found.source is None else found.source
    return replace(found, id=id, source=source, headers=found.headers or _trace(message))


def _storable(id: str | None) -> str | None:
    """Return the id of a message of a broker, or a digest of it if it is too long, for example."""
    try:
        return None if id is None else limits.name(id)
    except LimitError:
        return blake2b(str(id).encode(errors="backslashreplace"), digest_size=16).hexdigest()


def _trace(message: BrokerMessage) -> Headers:
    """Return the trace in the headers of a message, where tools that trace brokers put it."""
    return from_attributes({name: message.headers.get(name) for name in TRACE}, str(message.id))


def _source_for(url: str) -> Source:
    if not isinstance(url, str):
        raise TypeError(f"Subscription(…) takes the URL of a broker, not {url!r}")
    if url.startswith(("http://", "https://")):
        raise ConfigurationError(
            "Subscription(…) takes the URL of NATS, RabbitMQ, Kafka or Redis; events of HTTP requests come in through "
            "your web application, which calls send_event()"
        )
    return by_scheme(url, SOURCES, "the URL of the subscription")(url)
