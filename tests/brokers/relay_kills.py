"""A rig that kills relay processes: every event must arrive, in the order of its source.

    python -m tests.brokers.relay_kills --broker redis --events 10000 --kills 50

Half of the processes kill themselves at a chosen point: before or after they claim, publish or record events. The
others are killed from outside after a random time, wherever they are.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from perdure import Client, OutboxEvent, Relay
from perdure.brokers import publisher_for
from perdure.engine.worker import relay
from perdure.model.records import OutboxStatus
from perdure.storage.stores import SQLStorage, open_storage
from tests.brokers.brokers import NATS, Broker, Kafka, RabbitMQ, Redis
from tests.brokers.servers import KafkaServer, NATSServer, RabbitMQServer, RedisServer
from tests.support.storages import storage_of

BROKERS: dict[str, tuple[type[Broker], type[NATSServer | RabbitMQServer | KafkaServer | RedisServer]]] = {
    "nats": (NATS, NATSServer),
    "rabbitmq": (RabbitMQ, RabbitMQServer),
    "kafka": (Kafka, KafkaServer),
    "redis": (Redis, RedisServer),
}
SOURCES = 10
CLAIM_SEC = 0.5  # as long as a killed relay blocks its sources


async def fill(url: str, events: int) -> None:
    """Store events of several sources, by turns."""
    async with open_storage(url) as storage, storage.transaction():
        for number in range(events):
            source = f"s{number % SOURCES}"
            await storage.add_outbox_event(OutboxEvent(f"{source}-{number}", "t", source, b"1"))


async def run_with_kills(url: str, address: str, kills: int, seed: int) -> None:
    """Run relays one after the other and kill each; the last one publishes what is left."""
    chance = random.Random(seed)
    for number in range(kills):
        point = chance.randint(1, 60) if number % 2 else 0
        process = await _start(url, address, point)
        if not point:
            assert process.stdout is not None
            await process.stdout.readline()  # the relay is open
            await asyncio.sleep(chance.uniform(0, 0.4))
            process.kill()
        assert await process.wait() == -signal.SIGKILL, "the relay ended before it was killed: use more events"
    process = await _start(url, address, -1)
    assert await process.wait() == 0


async def _start(url: str, address: str, point: int) -> asyncio.subprocess.Process:
    arguments = ["-m", "tests.brokers.relay_kills", "--relay", url, address, str(point)]
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)


async def check(url: str, broker: Broker, place: str, events: int) -> int:
    """Raise AssertionError if an event is missing or out of order; return how many arrived more than once."""
    arrived = [each.id for each in await broker.events(place)]
    first = list(dict.fromkeys(arrived))
    assert len(first) == events, f"{events - len(first)} of {events} events are lost"
    for source in range(SOURCES):
        numbers = [int(id.partition("-")[2]) for id in first if id.startswith(f"s{source}-")]
        assert numbers == sorted(numbers), f"the events of s{source} are out of order"
    async with open_storage(url) as storage:
        assert not await storage.list_outbox_events(OutboxStatus.INVALID)
        assert not await storage.list_outbox_events(OutboxStatus.PENDING)
    return len(arrived) - len(first)


# In the process of a relay.


async def relay_until_killed(url: str, address: str, point: int) -> None:
    """Publish; die at a point if it is above 0, or end when the outbox is empty if it is below 0."""
    relay.CLAIM_SEC, relay.PUBLISH_SEC, relay.STARTING_SEC = CLAIM_SEC, CLAIM_SEC / 2, CLAIM_SEC / 2
    relay.PAGE, relay.RECORD_SEC, relay.LOOK_SEC = 20, 0.002, 0.1
    publisher = publisher_for(address)
    points = 0

    def dying(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*arguments: Any, **options: Any) -> Any:
            _pass()
            result = await call(*arguments, **options)
            _pass()
            return result

        return wrapped

    def _pass() -> None:
        nonlocal points
        points += 1
        if points == point:
            os.kill(os.getpid(), signal.SIGKILL)

    publisher.publish = dying(publisher.publish)  # type: ignore[method-assign]
    for name in ("get_pending_outbox_events", "settle_outbox_events"):
        setattr(SQLStorage, name, dying(getattr(SQLStorage, name)))
    async with Relay(url, publisher=publisher) as opened:
        print("open", flush=True)
        while point >= 0 or not await _is_empty(opened):  # noqa: ASYNC110 - the database says so
            await asyncio.sleep(0.05)


async def _is_empty(client: Client) -> bool:
    storage = storage_of(client)
    states = (OutboxStatus.PENDING, OutboxStatus.PROCESSING)
    return not any([await storage.list_outbox_events(state, 1) for state in states])


async def main(name: str, events: int, kills: int, seed: int, database: str | None) -> None:
    kind, server_of = BROKERS[name]
    with tempfile.TemporaryDirectory() as folder, server_of() as server:
        url, broker = database or f"sqlite:///{folder}/kills.db", kind(server.url)
        await broker.create("events")
        await fill(url, events)
        await run_with_kills(url, broker.publisher("events"), kills, seed)
        again = await check(url, broker, "events", events)
        print(f"{name}: {events} events arrived in order after {kills} kills (seed {seed}); {again} arrived again")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--relay"]:
        asyncio.run(relay_until_killed(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--broker", choices=BROKERS, default="redis")
        parser.add_argument("--events", type=int, default=10_000)
        parser.add_argument("--kills", type=int, default=50)
        parser.add_argument("--seed", type=int, default=random.randrange(10**6))
        parser.add_argument("--database", help="the URL of an empty database (default: a new SQLite file)")
        given = parser.parse_args()
        asyncio.run(main(given.broker, given.events, given.kills, given.seed, given.database))
