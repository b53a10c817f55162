"""An agent: a model that is asked what to do next until it has an answer. A crash repeats no call that was paid for.

    python -m examples.agent [url]

The model's replies and the tools' results are recorded like any step. A tool that spends money waits for a person: for
days, if need be, without holding a worker. The model here is a fake that needs no key.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from datetime import timedelta

from perdure import Activity, App, Retry, RunHandle, activity, set_state, wait_event, workflow

TURNS_MAX = 10


@dataclass
class Call:
    """A tool that the model wants to use."""

    tool: str
    argument: str


@dataclass
class Reply:
    """What the model says: calls, or an answer."""

    calls: list[Call] = field(default_factory=list)
    answer: str = ""


@activity(retry=Retry(attempts=6), timeout=timedelta(minutes=2))
async def think(talk: list[str]) -> Reply:
    """Would send the talk to a model."""
    said = "\n".join(talk)
    if "weather:" not in said:
        return Reply([Call("weather", "Rome"), Call("trains", "Rome")])
    if "book" not in said:
        return Reply([Call("book", "the 8:10 to Rome")])
    if "not allowed" in said:
        return Reply(answer="I found a train, but was not allowed to book it.")
    return Reply(answer="You go to Rome at 8:10, and it is sunny there.")


@activity
async def weather(city: str) -> str:
    """Any code can be a tool."""
    return f"weather: sunny in {city}"


@activity
def trains(city: str) -> str:
    """A plain function runs in a thread."""
    return f"trains: 8:10 and 11:40 to {city}"


@activity
async def book(train: str) -> str:
    """Spends money, so somebody is asked first."""
    return f"booked: {train}"


TOOLS: dict[str, Activity[[str], str]] = {"weather": weather, "trains": trains, "book": book}
NEEDS_APPROVAL = {"book"}


@workflow(name="examples.agent")
async def agent(task: str) -> str:
    """The loop."""
    talk = [f"task: {task}"]
    for _ in range(TURNS_MAX):
        reply = await think(talk)
        if reply.answer:
            return reply.answer
        talk += await asyncio.gather(*(use(call) for call in reply.calls))
    return "I give up."


async def use(call: Call) -> str:
    """A helper of the body: its steps are the run's steps."""
    if call.tool in NEEDS_APPROVAL:
        set_state(f"asks: may I {call.tool} {call.argument}?")
        try:
            event = await wait_event("agent.decision", timeout=timedelta(days=2))
        except TimeoutError:
            return f"{call.tool}: not allowed, nobody answered"
        if not event.data["allowed"]:
            return f"{call.tool}: not allowed"
    return await TOOLS[call.tool](call.argument)


async def question(handle: RunHandle[str]) -> str:
    """Where a page for people would look."""
    while not (asked := await handle.state()):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return str(asked)


async def main(url: str) -> None:
    """The same task twice; one person says yes, one says no."""
    async with App(url, workflows=[agent]) as app:
        for allowed in (True, False):
            handle = await agent.start("bring me to Rome")
            print(await question(handle), "yes" if allowed else "no")
            await app.send_event("agent.decision", {"allowed": allowed}, to=handle.id)
            print("  ", await handle.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
