"""RabbitMQ: `amqp://user:password@host:5672/vhost?…`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

from perdure.brokers import cloudevents, urls
from perdure.brokers.extras import library
from perdure.brokers.incoming import BrokerMessage
from perdure.brokers.urls import BrokerURL, Kind, Template
from perdure.errors import BrokerUnavailableError, ConfigurationError, TerminalError
from perdure.model.records import OutboxEvent

CONNECT_SEC = 10.0
ANSWER_SEC = 15.0  # less than the relay allows for one event
FETCH_SEC = 5.0
PREFETCH = 100
ROUTING_KEY_MAX = 255  # bytes

_SCHEMES = ("amqp", "amqps")
_OUT = Kind(
    "RabbitMQ",
    _SCHEMES,
    5672,
    {"exchange": urls.text, "routing_key": Template, "mode": urls.MODE},
    "vhost",
    ("amqps",),
)
_IN = Kind("RabbitMQ", _SCHEMES, 5672, {"queue": urls.text, "prefetch": urls.count}, "vhost", ("amqps",))


class RabbitMQPublisher:
    """Publish persistent messages with publisher confirms; a message that reaches no queue is refused."""

    shown = ""  # the address for messages and logs, once the URL is checked

    def __init__(self, url: str) -> None:
        self._aio_pika = library("aio_pika", "rabbitmq")
        self._url = urls.parse(url, _OUT)
        options = self._url.options
        self._exchange_name = options.get("exchange", "")
        self._routing_key = options.get("routing_key") or Template("{type}")
        self._mode = options.get("mode", "structured")
        self.shown = self._url.shown
        self._session = AsyncExitStack()
        self._exchange: Any = None

    def __repr__(self) -> str:
        return f"RabbitMQPublisher({self.shown!r})"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as session:
            connection = await session.enter_async_context(_connected(self._aio_pika, self._url))
            with _answering(self._aio_pika, self.shown):
                channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                name = self._exchange_name
                self._exchange = await channel.get_exchange(name) if name else channel.default_exchange
            self._session = session.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.aclose()

    async def publish(self, event: OutboxEvent) -> None:
        """Publish one event, and wait until the broker has confirmed it."""
        key = self._routing_key.fill(type=event.event_type, source=event.event_source)
        if len(key.encode()) > ROUTING_KEY_MAX:
            raise TerminalError(f"the routing key {key!r} is longer than {ROUTING_KEY_MAX} bytes")
        body, headers = cloudevents.message(event, self._mode, "cloudEvents:")
        message = self._aio_pika.Message(
            body,
            content_type=headers.pop("content-type"),
            headers=headers,
            message_id=event.event_id,
            type=event.event_type,
            timestamp=event.created_at,
            delivery_mode=self._aio_pika.DeliveryMode.PERSISTENT,
        )
        exceptions = self._aio_pika.exceptions
        with _answering(self._aio_pika, self.shown):
            try:
                await self._exchange.publish(message, key, mandatory=True, timeout=ANSWER_SEC)
            except exceptions.PublishError as error:
                where = f"exchange {self._exchange_name!r}" if self._exchange_name else "the default exchange"
                raise LookupError(
                    f"{where} of {self.shown} routes {key!r} to no queue: bind a queue to it, or choose another "
                    "routing_key="
                ) from error
            except exceptions.DeliveryError as error:
                raise ValueError(f"{self.shown} refused the event: {error}") from error


class RabbitMQSource:
    """Consume an existing queue. A rejected message goes to the dead-letter exchange of the queue, if it has one."""

    def __init__(self, url: str) -> None:
        self._aio_pika = library("aio_pika", "rabbitmq")
        self._url = urls.parse(url, _IN)
        if "queue" not in self._url.options:
            raise ConfigurationError("the RabbitMQ URL of a subscription needs a queue: write amqp://host/?queue=name")
        self._queue_name = self._url.options["queue"]
        self._prefetch = self._url.options.get("prefetch", PREFETCH)
        self.shown = f"{self._url.shown} (queue {self._queue_name})"
        self._session = AsyncExitStack()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as session:
            connection = await session.enter_async_context(_connected(self._aio_pika, self._url))
            self._arrived, self._lost = asyncio.Queue(), asyncio.Event()
            lost = self._lost
            with _answering(self._aio_pika, self.shown):
                channel = await connection.channel(publisher_confirms=False)
                channel.close_callbacks.add(lambda *_: lost.set())
                await channel.set_qos(prefetch_count=self._prefetch)
                queue = await channel.get_queue(self._queue_name)
                await queue.consume(self._arrived.put, timeout=ANSWER_SEC)
            self._session = session.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.aclose()

    async def fetch(self) -> Sequence[BrokerMessage]:
        """Wait for messages and return them."""
        if self._arrived.empty():
            await self._wait()
        found = []
        while not self._arrived.empty():
            found.append(self._received(self._arrived.get_nowait()))
        if not found and self._lost.is_set():
            raise BrokerUnavailableError(f"the connection to {self.shown} was lost")
        return found

    async def _wait(self) -> None:
        """Wait until a message has arrived or the connection is lost, at most for some time."""
        lost, arrived = asyncio.create_task(self._lost.wait()), asyncio.create_task(self._arrived.get())
        try:
            await asyncio.wait([lost, arrived], timeout=FETCH_SEC, return_when="FIRST_COMPLETED")
        finally:
            lost.cancel()
            if not arrived.cancel() and not arrived.cancelled():
                self._put_first(arrived.result())

    def _put_first(self, message: Any) -> None:
        """Put back the message that a wait has taken, in front of those that arrived since."""
        later = [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]
        for each in (message, *later):
            self._arrived.put_nowait(each)

    def _received(self, message: Any) -> BrokerMessage:
        headers = {str(name).lower(): _header(value) for name, value in (message.headers or {}).items()}
        if message.content_type:
            headers["content-type"] = message.content_type
        source = f"rabbitmq:{self._queue_name}"
        return BrokerMessage(message.body, headers, message.routing_key or "", message.message_id, source, message)

    async def acknowledge(self, messages: Sequence[BrokerMessage]) -> None:
        """Acknowledge messages."""
        with _answering(self._aio_pika, self.shown):
            for message in messages:
                handle: Any = message.handle
                await handle.ack()

    async def reject(self, message: BrokerMessage, reason: str) -> None:
        """Reject a message without requeueing it."""
        handle: Any = message.handle
        with _answering(self._aio_pika, self.shown):
            await handle.reject(requeue=False)


def _header(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@asynccontextmanager
async def _connected(aio_pika: Any, url: BrokerURL) -> AsyncIterator[Any]:
    """Connect to the first host that answers."""
    for number, (host, port) in enumerate(url.hosts, 1):
        connection = _connection(aio_pika, url, host.strip("[]"), port)
        try:  # the connection must be closed even if it was never open: when it is collected, it would try to
            try:
                await connection.connect(timeout=CONNECT_SEC)
            except (aio_pika.exceptions.AMQPError, OSError) as error:
                if number < len(url.hosts):
                    continue
                raise BrokerUnavailableError(f"cannot connect to {url.shown}: {_text(error)}") from error
            yield connection
            return
        finally:
            await connection.close()


def _connection(aio_pika: Any, url: BrokerURL, host: str, port: int) -> Any:
    address = library("aio_pika.connection", "rabbitmq").make_url(
        host=host,
        port=port,
        login=str(url.user) or "guest",
        password=str(url.password) or "guest",
        virtualhost=url.path or "/",
        ssl=url.tls,
    )
    return aio_pika.Connection(address, client_properties={"connection_name": "perdure"})


@contextmanager
def _answering(aio_pika: Any, shown: str) -> Any:
    exceptions = aio_pika.exceptions
    lost = (exceptions.AMQPError, exceptions.ChannelInvalidStateError, OSError)
    try:
        yield
    except lost as error:
        raise BrokerUnavailableError(f"{shown} does not answer: {_text(error)}") from error


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
