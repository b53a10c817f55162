"""A shop whose runs the tests of the dashboard look at, and of which the screenshots are made."""

import asyncio
import threading
from datetime import timedelta

from perdure import Retry, activity, join_group, receive, recur, set_state, sleep, subscribe, wait_event, workflow

ONCE = Retry(attempts=1)


class PaymentError(Exception):
    """The bank refuses."""


broken: set[str] = set()  # orders whose payment fails
gate = threading.Event()  # deliveries wait until it is set, on whichever event loop


@activity(name="shop.reserve", retry=ONCE)
async def reserve(order_id: str, items: int) -> dict[str, object]:
    return {"order_id": order_id, "shelf": 9_007_199_254_740_993, "items": items}


@reserve.compensation
async def release(order_id: str, items: int) -> None:
    """Put the goods back."""


@activity(name="shop.charge", retry=Retry(attempts=3, initial=0.02, jitter=0))
async def charge(order_id: str, amount: float) -> str:
    if order_id in broken:
        raise PaymentError(f"card of order {order_id} declined")
    return f"receipt for {order_id}"


@activity(name="shop.pack", retry=ONCE)
async def pack(order_id: str, item: int) -> str:
    await asyncio.sleep(0.002)
    return f"{order_id}/{item}"


@activity(name="shop.deliver", retry=ONCE)
async def deliver(order_id: str) -> str:
    while not gate.is_set():  # noqa: ASYNC110 - an asyncio.Event belongs to one loop
        await asyncio.sleep(0.01)
    return "delivered"


@workflow(name="shop.order")
async def order(order_id: str, amount: float = 9.5, items: int = 2, card: str = "4111 1111 1111 1111") -> str:
    set_state({"stage": "reserving"})
    await reserve(order_id, items)
    receipt = await charge(order_id, amount)
    await asyncio.gather(*(pack(order_id, item) for item in range(items)))
    set_state({"stage": "delivering"})
    return receipt


@workflow(name="shop.payment")
async def payment(order_id: str) -> str:
    await pack(order_id, 1)
    return await charge(order_id, 1.0)


@workflow(name="shop.approval")
async def approval(order_id: str) -> str:
    event = await wait_event("order.approved", where={"order": order_id}, timeout=timedelta(days=3))
    return f"approved by {event.data['by']}"


@workflow(name="shop.subscription")
async def subscription(customer: str) -> None:
    await charge(customer, 5.0)
    await sleep(timedelta(days=30))


@workflow(name="shop.trial")
async def trial(customer: str) -> str:
    await reserve(customer, 1)
    await sleep(0.05)
    receipt = await charge(customer, 5.0)
    await asyncio.gather(*(pack(customer, item) for item in range(4)))
    return receipt


@workflow(name="shop.delivery")
async def delivery(order_id: str) -> str:
    return await deliver(order_id)


@workflow(name="shop.parent")
async def parent(order_id: str) -> str:
    return await approval(order_id)


@activity(name="shop.book", retry=ONCE)
async def book(order_id: str) -> str:
    return f"room for {order_id}"


@book.compensation
async def unbook(order_id: str) -> None:
    """Cancel the booking, which takes until the gate is open."""
    while not gate.is_set():  # noqa: ASYNC110 - an asyncio.Event belongs to one loop
        await asyncio.sleep(0.01)


@workflow(name="shop.trip")
async def trip(order_id: str) -> str:
    await book(order_id)
    return await charge(order_id, 5.0)


@activity(name="shop.hire", retry=ONCE)
async def hire(order_id: str) -> str:
    return f"van for {order_id}"


@hire.compensation(retry=ONCE)
async def give_up_van(order_id: str) -> None:
    raise PaymentError("the rental company does not answer")


@workflow(name="shop.move")
async def move(order_id: str) -> str:
    await pack(order_id, 1)
    await hire(order_id)
    return await charge(order_id, 5.0)


@activity(name="shop.rent", retry=ONCE)
async def rent(order_id: str) -> str:
    return f"car for {order_id}"


@rent.compensation(retry=Retry(attempts=9, initial=3600, maximum=3600, jitter=0))
async def give_up_car(order_id: str) -> None:
    raise PaymentError("the rental company is closed")


@workflow(name="shop.tour")
async def tour(order_id: str) -> str:
    await rent(order_id)
    return await charge(order_id, 5.0)


@workflow(name="shop.bundle")
async def bundle(order_id: str) -> str:
    await pack(order_id, 1)
    await payment("A-other")
    return await charge(order_id, 5.0)


@activity(name="shop.ask_bank", retry=Retry(attempts=9, initial=3600, maximum=3600, jitter=0))
async def ask_bank(order_id: str) -> str:
    raise PaymentError(f"the bank does not know order {order_id}")


@workflow(name="shop.inquiry")
async def inquiry(order_id: str) -> str:
    return await ask_bank(order_id)


@activity(name="shop.resize", retry=ONCE)
async def resize(number: int) -> int:
    if number == 3:
        raise ValueError(f"picture {number} is damaged")
    return number


@workflow(name="shop.pictures")
async def pictures(count: int) -> int:
    found = await asyncio.gather(*(resize(number) for number in range(count)), return_exceptions=True)
    return sum(isinstance(each, int) for each in found)


@workflow(name="shop.family")
async def family(order_id: str) -> str:
    await payment(order_id)
    return await approval(order_id)


@workflow(name="shop.listener")
async def listener() -> object:
    await join_group("shop.listeners")
    await subscribe("shop.news")
    return (await receive("shop.news")).data


@workflow(name="shop.counter")
async def counter(left: int) -> str:
    await pack("count", left)
    if left:
        recur(left - 1)
    return "counted"


LONG = "a_name_without_spaces_" + "x" * 90


@activity(name=f"shop.{LONG}", retry=ONCE)
async def fail_at_length() -> None:
    raise PaymentError("y" * 300)


@workflow(name=f"shop.workflow.{LONG}")
async def verbose() -> None:
    await fail_at_length()


@workflow(name="shop.grandparent")
async def grandparent(order_id: str) -> str:
    await family(order_id)
    await asyncio.gather(*(pack(order_id, item) for item in range(8)))
    return await parent(order_id)
