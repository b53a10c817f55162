"""Workflows whose callers are cancelled, and what they did."""

import asyncio
from collections import Counter, defaultdict

from perdure import activity, receive, set_state, subscribe, wait_event, workflow

done: Counter[str] = Counter()  # executions of activities, by what they did
gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


@activity(name="cancellation.note")
async def note(what: str) -> str:
    done[what] += 1
    return what


@activity(name="cancellation.reserve")
async def reserve(name: str) -> str:
    done[f"reserve {name}"] += 1
    return name


@reserve.compensation
async def release(name: str) -> None:
    done[f"release {name}"] += 1
    if name in gates:
        await gates[name].wait()


@activity(name="cancellation.gated")
async def gated(name: str) -> str:
    done[f"gated {name}"] += 1
    await gates[name].wait()
    return name


@workflow(name="cancellation.begun", on_event="cancellation.begin")
async def begun(name: str) -> str:
    return name


@workflow(name="cancellation.greet")
async def greet(name: str) -> str:
    return f"hello {await note(name)}"


@workflow(name="cancellation.fail")
async def fail(name: str) -> str:
    set_state(name)
    await note(f"before {name}")
    await note(name)
    raise ValueError(name)


@workflow(name="cancellation.book")
async def book(name: str) -> str:
    await reserve(name)
    event = await wait_event("cancellation.go", where={"name": name})
    return f"{name} {event.data['word']}"


@workflow(name="cancellation.listen")
async def listen() -> str:
    await subscribe("cancellation.word", mode="direct")
    return (await receive("cancellation.word", type=str)).data


@workflow(name="cancellation.blocked")
async def blocked(name: str) -> str:
    return await gated(name)


@workflow(name="cancellation.undo")
async def undo(name: str) -> None:
    await reserve(name)
    raise ValueError(name)
