"""A worker that stops waits for its tasks, but not longer than it may."""

import asyncio
from contextlib import suppress

from perdure.engine.worker.waiting import end_tasks, wait_unless


async def stubborn(end: asyncio.Event) -> None:
    while not end.is_set():
        with suppress(asyncio.CancelledError):
            await end.wait()


async def test_tasks_are_cancelled_and_awaited() -> None:
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    await end_tasks(tasks)
    assert all(task.cancelled() for task in tasks)
    await end_tasks([])


async def test_a_task_that_does_not_end_is_not_awaited_forever() -> None:
    end = asyncio.Event()
    task = asyncio.create_task(stubborn(end))
    await asyncio.sleep(0)
    await end_tasks([task], 0.01)
    assert not task.done()
    end.set()
    await task


async def test_a_wait_ends_with_the_last_task() -> None:
    tasks = [asyncio.create_task(asyncio.sleep(0.001 * number)) for number in range(3)]
    await wait_unless(asyncio.Event(), tasks, 60)
    assert all(task.done() for task in tasks)
    await wait_unless(asyncio.Event(), [], 60)


async def test_a_wait_ends_with_its_time_or_the_event_and_cancels_nothing() -> None:
    hurried = asyncio.Event()
    task = asyncio.create_task(asyncio.Event().wait())
    await wait_unless(hurried, [task], 0.01)
    assert not task.done()
    asyncio.get_running_loop().call_later(0.01, hurried.set)
    await wait_unless(hurried, [task], 60)
    assert not task.done()
    await end_tasks([task])
