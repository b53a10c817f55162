"""A saga: each step of an order says how it is undone, and an order that fails is undone in reverse.

python -m examples.saga [url]
"""

import asyncio
import sys
from dataclasses import dataclass

from perdure import App, Retry, TerminalError, WorkflowFailedError, activity, workflow


@dataclass
class Receipt:
    """What the bank gives."""

    number: str
    amount: float


@activity
async def reserve(item: str) -> str:
    """Would ask the warehouse."""
    print(f"  reserve  {item}")
    return f"shelf of {item}"


@reserve.compensation
async def release(item: str, *, result: str | None) -> None:
    """Gets the arguments that it names, and the result; None if nobody knows whether the step was done."""
    print(f"  release  {result}")


@activity(retry=Retry(attempts=5))
async def charge(customer: str, amount: float) -> Receipt:
    """Would call the bank, with the idempotency key of `activity_info()`."""
    print(f"  charge   {customer} {amount:.2f}")
    return Receipt(f"R-{customer}", amount)


@charge.compensation(retry=Retry(attempts=20))
async def refund(customer: str, *, result: Receipt) -> None:
    """An undo is tried again too, and more patiently."""
    print(f"  refund   {customer} {result.amount:.2f} of {result.number}")


@activity
async def ship(customer: str, item: str) -> str:
    """A `TerminalError` is not tried again."""
    if item == "piano":
        raise TerminalError("no van is large enough")
    print(f"  ship     {item}")
    return f"{item} is on its way to {customer}"


@workflow(name="examples.saga")
async def order(customer: str, item: str, price: float) -> str:
    """Nothing here says what happens on failure: the steps know."""
    await reserve(item)
    await charge(customer, price)
    return await ship(customer, item)


@order.on_failure
async def apologise(customer: str, *, error: str) -> None:
    """Once everything is undone."""
    print(f"  mail     Dear {customer}, we are sorry: {error}")


async def main(url: str) -> None:
    """Two orders."""
    async with App(url, workflows=[order]):
        for customer, item, price in [("Ann", "flute", 90.0), ("Bob", "piano", 9000.0)]:
            print(f"{customer} orders a {item}")
            handle = await order.start(customer, item, price)
            try:
                print(f"  {await handle.result(timeout=60)}")
            except WorkflowFailedError as error:
                print(f"  {(await handle.info()).status}: {error.__cause__}; nothing is left of it")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
