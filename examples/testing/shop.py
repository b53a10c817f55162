"""A shop: the workflow of an order, from the reservation to the question for a review after 30 days."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from perdure import Retry, TerminalError, activity, activity_info, set_state, sleep, wait_event, workflow

SHIPPED_IN = timedelta(days=7)
REVIEW_AFTER = timedelta(days=30)


@dataclass
class Receipt:
    """What the bank returns."""

    number: str
    amount: float


@dataclass
class Shipped:
    """The data of the event that the warehouse sends."""

    order: str
    tracking: str


class CardDeclinedError(TerminalError):
    """The bank refuses the card; a retry does not help."""


class NotShippedError(Exception):
    """The warehouse has not shipped the order in time."""


@activity
async def reserve(order_id: str) -> None:
    """Reserve the goods."""
    raise NotImplementedError("asks the warehouse")


@reserve.compensation
async def release(order_id: str) -> None:
    """Make the goods available again."""
    raise NotImplementedError("tells the warehouse")


@activity(retry=Retry(attempts=5, initial=1), timeout=10)
async def charge(order_id: str, amount: float) -> Receipt:
    """Charge the card. The bank charges once per idempotency key, however often it is asked."""
    raise NotImplementedError(f"asks the bank with the key {activity_info().idempotency_key}")


@charge.compensation
async def refund(order_id: str, result: Receipt | None) -> None:
    """Return the money."""
    raise NotImplementedError("asks the bank")


@activity
async def print_label(order_id: str) -> str:
    """Print the label of the parcel."""
    raise NotImplementedError("asks the printer")


@activity
async def pack(order_id: str) -> int:
    """Pack the goods and return the weight of the parcel in grams."""
    raise NotImplementedError("asks the warehouse")


@activity
async def ask_for_review(customer: str) -> None:
    """Send a mail."""
    raise NotImplementedError("sends a mail")


@workflow(name="shop.order")
async def order(order_id: str, customer: str, amount: float) -> str:
    """Sell something and return the tracking number of the parcel."""
    await reserve(order_id)
    await charge(order_id, amount)
    async with asyncio.TaskGroup() as group:
        group.create_task(print_label(order_id))
        group.create_task(pack(order_id))
    set_state("packed")
    try:
        shipped = await wait_event("shipped", where={"order": order_id}, timeout=SHIPPED_IN, data=Shipped)
    except TimeoutError:
        raise NotShippedError(f"order {order_id} was not shipped within {SHIPPED_IN.days} days") from None
    await sleep(REVIEW_AFTER)
    await ask_for_review(customer)
    return shipped.data.tracking
