"""The journal: all records of a run, in the order in which the run made them, and its completion.

A group commit writes the journals of many runs. A run does not wait for its records, except before its effects become
visible outside: then it waits until its journal is `durable`. If a write is refused, all later writes of the same run
are dropped, so the stored history is always a prefix of what the run did. A completion follows the records of its run
in the queue, so a run whose body ends after a step is completed by the commit that stores this step.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from perdure.engine.execution.group_commit import GroupCommit, Write
from perdure.errors import CommitUnknownError, StorageError
from perdure.model.records import HistoryEvent, Lease
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

UNKNOWN_TRIES = 5


class Entry:
    """A record that waits for its commit."""

    __slots__ = ("event", "journal", "stored")

    def __init__(self, event: HistoryEvent, journal: "Journal", stored: Callable[[], None] | None) -> None:
        self.event = event
        self.journal = journal
        self.stored = stored

    def receive(self, answer: int | StorageError | None) -> None:
        """Note the id of the stored row, or why it is not stored."""
        journal = self.journal
        journal.answered += 1
        if isinstance(answer, StorageError):
            journal.refuse(answer)
            return
        assert answer is not None, "only completions are answered with nothing"
        if answer > journal.last_id:
            journal.last_id = answer
        journal.progressed = True
        if self.stored is not None:
            asyncio.get_running_loop().call_soon(self.stored)  # hooks may raise, and set context variables
        journal.call_waiting()


class Completion:
    """The completion of a run that waits for its commit."""

    __slots__ = ("journal", "output")

    def __init__(self, output: bytes, journal: "Journal") -> None:
        self.output = output
        self.journal = journal


Journals = GroupCommit[Entry | Completion, int | None]


class Journal:
    """The records of one run under one lease."""

    def __init__(self, journals: Journals, lease: Lease, last_id: int) -> None:
        self._journals = journals
        self.lease = lease
        self.last_id = last_id  # the newest row of the history that this run knows
        self.progressed = False  # a record is stored: a run whose records are refused makes no progress
        self.refused: StorageError | None = None
        self.recorded = self.answered = 0  # answers come in the order of the records
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def record(self, event: HistoryEvent, stored: Callable[[], None] | None = None) -> None:
        """Queue an event behind the earlier ones, without waiting. `stored` is called after its commit."""
        if self.refused is None:
            self.recorded += 1
            entry = Entry(event, self, stored)
            self._journals.put(entry, entry.receive)

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

    async def complete(self, output: bytes) -> None:
        """Complete the run after everything recorded so far, and wait for that; raise the error if it is refused."""
        if self.refused is not None:
            raise self.refused
        await self._journals(Completion(output, self))

    def refuse(self, error: StorageError) -> None:
        """Drop all later records, because one was refused; nothing waits for them any more."""
        if self.refused is None:
            self.refused = error
        self.call_waiting()

    def call_waiting(self) -> None:
        """Call the functions that waited for what is stored by now."""
        waiting = self._waiting
        while waiting and (waiting[0][0] <= self.answered or self.refused is not None):
            waiting.popleft()[1]()


def _finish(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def writing(storage: Storage) -> Write[Entry | Completion, int | None]:
    """Return the function that writes journals in one commit, without those that had a write refused before."""

    async def write(items: Sequence[Entry | Completion]) -> Sequence[int | StorageError | None]:
        live = [item for item in items if item.journal.refused is None]
        try:
            answers = await _write(storage, live) if live else []
        except StorageError as error:
            answers = [error] * len(live)
        if len(live) == len(items):
            return answers
        fates = dict(zip(live, answers, strict=True))
        return [fates.get(item, item.journal.refused) for item in items]

    return write


async def _write(storage: Storage, items: Sequence[Entry | Completion]) -> Sequence[int | StorageError | None]:
    """Write journals; after a lost answer write those again that are not completed, which is safe: it is idempotent."""
    try:
        return await _write_once(storage, items)
    except CommitUnknownError as error:
        return await _write_again(storage, items, error)


async def _write_once(storage: Storage, items: Sequence[Entry | Completion]) -> Sequence[int | StorageError | None]:
    records = [item for item in items if isinstance(item, Entry)]
    events = [(entry.event, entry.journal.lease) for entry in records]
    if len(records) == len(items):
        return await storage.append_histories(events)
    ends = [(item.journal.lease, item.output) for item in items if isinstance(item, Completion)]
    answers = await storage.append_and_complete(events, ends)
    of_records, of_ends = iter(answers[: len(events)]), iter(answers[len(events) :])
    return [next(of_records if isinstance(item, Entry) else of_ends) for item in items]


async def _write_again(
    storage: Storage, items: Sequence[Entry | Completion], unknown: CommitUnknownError
) -> Sequence[int | StorageError | None]:
    """Write what is not completed until the outcome is known, and return the answers to all."""
    completions = [item for item in items if isinstance(item, Completion)]
    answers: dict[Entry | Completion, int | StorageError | None] = {}
    for _ in range(UNKNOWN_TRIES - 1):
        completed = await _completed(storage, completions)
        answers.update((item, _answer_of(item)) for item in items if item.journal in completed)
        left = [item for item in items if item not in answers]
        try:
            answers.update(zip(left, await _write_once(storage, left), strict=True))
        except CommitUnknownError as error:
            unknown = error
        else:
            return [answers[item] for item in items]
    raise unknown


async def _completed(storage: Storage, completions: Sequence[Completion]) -> set[Journal]:
    """Return the journals whose runs a commit without an answer has completed."""
    if not completions:
        return set()
    rows = await storage.get_instances([completion.journal.lease.instance_id for completion in completions])
    return {
        completion.journal
        for completion, row in zip(completions, rows, strict=True)
        if row is not None
        and (row.status, row.output_data) == (WorkflowStatus.COMPLETED, completion.output)
        and row.lock_token == completion.journal.lease.token + 1
    }


def _answer_of(item: Entry | Completion) -> int | None:
    """Return the answer to an item of a completed run; the id of a row does not matter any more."""
    return item.journal.last_id if isinstance(item, Entry) else None
