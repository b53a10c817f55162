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
from perdure.errors import EngineError
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

SHORT_SEC = 1.0  # a pause up to this is kept in memory; a longer one is a row
WAITS_MAX = 1000
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
        for wait in list(self._run.body.waits.values()):
            for id, channel in wait.ids().items():
                if wait.id in self._run.body.waits and id in wait.ids():
                    await self._take_message(id, channel)
        for step in self.registered():
            if step in self.registered():
                await self._take_timer(step.timer_id)

    async def _take_message(self, id: str, channel: str) -> None:
        await self._run.journal.durable()
        await self._listen(channel)
        storage = self._run.host.storage
        if not await storage.get_pending_channel_messages_for_instance(self._run.id, channel, limit=1):
            return  # a read first: on SQLite a write in vain would be a hint to look again
        offered, lease = ChannelMessage(0, channel, ""), self._run.lease
        if await storage.deliver_channel_message(self._run.id, offered, lease=lease, activity_id=id):
            self._run.progressed = True
            await self._run.catch_up()

    async def _take_timer(self, id: str) -> None:
        await self._run.journal.durable()
        if await self._run.host.storage.fire_timer(self._run.id, id, lease=self._run.lease):
            self._run.progressed = True
            await self._run.catch_up()

    async def _listen(self, channel: str) -> None:
        """An event's channels are subscribed to by waiting for it; the same again changes nothing."""
        wait = next((wait for wait in self._run.body.waits.values() if wait.kind and channel in wait.channels), None)
        if wait is None or wait.kind is None or channel in self._listening:
            return
        mode = ChannelMode.BROADCAST if channel == wait.kind else ChannelMode.DIRECT
        await self._run.host.storage.subscribe_to_channel(self._run.id, wait.kind, mode, lease=self._run.lease)
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
            self._run.host.happened("wait", self._run)
            return True
        known = self._run.journal.last_id
        for wait in waits:
            if wait.activity_id in found.ready and self._run.journal.last_id == known:
                await self._take(wait)
        return False

    async def _all_waits(self) -> list[Wait]:
        waits: list[Wait] = [
            TimerWait(step.timer_id, step.timer_id, after=_span(step.delay_sec or 0))
            for step in (*self._run.body.timers.values(), *self.pauses())
        ]
        if self.ends_at is not None:
            waits.append(TimerWait(DEADLINE, EXPIRED, self.ends_at))
        taken: set[str] = set()
        for wait in self._run.body.waits.values():
            for id, channel in wait.ids().items():
                if channel not in taken:  # of several that wait for one channel the first is served
                    taken.add(channel)
                    await self._listen(channel)
                    waits.append(ChannelWait(channel, id, *self._time_of(wait)))
        if len(waits) > WAITS_MAX:
            raise EngineError(f"{self._run.id} waits for {len(waits)} things at once; the limit is {WAITS_MAX}")
        return waits

    def _time_of(self, wait: WaitStep) -> tuple[datetime | None, timedelta | None]:
        """When a wait's time is up, if that is known, or how long it lasts."""
        until = self._until.get(wait.id)
        return (None, wait.after) if until is None else (until, None)

    async def _take(self, wait: Wait) -> None:
        """What was ready when the run wanted to wait."""
        if isinstance(wait, TimerWait):
            await self._take_timer(wait.timer_id)
            return
        before = self._run.journal.last_id
        await self._take_message(wait.activity_id, wait.channel)
        if self._run.journal.last_id == before:
            await self._expire_wait(wait)

    async def _expire_wait(self, wait: ChannelWait) -> None:
        """No message came. The row may still have another wait, one that is over: its time-out is nobody's any more."""
        storage = self._run.host.storage
        row = await storage.get_channel_subscription(self._run.id, wait.channel)
        if row is not None and row.activity_id == wait.activity_id:
            if await storage.expire_channel_wait(self._run.id, wait.channel, lease=self._run.lease):
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
        for wait in list(self._run.body.waits.values()):
            if wait.handle is None and wait.delay_sec is not None:
                await self._watch_wait(wait, wait.delay_sec)

    async def _watch_wait(self, wait: WaitStep, seconds: float) -> None:
        """A wait's time is in its row. While the run is driven there may be none: that of a long one is recorded."""
        now = self._run.host.now()
        if seconds > SHORT_SEC and wait.id not in self._until:
            id, channel = next(iter(wait.ids().items()))
            row = await self._run.host.storage.get_channel_subscription(self._run.id, channel)
            if row is not None and row.activity_id == id and row.timeout_at is not None:
                self._until[wait.id] = row.timeout_at
            else:
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
