"""The recorder of a run: writes what happens into the history, and passes it to the body, in the same order.

Records go to the journal without waiting. A record that the database itself writes (a message, a timer, an effect) is
read from there after everything before it is durable, so that the order of the rows is the order in which the body saw
them.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from perdure.engine.execution.journal import Journal
from perdure.engine.execution.progress import StepsInProgress
from perdure.engine.execution.rows import read_pages
from perdure.engine.history import ids
from perdure.engine.history.digests import Call, stamp
from perdure.engine.history.records import (
    Deadline,
    Expired,
    Parent,
    Record,
    Taken,
    Until,
    check_row,
    completed_of,
    record_of,
    row_of,
)
from perdure.engine.replay.commands import Command, Take
from perdure.engine.replay.replayer import Replayer
from perdure.errors import StorageError
from perdure.model.records import HistoryEvent, Lease
from perdure.storage.contract import Storage

Stored = Callable[[], None]  # called after the commit of a record


@dataclass(slots=True)
class Facts:
    """What a history says about the run as a whole."""

    parent: Parent | None = None
    ends_at: datetime | None = None  # when the run's timeout passes, by the database's clock
    expired: bool = False
    until: dict[str, datetime] = field(default_factory=dict)  # by waits, when their timeouts end

    def add(self, record: Record) -> None:
        """Note a record that belongs to the run and not to a step."""
        match record:
            case Parent():
                self.parent = record
            case Deadline() if record.ends_at is not None:
                self.ends_at = record.ends_at
            case Expired():
                self.expired = True
            case Until(step, at):
                self.until[step] = at


class Recorder:
    """The history of one run, while the run is executed."""

    newest: HistoryEvent | None = None  # the last row that was read

    def __init__(
        self,
        run_id: str,
        storage: Storage,
        replayer: Replayer,
        steps: StepsInProgress,
        now: Callable[[], datetime],
        began: datetime,
        facts: Facts,
    ) -> None:
        self.began = began  # time zero of the body's loop
        self.facts = facts
        self._run_id = run_id
        self._storage = storage
        self._replayer = replayer
        self._steps = steps
        self._now = now
        self._journal: Journal

    def open(self, journal: Journal) -> None:
        """Begin to record under a lease."""
        self._journal = journal

    @property
    def lease(self) -> Lease:
        """Return the lease under which the run is executed."""
        return self._journal.lease

    @property
    def progressed(self) -> bool:
        """Return whether anything was recorded under the lease, by this run or for it."""
        journal = getattr(self, "_journal", None)  # a run can be handed back before it is executed
        return journal is not None and journal.progressed

    def progress(self) -> None:
        """Note that something was recorded for this run by another transaction."""
        self._journal.progressed = True

    @property
    def last_id(self) -> int:
        """Return the id of the newest row that the run knows."""
        return self._journal.last_id

    def durable(self) -> Awaitable[None]:
        """Wait until everything recorded so far is stored; raise the error if a write was refused."""
        return self._journal.durable()

    def complete(self, output: bytes) -> Awaitable[None]:
        """Complete the run after everything recorded so far; raise the error if a write is refused."""
        return self._journal.complete(output)

    def when_durable(self, then: Callable[[], None]) -> None:
        """Call a function once everything recorded so far is stored or refused: now, or later."""
        self._journal.when_durable(then)

    @property
    def refused(self) -> StorageError | None:
        """Return why a write was refused, or None."""
        return self._journal.refused

    def age(self) -> timedelta:
        """Return the time since the start of the run."""
        return max(self._now() - self.began, timedelta(0))

    def call(self, call: Call) -> bytes:
        """Return the call of a step as its row records it: a digest, and the time of the body's loop."""
        return call.digest + stamp((self._now() - self.began).total_seconds())

    # From the run to the history.

    def note(self, record: Record, stored: Stored | None = None) -> None:
        """Record something that the body does not wait for, without waiting for the commit."""
        self._journal.record(row_of(self._run_id, record), stored)

    def record(self, record: Record, stored: Stored | None = None) -> None:
        """Record something and pass it to the body, without waiting for the commit."""
        self.note(record, stored)
        self._pass(record)

    def add_stored(self, record: Record, row_id: int, stored: Stored | None) -> None:
        """Pass something to the body that another transaction has recorded."""
        self._journal.last_id = row_id
        self.progress()
        if stored is not None:
            stored()
        self._pass(record)

    def _pass(self, record: Record) -> None:
        self._obey(self._replayer.feed_live(record))

    # From the history to the run.

    def begin(self) -> None:
        """Call the body of a new run, which has no history."""
        self._obey(self._replayer.catch_up())

    def resume(self) -> None:
        """Note the open steps of a body that was kept in memory."""
        self._obey(self._replayer.resume())

    async def catch_up(self) -> None:
        """Pass the rows that the body has not seen yet to the body; the first time, all rows (a replay)."""
        await self.durable()
        async for page in read_pages(self._storage, self._run_id, self._journal.last_id):
            self._obey(self._replayer.feed_all(self._of_steps(page)))
            self.newest = page[-1]
            self._journal.last_id = page[-1].id
        self._obey(self._replayer.catch_up())

    def align_clock(self) -> None:
        """Set time zero before all recorded times: a run that retries another one has that run's history."""
        self.began = min(self.began, self._now() - timedelta(seconds=self._replayer.time))

    def _of_steps(self, page: Sequence[HistoryEvent]) -> Iterator[Record]:
        """Yield the records for the body; note those that belong to the run."""
        for row in page:
            if (completed := completed_of(row)) is not None:  # nearly every row
                yield completed
                continue
            check_row(row)
            record = record_of(row)
            if row.activity_id.startswith(ids.OWN) and not isinstance(record, Taken):
                self.facts.add(record)
            else:
                yield record

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Take):
                self.note(command.record)
            else:
                self._steps.apply(command)
