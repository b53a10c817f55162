"""Workflows that the tests of the HTTP API start."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from perdure import Event, Retry, activity, receive, set_state, subscribe, wait_event, workflow


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclass
class Circle:
    radius: float


@dataclass
class Square:
    side: float


@dataclass
class Everything:
    at: datetime
    day: date
    id: UUID
    blob: bytes
    colour: Colour
    span: timedelta
    shape: Circle | Square
    pair: tuple[int, str]
    table: dict[tuple[int, int], str]
    maybe: Line | None = None
    lines: list[Line] = field(default_factory=list)


@workflow(name="http.order")
async def order(id: str, lines: list[Line], *, rush: bool = False) -> Decimal:
    """Add up an order."""
    set_state({"lines": len(lines)})
    return await total(lines)


@activity(name="http.total")
async def total(lines: list[Line]) -> Decimal:
    return sum((line.price * line.count for line in lines), Decimal(0))


@workflow(name="http.everything")
async def everything(value: Everything) -> Everything:
    return value


@workflow(name="http.waiter")
async def waiter(type: str = "http.go") -> Any:
    event = await wait_event(type)
    return [event.data, event.id, event.source, event.subject, event.time, event.extensions]


@workflow(name="http.headers_of")
async def headers_of() -> Any:
    event = await wait_event("http.headers")
    return [dict(event.headers), event.extensions]


@workflow(name="http.listener")
async def listener(mode: str = "broadcast") -> Any:
    await subscribe("http.news", mode)
    message = await receive("http.news")
    return [message.data, message.metadata]


@workflow(name="http.failing")
async def failing(reason: str) -> None:
    await breaks(reason)


@activity(name="http.breaks", retry=Retry(attempts=1))
async def breaks(reason: str) -> None:
    raise LookupError(reason)


@workflow(name="http.nothing")
async def nothing() -> None: ...


@workflow(name="http.recorded", on_event="http.recorded")
async def recorded(event: Event[Line]) -> str:
    return event.id


@workflow(name="http.shipping", on_event="http.ordered")
async def shipping(line: Line) -> str:
    return line.sku


EXAMPLE = Everything(
    at=datetime(2026, 1, 31, 12, tzinfo=UTC),
    day=date(2026, 1, 31),
    id=UUID(int=7),
    blob=b"\x00\xff",
    colour=Colour.BLUE,
    span=timedelta(minutes=90),
    shape=Square(2.0),
    pair=(1, "a"),
    table={(1, 2): "x"},
    maybe=Line("pencil", Decimal("0.10")),
)
