"""An AI agent: a model chooses tools until it has an answer. A crash repeats no model call that is recorded.

    python -m examples.agent [url]

The model's replies and the tools' results are recorded steps. A tool that spends money waits for a person's approval,
for days if necessary, without holding a worker. The model in this example is a fake that needs no API key.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from datetime import timedelta

from perdure import Activity, App, Retry, RunHandle, activity, set_state, wait_event, workflow

TURNS_MAX = 10


@dataclass
class Call:
    """A tool call that the model asks for."""

    tool: str
    argument: str


@dataclass
class Reply:
    """The model's reply: tool calls, or an answer."""

    calls: list[Call] = field(default_factory=list)
    answer: str = ""


@activity(retry=Retry(attempts=6), timeout=120)
async def think(messages: list[str]) -> Reply:
    """Stand in for a request to a language model."""
    said = "\n".join(messages)
    if "weather:" not in said:
        return Reply([Call("weather", "Rome"), Call("trains", "Rome")])
    if "book" not in said:
        return Reply([Call("book", "the 8:10 to Rome")])
    if "not allowed" in said:
        return Reply(answer="I found a train, but was not allowed to book it.")
    return Reply(answer="You go to Rome at 8:10, and it is sunny there.")


@activity
async def weather(city: str) -> str:
    """Return the weather. Any activity can be a tool."""
    return f"weather: sunny in {city}"


@activity
def trains(city: str) -> str:
    """Return the trains. A plain function runs in a thread."""
    return f"trains: 8:10 and 11:40 to {city}"


@activity
async def book(train: str) -> str:
    """Book a train. This spends money, so a person must approve it."""
    return f"booked: {train}"


TOOLS: dict[str, Activity[[str], str]] = {"weather": weather, "trains": trains, "book": book}
NEEDS_APPROVAL = {"book"}


@workflow(name="examples.agent")
async def agent(task: str) -> str:
    """Ask the model and call its tools until there is an answer."""
    messages = [f"task: {task}"]
    for _ in range(TURNS_MAX):
        reply = await think(messages)
        if reply.answer:
            return reply.answer
        messages += await asyncio.gather(*(use(call) for call in reply.calls))
    return "no answer"


async def use(call: Call) -> str:
    """Call a tool. A helper function of a workflow may contain steps."""
    if call.tool in NEEDS_APPROVAL:
        set_state(f"May I {call.tool} {call.argument}?")
        try:
            event = await wait_event("agent.decision", timeout=timedelta(days=2))
        except TimeoutError:
            return f"{call.tool}: not allowed, no answer in time"
        if not event.data["allowed"]:
            return f"{call.tool}: not allowed"
    return await TOOLS[call.tool](call.argument)


async def question(run: RunHandle[str]) -> str:
    """Wait for the question that the agent asks. A web page would show it."""
    while not (asked := await run.state()):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return str(asked)


async def main(url: str) -> None:
    """Run the same task twice: once approved, once refused."""
    async with App(url, workflows=[agent]) as app:
        for allowed in (True, False):
            run = await agent.start("take me to Rome")
            print(await question(run), "yes" if allowed else "no")
            await app.send_event("agent.decision", {"allowed": allowed}, to=run.id)
            print("  ", await run.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
