"""Group commits: one transaction with the writes of many runs. Items that arrive during one commit form the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Generic, Protocol, TypeVar

from perdure.database.cancellation import finish
from perdure.engine.replay.guard import came_by_signal
from perdure.errors import StorageError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TOGETHER_MAX = 256

Write = Callable[[Sequence[Item]], Awaitable[Sequence[Answer | StorageError]]]
Receive = Callable[[Answer | StorageError], None]


class Observer(Protocol):
    """Observes whether commits succeed; a group commit needs no restart, because each commit is a new attempt."""

    def succeeded(self) -> None:
        """Note that a commit succeeded."""

    def failed(self, error: BaseException) -> object:
        """Note that a commit failed with an error that is not a storage's."""


class GroupCommit(Generic[Item, Answer]):
    """Writes the items of many callers in one commit at a time."""

    def __init__(self, write: Write[Item, Answer], observer: Observer | None = None) -> None:
        self._write = write
        self._observer = observer
        self._queue: list[tuple[Item, Receive[Answer]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._context = copy_context()  # of the code that opened the App or Client, and not of a caller

    def put(self, item: Item, receive: "Receive[Answer]") -> None:
        """Write an item with the next commit; `receive` is called with the answer or the error, in order."""
        self._queue.append((item, receive))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush(), context=self._context.copy())

    @property
    def running(self) -> "list[asyncio.Task[None]]":
        """Return the task that commits at the moment, or nothing."""
        return [] if self._flusher is None else [self._flusher]

    async def ended(self) -> None:
        """Wait until the commit that is running, with what is queued behind it, has ended."""
        if self._flusher is not None:
            await finish(asyncio.wait([self._flusher]))

    async def __call__(self, item: Item) -> Answer:
        """Write an item, wait for the commit and return the answer; raise the error if the write is refused."""
        future: asyncio.Future[Answer | StorageError] = asyncio.get_running_loop().create_future()
        self.put(item, partial(_resolve, future))
        answer = await future
        if isinstance(answer, StorageError):
            raise answer
        return answer

    async def _flush(self) -> None:
        await asyncio.sleep(0)  # what is ready to run now may add to the first commit
        while self._queue:
            batch, self._queue = self._queue[:TOGETHER_MAX], self._queue[TOGETHER_MAX:]
            try:
                answers = await self._write([item for item, _ in batch])
                if self._observer is not None:
                    self._observer.succeeded()
            except StorageError as error:
                answers = [error] * len(batch)
            except BaseException as error:
                answers = [StorageError(f"a group commit failed: {type(error).__name__}: {error}")] * len(batch)
                if came_by_signal(error) or isinstance(error, asyncio.CancelledError):
                    self._flusher = None
                    self._answer(batch, answers)
                    raise
                if self._observer is not None:  # the callers get the error, and the next commit may succeed
                    self._observer.failed(error)
            if len(answers) != len(batch):
                wrong = StorageError(f"a group commit of {len(batch)} items returned {len(answers)} answers")
                answers = [wrong] * len(batch)
            self._answer(batch, answers)
        self._flusher = None

    def _answer(
        self, batch: "Sequence[tuple[Item, Receive[Answer]]]", answers: Sequence[Answer | StorageError]
    ) -> None:
        for (_, receive), answer in zip(batch, answers, strict=True):
            try:
                receive(answer)
            except Exception as error:  # the others get their answers all the same
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "an answer of a group commit could not be passed on", "exception": error}
                )


def _resolve(future: "asyncio.Future[Answer | StorageError]", answer: Answer | StorageError) -> None:
    if not future.done():
        future.set_result(answer)
