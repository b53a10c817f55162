"""Nightly: a workflow that starts by the clock, and a policy that removes what is long over.

    python -m examples.nightly [url]

Needs `perdure[cron]`. A worker that was not there at three makes up for the last tick, so you see last night's run.
"""

import asyncio
import sys
from datetime import timedelta

from perdure import App, Retention, activity, workflow

KEEP = Retention(finished=timedelta(days=30), messages=timedelta(days=7), outbox=timedelta(days=7))


@activity
async def orders_of(shop: str) -> int:
    """Would ask the shop's database."""
    return 10 * len(shop)


@activity
async def send_report(lines: list[str]) -> str:
    """Would send a mail."""
    return "; ".join(lines)


@workflow(name="examples.nightly", cron="0 3 * * *", zone="Europe/Berlin")
async def nightly() -> str:
    """One run a night, however many workers there are."""
    shops = ["Bonn", "Leipzig"]
    counts = await asyncio.gather(*(orders_of(shop) for shop in shops))
    return await send_report([f"{shop}: {count} orders" for shop, count in zip(shops, counts, strict=True)])


async def main(url: str) -> None:
    """What a worker does for ever, shown once."""
    async with App(url, workflows=[nightly], retention=KEEP) as app:  # one worker an hour removes what is too old
        while (found := await app.runs(workflow="examples.nightly").first()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        print(found.id, "->", await app.get(found.id).result(timeout=60))
        would_go = await app.sweep(KEEP, dry_run=True)
        print(f"{would_go.finished} runs ended over a month ago and would go")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
