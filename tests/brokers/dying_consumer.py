"""A process that stores the first messages of a broker, and is killed before it acknowledges them."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from perdure import App, Subscription
from perdure.brokers import BrokerMessage


async def die(messages: Sequence[BrokerMessage]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, address: str, event: str) -> None:
    subscription = Subscription(address, event=event)
    subscription.source.acknowledge = die  # type: ignore[method-assign]
    async with App(url, subscriptions=[subscription]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
