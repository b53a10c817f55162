"""The journal: all records of a run, in the order in which the run made them.

A group commit writes the records of many runs. A run does not wait for its records, except before its effects become
visible outside: then it waits until its journal is `durable`. If a write is refused, all later writes of the same run
are dropped, so the stored history is always a prefix of what the run did.
"""

import asyncio
from collections.abc import Callable, Sequence

from perdure.engine.execution.group_commit import GroupCommit, Write
from perdure.errors import CommitUnknownError, StorageError
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.contract import Storage

UNKNOWN_TRIES = 5


class Entry:
    """A record that waits for its commit."""

    __slots__ = ("event", "journal")

    def __init__(self, event: HistoryEvent, journal: "Journal") -> None:
        self.event = event
        self.journal = journal


class Journal:
    """The records of one run under one lease."""

    def __init__(self, records: GroupCommit[Entry, int], lease: Lease, last_id: int) -> None:
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
