"""NATS: payments come from one stream, shipments go to another.

python -m examples.brokers.nats_orders [url] [nats://host:4222]
"""

import asyncio
import sys

import nats

from examples.brokers.shop import sell

PAYMENT = b'{"order": "A-1", "amount": 40}'


async def main(database: str, broker: str) -> None:
    """Create the streams, execute an order, pay it, and show what was published."""
    connection = await nats.connect(broker)
    streams = connection.jetstream()
    await streams.add_stream(name="PAYMENTS", subjects=["payments.>"])
    await streams.add_stream(name="SHOP", subjects=["shop.>"])
    shipments = await streams.subscribe("shop.order.shipped")

    async def pay() -> None:
        await streams.publish("payments.new", PAYMENT)

    async def shipment() -> str:
        return (await shipments.next_msg(timeout=60)).data.decode()

    await sell(database, f"{broker}?subject=shop.{{type}}", f"{broker}/PAYMENTS?durable=shop", pay, shipment)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*[*sys.argv[1:], "sqlite:///orders.db", "nats://127.0.0.1:4222"][:2]))
