"""A workflow with a little of everything, and versions of its code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure import Retry, activity, now, recur, set_state, sleep, wait_event, workflow
from perdure.engine.replay.definitions import WORKFLOWS
from tests.engine.versions import version

SOON = Retry(attempts=3, initial=0.001)


class CardError(Exception):
    """The card was refused."""


@dataclass
class Order:
    """What a customer wants."""

    id: str
    email: str
    amount: int = 10
    flaky: bool = False
    refused: bool = False


executed: list[str] = []


@activity(name="kit.reserve")
async def reserve(item: str) -> str:
    executed.append("reserve")
    return f"{item} is reserved"


@reserve.compensation
async def release(item: str) -> None:
    executed.append("release")


failures: dict[str, int] = {}


@activity(name="kit.charge", retry=SOON)
async def charge(email: str, amount: int, flaky: bool = False, refused: bool = False) -> str:
    executed.append("charge")
    failures[email] = failures.get(email, 0) + 1
    if refused or (flaky and failures[email] < 3):
        raise CardError(f"the card of {email} was refused")
    return f"{email} paid {amount}"


@activity(name="kit.ship")
async def ship(order: Order, receipt: str) -> str:
    executed.append("ship")
    return f"parcel for {order.email}"


@activity(name="kit.notify")
async def notify(text: str) -> None:
    executed.append("notify")


@workflow(name="kit.order")
async def order(given: Order) -> str:
    set_state({"email": given.email, "at": now().year})
    await reserve(given.id)
    try:
        receipt = await charge(given.email, given.amount, given.flaky, given.refused)
    except CardError as error:
        await notify(str(error))
        raise
    await wait_event("kit.packed", where={"order": given.id})
    return await ship(given, receipt)


@workflow(name="kit.counter")
async def counter(left: int) -> str:
    await notify(f"{left}")
    await sleep(0.001)
    if left:
        recur(left - 1)
    return "done"


def hide(place: str, value: str | float | bool | None) -> str | float | bool | None:
    """Redact what identifies a customer, equal values in the same way."""
    return value.replace("ann@example.org", "somebody") if isinstance(value, str) else value


def changed(function: Callable[..., Any]) -> Any:
    """Return other code of the workflow `order`, as a deployment would bring it."""
    today = WORKFLOWS.pop(order.name)
    try:
        return version(function, order.name)
    finally:
        WORKFLOWS[order.name] = today
