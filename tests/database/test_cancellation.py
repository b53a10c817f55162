"""The wait that ignores cancellations until the work has ended."""

import asyncio

import pytest

from perdure.database.cancellation import finish


async def test_work_ends_although_its_caller_is_cancelled_twice() -> None:
    started, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(finish(work()))
    await started.wait()
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_result_and_error_reach_the_caller() -> None:
    async def fail() -> None:
        raise ValueError("no")

    assert await finish(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="no"):
        await finish(fail())
