"""The workflow that the examples of this folder share: an order that is paid, shipped and announced."""

import json
from collections.abc import Awaitable, Callable

from perdure import App, Subscription, activity, send_event, wait_event, workflow
from perdure.brokers import BrokerMessage, ToEvent


@activity
async def ship(order: str) -> None:
    """Stand in for a shipment. The event is stored together with the result of this step."""
    await send_event("order.shipped", {"order": order}, source="/shop", id=f"shipped-{order}")


@workflow(name="examples.brokers.order")
async def order(id: str) -> str:
    """Ship an order when its payment has arrived from the broker."""
    payment = await wait_event("payment.received")
    await ship(id)
    return f"{id}: {payment.data['amount']} paid, shipped"


def payment_of(message: BrokerMessage) -> ToEvent:
    """Send a payment to the run of its order, which keeps it until the run waits for it."""
    data = json.loads(message.body)
    return ToEvent("payment.received", data, to=data["order"])


async def sell(
    database: str,
    publisher: str,
    payments: str,
    pay: Callable[[], Awaitable[object]],
    shipment: Callable[[], Awaitable[str]],
) -> None:
    """Execute one order: its payment comes from a broker, and its shipment goes there."""
    subscription = Subscription(payments, convert=payment_of)
    async with App(database, publisher=publisher, subscriptions=[subscription]):
        run = await order.options(id="A-1").start("A-1")
        await pay()
        print(await run.result(timeout=60))
        print(await shipment())
