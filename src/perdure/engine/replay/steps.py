"""Steps that a body waits for. Each has a future and an id: its path in the task tree and the name of its call."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.engine.history.codec import decode
from perdure.engine.history.digests import Call
from perdure.engine.replay.definitions import ActivityDefinition
from perdure.engine.replay.loop import Timer
from perdure.errors import SerializationError
from perdure.model import names
from perdure.model.matching import matches
from perdure.model.records import ChannelWait, HistoryEvent

if TYPE_CHECKING:
    from perdure.engine.replay.body import Effect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """A message; returned by `receive()`.

    - `channel`: the name of the channel.
    - `data`: the data, decoded as the `type` given to `receive()`.
    - `id`: the number of the message.
    - `metadata`: the metadata that was given when it was sent.
    - `published_at`: when it was sent, in UTC.
    """

    channel: str
    data: T
    id: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """An event; returned by `wait_event()`.

    `data` is decoded as the type given to `wait_event()`. The other fields are the attributes of the CloudEvent.
    """

    type: str
    data: T
    id: str = ""
    source: str = ""
    time: str | None = None
    subject: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)


class Timed:
    """A step with a timer or timeout.

    While the run is executed, a timer of the host's loop or a row in the database keeps the time. While it
    waits, a row does.
    """

    __slots__ = ("handle", "registered")

    def __init__(self) -> None:
        self.handle: asyncio.TimerHandle | None = None
        self.registered = False  # a row exists, and decides when the time is over

    @property
    def timer_id(self) -> str:
        """Return the id of the row."""
        raise NotImplementedError

    @property
    def delay_sec(self) -> float | None:
        """Return the duration in seconds from the call; None waits forever."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the timer on the host's loop."""
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
        self.registered = False


def name_of(step: str) -> str:
    """Return the name of the activity or call that a step id ends with: `charge` for `3:charge`."""
    return step.partition(":")[2]


class ActivityStep(Timed):
    """An activity: its attempts, and the pauses between them."""

    __slots__ = (
        "activity",
        "attempt",
        "begun",
        "call",
        "dropped",
        "future",
        "id",
        "pause_sec",
        "payload",
        "running",
        "task",
    )

    def __init__(
        self, id: str, activity: ActivityDefinition, payload: bytes, call: Call, future: "asyncio.Future[Any]"
    ) -> None:
        super().__init__()
        self.id = id
        self.activity = activity
        self.payload = payload
        self.call = call
        self.future = future
        self.attempt = 1
        self.pause_sec = 0.0  # before the next attempt, kept by a row
        self.running = False
        self.begun = False  # the start of an activity with a compensation is recorded
        self.dropped = False
        self.task: asyncio.Task[None] | None = None

    @property
    def start_id(self) -> str:
        """Return the id of the row that records the start of an activity with a compensation."""
        return f"{self.id}!"

    def begin(self) -> None:
        """Note that the start is recorded."""
        self.begun = True

    @property
    def attempt_id(self) -> str:
        """Return the id of the row that records the failure of the current attempt, unless it is the last one."""
        return f"{self.id}#{self.attempt}"

    @property
    def timer_id(self) -> str:
        """Return the id of the row for the pause after the previous attempt."""
        return f"{self.id}#{self.attempt - 1}~"

    @property
    def delay_sec(self) -> float | None:
        """Return the pause before the next attempt; 0 if there is none."""
        return self.pause_sec

    def failed(self, pause_sec: float) -> None:
        """Note that an attempt failed and that the next one is due after a pause."""
        self.attempt += 1
        self.pause_sec = pause_sec
        self.running = False

    def resume(self) -> None:
        """Note that the pause is over."""
        self.stop()
        self.pause_sec = 0.0


@dataclass(slots=True, eq=False)
class EffectStep:
    """A step that writes to the database, such as `publish()`."""

    id: str
    effect: "Effect"
    call: Call
    future: "asyncio.Future[Any]"
    running: bool = False


class TimerStep(Timed):
    """A timer of the body's loop."""

    __slots__ = ("id", "replayed", "timer")

    def __init__(self, id: str, timer: Timer, replayed: bool) -> None:
        super().__init__()
        self.id = id
        self.timer = timer
        self.replayed = replayed  # made on replay, or waited for before: a row with its time may exist

    @property
    def timer_id(self) -> str:
        """Return the id of the step, which is the id of the row."""
        return self.id

    @property
    def delay_sec(self) -> float | None:
        """Return the delay that the body asked for."""
        return self.timer.delay

    def stop(self) -> None:
        """Stop the timer on the host's loop; a row with its time may exist by now."""
        super().stop()
        self.replayed = True


class WaitStep(Timed):
    """A wait for the next message of one of its channels that matches `where`.

    The database selects matching messages. Histories of earlier versions contain rows of messages that don't match:
    they are skipped, and each one increments `round`, which is part of the id of the next row.
    """

    __slots__ = ("after", "channels", "future", "hint", "id", "kind", "round", "where")

    def __init__(
        self,
        id: str,
        channels: tuple[str, ...],
        future: "asyncio.Future[Any]",
        hint: object,
        after: timedelta | None,
        where: Mapping[str, object] | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__()
        self.id = id
        self.channels = channels
        self.future = future
        self.hint = hint
        self.after = after
        self.where = where
        self.kind = kind  # the type of an event
        self.round = 1

    @property
    def delay_sec(self) -> float | None:
        """Return the timeout in seconds, or None."""
        return None if self.after is None else self.after.total_seconds()

    @property
    def awaited(self) -> str:
        """What is waited for, in words."""
        kind, name = ("message on channel", self.channels[0]) if self.kind is None else ("event of type", self.kind)
        return f"{kind} {names.public(name)!r}"

    def ids(self) -> dict[str, str]:
        """Return the ids of the rows that can complete this wait, each with its channel."""
        base = self.id if self.round == 1 else f"{self.id}#{self.round}"
        return {base + "@" * place: channel for place, channel in enumerate(self.channels)}

    def waits(self, until: datetime | None) -> list[ChannelWait]:
        """Return the waits to register, one for each channel; the first one has the timeout.

        `until` is the time at which the wait times out, if it is known already.
        """
        times: tuple[datetime | None, timedelta | None] = (None, self.after) if until is None else (until, None)
        found = []
        for id, channel in self.ids().items():
            found.append(ChannelWait(channel, id, *times, where=self.where))
            times = None, None
        return found

    def read(self, id: str, event: HistoryEvent) -> tuple[Any, bool]:
        """Return the message or event of a row, and whether it matches; if it does not, the message is None."""
        message = message_of(event, self.ids()[id])
        if self.where is not None and not matches(message.data, self.where):
            return None, False
        typed = message if self.hint is None else _typed(message, self.hint, self.awaited)
        return (typed if self.kind is None else event_of(typed, self.kind)), True

    def pass_over(self) -> None:
        """Skip a message that does not match."""
        self.round += 1


def message_of(event: HistoryEvent, channel: str) -> Message[Any]:
    """Return a recorded message; its data is bytes if it is not JSON."""
    if event.data_type == "binary":
        return Message(channel, event.event_data_binary)
    envelope = json.loads(event.event_data or b"{}")
    number = envelope.get("id")
    stamp = envelope.get("published_at") or envelope.get("created_at")
    return Message(
        channel=channel,
        data=envelope.get("data", envelope.get("payload")),
        id=number if isinstance(number, int) else 0,
        metadata=envelope.get("metadata") or {},
        published_at=datetime.fromisoformat(stamp) if stamp else None,
    )


def _typed(message: Message[Any], hint: object, what: str) -> Message[Any]:
    if isinstance(message.data, bytes):
        return message
    try:
        data = decode(json.dumps(message.data).encode(), hint)
    except SerializationError as error:
        raise SerializationError(f"the data of the {what}: {error}") from error
    return Message(message.channel, data, message.id, message.metadata, message.published_at)


def event_of(message: Message[Any], kind: str) -> Event[Any]:
    """Return the event in a message of the channel of its type."""
    about = message.metadata
    return Event(
        type=kind,
        data=message.data,
        id=str(about.get("ce_id", "")),
        source=str(about.get("ce_source", "")),
        time=about.get("ce_time"),
        subject=about.get("ce_subject"),
        extensions=about.get("ce_extensions") or {},
    )
