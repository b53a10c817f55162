"""Waiting: timers, messages and pauses of a run, while it holds its lease and when it gives it up.

While something keeps a run from giving up its lease, it takes its own messages and timers. Long times are rows all the
same, so that a crash does not begin them anew. When nothing is left to do but wait, one transaction registers all waits
and releases the lease.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from perdure.engine.codec import encode
from perdure.engine.starting import DEADLINE
from perdure.engine.steps import ActivityStep, Timed, TimerStep, WaitStep
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
    from perdure.engine.run import Run

STEPS_SHOWN = 100  # of those that a run waits for, in a hook event
SHORT_SEC = 1.0  # a pause up to this is kept in memory; a longer one is a row
EXPIRED = "~expired"  # the row of a deadline that passed while the run waited
TIMED_OUT = b'{"error_type": "TimeoutError"}'
UNTIL = "~until:"  # the rows of time-outs that began while another branch was at work


class Waits:
    """What one run waits for."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._hinted = False
        self._listening: set[str] = set()
        self.ends_at: datetime | None = None  # the deadline of the run, by the database's clock
        self.expired = False
        self._deadline: asyncio.TimerHandle | None = None
        self._until: dict[str, datetime] = {}

    def hint(self) -> None:
        """There may be a message or a timer."""
        if self._run.body.waits and not self._hinted:
            self._hinted = True
            self._run.post(self.look)

    @property
    def short(self) -> bool:
        """Whether a timer is so short that it is not worth giving up the lease."""
        return any(map(_is_short, self._run.body.timers.values()))

    def watch_deadline(self) -> None:
        """Keep the time of the run itself, while it is driven."""
        if self.ends_at is not None and self._deadline is None:
            left = (self.ends_at - self._run.host.now()).total_seconds()
            self._deadline = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)

    def _expire(self) -> None:
        self.expired = True
        self._run.post(nothing)

    def stop(self) -> None:
        """Leave the time to the rows."""
        for step in (*self._run.body.timers.values(), *self._run.body.waits.values(), *self.pauses()):
            step.stop()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    async def look(self) -> None:
        """Take messages and timers of rows for the run itself, while it holds its lease."""
        self._hinted = False
        await self._run.journal.durable()
        for wait in await self._pending():
            if self._is_wanted(wait):
                await self._take_message(wait)
        for timed in self.registered():
            if timed in self.registered():
                await self._take_timer(timed.timer_id)

    async def _pending(self) -> list[ChannelWait]:
        """The waits that may have a message; a read, for on SQLite a write in vain would be a hint to look again."""
        waits = await self._channel_waits()
        found = set(await self._run.host.storage.pending_waits(self._run.id, waits))
        return [wait for wait in waits if wait.activity_id in found]

    async def _channel_waits(self) -> list[ChannelWait]:
        """What the body waits for, in the order in which it asked; a message goes to the first that it matches."""
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
        """An event's channels are subscribed to by waiting for it; the same again changes nothing."""
        if step.kind is None or channel in self._listening:
            return
        mode = ChannelMode.BROADCAST if channel == step.kind else ChannelMode.DIRECT
        await self._run.host.storage.subscribe_to_channel(self._run.id, step.kind, mode, lease=self._run.lease)
        self._listening.add(channel)

    def pauses(self) -> list[ActivityStep]:
        return [step for step in self._run.body.activities.values() if step.pause_sec]

    async def suspend(self) -> bool:
        """Give the lease up until the first wait is over; False if one is already, and the body was told."""
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
        """Whether the body, which was told of others meanwhile, still waits for this."""
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
        """What was ready when the run wanted to wait."""
        if isinstance(wait, TimerWait):
            await self._take_timer(wait.timer_id)
            return
        before = self._run.journal.last_id
        await self._take_message(wait)
        if self._run.journal.last_id == before:
            await self._expire_wait(wait)

    async def _expire_wait(self, wait: ChannelWait) -> None:
        """No message came. If the wait has no row yet, its time-out is known from an earlier worker."""
        storage, lease = self._run.host.storage, self._run.lease
        if await storage.expire_channel_wait(self._run.id, wait.channel, lease=lease, activity_id=wait.activity_id):
            await self._run.catch_up()
        elif wait.timeout_at is not None and wait.timeout_at <= self._run.host.now():
            self._run.tell(wait.activity_id, HistoryEventType.MESSAGE_TIMEOUT, TIMED_OUT)

    async def keep_time(self) -> None:
        """While an activity keeps the run from waiting: long times are rows all the same, short ones are kept here."""
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
        """A wait that is registered has its time in its row."""
        if any(wait.id not in self._until for wait in waits):
            rows = await self._run.host.storage.get_channel_waits(self._run.id)
            known = {row.activity_id: row.timeout_at for row in rows}
            for wait in waits:
                timeout_at = known.get(next(iter(wait.ids())))
                if timeout_at is not None:
                    self._until.setdefault(wait.id, timeout_at)

    def _watch_wait(self, wait: WaitStep, seconds: float) -> None:
        """Keep a wait's time while the run is driven. That of a long one which has no row is recorded."""
        now = self._run.host.now()
        if seconds > SHORT_SEC and wait.id not in self._until:
            self._until[wait.id] = now + _span(seconds)
            self._run.note(UNTIL + wait.id, "Until", encode({"at": self._until[wait.id].isoformat()}))
        if wait.id in self._until:
            seconds = max(0.0, (self._until[wait.id] - now).total_seconds())
        wait.handle = asyncio.get_running_loop().call_later(seconds, self._run.post, self._timeout(wait))

    def remember(self, event: HistoryEvent) -> None:
        """A time-out that began before this run was driven here."""
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
    """Wakes the inbox."""
