"""The journal: all records of a run, in the order in which the run made them.

A group commit writes the records of many runs. A run does not wait for its records, except before its effects become
visible outside: then it waits until its journal is `durable`. If a write is refused, all later writes of the same run
are dropped, so the stored history is always a prefix of what the run did.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from perdure.engine.execution.group_commit import GroupCommit, Write
from perdure.errors import CommitUnknownError, StorageError
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.contract import Storage

UNKNOWN_TRIES = 5


class Entry:
    """A record that waits for its commit."""

    __slots__ = ("event", "journal", "stored")

    def __init__(self, event: HistoryEvent, journal: "Journal", stored: Callable[[], None] | None) -> None:
        self.event = event
        self.journal = journal
        self.stored = stored

    def receive(self, answer: int | StorageError) -> None:
        """Note the id of the stored row, or why it is not stored."""
        journal = self.journal
        journal.answered += 1
        if not isinstance(answer, int):
            journal.refuse(answer)
            return
        if answer > journal.last_id:
            journal.last_id = answer
        journal.progressed = True
        if self.stored is not None:
            asyncio.get_running_loop().call_soon(self.stored)  # hooks may raise, and set context variables
        journal.call_waiting()


class Journal:
    """The records of one run under one lease."""

    def __init__(self, records: GroupCommit[Entry, int], lease: Lease, last_id: int) -> None:
        self._records = records
        self.lease = lease
        self.last_id = last_id  # the newest row of the history that this run knows
        self.progressed = False  # a record is stored: a run whose records are refused makes no progress
        self.refused: StorageError | None = None
        self.recorded = self.answered = 0  # answers come in the order of the records
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def record(self, event: HistoryEvent, stored: Callable[[], None] | None = None) -> None:
        """Queue an event behind the earlier ones, without waiting. `stored` is called after its commit."""
        if self.refused is None:
            self.recorded += 1
            entry = Entry(event, self, stored)
            self._records.put(entry, entry.receive)

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call a function once everything recorded so far is stored or refused: now, or later."""
        if self.refused is None and self.answered < self.recorded:
            self._waiting.append((self.recorded, then))
        else:
            then()

    async def durable(self) -> None:
        """Wait until everything recorded so far is stored; raise the error if a write was refused."""
        if self.refused is None and self.answered < self.recorded:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((self.recorded, partial(_finish, waiter)))
            await waiter
        if self.refused is not None:
            raise self.refused

    def refuse(self, error: StorageError) -> None:
        """Drop all later records, because one was refused; nothing waits for them any more."""
        if self.refused is None:
            self.refused = error
        self.call_waiting()

    def call_waiting(self) -> None:
        """Call the functions that waited for what is stored by now."""
        waiting = self._waiting
        while waiting and (waiting[0][0] <= self.answered or self.refused is not None):
            waiting.pop(0)[1]()


def _finish(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def appending(storage: Storage) -> Write[Entry, int]:
    """Return the function that writes records in one commit, without those whose run had a write refused before."""

    async def append(entries: Sequence[Entry]) -> Sequence[int | StorageError]:
        live = [entry for entry in entries if entry.journal.refused is None]
        try:
            written = await _append(storage, live) if live else []
        except StorageError as error:
            written = [error] * len(live)
        if len(live) == len(entries):
            return written
        fates = dict(zip(live, written, strict=True))
        return [fates[entry] if entry in fates else _refusal(entry) for entry in entries]

    return append


def _refusal(entry: Entry) -> StorageError:
    assert entry.journal.refused is not None, "only the records of such a journal are left out"
    return entry.journal.refused


async def _append(storage: Storage, entries: Sequence[Entry]) -> Sequence[int | StorageError]:
    """Write records; after a lost answer write them again, which is safe because appending is idempotent."""
    items = [(entry.event, entry.journal.lease) for entry in entries]
    for _ in range(UNKNOWN_TRIES):
        try:
            return await storage.append_histories(items)
        except CommitUnknownError as error:
            unknown = error
    raise unknown  # pyright: ignore[reportPossiblyUnboundVariable, reportGeneralTypeIssues]
