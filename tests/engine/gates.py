"""Activities that wait until a test opens their gate, and workflows of them."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from perdure import activity, activity_info, wait_event, workflow

seen: list[Any] = []
gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


def forget() -> None:
    """Close all gates and forget what was seen; each test begins with this."""
    seen.clear()
    gates.clear()


def entered(gate: str) -> Callable[[], bool]:
    """Return a function that returns whether an activity has begun to wait at a gate."""
    return lambda: any(each[0] == gate for each in seen)


def open_gates(*names: str) -> None:
    for name in names:
        gates[name].set()


@activity
async def note(what: str) -> str:
    seen.append(what)
    return what


@activity
async def gated(gate: str) -> str:
    """Record that it has begun, and wait until the test opens its gate."""
    info = activity_info()
    seen.append((gate, info.attempt, info.idempotency_key))
    try:
        await gates[gate].wait()
    except asyncio.CancelledError:
        seen.append((f"{gate} cancelled", info.attempt, info.idempotency_key))
        raise
    return gate


@workflow(name="gates.two_gates")
async def two_gates(first: str, second: str) -> list[str]:
    return [await gated(first), await gated(second)]


@workflow(name="gates.approved")
async def approved(what: str) -> str:
    first = await note(what)
    event = await wait_event("go", timeout=timedelta(minutes=5))
    return f"{first} {event.data} {await note('after')}"
