"""The workflow of `perdure demo`, and its worker process: `python -m perdure.cli.demonstration 3`.

The number is a pipe to the command. The environment has the URL of the database, because other users see arguments.
"""

import asyncio
import os
import sys
from pathlib import Path

from perdure import App, activity, activity_info, sleep, workflow
from perdure.cli.child_processes import end_with_parent

LEASE_SEC = 1
LEDGER = "PERDURE_DEMO_LEDGER"  # the file in which activities note that they were executed
URL = "PERDURE_DEMO_URL"
NAME = "perdure.demo.order"


def note(what: str) -> None:
    """Record an effect outside the database: one line for each execution of an activity."""
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as ledger:
        ledger.write(f"{activity_info().idempotency_key} {what}\n")


@activity(name="perdure.demo.charge")
async def charge(order_id: str) -> str:
    """Charge the customer."""
    await asyncio.sleep(0.02)
    note("charged")
    return f"receipt for {order_id}"


@activity(name="perdure.demo.ship")
async def ship(order_id: str) -> str:
    """Ship the order."""
    await asyncio.sleep(0.02)
    note("shipped")
    return f"{order_id} is on its way"


@workflow(name=NAME)
async def order(order_id: str) -> str:
    """Process an order."""
    receipt = await charge(order_id)
    await sleep(1.2)  # longer than the life of the first worker; the run holds no worker meanwhile
    return f"{await ship(order_id)}, {receipt}"


async def _work(url: str) -> None:
    await App(url, workflows=[order], lease=LEASE_SEC).serve()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    asyncio.run(_work(os.environ[URL]))
