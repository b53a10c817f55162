"""An order in two steps: an async activity that charges, and a plain function that halves."""

from dataclasses import dataclass

from perdure import activity, workflow

calls: list[str] = []


@dataclass
class Receipt:
    order_id: str
    amount: float


@activity
async def charge(order_id: str, amount: float) -> Receipt:
    calls.append(f"charge {order_id}")
    return Receipt(order_id, amount)


@activity
def halve(amount: float) -> float:
    return amount / 2


@workflow(name="orders.order")
async def order(order_id: str, amount: float) -> Receipt:
    receipt = await charge(order_id, amount)
    return Receipt(receipt.order_id, await halve(receipt.amount))
