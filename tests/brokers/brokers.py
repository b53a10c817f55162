"""The brokers of the tests: each can be published to and consumed from, and says what it holds."""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import aio_pika
import aiokafka
import nats
import redis.asyncio
from nats.js.errors import NotFoundError

from perdure.brokers.cloudevents import received

GROUP = "tests"
PARTITIONS = 4  # of each topic of the mock cluster


class Arrived(NamedTuple):
    """A message that a broker holds: the CloudEvent in it."""

    id: str
    type: str
    source: str
    data: object


class Broker(ABC):
    """One broker. A place is a stream, queue or topic of one test."""

    name: str

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0

    def at(self, port: int) -> str:
        """Return the URL with another port, such as that of a proxy."""
        return self.url.replace(f":{self.port}", f":{port}")

    @abstractmethod
    def publisher(self, place: str, url: str = "", **options: str) -> str:
        """Return the URL of a publisher to a place."""

    @abstractmethod
    def subscription(self, place: str, url: str = "", **options: str) -> str:
        """Return the URL of a subscription; what it rejects goes to the place `<place>-dead`."""

    @abstractmethod
    async def create(self, place: str) -> None:
        """Create a place, and that of its rejected messages."""

    @abstractmethod
    async def put(self, place: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Store a message at the broker, as another program would."""

    @abstractmethod
    async def bodies(self, place: str) -> list[tuple[dict[str, str], bytes]]:
        """Return all messages of a place; a broker with queues only returns those that were not returned before."""

    @abstractmethod
    async def left(self, place: str) -> int:
        """Return how many messages of a place no subscription has acknowledged, while none is open."""

    async def events(self, place: str) -> list[Arrived]:
        """Return all events of a place."""
        found = [received(*message) for message in await self.bodies(place)]
        return [Arrived(each.id, each.type, each.source, each.data) for each in found if each is not None]


def with_options(url: str, options: Mapping[str, str]) -> str:
    """Return a URL with options; templates stay readable."""
    pairs = [f"{name}={quote(value, safe='{}.')}" for name, value in options.items()]
    return f"{url}?{'&'.join(pairs)}"


class NATS(Broker):
    name = "nats"

    def publisher(self, place: str, url: str = "", **options: str) -> str:
        return with_options(url or self.url, {"subject": f"{place}.{{type}}", **options})

    def subscription(self, place: str, url: str = "", **options: str) -> str:
        given = {"durable": GROUP, "dead_letter": f"{place}-dead.x", **options}
        return with_options(f"{url or self.url}/{place}", given)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        connection = await nats.connect(self.url)
        try:
            yield connection.jetstream()
        finally:
            await connection.close()

    async def create(self, place: str) -> None:
        async with self.connected() as stream:
            for name in (place, f"{place}-dead"):
                await stream.add_stream(name=name, subjects=[f"{name}.>"])

    async def put(self, place: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        async with self.connected() as stream:
            await stream.publish(f"{place}.new", body, headers=dict(headers or {}) or None)

    async def bodies(self, place: str) -> list[tuple[dict[str, str], bytes]]:
        async with self.connected() as stream:
            last = (await stream.stream_info(place)).state.last_seq
            messages = [await stream.get_msg(place, number) for number in range(1, last + 1)]
        return [({k.lower(): v for k, v in (each.headers or {}).items()}, each.data or b"") for each in messages]

    async def left(self, place: str) -> int:
        async with self.connected() as stream:
            try:
                info = await stream.consumer_info(place, GROUP)
            except NotFoundError:
                return int((await stream.stream_info(place)).state.messages)
        return int(info.num_pending + info.num_ack_pending)


class RabbitMQ(Broker):
    name = "rabbitmq"

    def publisher(self, place: str, url: str = "", **options: str) -> str:
        return with_options(url or self.url, {"routing_key": place, **options})

    def subscription(self, place: str, url: str = "", **options: str) -> str:
        return with_options(url or self.url, {"queue": place, **options})

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        connection = await aio_pika.connect(self.url)
        try:
            yield await connection.channel(publisher_confirms=False)  # with them each message would get an id
        finally:
            await connection.close()

    async def create(self, place: str) -> None:
        dead = f"{place}-dead"
        expiry = {"x-expires": 600_000}  # milliseconds without a consumer
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, **expiry}
        async with self.connected() as channel:
            await channel.declare_queue(place, durable=True, arguments=arguments)
            await channel.declare_queue(dead, durable=True, arguments=expiry)

    async def put(self, place: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        about = dict(headers or {})
        message = aio_pika.Message(
            body, content_type=about.pop("content-type", None), message_id=about.pop("id", None), headers={**about}
        )
        async with self.connected() as channel:
            await channel.default_exchange.publish(message, place)

    async def bodies(self, place: str) -> list[tuple[dict[str, str], bytes]]:
        found = []
        async with self.connected() as channel:
            queue = await channel.get_queue(place)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                headers = {name.lower(): str(value) for name, value in message.headers.items()}
                found.append(({**headers, "content-type": message.content_type or ""}, message.body))
        return found

    async def left(self, place: str) -> int:
        async with self.connected() as channel:
            queue = await channel.declare_queue(place, passive=True)
        return int(queue.declaration_result.message_count)


class Kafka(Broker):
    name = "kafka"

    def publisher(self, place: str, url: str = "", **options: str) -> str:
        return with_options(url or self.url, {"topic": place, **options})

    def subscription(self, place: str, url: str = "", **options: str) -> str:
        # The mock cluster lets a member that joins a group again wait for its session.
        given = {"group": place, "dead_letter": f"{place}-dead", "session_timeout": "4", **options}
        return with_options(f"{url or self.url}/{place}", given)

    @property
    def servers(self) -> str:
        return self.url.removeprefix("kafka://")

    @asynccontextmanager
    async def produced(self, **settings: Any) -> AsyncIterator[Any]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.servers, **settings)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()

    async def create(self, place: str) -> None:
        async with self.produced() as producer:  # the mock cluster creates topics when they are asked for
            for name in (place, f"{place}-dead"):
                await producer.partitions_for(name)

    async def put(self, place: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        async with self.produced() as producer:
            pairs = [(name, value.encode()) for name, value in (headers or {}).items()]
            await producer.send_and_wait(place, body, key=b"one", headers=pairs)

    async def bodies(self, place: str) -> list[tuple[dict[str, str], bytes]]:
        consumer = aiokafka.AIOKafkaConsumer(place, bootstrap_servers=self.servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            ends = await consumer.end_offsets(consumer.assignment())
            records: list[Any] = []
            while len(records) < sum(ends.values()):
                for some in (await consumer.getmany(timeout_ms=1000)).values():
                    records += some
        finally:
            await consumer.stop()
        return [({name.lower(): value.decode() for name, value in each.headers}, each.value) for each in records]

    async def left(self, place: str) -> int:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self.servers, group_id=place, enable_auto_commit=False)
        await consumer.start()
        try:
            parts = [aiokafka.TopicPartition(place, number) for number in range(PARTITIONS)]
            ends = await consumer.end_offsets(parts)
            return sum([ends[part] - (await consumer.committed(part) or 0) for part in parts])
        finally:
            await consumer.stop()


class Redis(Broker):
    name = "redis"

    def publisher(self, place: str, url: str = "", **options: str) -> str:
        return with_options(url or self.url, {"stream": place, **options})

    def subscription(self, place: str, url: str = "", **options: str) -> str:
        given = {"stream": place, "group": GROUP, "dead_letter": f"{place}-dead", **options}
        return with_options(url or self.url, given)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        client = redis.asyncio.Redis(port=self.port)
        try:
            yield client
        finally:
            await client.aclose()

    async def create(self, place: str) -> None: ...

    async def put(self, place: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        async with self.connected() as client:
            await client.xadd(place, {**(headers or {}), "data": body})

    async def bodies(self, place: str) -> list[tuple[dict[str, str], bytes]]:
        async with self.connected() as client:
            entries = await client.xrange(place)
        return [_of_redis(fields) for _, fields in entries]

    async def left(self, place: str) -> int:
        async with self.connected() as client:
            groups = await client.xinfo_groups(place)
        return sum(int(group["pending"]) + int(group["lag"] or 0) for group in groups)


def _of_redis(fields: Mapping[bytes, bytes]) -> tuple[dict[str, str], bytes]:
    texts = {name.decode(): value for name, value in fields.items()}
    body = texts.pop("data")
    return {f"ce-{name}": value.decode() for name, value in texts.items()}, body


def structured(id: str, data: object, type: str = "order.paid", source: str = "/shop") -> bytes:
    """Return a CloudEvent in structured mode."""
    return json.dumps({"specversion": "1.0", "id": id, "type": type, "source": source, "data": data}).encode()
