"""Kafka: payments come from one topic, shipments go to another.

python -m examples.brokers.kafka_orders [url] [kafka://host:9092]
"""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from examples.brokers.shop import sell

PAYMENT = b'{"order": "A-1", "amount": 40}'


async def main(database: str, broker: str) -> None:
    """Execute an order, pay it, and show what was published."""
    servers = broker.removeprefix("kafka://")

    async def pay() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            await producer.send_and_wait("payments", PAYMENT)

    async def shipment() -> str:
        async with AIOKafkaConsumer("shop", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            return ((await consumer.getone()).value or b"").decode()

    await sell(database, f"{broker}?topic=shop", f"{broker}/payments?group=shop", pay, shipment)


if __name__ == "__main__":
    asyncio.run(main(*[*sys.argv[1:], "sqlite:///orders.db", "kafka://127.0.0.1:9092"][:2]))
