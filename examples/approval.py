"""Approval: a run waits for a person's decision, with a timeout.

python -m examples.approval [url]
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta

from perdure import App, activity, wait_event, workflow


@dataclass
class Decision:
    """The data of the event."""

    expense: str
    approved: bool
    by: str


@activity
async def pay(expense: str, by: str) -> str:
    """Stand in for a payment."""
    return f"{expense} paid, approved by {by}"


@workflow(name="examples.approval")
async def approval(expense: str, wait: timedelta) -> str:
    """Pay the expense if it is approved in time."""
    try:
        event = await wait_event("expense.decided", where={"expense": expense}, timeout=wait, data=Decision)
    except TimeoutError:
        return f"{expense} was not decided in time"
    return await pay(expense, event.data.by) if event.data.approved else f"{expense} refused by {event.data.by}"


async def main(url: str) -> None:
    """Submit three expenses: one is approved, one refused, one not decided."""
    async with App(url, workflows=[approval]) as app:
        lunch = await approval.start("lunch", timedelta(days=3))
        yacht = await approval.start("yacht", timedelta(days=3))
        pencil = await approval.start("pencil", timedelta(seconds=1.2))
        # An event sent `to` a run is kept until the run waits for it.
        await app.send_event("expense.decided", Decision("lunch", True, "Ada"), to=lunch.id)
        await app.send_event("expense.decided", Decision("yacht", False, "Ada"), to=yacht.id)
        for run in (lunch, yacht, pencil):
            print(await run.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
