"""The classes of steps: what the code and the history of a run say about one step.

How a step is executed, and by which task or timer, is the business of the execution.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from perdure.engine.history import ids
from perdure.engine.history.digests import Call
from perdure.engine.history.messages import event_from, typed
from perdure.engine.history.records import MessageReceived
from perdure.engine.replay.definitions import ActivityDefinition
from perdure.engine.replay.loop import Timer
from perdure.model import names
from perdure.model.matching import matches
from perdure.model.records import ChannelWait

Effect = Callable[..., Awaitable[object]]  # writes in the transaction that records its return value


@dataclass(slots=True, eq=False)
class ActivityStep:
    """An activity: its next attempt, or the pause before it."""

    id: str
    activity: ActivityDefinition
    payload: bytes
    call: Call
    future: "asyncio.Future[Any]"
    attempt: int = 1
    pause_sec: float = 0.0  # before the next attempt; a timer in the database keeps it
    started: bool = False  # the start of an activity with a compensation is recorded
    undoable: bool = False  # the activity has a compensation

    @property
    def pause_id(self) -> str:
        """Return the id of the pause after the previous attempt."""
        return ids.pause_after(self.id, self.attempt - 1)

    def row_ids(self) -> list[str]:
        """Return the ids of the rows that can follow, except that of a failed attempt."""
        if self.pause_sec:
            return [self.pause_id]
        return [self.id, ids.start_of(self.id)] if self.undoable and not self.started else [self.id]

    def expects(self, row_id: str) -> bool:
        """Return whether a row with this id can follow, except that of a failed attempt."""
        return not self.pause_sec if row_id == self.id else row_id in self.row_ids()


@dataclass(slots=True, eq=False)
class EffectStep:
    """A step that writes to the database, such as `publish()`."""

    id: str
    effect: Effect
    call: Call
    future: "asyncio.Future[Any]"
    hint: object = Any  # decodes the result

    def row_ids(self) -> list[str]:
        """Return the ids of the rows that can complete this step: one."""
        return [self.id]

    def expects(self, row_id: str) -> bool:
        """Return whether a row with this id completes the step."""
        return row_id == self.id


@dataclass(slots=True, eq=False)
class TimerStep:
    """A timer of the body's loop."""

    id: str
    timer: Timer
    has_row: bool  # perhaps: it was made on replay, or the run was parked since

    @property
    def delay_sec(self) -> float:
        """Return the delay that the body asked for."""
        return self.timer.delay

    def row_ids(self) -> list[str]:
        """Return the ids of the rows that can complete this step: one."""
        return [self.id]

    def expects(self, row_id: str) -> bool:
        """Return whether a row with this id completes the step."""
        return row_id == self.id


@dataclass(slots=True, eq=False)
class WaitStep:
    """A wait for the next message of one of its channels that matches `where`.

    The database selects matching messages. Histories of earlier versions contain rows of messages that don't match:
    they are skipped, and each one increments `round`, which is part of the id of the next row.
    """

    id: str
    channels: tuple[str, ...]
    future: "asyncio.Future[Any]"
    hint: object
    after: timedelta | None  # the timeout
    where: Mapping[str, object] | None = None
    kind: str | None = None  # the type of an event
    round: int = 1

    @property
    def delay_sec(self) -> float | None:
        """Return the timeout in seconds, or None."""
        return None if self.after is None else self.after.total_seconds()

    @property
    def awaited(self) -> str:
        """What is waited for, in words."""
        kind, name = ("message on channel", self.channels[0]) if self.kind is None else ("event of type", self.kind)
        return f"{kind} {names.public(name)!r}"

    def row_ids(self) -> list[str]:
        """Return the ids of the rows that can complete this wait, one for each channel."""
        return [ids.message_of(self.id, self.round, place) for place in range(len(self.channels))]

    def expects(self, row_id: str) -> bool:
        """Return whether a row with this id completes the wait."""
        return row_id in self.row_ids()

    def waits(self, until: datetime | None) -> list[ChannelWait]:
        """Return the waits to register, one for each channel; the first one has the timeout.

        `until` is the time at which the wait times out, if it is known already.
        """
        times: tuple[datetime | None, timedelta | None] = (None, self.after) if until is None else (until, None)
        found = []
        for id, channel in zip(self.row_ids(), self.channels, strict=True):
            found.append(ChannelWait(channel, id, *times, where=self.where))
            times = None, None
        return found

    def read(self, record: MessageReceived) -> tuple[Any, bool]:
        """Return the message or event of a row, and whether it matches; if it does not, the message is None."""
        message = record.message(self.channels[record.place])
        if self.where is not None and not matches(message.data, self.where):
            return None, False
        message = message if self.hint is None else typed(message, self.hint, self.awaited)
        return (message if self.kind is None else event_from(message, self.kind)), True
