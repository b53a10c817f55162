"""A webhook: each event is a signed HTTP request.

python -m examples.brokers.webhook [url] [https://host/path]
"""

import asyncio
import base64
import os
import sys

from perdure import App
from perdure.brokers import HTTPPublisher


async def main(database: str, receiver: str) -> None:
    """Send an event to the receiver, and wait until it has accepted it."""
    key = "whsec_" + base64.b64encode(os.urandom(32)).decode()  # share it with the receiver
    publisher = HTTPPublisher(receiver, signing_key=key)
    async with App(database, publisher=publisher) as app:
        await app.send_event("order.shipped", {"order": "A-1"}, source="/shop", id="shipped-A-1")
        print("stored; the relay sends it until the receiver answers with a status from 200 to 299")
        await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main(*[*sys.argv[1:], "sqlite:///orders.db", "http://127.0.0.1:8000/events"][:2]))
