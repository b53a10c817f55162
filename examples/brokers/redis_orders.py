"""Redis: payments come from one stream, shipments go to another.

python -m examples.brokers.redis_orders [url] [redis://host:6379/0]
"""

import asyncio
import sys
from typing import Any

import redis.asyncio

from examples.brokers.shop import sell

PAYMENT = '{"order": "A-1", "amount": 40}'


async def main(database: str, broker: str) -> None:
    """Execute an order, pay it, and show what was published."""
    client = redis.asyncio.Redis.from_url(broker, decode_responses=True)

    async def pay() -> None:
        await client.xadd("payments", {"data": PAYMENT})

    async def shipment() -> str:
        streams: Any = await client.xread({"shop": "0"}, count=1, block=5000)
        ((_, ((_, fields),)),) = streams
        return f"{fields['type']} {fields['id']} {fields['data']}"

    await sell(database, f"{broker}?stream=shop&maxlen=10000", f"{broker}?stream=payments&group=shop", pay, shipment)
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main(*[*sys.argv[1:], "sqlite:///orders.db", "redis://127.0.0.1:6379/0"][:2]))
