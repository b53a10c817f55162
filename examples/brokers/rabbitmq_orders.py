"""RabbitMQ: payments come from a queue, shipments go to an exchange.

python -m examples.brokers.rabbitmq_orders [url] [amqp://guest:guest@host:5672/]
"""

import asyncio
import sys

import aio_pika

from examples.brokers.shop import sell

PAYMENT = b'{"order": "A-1", "amount": 40}'


async def main(database: str, broker: str) -> None:
    """Create the queues, execute an order, pay it, and show what was published."""
    connection = await aio_pika.connect(broker)
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue("shop-payments", durable=True)
        exchange = await channel.declare_exchange("shop", aio_pika.ExchangeType.TOPIC, durable=True)
        shipments = await channel.declare_queue("shop-shipments", durable=True)
        await shipments.bind(exchange, "order.*")

        async def pay() -> None:
            message = aio_pika.Message(PAYMENT, message_id="payment-1")  # the id de-duplicates it
            await channel.default_exchange.publish(message, "shop-payments")

        async def shipment() -> str:
            async with shipments.iterator(timeout=60) as messages:
                message = await anext(messages)
                await message.ack()
            return message.body.decode()

        await sell(database, f"{broker}?exchange=shop", f"{broker}?queue=shop-payments", pay, shipment)


if __name__ == "__main__":
    asyncio.run(main(*[*sys.argv[1:], "sqlite:///orders.db", "amqp://guest:guest@127.0.0.1:5672/"][:2]))
