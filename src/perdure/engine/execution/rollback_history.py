"""The history of a run as its rollback reads and continues it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.engine.execution.rows import read_rows
from perdure.engine.history import ids
from perdure.engine.history.records import (
    AttemptFailed,
    Completed,
    MessageReceived,
    Parent,
    Record,
    RunCancelled,
    RunFailed,
    Started,
    check_row,
    record_of,
    row_of,
)
from perdure.model.records import Lease
from perdure.storage.contract import Storage


@dataclass(slots=True)
class Cause:
    """Why a run is rolled back. A cancellation replaces a failure, however late it came."""

    cancelled: bool = False
    failure: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""  # the reason of the cancellation, or the message of the failure

    def add(self, record: Record) -> None:
        """Note a record that ends the run."""
        match record:
            case RunCancelled(reason):
                self.cancelled = True
                self.error = reason or "cancelled"
            case RunFailed(failure) if not self.cancelled:
                self.failure = failure
                self.error = str(failure.get("error_message") or "failed")


class RollbackHistory:
    """What the history says about the steps to compensate, and what the rollback adds to it."""

    def __init__(self, run_id: str, storage: Storage) -> None:
        self.cause = Cause()
        self.parent: Parent | None = None
        self.children: set[str] = set()
        self.ends: dict[str, dict[str, Any]] = {}  # outcomes of children, by the channel of their end
        self.begun: dict[str, bytes] = {}  # arguments of the activities with a recorded start, in that order
        self.lease: Lease
        self.progressed = False  # whether anything was recorded under the lease
        self._run_id = run_id
        self._storage = storage
        self._recorded: set[str] = set()
        self._failed_attempts: dict[str, int] = {}
        self._last_id = 0

    async def open(self, lease: Lease) -> None:
        """Read the history, and begin to record under a lease."""
        self.lease = lease
        self.progressed = False
        await self.catch_up()

    async def catch_up(self) -> None:
        """Read the rows that were added since the last call."""
        async for row in read_rows(self._storage, self._run_id, self._last_id):
            check_row(row)
            self._note(record_of(row))
            self._last_id = row.id

    def _note(self, record: Record) -> None:
        match record:
            case Started(step, given):
                self.begun[step] = given
            case AttemptFailed(step):
                self._failed_attempts[step] = self._failed_attempts.get(step, 0) + 1
            case Parent():
                self.parent = record
            case MessageReceived() if (record.channel or "").startswith(ids.CHILD_ENDS) and record.envelope:
                self.ends[str(record.channel)] = record.envelope["data"]
            case RunCancelled() | RunFailed():
                self.cause.add(record)
            case Completed(step, result) if ids.name_of(step) == ids.CHILD:
                self.children.add(json.loads(result))
        if not isinstance(record, Started | AttemptFailed):
            self._recorded.add(record.row_id)

    def has(self, row_id: str) -> bool:
        """Return whether there is a record with this id, which says that something is over."""
        return row_id in self._recorded

    def unsettled(self) -> list[str]:
        """Return the activities that started but have no recorded outcome, the last one first."""
        return [step for step in reversed(self.begun) if not self.has(step) and not self.has(ids.undo_of(step))]

    def next_attempt(self, id: str) -> int:
        """Return the number of the next attempt of an activity, or of the one that just ended."""
        return self._failed_attempts.get(id, 0) + 1

    async def result_of(self, step: str) -> bytes | None:
        """Return the recorded result of an activity, or None if there is none."""
        async for row in read_rows(self._storage, self._run_id):
            record = record_of(row)
            if isinstance(record, Completed) and record.step == step:
                return record.result
        return None

    async def append(self, record: Record) -> None:
        """Record something under the lease."""
        await self._storage.append_history(row_of(self._run_id, record), lease=self.lease)
        self._recorded.add(record.row_id)
        self.progressed = True

    async def fail_attempt(self, id: str, failure: Mapping[str, Any]) -> None:
        """Record that the next attempt of an activity failed and that another one follows."""
        attempt = self._failed_attempts[id] = self.next_attempt(id)
        await self.append(AttemptFailed(id, attempt, failure))
