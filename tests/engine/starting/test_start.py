"""Starting a run now or later."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from perdure import App, Retry, SerializationError, WorkflowStatus, activity, wait_event, workflow
from tests.support.storages import Database

SOON = timedelta(seconds=20)
calls: list[str] = []
ONCE = Retry(attempts=1)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()
    seen.clear()


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


@workflow(name="start.order")
async def order(order_id: str, amount: float) -> Receipt:
    receipt = await charge(order_id, amount)
    return Receipt(receipt.order_id, await halve(receipt.amount))


@pytest.mark.call("run")
async def test_start_after_a_delay(database: Database) -> None:
    async with App(database.url):
        handle = await order.options(after=timedelta(seconds=0.3)).start("A-1", 2.0)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert await handle.result(SOON) == Receipt("A-1", 1.0)


@activity(retry=ONCE)
async def note(what: object) -> None:
    seen.append(what)


class Colour(Enum):
    RED = "red"


@dataclass
class Parcel:
    id: UUID
    weight: Decimal
    sent_at: datetime
    colour: Colour
    parts: list["Parcel"]
    seal: bytes
    note: str | int | None = None


@activity(retry=ONCE)
async def pack(parcel: Parcel) -> Parcel:
    seen.append(parcel)
    parcel.parts.append(Parcel(**{**vars(parcel), "parts": []}))
    return parcel


@workflow(name="start.parcel")
async def packed(parcel: Parcel) -> tuple[Parcel, int]:
    found = await pack(parcel)
    await wait_event("go")
    return found, len(parcel.parts)


async def test_invalid_input_is_refused_by_start(memory: Database) -> None:
    async with App(memory.url) as app:
        with pytest.raises(SerializationError):
            await packed.start(object())  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await packed.start()  # type: ignore[call-arg]
        assert await app.runs().count() == 0


@workflow(name="start.echo")
async def echo(value: int) -> int:
    await note(value)
    return value


@pytest.mark.call("run")
async def test_start_at_a_time(database: Database) -> None:
    async with App(database.url):
        at = datetime.now(UTC) + timedelta(seconds=0.5)
        handle = await echo.options(at=at).start(1)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert seen == []
        assert await handle.result(SOON) == 1
        assert datetime.now(UTC) >= at - timedelta(seconds=0.1)
        assert await (await echo.options(at=datetime.now(UTC) - timedelta(days=1)).start(2)).result(SOON) == 2
