"""Nightly report: a scheduled (cron) workflow, and a retention policy that deletes old runs.

    python -m examples.nightly [url]

Needs `perdure[cron]`. When a worker starts, the most recent missed tick runs, so this example shows last night's run.
"""

import asyncio
import sys
from datetime import timedelta

from perdure import App, Retention, activity, workflow

KEEP = Retention(finished=timedelta(days=30), messages=timedelta(days=7), outbox=timedelta(days=7))


@activity
async def orders_of(shop: str) -> int:
    """Stand in for a query on the shop's database."""
    return 10 * len(shop)


@activity
async def send_report(lines: list[str]) -> str:
    """Stand in for sending a mail."""
    return "; ".join(lines)


@workflow(name="examples.nightly", cron="0 3 * * *", zone="Europe/Berlin")
async def nightly() -> str:
    """Count the orders of each shop. There is one run for each night, however many workers there are."""
    shops = ["Bonn", "Leipzig"]
    counts = await asyncio.gather(*(orders_of(shop) for shop in shops))
    return await send_report([f"{shop}: {count} orders" for shop, count in zip(shops, counts, strict=True)])


async def main(url: str) -> None:
    """Wait for the run of last night, and show what retention would delete."""
    async with App(url, workflows=[nightly], retention=KEEP) as app:  # one worker sweeps once an hour
        while (found := await app.runs(workflow="examples.nightly").first()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print(found.id, "->", await app.get(found.id).result(timeout=60))
        swept = await app.sweep(KEEP, dry_run=True)
        print(f"{swept.finished} runs ended more than 30 days ago and would be deleted")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
