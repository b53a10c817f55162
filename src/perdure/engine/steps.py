"""Steps: what a body waits for. Each has an id, which is its path in the tree of tasks and its name, and a future."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.engine import names
from perdure.engine.codec import decode
from perdure.engine.definitions import Activity
from perdure.engine.digests import Call
from perdure.engine.loop import Timer
from perdure.errors import SerializationError
from perdure.model.matching import matches
from perdure.model.records import ChannelWait, HistoryEvent

if TYPE_CHECKING:
    from perdure.engine.body import Effect

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """What `receive()` gives."""

    channel: str
    data: T
    id: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """What `wait_event()` gives: the data, and the attributes of the CloudEvent."""

    type: str
    data: T
    id: str = ""
    source: str = ""
    time: str | None = None
    subject: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)


class Timed:
    """A step that time ends. While the run is driven its time is kept here, or by a row; while it waits, by a row."""

    __slots__ = ("handle", "registered")

    def __init__(self) -> None:
        self.handle: asyncio.TimerHandle | None = None
        self.registered = False  # there is a row, which decides

    @property
    def timer_id(self) -> str:
        """Of the row."""
        raise NotImplementedError

    @property
    def delay_sec(self) -> float | None:
        """How long, from when it was asked for; None is for ever."""
        raise NotImplementedError

    def stop(self) -> None:
        """Forget the time that is kept here."""
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
        self, id: str, activity: Activity[..., Any], payload: bytes, call: Call, future: "asyncio.Future[Any]"
    ) -> None:
        super().__init__()
        self.id = id
        self.activity = activity
        self.payload = payload
        self.call = call
        self.future = future
        self.attempt = 1
        self.pause_sec = 0.0  # a row's time must pass before the next attempt
        self.running = False
        self.begun = False  # of one that can be undone: there is a row that says so
        self.dropped = False
        self.task: asyncio.Task[None] | None = None

    @property
    def start_id(self) -> str:
        """The row of the beginning of an activity that can be undone."""
        return f"{self.id}!"

    def begin(self) -> None:
        """It is recorded that it began."""
        self.begun = True

    @property
    def attempt_id(self) -> str:
        """The row of an attempt that failed and is not the last."""
        return f"{self.id}#{self.attempt}"

    @property
    def timer_id(self) -> str:
        """The row of the pause after the attempt before."""
        return f"{self.id}#{self.attempt - 1}~"

    @property
    def delay_sec(self) -> float | None:
        """The pause, while it lasts."""
        return self.pause_sec

    def failed(self, pause_sec: float) -> None:
        """An attempt failed; the next one is due after a pause."""
        self.attempt += 1
        self.pause_sec = pause_sec
        self.running = False

    def resume(self) -> None:
        """The pause is over."""
        self.stop()
        self.pause_sec = 0.0


@dataclass(slots=True, eq=False)
class EffectStep:
    """Something to be written."""

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
        self.replayed = replayed  # made while rows were fed, or waited for once: there may be a row with its time

    @property
    def timer_id(self) -> str:
        """The step's own."""
        return self.id

    @property
    def delay_sec(self) -> float | None:
        """As the body asked for."""
        return self.timer.delay

    def stop(self) -> None:
        """Forget the time; there may be a row by now."""
        super().stop()
        self.replayed = True


class WaitStep(Timed):
    """A wait for the next message of one of its channels that matches `where`.

    The database judges that. Histories of earlier versions have rows of messages that do not match: each of them is
    passed over, and the next row has the next `round` in its id.
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
        """The time-out."""
        return None if self.after is None else self.after.total_seconds()

    @property
    def awaited(self) -> str:
        """What is waited for, in words."""
        kind, name = ("message on channel", self.channels[0]) if self.kind is None else ("event of type", self.kind)
        return f"{kind} {names.public(name)!r}"

    def ids(self) -> dict[str, str]:
        """The rows that may come, and the channel of each."""
        base = self.id if self.round == 1 else f"{self.id}#{self.round}"
        return {base + "@" * place: channel for place, channel in enumerate(self.channels)}

    def waits(self, until: datetime | None) -> list[ChannelWait]:
        """What is registered: one wait for each channel. The first one has the time-out, known by now or not."""
        times: tuple[datetime | None, timedelta | None] = (None, self.after) if until is None else (until, None)
        found = []
        for id, channel in self.ids().items():
            found.append(ChannelWait(channel, id, *times, where=self.where))
            times = None, None
        return found

    def read(self, id: str, event: HistoryEvent) -> tuple[Any, bool]:
        """What a row says, and whether it is what is waited for."""
        message = message_of(event, self.ids()[id])
        if self.where is not None and not matches(message.data, self.where):
            return None, False
        typed = message if self.hint is None else _typed(message, self.hint, self.awaited)
        return (typed if self.kind is None else event_of(typed, self.kind)), True

    def pass_over(self) -> None:
        """Go on to the next message."""
        self.round += 1


def message_of(event: HistoryEvent, channel: str) -> Message[Any]:
    """A recorded message; one that is not JSON has bytes for data."""
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
    """A message of a channel that is named after an event type."""
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
