"""The waits of a run for timers, messages and retries, while it holds its lease and when it releases it.

While a run keeps its lease, for example because an activity runs, it polls for its own messages and timers. Long
timeouts are stored in the database even then, so that a crash does not reset them. When a run only waits, one
transaction registers all waits and releases the lease.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from perdure.engine.history.codec import encode
from perdure.engine.replay.steps import ActivityStep, Timed, TimerStep, WaitStep
from perdure.engine.starting import DEADLINE
from perdure.hooks import RunWaiting
from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    HistoryEvent,
    HistoryEventType,
    TimerSubscription,
    TimerWait,
)
from perdure.storage.contract import Wait

if TYPE_CHECKING:
    from perdure.engine.execution.run import Run

STEPS_SHOWN = 100  # maximum number of steps in a RunWaiting event
SHORT_SEC = 1.0  # shorter timers are kept in memory, longer ones in the database
EXPIRED = "~expired"  # the row that records that the run's timeout passed while it waited
TIMED_OUT = b'{"error_type": "TimeoutError"}'
UNTIL = "~until:"  # rows with the ends of timeouts that started while the run kept its lease


class Waits:
    """The waits of one run."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._hinted = False
        self._listening: set[str] = set()
        self.ends_at: datetime | None = None  # when the run's timeout passes, by the database's clock
        self.expired = False
        self._deadline: asyncio.TimerHandle | None = None
        self._until: dict[str, datetime] = {}

    def hint(self) -> None:
        """Poll soon, because there may be a message or a timer."""
        if self._run.body.waits and not self._hinted:
            self._hinted = True
            self._run.post(self.look)

    @property
    def short(self) -> bool:
        """Return whether a timer is too short to release the lease for it."""
        return any(map(_is_short, self._run.body.timers.values()))

    def watch_deadline(self) -> None:
        """Watch the timeout of the run itself while it is executed."""
        if self.ends_at is not None and self._deadline is None:
            left = (self.ends_at - self._run.host.now()).total_seconds()
            self._deadline = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)

    def _expire(self) -> None:
        self.expired = True
        self._run.post(nothing)

    def stop(self) -> None:
        """Stop all timers in memory; rows in the database keep the time from here on."""
        for step in (*self._run.body.timers.values(), *self._run.body.waits.values(), *self.pauses()):
            step.stop()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    async def look(self) -> None:
        """Poll for messages and timers in the database while the run holds its lease."""
        self._hinted = False
        await self._run.journal.durable()
        for wait in await self._pending():
            if self._is_wanted(wait):
                await self._take_message(wait)
        for timed in self.registered():
            if timed in self.registered():
                await self._take_timer(timed.timer_id)

    async def _pending(self) -> list[ChannelWait]:
        """Return the waits that may have a message, without a write: on SQLite a write would trigger another poll."""
        waits = await self._channel_waits()
        found = set(await self._run.host.storage.pending_waits(self._run.id, waits))
        return [wait for wait in waits if wait.activity_id in found]

    async def _channel_waits(self) -> list[ChannelWait]:
        """Return the body's waits for messages in the order of their calls; a message goes to the first match."""
        found = []
        for step in list(self._run.body.waits.values()):
            for wait in step.waits(self._until.get(step.id)):
                await self._listen(step, wait.channel)
                found.append(wait)
        return found

    async def _take_message(self, wait: ChannelWait) -> None:
        await self._run.journal.durable()
        offered, lease = ChannelMessage(0, wait.channel, ""), self._run.lease
        if await self._run.host.storage.deliver_channel_message(
            self._run.id, offered, lease=lease, activity_id=wait.activity_id, where=wait.where
        ):
            self._run.progressed = True
            await self._run.catch_up()

    async def _take_timer(self, id: str) -> None:
        await self._run.journal.durable()
        if await self._run.host.storage.fire_timer(self._run.id, id, lease=self._run.lease):
            self._run.progressed = True
            await self._run.catch_up()

    async def _listen(self, step: WaitStep, channel: str) -> None:
        """Subscribe to the channel of an event, which happens with the first wait; later calls change nothing."""
        if step.kind is None or channel in self._listening:
            return
        mode = ChannelMode.BROADCAST if channel == step.kind else ChannelMode.DIRECT
        await self._run.host.storage.subscribe_to_channel(self._run.id, step.kind, mode, lease=self._run.lease)
        self._listening.add(channel)

    def pauses(self) -> list[ActivityStep]:
        return [step for step in self._run.body.activities.values() if step.pause_sec]

    async def suspend(self) -> bool:
        """Register all waits and release the lease; return False if a wait is over already, after handling it."""
        await self._run.journal.durable()
        waits = await self._all_waits()
        self._run.ending = True
        found = await self._run.host.suspensions((self._run.lease, waits))
        self._run.ending = found.suspended
        if found.suspended:
            steps = tuple(wait.activity_id for wait in waits[:STEPS_SHOWN] if wait.activity_id != EXPIRED)
            self._run.host.happened(RunWaiting(*self._run.about(), steps))
            return True
        ready = set(found.ready)
        for wait in waits:
            if wait.activity_id in ready and self._is_wanted(wait):
                await self._take(wait)
        return False

    def _is_wanted(self, wait: Wait) -> bool:
        """Return whether the body still waits for this, after it has handled others in the meantime."""
        return wait.activity_id == EXPIRED or self._run.body.expects(wait.activity_id)

    async def _all_waits(self) -> list[Wait]:
        waits: list[Wait] = [
            TimerWait(step.timer_id, step.timer_id, after=_span(step.delay_sec or 0))
            for step in (*self._run.body.timers.values(), *self.pauses())
        ]
        if self.ends_at is not None:
            waits.append(TimerWait(DEADLINE, EXPIRED, self.ends_at))
        waits += await self._channel_waits()
        return waits

    async def _take(self, wait: Wait) -> None:
        """Handle a wait that was over already when the run tried to release its lease."""
        if isinstance(wait, TimerWait):
            await self._take_timer(wait.timer_id)
            return
        before = self._run.journal.last_id
        await self._take_message(wait)
        if self._run.journal.last_id == before:
            await self._expire_wait(wait)

    async def _expire_wait(self, wait: ChannelWait) -> None:
        """Time out a wait. If it has no row, an earlier worker recorded when its timeout ends."""
        storage, lease = self._run.host.storage, self._run.lease
        if await storage.expire_channel_wait(self._run.id, wait.channel, lease=lease, activity_id=wait.activity_id):
            await self._run.catch_up()
        elif wait.timeout_at is not None and wait.timeout_at <= self._run.host.now():
            self._run.tell(wait.activity_id, HistoryEventType.MESSAGE_TIMEOUT, TIMED_OUT)

    async def keep_time(self) -> None:
        """Start timers while the run keeps its lease: long ones in the database as well, short ones only in memory."""
        for step in list(self._run.body.timers.values()):
            if step.handle is None:
                short = _is_short(step)
                await self._watch(step, self._expiry(step) if short else self.look, row=not short)
        for pause in self.pauses():
            if pause.handle is None:
                await self._watch(pause, self.look, row=True)
        unwatched = [
            (wait, wait.delay_sec)
            for wait in self._run.body.waits.values()
            if wait.handle is None and wait.delay_sec is not None
        ]
        await self._learn_times([wait for wait, seconds in unwatched if seconds > SHORT_SEC])
        for wait, seconds in unwatched:
            self._watch_wait(wait, seconds)

    async def _learn_times(self, waits: list[WaitStep]) -> None:
        """Read from their rows when the timeouts of registered waits end."""
        if any(wait.id not in self._until for wait in waits):
            rows = await self._run.host.storage.get_channel_waits(self._run.id)
            known = {row.activity_id: row.timeout_at for row in rows}
            for wait in waits:
                timeout_at = known.get(next(iter(wait.ids())))
                if timeout_at is not None:
                    self._until.setdefault(wait.id, timeout_at)

    def _watch_wait(self, wait: WaitStep, seconds: float) -> None:
        """Start the timer of a wait. If it is long and has no row, record when it ends."""
        now = self._run.host.now()
        if seconds > SHORT_SEC and wait.id not in self._until:
            self._until[wait.id] = now + _span(seconds)
            self._run.note(UNTIL + wait.id, "Until", encode({"at": self._until[wait.id].isoformat()}))
        if wait.id in self._until:
            seconds = max(0.0, (self._until[wait.id] - now).total_seconds())
        wait.handle = asyncio.get_running_loop().call_later(seconds, self._run.post, self._timeout(wait))

    def remember(self, event: HistoryEvent) -> None:
        """Read when a timeout ends that another execution of the run started."""
        at = json.loads(event.event_data or b"{}")["at"]
        self._until[event.activity_id.removeprefix(UNTIL)] = datetime.fromisoformat(at)

    async def _watch(self, step: Timed, due: Callable[[], Awaitable[None]], *, row: bool) -> None:
        if row:
            timer = TimerSubscription(self._run.id, step.timer_id, activity_id=step.timer_id)
            after = _span(step.delay_sec or 0)
            await self._run.host.storage.register_timer_subscription(timer, after=after, lease=self._run.lease)
            step.registered = True
        step.handle = asyncio.get_running_loop().call_later(step.delay_sec or 0, self._run.post, due)

    def registered(self) -> list[Timed]:
        timed: list[Timed] = [*self._run.body.timers.values(), *self.pauses()]
        return [step for step in timed if step.registered]

    def _expiry(self, step: TimerStep) -> Callable[[], Awaitable[None]]:
        async def expire() -> None:
            if step.timer in self._run.body.timers:
                self._run.tell(step.id, HistoryEventType.TIMER_EXPIRED, b'{"result": null}')

        return expire

    def _timeout(self, wait: WaitStep) -> Callable[[], Awaitable[None]]:
        async def expire() -> None:
            await self.look()
            if wait.id in self._run.body.waits:
                self._run.tell(next(iter(wait.ids())), HistoryEventType.MESSAGE_TIMEOUT, TIMED_OUT)

        return expire


def _is_short(step: TimerStep) -> bool:
    return step.timer.delay <= SHORT_SEC and not step.replayed


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


async def nothing() -> None:
    """Do nothing but wake the run's inbox."""
