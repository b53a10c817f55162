"""RabbitMQ: `amqp://user:password@host:5672/vhost?…`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

from perdure.brokers import cloudevents, urls
from perdure.brokers.extras import library
from perdure.brokers.failures import login_refused, missing, not_answering, not_connected, not_permitted, text
from perdure.brokers.incoming import BrokerMessage
from perdure.brokers.urls import BrokerURL, Kind, Template
from perdure.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError, TerminalError
from perdure.model.records import OutboxEvent

CONNECT_SEC = 10.0
ANSWER_SEC = 15.0  # less than the relay allows for one event
FETCH_SEC = 5.0
PREFETCH = 100
PREFETCH_MAX = 65_535
SHORT_MAX = 255  # bytes of a routing key and of some properties

_PLAIN, _TLS = {"amqp": 5672}, {"amqps": 5671}
_OUT = Kind("RabbitMQ", _PLAIN, _TLS, {"exchange": urls.text, "routing_key": Template, "mode": urls.MODE}, "vhost")
_IN = Kind("RabbitMQ", _PLAIN, _TLS, {"queue": urls.text, "prefetch": urls.count_to(PREFETCH_MAX)}, "vhost")


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
                self._exchange = await self._found_exchange(channel)
            self._session = session.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.aclose()

    async def _found_exchange(self, channel: Any) -> Any:
        if not (name := self._exchange_name):
            return channel.default_exchange
        try:
            return await channel.get_exchange(name)
        except self._aio_pika.exceptions.ChannelNotFoundEntity as error:
            raise missing(self.shown, f"the exchange {name!r}", "create it, or choose another exchange=") from error

    async def publish(self, event: OutboxEvent) -> None:
        """Publish one event, and wait until the broker has confirmed it."""
        key = self._routing_key.fill(type=event.event_type, source=event.event_source)
        for what, name in (("routing key", key), ("id of the event", event.event_id), ("event type", event.event_type)):
            if len(name.encode()) > SHORT_MAX:
                raise TerminalError(f"the {what} {name!r} is longer than {SHORT_MAX} bytes, which is RabbitMQ's limit")
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
                raise LookupError(self._unrouted(key)) from error
            except exceptions.ChannelPreconditionFailed as error:  # it has closed the channel, which all events share
                if f"message size {len(body)} is larger" not in str(error):
                    raise
                raise TerminalError(f"the event is too large for {self.shown}: {text(error)}") from error
            except exceptions.DeliveryError as error:  # of a full queue, for example
                said = f"a queue of {self.shown} does not accept the event: {text(error)}"
                if self._routing_key.is_fixed:
                    raise BrokerUnavailableError(said) from error
                raise ValueError(said) from error  # other events have other queues

    def _unrouted(self, key: str) -> str:
        if self._exchange_name:
            where, remedy = f"exchange {self._exchange_name!r}", "bind a queue to it"
        else:  # to which no queue can be bound: its routing keys are the names of queues
            where, remedy = "the default exchange", "create a queue with this name, set exchange="
        return f"{where} of {self.shown} routes {key!r} to no queue: {remedy}, or choose another routing_key="


class RabbitMQSource:
    """Consume an existing queue. A rejected message goes to the dead-letter exchange of the queue, if it has one."""

    def __init__(self, url: str) -> None:
        self._aio_pika = library("aio_pika", "rabbitmq")
        self._url = urls.parse(url, _IN)
        if "queue" not in self._url.options:
            raise ConfigurationError("the RabbitMQ URL of a subscription needs a queue: write amqp://host/?queue=name")
        self._queue_name = self._url.options["queue"]
        self._origin = self._url.source("rabbitmq", self._url.path or "/", self._queue_name)
        self._prefetch = self._url.options.get("prefetch", PREFETCH)
        self.shown = f"{self._url.shown} (queue {self._queue_name})"
        self._session = AsyncExitStack()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._lost = asyncio.Event()
        self._is_consuming: Callable[[], bool] = lambda: True  # False once the server has cancelled the consumer

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as session:
            connection = await session.enter_async_context(_connected(self._aio_pika, self._url))
            self._arrived, self._lost = asyncio.Queue(), asyncio.Event()
            lost = self._lost
            with _answering(self._aio_pika, self.shown):
                channel = await connection.channel(publisher_confirms=False)
                channel.close_callbacks.add(lambda *_: lost.set())
                await channel.set_qos(prefetch_count=self._prefetch)
                queue = await self._found_queue(channel)
                tag = await queue.consume(self._arrived.put, timeout=ANSWER_SEC)
                consumers = (await channel.get_underlay_channel()).consumers
            self._is_consuming = lambda: tag in consumers
            self._session = session.pop_all()
        return self

    async def _found_queue(self, channel: Any) -> Any:
        name = self._queue_name
        try:
            return await channel.get_queue(name)
        except self._aio_pika.exceptions.ChannelNotFoundEntity as error:
            remedy = f"create it, for example with: rabbitmqadmin declare queue name={name} durable=true"
            raise missing(self._url.shown, f"the queue {name!r}", remedy) from error

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
        if not found and not self._is_consuming():  # the next session reports a queue that was deleted
            raise BrokerUnavailableError(f"{self.shown} has cancelled the consumer")
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
        key, id = message.routing_key or "", message.message_id
        return BrokerMessage(message.body, headers, key, id, self._origin, message)

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
                raise _not_connected(url, error) from error
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
        ssl=url.tls is not None,
    )
    return aio_pika.Connection(address, ssl_context=url.tls, client_properties={"connection_name": "perdure"})


@contextmanager
def _answering(aio_pika: Any, shown: str) -> Any:
    exceptions = aio_pika.exceptions
    refused = library("aiormq.exceptions", "rabbitmq").ChannelAccessRefused
    lost = (exceptions.AMQPError, exceptions.ChannelInvalidStateError, OSError)
    try:
        yield
    except BrokerUnavailableError:
        raise  # it says already what is wrong
    except refused as error:
        raise not_permitted(shown, error) from error
    except lost as error:
        raise not_answering(shown, error) from error


def _not_connected(url: BrokerURL, error: BaseException) -> BrokerUnavailableError:
    exceptions = library("aiormq.exceptions", "rabbitmq")
    if isinstance(error, exceptions.ConnectionNotAllowed):  # the user may not use it, or it does not exist
        return BrokerRefusedError(f"{url.shown} refuses the virtual host {url.path or '/'!r}: {text(error)}")
    if isinstance(error, exceptions.InvalidFrameError) and "OpenOk" in str(error):  # the library keeps no reason
        remedy = "create it, permit it to the user of the URL, or check its limits"
        return BrokerRefusedError(f"{url.shown} refuses the virtual host {url.path or '/'!r}: {remedy}")
    if isinstance(error, (exceptions.AuthenticationError, exceptions.ProbableAuthenticationError)):
        return login_refused(url.shown, error)
    return not_connected(url.shown, error)
