"""A saga: each step of an order has a compensation, and a failed order is compensated in reverse order.

python -m examples.saga [url]
"""

import asyncio
import sys
from dataclasses import dataclass

from perdure import App, Retry, TerminalError, WorkflowFailedError, activity, workflow


@dataclass
class Receipt:
    """The bank's confirmation."""

    number: str
    amount: float


@activity
async def reserve(item: str) -> str:
    """Stand in for a request to the warehouse."""
    print(f"  reserve  {item}")
    return f"shelf of {item}"


@reserve.compensation
async def release(item: str, *, result: str | None) -> None:
    """Take the arguments that it names, and the result: None if it is unknown whether the step took effect."""
    print(f"  release  {result}")


@activity(retry=Retry(attempts=5))
async def charge(customer: str, amount: float) -> Receipt:
    """Stand in for a request to the bank, which would get the idempotency key of `activity_info()`."""
    print(f"  charge   {customer} {amount:.2f}")
    return Receipt(f"R-{customer}", amount)


@charge.compensation(retry=Retry(attempts=20))
async def refund(customer: str, *, result: Receipt) -> None:
    """Compensations are retried too, by default ten times."""
    print(f"  refund   {customer} {result.amount:.2f} of {result.number}")


@activity
async def ship(customer: str, item: str) -> str:
    """Stand in for a request to the carrier. A `TerminalError` is not retried."""
    if item == "piano":
        raise TerminalError("no van is large enough")
    print(f"  ship     {item}")
    return f"{item} is on its way to {customer}"


@workflow(name="examples.saga")
async def order(customer: str, item: str, price: float) -> str:
    """Process an order. The body needs no error handling: each activity has its compensation."""
    await reserve(item)
    await charge(customer, price)
    return await ship(customer, item)


@order.on_failure
async def apologise(customer: str, *, error: str) -> None:
    """Send an apology, after the compensations."""
    print(f"  mail     Dear {customer}, we are sorry: {error}")


async def main(url: str) -> None:
    """Place two orders, of which the second fails."""
    async with App(url, workflows=[order]):
        for customer, item, price in [("Ann", "flute", 90.0), ("Bob", "piano", 9000.0)]:
            print(f"{customer} orders a {item}")
            run = await order.start(customer, item, price)
            try:
                print(f"  {await run.result(timeout=60)}")
            except WorkflowFailedError as error:
                print(f"  {(await run.info()).status}: {error.__cause__}; all steps are compensated")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
