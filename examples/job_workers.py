"""Job workers: competing runs, where exactly one of them takes each message of a channel.

python -m examples.job_workers [url]
"""

import asyncio
import sys

from perdure import App, activity, receive, subscribe, workflow

JOBS, WORKERS = 12, 3


@activity
def thumbnail(picture: str) -> str:
    """Stand in for work that blocks. A plain function runs in a thread."""
    return f"{picture}.small"


@workflow(name="examples.job_worker")
async def job_worker(name: str) -> dict[str, list[str]]:
    """Process jobs until a stop message arrives."""
    await subscribe("pictures", "competing")
    done: list[str] = []
    while (job := (await receive("pictures")).data) != "stop":
        done.append(await thumbnail(job))
    return {name: done}


async def main(url: str) -> None:
    """Publish jobs, and then a stop message for each worker."""
    async with App(url, workflows=[job_worker]) as app:
        workers = [await job_worker.start(f"worker {number}") for number in range(1, WORKERS + 1)]
        for number in range(JOBS):
            await app.publish("pictures", f"picture-{number}")
        for _ in workers:
            await app.publish("pictures", "stop")
        done = [await worker.result(timeout=60) for worker in workers]
        print(sum(len(some) for each in done for some in each.values()), "pictures, each processed once")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
