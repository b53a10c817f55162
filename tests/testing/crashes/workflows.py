"""Workflows with one mistake each, and the same without it."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

from perdure import Retry, TerminalError, activity, activity_info, now, sleep, wait_event, workflow

MAILS: list[str] = []  # a mail server that sends whatever it is told
SENT: dict[str, str] = {}  # one that knows idempotency keys
LEDGER: dict[str, str] = {}  # bookings by idempotency key


def reset() -> None:
    """Forget all effects."""
    MAILS.clear()
    SENT.clear()
    LEDGER.clear()


# An effect outside an activity.


@activity(name="crashing.charge")
async def charge(order_id: str) -> str:
    return f"receipt for {order_id}"


@activity(name="crashing.mail")
async def mail(text: str) -> None:
    SENT[activity_info().idempotency_key] = text


@workflow(name="crashing.mails_in_body")
async def mails_in_body(order_id: str) -> str:
    receipt = await charge(order_id)
    MAILS.append(receipt)
    await sleep(timedelta(days=1))
    return receipt


@workflow(name="crashing.mails_in_activity")
async def mails_in_activity(order_id: str) -> str:
    receipt = await charge(order_id)
    await mail(receipt)
    await sleep(timedelta(days=1))
    return receipt


@workflow(name="crashing.writes_file_in_body")
async def writes_file_in_body(path: str) -> str:
    receipt = await charge(path)
    _note(path, receipt)
    return receipt


def _note(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text)


# A compensation that is missing.


@activity(name="crashing.reserve")
async def reserve(item: str) -> str:
    LEDGER[activity_info().idempotency_key] = f"reserved {item}"
    return item


@reserve.compensation
async def release(item: str, *, result: str | None) -> None:
    LEDGER[activity_info().idempotency_key] = f"released {item}"


@activity(name="crashing.book")
async def book(item: str) -> str:
    LEDGER[activity_info().idempotency_key] = f"booked {item}"
    return item


@activity(name="crashing.price")
async def price(item: str) -> float:
    return 9.5


@activity(name="crashing.pay", retry=Retry(attempts=1))
async def pay(amount: float) -> None:
    raise TerminalError("card declined")


@workflow(name="crashing.books_without_compensation")
async def books_without_compensation(item: str) -> str:
    await reserve(item)
    await book(item)
    await pay(await price(item))
    return "paid"


@workflow(name="crashing.reserves_only")
async def reserves_only(item: str) -> str:
    await reserve(item)
    await reserve(f"second {item}")
    await pay(await price(item))
    return "paid"


# A branch on the wall clock.


def _is_morning(at: datetime) -> bool:
    return at.hour < 12


@workflow(name="crashing.branches_on_wall_clock")
async def branches_on_wall_clock(order_id: str) -> str:
    if _wall_clock_is_morning():
        await reserve(order_id)
    else:
        await book(order_id)
    await sleep(timedelta(days=1))
    return "done"


def _wall_clock_is_morning() -> bool:
    return _is_morning(datetime.now())


@workflow(name="crashing.branches_on_durable_time")
async def branches_on_durable_time(order_id: str) -> str:
    if _is_morning(now()):
        await reserve(order_id)
    else:
        await book(order_id)
    await sleep(timedelta(days=1))
    return "done"


# Waiting.


@activity(name="crashing.hang", timeout=60, retry=Retry(attempts=2, initial=5))
async def hang() -> str:
    if activity_info().attempt == 1:
        await asyncio.Event().wait()
    return "at last"


@workflow(name="crashing.hanging")
async def hanging(order_id: str) -> str:
    return await hang()


@workflow(name="crashing.approval")
async def approval(order_id: str) -> str:
    try:
        await wait_event("crashing.approved", timeout=timedelta(days=2))
    except TimeoutError:
        await mail("no answer")
        return "expired"
    return await charge(order_id)
