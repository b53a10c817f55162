"""Run a call, and interrupt it at a chosen one of its suspensions.

A suspension is a point at which the call waits: for the loop, a commit, a connection or an answer.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ENDLESS_SEC = 30.0
EVERYTHING = os.environ.get("PERDURE_CANCELLATION") == "all"


class Moment(StrEnum):
    """When the interruption comes."""

    AT_ONCE = "at once"  # as soon as the call waits
    WITH_THE_ANSWER = "with the answer"  # when what the call waits for is done, but the call has not continued


def moments_of(index: int) -> list[Moment]:
    """Return the moments that the suite plays for one of many tests: by turns, or all of them if it is asked to."""
    return list(Moment) if EVERYTHING else [list(Moment)[index % len(Moment)]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: its answer or its error, and whether it was interrupted."""

    hit: bool
    answer: Any = None
    error: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        return isinstance(self.error, asyncio.CancelledError)


class Interrupted:
    """An awaitable that interrupts a coroutine at one of its suspensions."""

    def __init__(
        self, call: Coroutine[Any, Any, Any], number: int, moment: Moment, interrupt: Callable[[], object] | None = None
    ) -> None:
        self._call, self._number, self._moment = call, number, moment
        self._interrupt = interrupt or self._cancel
        self._count = 0
        self._task: asyncio.Task[Any] | None = None
        self.hit = False

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        self._task = asyncio.current_task()
        inner = self._call.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                awaited = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            self._suspended(awaited)
            thrown = None
            try:
                yield awaited
            except BaseException as error:
                thrown = error

    def _suspended(self, awaited: "asyncio.Future[Any] | None") -> None:
        self._count += 1
        if self._count != self._number:
            return
        self.hit = True
        if self._moment is Moment.AT_ONCE or awaited is None:
            self._interrupt()
        else:
            awaited.add_done_callback(lambda _: self._interrupt())  # before the task is woken up


class InterruptedCall:
    """A call in a task of its own, which is cancelled, or interrupted by a function, at one of its suspensions."""

    def __init__(
        self, call: Coroutine[Any, Any, Any], number: int, moment: Moment, interrupt: Callable[[], object] | None = None
    ) -> None:
        self._interrupted = Interrupted(call, number, moment, interrupt)
        self._task = asyncio.create_task(self._run(), name="interrupted call")

    async def _run(self) -> Any:
        return await self._interrupted

    async def outcome(self) -> Outcome:
        """Wait until the call has ended."""
        task = self._task
        await asyncio.wait([task], timeout=ENDLESS_SEC)
        hit = self._interrupted.hit
        if not task.done():
            task.cancel()
            return Outcome(hit, error=TimeoutError(f"the call did not end: {task.get_stack()}"))
        if task.cancelled():
            return Outcome(hit, error=asyncio.CancelledError())
        error = task.exception()
        return Outcome(hit, error=error) if error else Outcome(hit, task.result())
