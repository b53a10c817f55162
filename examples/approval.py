"""Approval: a run waits for a person's decision, and goes on without one when the time is up.

python -m examples.approval [url]
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta

from perdure import App, activity, wait_event, workflow


@dataclass
class Decision:
    """What the person sends."""

    expense: str
    approved: bool
    by: str


@activity
async def pay(expense: str, by: str) -> str:
    """Would move money."""
    return f"{expense} paid, approved by {by}"


@workflow(name="examples.approval")
async def approval(expense: str, patience: timedelta) -> str:
    """Pay what is approved in time."""
    try:
        event = await wait_event("expense.decided", where={"expense": expense}, timeout=patience, data=Decision)
    except TimeoutError:
        return f"{expense} was not decided in time"
    return await pay(expense, event.data.by) if event.data.approved else f"{expense} refused by {event.data.by}"


async def main(url: str) -> None:
    """Three expenses: one approved, one refused, one forgotten."""
    async with App(url, workflows=[approval]) as app:
        long, short = timedelta(days=3), timedelta(seconds=1.2)
        handles = [
            await approval.start("lunch", long),
            await approval.start("yacht", long),
            await approval.start("pencil", short),
        ]
        for handle in handles:  # an event reaches those who wait already; one sent `to` a run is kept for it
            name = str((await handle.info()).input)
            if "pencil" not in name:
                decision = Decision("lunch" if "lunch" in name else "yacht", "lunch" in name, "Ada")
                await app.send_event("expense.decided", decision, to=handle.id)
        for handle in handles:
            print(await handle.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
