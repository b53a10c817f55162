"""Onboarding: a run that sleeps for days. While it sleeps it is a row in the database, and no worker holds it.

    python -m examples.onboarding [url]

A day takes 1.1 seconds here, so that you see the end of it.
"""

import asyncio
import sys
from datetime import timedelta

from perdure import App, activity, set_state, sleep, workflow

DAY = timedelta(seconds=1.1)


@activity
async def send_mail(address: str, subject: str) -> str:
    """Would call a mail service, with the idempotency key of `activity_info()`."""
    return f"{subject} -> {address}"


@activity
async def is_active(address: str) -> bool:
    """Would ask the product."""
    return address.startswith("a")


@workflow(name="examples.onboarding")
async def onboarding(address: str) -> list[str]:
    """Welcome, a tip after a day, a reminder after two more for those who did nothing."""
    sent = [await send_mail(address, "Welcome")]
    set_state("welcomed")
    await sleep(DAY)
    sent.append(await send_mail(address, "A tip"))
    set_state("had the tip")
    await sleep(2 * DAY)
    if not await is_active(address):
        sent.append(await send_mail(address, "We miss you"))
    return sent


async def main(url: str) -> None:
    """Two people join."""
    async with App(url, workflows=[onboarding]):
        handles = [await onboarding.start(name) for name in ("ann@example.org", "bob@example.org")]
        for handle in handles:
            print(await handle.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
