"""The waits of a run for timers, messages and retries, while it holds its lease and when it releases it.

While a run keeps its lease, for example because an activity runs, it polls for its own messages and timers. Long
timeouts are stored in the database even then, so that a crash does not reset them. When a run only waits, one
transaction registers all waits and releases the lease.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from perdure.engine.execution.attempts import SHORT_SEC
from perdure.engine.execution.clock import Clock, Timer
from perdure.engine.execution.inbox import Handle, nothing
from perdure.engine.execution.progress import Progress, StepsInProgress
from perdure.engine.execution.recorder import Recorder
from perdure.engine.execution.timed_steps import Timed, TimedSteps, is_short
from perdure.engine.history import ids
from perdure.engine.history.records import TimerFired, Until, WaitTimedOut
from perdure.engine.replay.steps import ActivityStep, TimerStep, WaitStep
from perdure.model.records import ChannelMessage, ChannelMode, ChannelWait, TimerSubscription, TimerWait, Wait
from perdure.storage.contract import Storage

FEW = 10  # registered timers that are polled one by one
NEARLY = timedelta(seconds=0.1)  # the database decides what is due; its clock is only estimated here


class Waits:
    """The waits of one run."""

    def __init__(
        self,
        run_id: str,
        storage: Storage,
        recorder: Recorder,
        steps: StepsInProgress,
        expects: Callable[[str], bool],
        post: Callable[[Handle], None],
        now: Callable[[], datetime],
        clock: Clock,
    ) -> None:
        self._run_id = run_id
        self._storage = storage
        self._recorder = recorder
        self._steps = steps
        self._expects = expects  # whether the body waits for a row with this id
        self._post = post
        self._now = now
        self._clock = clock
        self._hinted = False
        self._listening: set[str] = set()
        self._timed_steps: TimedSteps | None = None  # most runs have none
        self._deadline: Timer | None = None

    @property
    def _timed(self) -> TimedSteps:
        if self._timed_steps is None:
            self._timed_steps = TimedSteps(self._steps)
        return self._timed_steps

    def hint(self) -> None:
        """Poll soon, because there may be a message or a timer."""
        if self._steps.waits and not self._hinted:
            self._hinted = True
            self._post(self.look)

    @property
    def short(self) -> bool:
        """Return whether a timer is too short to release the lease for it."""
        return bool(self._steps.timers) and self._timed.any_short()

    @property
    def polling(self) -> bool:
        """Return whether the run has to poll the database while it keeps its lease."""
        steps = self._steps
        return bool(steps.waits or ((steps.timers or steps.pauses) and self._timed.any_registered()))

    def watch_deadline(self) -> None:
        """Watch the timeout of the run itself while it is executed."""
        ends_at = self._recorder.facts.ends_at
        if ends_at is not None and self._deadline is None:
            left = max(0.0, (ends_at - self._now()).total_seconds())
            self._deadline = self._clock.call_later(left, self._expire)

    def _expire(self) -> None:
        self._recorder.facts.expired = True
        self._post(nothing)

    def stop(self) -> None:
        """Stop all timers in memory; rows in the database keep the time from here on."""
        self._steps.stop_timers()
        if self._timed_steps is not None:
            self._timed_steps.clear()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # While the run holds its lease.

    async def look(self) -> None:
        """Poll for messages and timers in the database while the run holds its lease."""
        self._hinted = False
        await self._recorder.durable()
        for wait in await self._pending():
            if self._is_wanted(wait):
                await self._take_message(wait)
        for timed in await self._due():
            if timed.is_open and timed.registered:
                await self._take_timer(_timer_id(timed))

    async def _due(self) -> list[Timed]:
        """Return the timers that may be due. Of many, one statement reads which these are."""
        registered = self._timed.registered()
        if len(registered) <= FEW:
            return registered
        soon = self._now() + NEARLY
        waits = await self._storage.get_waits([self._run_id])
        due = {wait.activity_id for wait in waits if wait.until is not None and wait.until <= soon}
        return [timed for timed in registered if _timer_id(timed) in due]

    async def _pending(self) -> list[ChannelWait]:
        """Return the waits that may have a message, without a write: on SQLite a write would trigger another poll."""
        for progress in list(self._steps.waits.values()):
            await self._listen(progress.step)
        waits = self._channel_waits()
        found = set(await self._storage.pending_waits(self._run_id, waits))
        return [wait for wait in waits if wait.activity_id in found]

    def _channel_waits(self) -> list[ChannelWait]:
        """Return the body's waits for messages in the order of their calls; a message goes to the first match."""
        until = self._recorder.facts.until
        return [
            wait if step.kind is None else replace(wait, subscribe=_mode(step, wait.channel))
            for step in (progress.step for progress in self._steps.waits.values())
            for wait in step.waits(until.get(step.id))
        ]

    async def _listen(self, step: WaitStep) -> None:
        """Subscribe to the channels of an event before the first poll; a suspension does so by itself."""
        if step.kind is None:
            return
        for channel in step.channels:
            if channel not in self._listening:
                mode, lease = _mode(step, channel), self._recorder.lease
                await self._storage.subscribe_to_channel(self._run_id, step.kind, mode, lease=lease)
                self._listening.add(channel)

    async def _take_message(self, wait: ChannelWait) -> None:
        await self._recorder.durable()
        offered, lease = ChannelMessage(0, wait.channel, ""), self._recorder.lease
        if await self._storage.deliver_channel_message(
            self._run_id, offered, lease=lease, activity_id=wait.activity_id, where=wait.where
        ):
            await self._catch_up()

    async def _take_timer(self, id: str) -> None:
        await self._recorder.durable()
        if await self._storage.fire_timer(self._run_id, id, lease=self._recorder.lease):
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Read what the database has recorded for this run."""
        self._recorder.progress()
        await self._recorder.catch_up()

    # Keeping time in this process.

    async def keep_time(self) -> None:
        """Start timers while the run keeps its lease: long ones in the database as well, short ones only in memory."""
        timers, pauses, waits = self._timed.take_unwatched()
        for timer in timers:
            if is_short(timer):
                timer.watch(self._clock, timer.step.delay_sec, self._post, self._expiry(timer))
            else:
                await self._watch_row(timer, timer.step.delay_sec)
        for pause in pauses:
            await self._watch_row(pause, pause.step.pause_sec)
        unwatched = [(wait, wait.step.delay_sec) for wait in waits if wait.step.delay_sec is not None]
        await self._learn_times([wait.step for wait, seconds in unwatched if seconds > SHORT_SEC])
        for wait, seconds in unwatched:
            self._watch_wait(wait, seconds)

    async def _watch_row(self, timed: Timed, seconds: float) -> None:
        """Start a timer whose row in the database decides when it is due."""
        id = _timer_id(timed)
        timer = TimerSubscription(self._run_id, id, activity_id=id)
        after, lease = timedelta(seconds=seconds), self._recorder.lease
        await self._storage.register_timer_subscription(timer, after=after, lease=lease)
        timed.registered = True
        self._timed.add_registered(timed)
        timed.watch(self._clock, seconds, self._post, self.look)

    async def _learn_times(self, waits: list[WaitStep]) -> None:
        """Read from their rows when the timeouts of registered waits end."""
        until = self._recorder.facts.until
        if any(wait.id not in until for wait in waits):
            rows = await self._storage.get_channel_waits(self._run_id)
            known = {row.activity_id: row.timeout_at for row in rows}
            for wait in waits:
                timeout_at = known.get(wait.row_ids()[0])
                if timeout_at is not None:
                    until.setdefault(wait.id, timeout_at)

    def _watch_wait(self, progress: Progress[WaitStep], seconds: float) -> None:
        """Start the timer of a wait. If it is long and has no row, record when it ends."""
        now, until, id = self._now(), self._recorder.facts.until, progress.step.id
        if seconds > SHORT_SEC and id not in until:
            until[id] = now + timedelta(seconds=seconds)
            self._recorder.note(Until(id, until[id]))
        if id in until:
            seconds = max(0.0, (until[id] - now).total_seconds())
        progress.watch(self._clock, seconds, self._post, self._timeout(progress))

    def _expiry(self, progress: Progress[TimerStep]) -> Handle:
        async def expire() -> None:
            if progress.is_open:
                self._recorder.record(TimerFired(progress.step.id))

        return expire

    def _timeout(self, progress: Progress[WaitStep]) -> Handle:
        async def expire() -> None:
            await self.look()
            if progress.is_open:
                self._recorder.record(WaitTimedOut(progress.step.id, progress.step.round))

        return expire

    # When the run only waits.

    async def registrations(self) -> list[Wait]:
        """Return everything that the run waits for, to be registered when it releases its lease."""
        waits: list[Wait] = []
        for timer in self._steps.timers.values():
            waits.append(_timer_wait(timer, timer.step.delay_sec))
        for pause in self._steps.pauses.values():
            waits.append(_timer_wait(pause, pause.step.pause_sec))
        if self._recorder.facts.ends_at is not None:
            waits.append(TimerWait(ids.DEADLINE, ids.EXPIRED, self._recorder.facts.ends_at))
        waits += self._channel_waits()
        return waits

    async def take_ready(self, waits: list[Wait], ready: set[str]) -> None:
        """Handle the waits that were over already when the run tried to release its lease."""
        for wait in waits:
            if wait.activity_id in ready and self._is_wanted(wait):
                if isinstance(wait, TimerWait):
                    await self._take_timer(wait.timer_id)
                else:
                    await self._take_or_expire(wait)

    def _is_wanted(self, wait: Wait) -> bool:
        """Return whether the body still waits for this, after it has handled others in the meantime."""
        return wait.activity_id == ids.EXPIRED or self._expects(wait.activity_id)

    async def _take_or_expire(self, wait: ChannelWait) -> None:
        """Take a message or time out. If the wait has no row, an earlier worker recorded when its timeout ends."""
        before = self._recorder.last_id
        await self._take_message(wait)
        if self._recorder.last_id != before:
            return
        id, lease = wait.activity_id, self._recorder.lease
        if await self._storage.expire_channel_wait(self._run_id, wait.channel, lease=lease, activity_id=id):
            await self._recorder.catch_up()
        elif wait.timeout_at is not None and wait.timeout_at <= self._now():
            self._recorder.record(WaitTimedOut(*ids.split_message(id)))


def _mode(step: WaitStep, channel: str) -> ChannelMode:
    return ChannelMode.BROADCAST if channel == step.kind else ChannelMode.DIRECT


def _timer_id(timed: Timed) -> str:
    """Return the id of the row that keeps the time, and of the row that records its end."""
    step = timed.step
    return step.pause_id if isinstance(step, ActivityStep) else step.id


def _timer_wait(timed: Timed, seconds: float) -> TimerWait:
    id = _timer_id(timed)
    return TimerWait(id, id, after=timedelta(seconds=seconds))
