"""The inbox of a run keeps the order in which things happen to the run."""

import asyncio

from perdure.engine.execution.inbox import Inbox, nothing


async def test_result_does_not_overtake_what_happened_before_it() -> None:
    inbox = Inbox(lambda: False)
    run = asyncio.create_task(inbox.next(alone=True))
    await asyncio.sleep(0)
    assert inbox.is_awaited()
    inbox.post(nothing)
    assert not inbox.is_awaited()  # although the task of the run has not continued yet
    assert await run is nothing


async def test_result_is_left_to_a_run_that_waits_without_a_slot() -> None:
    inbox = Inbox(lambda: False)
    run = asyncio.create_task(inbox.next(alone=False))
    await asyncio.sleep(0)
    assert not inbox.is_awaited()
    inbox.post(nothing)
    await run
