"""Activities at work: the code of users, on the host's loop or in a thread, so many at a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

from perdure.engine import ambient
from perdure.engine.body import Effect
from perdure.engine.run import Attempt, Done
from perdure.model import limits

OUTGOING: ContextVar[list[Effect] | None] = ContextVar("perdure_outgoing", default=None)


class Activities:
    """Runs attempts; `most` at a time, plain functions in `threads`."""

    def __init__(self, most: int, threads: int) -> None:
        self._places = asyncio.Semaphore(most)
        self._pool = ThreadPoolExecutor(threads, "perdure-activity")

    async def execute(self, attempt: Attempt) -> Done:
        """Run an attempt's code. An error is part of the answer; only a cancellation from outside is raised."""
        async with self._places:
            outgoing: list[Effect] = []
            try:
                result = attempt.activity.signature.encode_result(await self._call(attempt, outgoing))
                limits.size(result, "the result of an activity")
                attempt.activity.signature.decode_result(result)  # once recorded it would have to be read for ever
                return Done(result, effects=tuple(outgoing))
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return Done(error=error)
            except Exception as error:
                return Done(error=error)

    async def _call(self, attempt: Attempt, outgoing: list[Effect]) -> Any:
        activity = attempt.activity
        args, kwargs = activity.signature.unbind(attempt.payload)
        context = copy_context()
        context.run(ambient.RUN.set, None)
        context.run(ambient.ATTEMPT.set, attempt.info)
        context.run(OUTGOING.set, outgoing)

        def call() -> Any:
            return activity.function(*args, **kwargs)

        limit = None if activity.timeout is None else activity.timeout.total_seconds()
        async with asyncio.timeout(limit):
            if activity.plain:
                return await self._in_thread(lambda: context.run(call))
            return await asyncio.create_task(call(), context=context, name=attempt.info.idempotency_key)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Let the threads end when they are done."""
        self._pool.shutdown(wait=False)
