"""Onboarding: a run that sleeps for days. A long sleep is stored in the database and holds no worker.

    python -m examples.onboarding [url]

In this example a day takes 1.1 seconds.
"""

import asyncio
import sys

from perdure import App, activity, set_state, sleep, workflow

DAY = 1.1  # seconds


@activity
async def send_mail(address: str, subject: str) -> str:
    """Stand in for a mail service, which would get the idempotency key of `activity_info()`."""
    return f"{subject} -> {address}"


@activity
async def is_active(address: str) -> bool:
    """Stand in for a query on the product's database."""
    return address.startswith("a")


@workflow(name="examples.onboarding")
async def onboarding(address: str) -> list[str]:
    """Send a welcome, a tip after a day and, two days later, a reminder to inactive users."""
    sent = [await send_mail(address, "Welcome")]
    set_state("welcome sent")
    await sleep(DAY)
    sent.append(await send_mail(address, "A tip"))
    set_state("tip sent")
    await sleep(2 * DAY)
    if not await is_active(address):
        sent.append(await send_mail(address, "We miss you"))
    return sent


async def main(url: str) -> None:
    """Onboard two users."""
    async with App(url, workflows=[onboarding]):
        runs = [await onboarding.start(address) for address in ("ann@example.org", "bob@example.org")]
        for run in runs:
            print(await run.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
