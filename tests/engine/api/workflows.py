"""Workflows whose handles, steps and queries the tests of this folder read."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from perdure import Retry, activity, now, publish, receive, recur, set_state, sleep, subscribe, wait_event, workflow

undone: list[str] = []


@dataclass(frozen=True)
class Order:
    id: str
    price: Decimal


@activity
async def price_of(order: Order) -> Decimal:
    return order.price


@activity(name="api.reserve")
async def reserve(order: Order) -> str:
    return f"reserved {order.id}"


@reserve.compensation
async def release(order: Order, result: str | None) -> None:
    undone.append(order.id)


@activity(retry=Retry(attempts=3, initial=timedelta(milliseconds=1)), name="api.flaky")
async def flaky(fails: int) -> str:
    from perdure import activity_info

    if activity_info().attempt <= fails:
        raise ValueError(f"attempt {activity_info().attempt}")
    return "at last"


@workflow(name="api.child")
async def child(order: Order) -> Decimal:
    if order.id == "bad":
        raise ValueError("bad order")
    return await price_of(order)


@workflow(name="api.whole")
async def whole(order: Order, fails: int = 0) -> Decimal:
    now()
    set_state({"phase": "begun"})
    await reserve(order)
    await flaky(fails)
    price = await child(order)
    await subscribe("api.news")
    await publish("api.others", 1)
    await sleep(0.001)
    await receive("api.news", timeout=0.001 if order.id == "quick" else None)
    event = await wait_event("api.go", timeout=timedelta(days=1))
    return price + Decimal(event.data)


@workflow(name="api.simple")
async def simple(text: str) -> str:
    if text == "bad":
        raise ValueError("it is bad")
    if text == "wait":
        await wait_event("api.go")
    return text.upper()


@workflow(name="api.looped")
async def looped(left: int) -> str:
    if left:
        recur(left - 1)
    return "over"
