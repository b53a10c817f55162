"""The journal: all records of a run, in the order in which the run made them.

Group commits write the records of many runs: those that arrive during one commit form the next. A run does not wait for
its records, except before its effects become visible outside: then it waits until its journal is `durable`. If a write
is refused, all later writes of the same run are dropped, so the stored history is always a prefix of what the run did.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from perdure.engine.replay.guard import came_by_signal
from perdure.engine.worker.supervision import Supervised
from perdure.errors import CommitUnknownError, StorageError
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.contract import Storage

Item = TypeVar("Item")
Answer = TypeVar("Answer")

TOGETHER_MAX = 256
UNKNOWN_TRIES = 5

Write = Callable[[Sequence[Item]], Awaitable[Sequence[Answer | StorageError]]]


class Shared(Generic[Item, Answer]):
    """A group commit: writes the items of many callers in one commit at a time."""

    def __init__(self, write: Write[Item, Answer]) -> None:
        self._write = write
        self._queue: list[tuple[Item, asyncio.Future[Answer | StorageError]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self.supervised: Supervised | None = None

    def put(self, item: Item) -> "asyncio.Future[Answer | StorageError]":
        """Write an item with the next commit; the future's result is the answer or the error."""
        future: asyncio.Future[Answer | StorageError] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush(), context=Context())  # without the context of a caller
        return future

    async def __call__(self, item: Item) -> Answer:
        """Write an item, wait for the commit and return the answer; raise the error if the write is refused."""
        answer = await self.put(item)
        if isinstance(answer, StorageError):
            raise answer
        return answer

    async def _flush(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:TOGETHER_MAX], self._queue[TOGETHER_MAX:]
            try:
                answers = await self._write([item for item, _ in batch])
                if self.supervised is not None:
                    self.supervised.succeeded()
            except StorageError as error:
                answers = [error] * len(batch)
            except BaseException as error:
                answers = [StorageError(f"a group commit failed: {type(error).__name__}: {error}")] * len(batch)
                if came_by_signal(error) or isinstance(error, asyncio.CancelledError):
                    self._flusher = None
                    _answer(batch, answers)
                    raise
                if self.supervised is not None:  # the callers get the error, and the next commit may succeed
                    self.supervised.failed(error)
            if len(answers) != len(batch):
                wrong = StorageError(f"a group commit of {len(batch)} items returned {len(answers)} answers")
                answers = [wrong] * len(batch)
            _answer(batch, answers)
        self._flusher = None


def _answer(
    batch: "Sequence[tuple[Item, asyncio.Future[Answer | StorageError]]]", answers: Sequence[Answer | StorageError]
) -> None:
    for (_, future), answer in zip(batch, answers, strict=True):
        if not future.done():
            future.set_result(answer)


class Entry:
    """A record that waits for its commit."""

    __slots__ = ("event", "journal")

    def __init__(self, event: HistoryEvent, journal: "Journal") -> None:
        self.event = event
        self.journal = journal


class Journal:
    """The records of one run under one lease."""

    def __init__(self, records: Shared[Entry, int], lease: Lease, last_id: int) -> None:
        self._records = records
        self.lease = lease
        self.last_id = last_id  # the newest row of the history that this run knows
        self.refused: StorageError | None = None
        self._last: asyncio.Future[int | StorageError] | None = None

    def record(self, event: HistoryEvent, stored: Callable[[], None] | None = None) -> None:
        """Queue an event behind the earlier ones, without waiting. `stored` is called after its commit."""
        if self.refused is None:
            self._last = self._records.put(Entry(event, self))
            if stored is not None:
                self._last.add_done_callback(lambda done: stored() if _is_stored(done) else None)

    async def durable(self) -> None:
        """Wait until everything recorded so far is stored; raise the error if a write was refused."""
        while self.refused is None and self._last is not None:
            last = self._last
            await asyncio.shield(last)
            if last is self._last:
                self._last = None
        if self.refused is not None:
            raise self.refused


def _is_stored(done: "asyncio.Future[int | StorageError]") -> bool:
    return not done.cancelled() and isinstance(done.result(), int)


def appending(storage: Storage) -> Write[Entry, int]:
    """Return the function that writes records in one commit, without those whose run had a write refused before."""

    async def append(entries: Sequence[Entry]) -> Sequence[int | StorageError]:
        live = [entry for entry in entries if entry.journal.refused is None]
        try:
            written = await _append(storage, live) if live else []
        except StorageError as error:
            written = [error] * len(live)
        fates = dict(zip(live, written, strict=True))
        answers: list[int | StorageError] = []
        for entry in entries:
            journal = entry.journal
            fate = fates.get(entry, journal.refused)
            if isinstance(fate, int):
                journal.last_id = max(journal.last_id, fate)
            elif fate is not None and journal.refused is None:
                journal.refused = fate
            answers.append(fate if fate is not None else 0)
        return answers

    return append


async def _append(storage: Storage, entries: Sequence[Entry]) -> Sequence[int | StorageError]:
    """Write records; after a lost answer write them again, which is safe because appending is idempotent."""
    items = [(entry.event, entry.journal.lease) for entry in entries]
    for _ in range(UNKNOWN_TRIES):
        try:
            return await storage.append_histories(items)
        except CommitUnknownError as error:
            unknown = error
    raise unknown  # pyright: ignore[reportPossiblyUnboundVariable, reportGeneralTypeIssues]
