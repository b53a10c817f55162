"""A webhook: each event is a signed HTTP request.

    python -m examples.brokers.webhook [url] [https://host/path]

The environment variable WEBHOOK_KEY has the key that the receiver knows (default: a new key, which is printed). The
receiver can be the HTTP API of another program with perdure:

    PERDURE_WEBHOOK_KEYS="$WEBHOOK_KEY" perdure serve shop:app
"""

import asyncio
import base64
import os
import sys

from perdure import App, OutboxEvent
from perdure.brokers import HTTPPublisher

DEFAULTS = ["sqlite:///orders.db", "http://127.0.0.1:8000/v1/cloudevents"]


class Webhook(HTTPPublisher):
    """Says when the receiver has accepted an event; a program that does not wait for this needs no class."""

    def __init__(self, url: str, *, signing_key: str) -> None:
        super().__init__(url, signing_key=signing_key)
        self.accepted = asyncio.Event()

    async def publish(self, event: OutboxEvent) -> None:
        """Post one event."""
        await super().publish(event)
        print(f"accepted: {event.event_id}")
        self.accepted.set()


def webhook_key() -> str:
    """Return the key that the receiver knows, or a new one to give to it."""
    if not (key := os.environ.get("WEBHOOK_KEY", "")):
        key = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        print(f"the receiver needs this key: {key}")
    return key


async def main(database: str, receiver: str) -> None:
    """Send an event to the receiver, and wait until it has accepted it."""
    publisher = Webhook(receiver, signing_key=webhook_key())
    async with App(database, publisher=publisher) as app:
        await app.send_event("order.shipped", {"order": "A-1"}, source="/shop")
        print("stored; the relay sends it until the receiver answers with a status from 200 to 299")
        await publisher.accepted.wait()


if __name__ == "__main__":
    asyncio.run(main(*[*sys.argv[1:], *DEFAULTS[len(sys.argv) - 1 :]]))
