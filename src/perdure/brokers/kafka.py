"""Kafka: `kafka://host:9092,other:9092/…`."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

from perdure.brokers import cloudevents, urls
from perdure.brokers.extras import library
from perdure.brokers.failures import in_a_header, login_refused, missing, not_answering, not_connected, not_permitted
from perdure.brokers.incoming import BrokerMessage
from perdure.brokers.urls import BrokerURL, Kind, Template
from perdure.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError, TerminalError
from perdure.model.records import OutboxEvent

START_SEC = 20.0
ANSWER_SEC = 15.0  # less than the relay allows for one event
REQUEST_SEC = 10.0  # less than ANSWER_SEC, so that the library says what is wrong
FETCH_SEC = 1.0
SESSION_SEC = 10.0  # other members take over from a consumer that has died after this time
BATCH = 100
ANY_SIZE = 2**31 - 1  # bytes of a copied message: the broker decides, as it did for the message itself

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_A_TOPIC = "a topic: at most 249 letters, digits, '.', '_' and '-'"

_PLAIN, _TLS = {"kafka": 9092}, {"kafka+tls": 9092}
_MECHANISM = urls.choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_OUT = Kind(
    "Kafka",
    _PLAIN,
    _TLS,
    {"topic": urls.template(_TOPIC, _A_TOPIC), "key": Template, "mode": urls.MODE, "mechanism": _MECHANISM},
)
_IN = Kind(
    "Kafka",
    _PLAIN,
    _TLS,
    {
        "group": urls.text,
        "session_timeout": urls.duration,
        "dead_letter": urls.matching(_TOPIC, _A_TOPIC),
        "mechanism": _MECHANISM,
    },
    "topic",
)


class KafkaPublisher:
    """Publish with an idempotent producer and wait for all in-sync replicas; events of a source share a partition."""

    shown = ""  # the address for messages and logs, once the URL is checked

    def __init__(self, url: str) -> None:
        self._aiokafka = library("aiokafka", "kafka")
        self._url = urls.parse(url, _OUT)
        options = self._url.options
        self._topic = options.get("topic") or Template("{type}")
        self._key = options.get("key") or Template("{source}")
        self._mode = options.get("mode", "structured")
        self.shown = self._url.shown
        self._session = AsyncExitStack()
        self._producer: Any = None

    def __repr__(self) -> str:
        return f"KafkaPublisher({self.shown!r})"

    async def __aenter__(self) -> Self:
        producer = _producer(self._aiokafka, self._url)
        self._producer = await self._session.enter_async_context(_started(self._aiokafka, producer, self._url))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.aclose()

    async def publish(self, event: OutboxEvent) -> None:
        """Publish one event."""
        names = {"type": event.event_type, "source": event.event_source}
        topic, key = self._topic.fill(**names), self._key.fill(**names)
        body, headers = cloudevents.message(event, self._mode, "ce_")
        errors = self._aiokafka.errors
        with _answering(self._aiokafka, self.shown):
            try:
                async with asyncio.timeout(ANSWER_SEC):
                    await self._producer.send_and_wait(topic, body, key=key.encode(), headers=_headers(headers))
            except errors.MessageSizeTooLargeError as error:
                raise TerminalError(f"the event is too large for {self.shown}") from error
            except errors.UnknownTopicOrPartitionError as error:
                raise LookupError(
                    f"{self.shown} has no topic {topic!r}: create it, or choose another topic="
                ) from error
            except (errors.InvalidTopicError, errors.TopicAuthorizationFailedError, ValueError) as error:
                raise ValueError(f"{self.shown} refused the event for topic {topic!r}: {error}") from error


class KafkaSource:
    """Consume topics as a member of a consumer group; offsets are committed when the messages are stored."""

    def __init__(self, url: str) -> None:
        self._aiokafka = library("aiokafka", "kafka")
        self._url = urls.parse(url, _IN)
        self._topics = [topic for topic in self._url.path.split(",") if topic]
        if not self._topics:
            raise ConfigurationError("the Kafka URL of a subscription needs a topic: write kafka://host/topic")
        if not all(map(_TOPIC.fullmatch, self._topics)):
            raise ConfigurationError(f"what the Kafka URL of a subscription names must be {_A_TOPIC}")
        if self._url.options.get("dead_letter") in self._topics:  # a rejected message would be rejected for ever
            raise ConfigurationError("the option dead_letter of the Kafka URL must be another topic")
        self._group = self._url.options.get("group", "perdure")
        self._session_ms = int(self._url.options.get("session_timeout", SESSION_SEC) * 1000)
        self._dead_letter = self._url.options.get("dead_letter")
        self.shown = f"{self._url.shown} (group {self._group})"
        self._session = AsyncExitStack()
        self._consumer: Any = None
        self._producer: Any = None
        self._after_rejected: dict[Any, int] = {}  # offsets by partition

    async def __aenter__(self) -> Self:
        self._after_rejected.clear()
        async with AsyncExitStack() as session:
            if self._dead_letter is not None:
                producer = _producer(self._aiokafka, self._url, max_request_size=ANY_SIZE)
                self._producer = await session.enter_async_context(_started(self._aiokafka, producer, self._url))
            consumer = self._aiokafka.AIOKafkaConsumer(
                *self._topics,
                group_id=self._group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                session_timeout_ms=self._session_ms,
                heartbeat_interval_ms=self._session_ms // 3,
                **_connection(self._url),
            )
            self._consumer = consumer
            try:
                await session.enter_async_context(_started(self._aiokafka, consumer, self._url))
            except self._aiokafka.errors.UnknownTopicOrPartitionError as error:
                unknown = [topic for topic in self._topics if not consumer.partitions_for_topic(topic)]
                raise self._missing(unknown or self._topics) from error
            self._session = session.pop_all()
        return self

    def _missing(self, topics: Sequence[str]) -> BrokerUnavailableError:
        server = self._url.shown.removesuffix(f"/{self._url.path}")
        remedy = f"create it, for example with: kafka-topics.sh --create --topic {topics[0]}"
        return missing(server, f"the topic {', '.join(map(repr, topics))}", remedy)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.aclose()

    async def fetch(self) -> Sequence[BrokerMessage]:
        """Wait for messages and return them; those of one partition are in order."""
        with _answering(self._aiokafka, self.shown):
            found = await self._consumer.getmany(timeout_ms=int(FETCH_SEC * 1000), max_records=BATCH)
        return [self._received(record) for records in found.values() for record in records]

    def _received(self, record: Any) -> BrokerMessage:
        headers = {name.lower(): (value or b"").decode(errors="replace") for name, value in record.headers}
        # With the time, because a topic that is created again counts from 0.
        place = f"{record.partition}/{record.offset}@{record.timestamp}"
        return BrokerMessage(record.value or b"", headers, record.topic, place, f"kafka:{record.topic}", record)

    async def acknowledge(self, messages: Sequence[BrokerMessage]) -> None:
        """Commit the offsets after these messages, or after a later one of the partition that was rejected before."""
        offsets: dict[Any, int] = {}
        for message in messages:
            offsets.update(self._offset_after(message))
        for partition, offset in offsets.items():
            offsets[partition] = max(offset, self._after_rejected.pop(partition, 0))
        if offsets:
            await self._commit(offsets)

    def _offset_after(self, message: BrokerMessage) -> dict[Any, int]:
        record: Any = message.handle
        return {self._aiokafka.TopicPartition(record.topic, record.partition): record.offset + 1}

    async def _commit(self, offsets: dict[Any, int]) -> None:
        with _answering(self._aiokafka, self.shown):
            await self._consumer.commit(offsets)

    async def reject(self, message: BrokerMessage, reason: str) -> None:
        """Copy a message to the dead-letter topic, if there is one, and continue after it."""
        record: Any = message.handle
        if self._dead_letter is not None:
            headers = [*record.headers, ("perdure-reason", in_a_header(reason).encode())]
            with _answering(self._aiokafka, self.shown):
                try:
                    async with asyncio.timeout(ANSWER_SEC):
                        await self._producer.send_and_wait(self._dead_letter, record.value, record.key, headers=headers)
                except self._aiokafka.errors.UnknownTopicOrPartitionError as error:
                    raise self._missing([self._dead_letter]) from error
                except self._aiokafka.errors.MessageSizeTooLargeError as error:
                    raise BrokerRefusedError(
                        f"a message of {self.shown} is too large for the topic {self._dead_letter!r} of dead_letter=: "
                        "raise max.message.bytes of the topic"
                    ) from error
        offset = self._offset_after(message)
        self._after_rejected.update(offset)
        await self._commit(offset)


def _headers(headers: dict[str, str]) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in headers.items()]


def _producer(aiokafka: Any, url: BrokerURL, **settings: Any) -> Any:
    return aiokafka.AIOKafkaProducer(acks="all", enable_idempotence=True, **_connection(url), **settings)


def _connection(url: BrokerURL) -> dict[str, Any]:
    found: dict[str, Any] = {
        "bootstrap_servers": [f"{host}:{port}" for host, port in url.hosts],
        "client_id": "perdure",
        "request_timeout_ms": int(REQUEST_SEC * 1000),
        "security_protocol": f"{'SASL_' if url.user else ''}{'PLAINTEXT' if url.tls is None else 'SSL'}",
    }
    if url.tls is not None:
        found["ssl_context"] = url.tls
    if url.user:
        found["sasl_mechanism"] = url.options.get("mechanism", "PLAIN")
        found |= {"sasl_plain_username": str(url.user), "sasl_plain_password": str(url.password)}
    return found


@asynccontextmanager
async def _started(aiokafka: Any, client: Any, url: BrokerURL) -> AsyncIterator[Any]:
    errors = aiokafka.errors
    try:
        try:
            with _permitted(aiokafka, url.shown):
                async with asyncio.timeout(START_SEC):
                    await client.start()
        except errors.UnknownTopicOrPartitionError:
            raise  # the caller knows the topics
        except (errors.KafkaError, OSError) as error:
            why = await _reason(aiokafka, url, error)
            with _permitted(aiokafka, url.shown):
                raise not_connected(url.shown, why) from why
        yield client
    finally:
        await _stopped(aiokafka, client)


async def _reason(aiokafka: Any, url: BrokerURL, error: BaseException) -> BaseException:
    """Return why no broker could be connected: the library only logs it, so connect once more."""
    if not isinstance(error, aiokafka.errors.KafkaConnectionError):
        return error
    settings = _connection(url)
    del settings["bootstrap_servers"]
    for host, port in url.hosts:
        try:
            async with asyncio.timeout(START_SEC):
                connection = await library("aiokafka.conn", "kafka").create_conn(host.strip("[]"), port, **settings)
        except (aiokafka.errors.KafkaError, OSError) as found:
            error = found
        else:
            connection.close()
    return error


async def _stopped(aiokafka: Any, client: Any) -> None:
    """Stop a client; one that cannot leave its group or send the rest to a broker that is gone is stopped as well."""
    try:
        async with asyncio.timeout(ANSWER_SEC):
            await client.stop()
    except (aiokafka.errors.KafkaError, OSError):
        pass  # the broker ends the session by itself


@contextmanager
def _answering(aiokafka: Any, shown: str) -> Any:
    try:
        with _permitted(aiokafka, shown):
            yield
    except (aiokafka.errors.KafkaError, OSError) as error:
        raise not_answering(shown, error) from error


@contextmanager
def _permitted(aiokafka: Any, shown: str) -> Any:
    """Say that the login or a permission is missing."""
    errors = aiokafka.errors
    logins = (
        errors.AuthenticationFailedError,
        errors.AuthenticationMethodNotSupported,
        errors.SaslAuthenticationFailed,
        errors.UnsupportedSaslMechanismError,
        errors.IllegalSaslStateError,
    )
    permissions = (
        errors.ClusterAuthorizationFailedError,
        errors.GroupAuthorizationFailedError,
        errors.TopicAuthorizationFailedError,
    )
    try:
        yield
    except logins as error:
        raise login_refused(shown, error) from error
    except permissions as error:
        raise not_permitted(shown, error) from error
