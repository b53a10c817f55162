"""A run: one instance under one lease, from what its history says to where it can go no further.

Whatever completes reaches the body through one inbox, one thing after the other: it is recorded, then fed. Records go
to the journal without waiting. What the database decides (a message, a timer that has a row, an effect) waits for the
journal first, so that the order of the rows is the order in which the body was told.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol

from perdure.engine import children
from perdure.engine.ambient import ActivityInfo
from perdure.engine.body import ATTEMPT_FAILED, OWN, STARTED, STATE, VALUES, Body, Effect, Recur
from perdure.engine.codec import encode
from perdure.engine.definitions import Activity, Workflow
from perdure.engine.failures import encode_failure
from perdure.engine.journal import Entry, Journal, Shared
from perdure.engine.starting import DEADLINE
from perdure.engine.steps import ActivityStep, EffectStep, Timed, TimerStep, WaitStep
from perdure.errors import (
    ChannelModeConflictError,
    EngineError,
    InstanceNotFoundError,
    LeaseLostError,
    LimitError,
    NotSubscribedError,
    StorageError,
)
from perdure.model import limits
from perdure.model.records import (
    ChannelMessage,
    ChannelMode,
    ChannelWait,
    CompensationEntry,
    HistoryEvent,
    HistoryEventType,
    Lease,
    Suspension,
    TimerSubscription,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage, Wait

SHORT_SEC = 1.0  # a pause up to this is kept in memory; a longer one is a row
LOOK_SEC = 1.0  # how often a run that cannot wait, for an activity is under way, looks for its messages
STUBBORN_SEC = 10.0  # how long an activity that is cancelled may take to end
PAGE = 1000
WAITS_MAX = 1000
FAILED_ID = "workflow_failed"
EXPIRED = "~expired"  # the row of a deadline that passed while the run waited
# The caller's mistakes, which the body should hear of; anything else is the database's trouble.
REFUSALS = (ChannelModeConflictError, InstanceNotFoundError, LimitError, NotSubscribedError)


class Drained(Exception):
    """The worker stops, and the run would begin something new: it is handed over as it stands."""


class End(Enum):
    """How driving a run ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATING = "compensating"
    RECURRED = "recurred"
    CANCELLING = "cancelling"
    SUSPENDED = "suspended"


@dataclass(slots=True)
class Attempt:
    """An activity's code to be run by the host."""

    activity: Activity[..., Any]
    payload: bytes
    info: ActivityInfo
    check: Callable[[], None] = lambda: None  # called right before the code: raises if it must not begin any more


@dataclass(slots=True)
class Done:
    """What came of an attempt: a result as JSON, or an error; and what its code sent, to be committed with it."""

    result: bytes = b"null"
    error: BaseException | None = None
    effects: tuple[Effect, ...] = ()


Record = Callable[[Storage, bytes, list[Effect]], Awaitable[None]]


class Driven(Protocol):
    """What a worker drives: a run, or its rollback."""

    id: str
    workflow: Workflow[..., Any]
    generation: str | None
    deadline: float  # of the lease, on the monotonic clock
    progressed: bool
    resumed: bool

    async def drive(self, lease: Lease) -> End:
        """Go on until it can go no further. Whatever is raised ends the try."""

    async def fail(self, error: Exception) -> None:
        """End it as failed: it was tried often enough."""

    def drain(self) -> None:
        """Begin nothing new."""

    def hint(self) -> None:
        """There may be something that is waited for."""

    def evict(self) -> None:
        """Let go of what is in memory."""


class Host(Protocol):
    """What a run needs of its worker."""

    storage: Storage
    records: Shared[Entry, int]
    completions: "Shared[tuple[Lease, bytes], None]"
    suspensions: "Shared[tuple[Lease, list[Wait]], Suspension]"

    def now(self) -> datetime:
        """The database's clock, as far as it is known here."""

    def wake(self) -> None:
        """Something was written that there may be work because of."""

    def transact(self, attempt: Attempt, record: "Record") -> Coroutine[Any, Any, Done]:
        """Run an attempt's code in a transaction that ends with its record."""

    def execute(self, attempt: Attempt) -> Coroutine[Any, Any, Done]:
        """Run an attempt's code; an error is part of what it gives, only a cancellation is raised."""

    def happened(self, what: str, run: "Driven", **about: object) -> None:
        """Tell hooks and logs of what is durable."""


class Run:
    """One instance, driven. It may be driven again later, from where it stands, under another lease."""

    def __init__(self, host: Host, workflow: Workflow[..., Any], instance: WorkflowInstance) -> None:
        self.host = host
        self.id = instance.instance_id
        self.workflow = workflow
        self.body = Body(workflow, self.id, instance.input_data)
        self.generation = instance.continued_from
        self.parent: dict[str, str] | None = None
        self._ends_at: datetime | None = None  # the deadline of the run, by the database's clock
        self._expired = False
        self._deadline_watch: asyncio.TimerHandle | None = None
        self.journal: Journal
        self.deadline = 0.0  # of the lease, on the monotonic clock
        self.last_id = 0
        self.progressed = False
        self.resumed = False  # driven before: the body is a copy in memory
        self._draining = False
        self._hinted = False
        self._inbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: set[str] = set()

    @property
    def lease(self) -> Lease:
        """The lease this run is driven under."""
        return self.journal.lease

    # Driving.

    async def drive(self, lease: Lease) -> End:
        """Go on until the run is finished or waits. Whatever is raised ends the try, and the run is as it was."""
        self.journal = Journal(self.host.records, lease, self.last_id)
        self.progressed = False
        begun = self.body.begun
        try:
            await self._catch_up()
            self.host.happened("resume" if begun or self.journal.last_id else "start", self)
            self._watch_deadline()
            while True:
                self._record_taken()
                if self.body.done:
                    return await self._finish()
                if self._expired:
                    return await self._cancel("its time is up")
                if not self._draining or not self._wanting():
                    self._begin_steps()
                elif not self._under_way():
                    await self.journal.durable()
                    raise Drained(self.id)
                if not self._under_way():
                    if await self._suspend():
                        return End.SUSPENDED
                    continue
                await self._keep_time()
                await self._next()
        finally:
            self.last_id = self.journal.last_id
            await self._put_down()

    async def _next(self) -> None:
        """Take the next thing from the inbox, or look for messages now and then."""
        wanting = self.body.waits or self._registered()
        try:
            async with asyncio.timeout(LOOK_SEC if wanting else None):
                handle = await self._inbox.get()
        except TimeoutError:
            handle = self._look
        await handle()

    def drain(self) -> None:
        """Begin nothing new; what runs may finish."""
        self._draining = True
        self._inbox.put_nowait(_nothing)

    def _wanting(self) -> bool:
        """Whether the body asks for something that was not begun."""
        activities = any(not step.running and not step.pause_sec for step in self.body.activities.values())
        return activities or any(not step.running for step in self.body.effects.values())

    def _watch_deadline(self) -> None:
        if self._ends_at is not None and self._deadline_watch is None:
            left = (self._ends_at - self.host.now()).total_seconds()
            self._deadline_watch = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._inbox.put_nowait(_nothing)

    async def _cancel(self, reason: str) -> End:
        """Cancel the run itself: it is undone like any that is cancelled, by whoever takes it next."""
        await self.journal.durable()
        await self.host.storage.cancel_instance(self.id, reason, compensate=True, lease=self.lease)
        return End.CANCELLING

    def _under_way(self) -> bool:
        """Whether the run has something to wait for here; for a short timer it is not worth giving up the lease."""
        return bool(self._tasks) or not self._inbox.empty() or any(map(_is_short, self.body.timers.values()))

    def evict(self) -> None:
        """End the body without a verdict."""
        self.body.evict()

    def hint(self) -> None:
        """There may be a message or a timer for this run."""
        if self.body.waits and not self._hinted:
            self._hinted = True
            self._inbox.put_nowait(self._look)

    async def _put_down(self) -> None:
        """End what is under way here, of which nothing was recorded, and leave the time to the rows."""
        for step in (*self.body.timers.values(), *self.body.waits.values(), *self._pauses()):
            step.stop()
        if self._deadline_watch is not None:
            self._deadline_watch.cancel()
            self._deadline_watch = None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STUBBORN_SEC)
        self._tasks = set()
        self._inbox = asyncio.Queue()

    # The history.

    async def _catch_up(self) -> None:
        """Feed the body the rows that it does not know yet; the first time, from the beginning."""
        await self.journal.durable()
        rows = self._rows()
        upcoming = await anext(rows, None)
        if not self.body.begun:
            self.body.begin(upcoming)
        while upcoming is not None:
            event, upcoming = upcoming, await anext(rows, None)
            self.body.feed(event, upcoming)
            self.journal.last_id = event.id
        self.body.ended()
        self._record_taken()

    async def _rows(self) -> AsyncIterator[HistoryEvent]:
        """Rows of steps and values after those that are known, a page in memory at a time."""
        after_id, more = self.journal.last_id, True
        while more:
            page, more = await self.host.storage.get_history_paginated(self.id, after_id, PAGE)
            for event in page:
                after_id = event.id
                self._note(event)
                if not event.activity_id.startswith(OWN) or event.event_type in (VALUES, STATE):
                    yield event

    def _note(self, event: HistoryEvent) -> None:
        """Rows that are the engine's own."""
        if event.activity_id == children.PARENT:
            self.parent = json.loads(event.event_data or b"{}")
        elif event.activity_id == DEADLINE and event.created_at is not None:
            seconds = json.loads(event.event_data or b"{}")["timeout_sec"]
            self._ends_at = event.created_at + _span(seconds)
        elif event.activity_id == EXPIRED:
            self._expired = True

    def _record(self, id: str, kind: str, data: bytes) -> HistoryEvent:
        event = HistoryEvent(self.id, id, kind, data)
        self.journal.record(event, lambda: self.host.happened("step", self, step=id, kind=str(kind)))
        self.progressed = True
        return event

    def _record_taken(self) -> None:
        taken = self.body.taken()
        if taken is not None:
            self._record(*taken)

    def _tell(self, id: str, kind: str, data: bytes) -> None:
        """Record an event and feed it; what the body takes because of it comes right behind."""
        self.body.feed(self._record(id, kind, data), None)
        self._record_taken()

    # Beginning what the body asks for.

    def _begin_steps(self) -> None:
        for step in list(self.body.activities.values()):
            if not step.running and not step.pause_sec:
                self._begin_activity(step)
        for effect in list(self.body.effects.values()):
            if not effect.running:
                effect.running = True
                self._inbox.put_nowait(lambda effect=effect: self._effect(effect))  # type: ignore[misc]
        if not self._under_way() and not self.body.timers and not self.body.waits and not self._pauses():
            raise EngineError(f"{self.id} waits for nothing that could ever come: a future or lock nobody releases?")

    def _begin_activity(self, step: ActivityStep) -> None:
        step.running = True
        if step.activity.undo is not None and not step.begun:
            self._tell(step.start_id, STARTED, step.payload)
        if step.activity.transactional:
            self._inbox.put_nowait(lambda: self._transact(step))
            return
        step.task = asyncio.create_task(self._attempt(step), name=f"{self.id} {step.id}")
        self._tasks.add(step.task)
        step.task.add_done_callback(self._tasks.discard)

    async def _attempt(self, step: ActivityStep) -> None:
        """Run one attempt on the host, once everything before it is durable and while the lease is ours."""
        try:
            await self.journal.durable()
            done = await self.host.execute(self._attempt_of(step))
            found: Callable[[], Awaitable[None]] = lambda: self._attempted(step, done)  # noqa: E731
        except StorageError as error:
            found = _raising(error)
        if step.task is not None:
            self._tasks.discard(step.task)
        self._inbox.put_nowait(found)

    def _attempt_of(self, step: ActivityStep) -> Attempt:
        return Attempt(step.activity, step.payload, self._info(step), self._check_deadline)

    def _info(self, step: ActivityStep) -> ActivityInfo:
        key = f"{self.id}:{self.generation or ''}:{step.id}"
        return ActivityInfo(
            self.id, self.workflow.name, step.activity.name, step.id, step.attempt, key, self.lease.token
        )

    async def _attempted(self, step: ActivityStep, done: Done) -> None:
        if step.dropped:
            return  # the body gave it up meanwhile
        if done.error is None:
            kind, data = HistoryEventType.ACTIVITY_COMPLETED, done.result
            effects = done.effects
            if step.activity.undo is not None:
                effects = (*effects, undoing(self.id, step, done.result))
            if effects:
                await self._commit(step.id, kind, data, effects)
                return
            self._tell(step.id, kind, data)
            return
        pause = step.activity.retry.pause(step.attempt, done.error)
        failure = encode_failure(done.error)
        if pause is None:
            self._tell(step.id, HistoryEventType.ACTIVITY_FAILED, encode(failure))
            return
        lasting = pause if pause > SHORT_SEC else 0.0
        about = {**failure, "attempt": step.attempt, "pause_sec": lasting}
        self.host.happened("retry", self, step=step.id, attempt=step.attempt, pause_sec=round(pause, 3))
        self._tell(step.attempt_id, ATTEMPT_FAILED, encode(about))
        if not lasting and not step.dropped:
            step.running = True
            self._later(pause, lambda: self._begin_again(step))

    def _begin_again(self, step: ActivityStep) -> None:
        if self._draining or step.dropped:
            step.running = False
            self._inbox.put_nowait(_nothing)
        else:
            self._begin_activity(step)

    def _later(self, seconds: float, begin: Callable[[], None]) -> None:
        async def pause() -> None:
            await asyncio.sleep(seconds)
            self._tasks.discard(task)
            begin()

        task = asyncio.create_task(pause())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What the database decides.

    async def _transact(self, step: ActivityStep) -> None:
        """A transactional activity: it ends with its record, so nothing else of the run may come between."""
        await self.journal.durable()
        if step.dropped:
            return
        stored: list[HistoryEvent] = []

        async def record(storage: Storage, result: bytes, effects: list[Effect]) -> None:
            if step.activity.undo is not None:
                effects.append(undoing(self.id, step, result))
            for effect in effects:
                await effect(storage, self.lease)
            event = HistoryEvent(self.id, step.id, HistoryEventType.ACTIVITY_COMPLETED, result)
            stored.append(replace(event, id=await storage.append_history(event, lease=self.lease)))

        done = await self.host.transact(self._attempt_of(step), record)
        if done.error is None:
            self._stored(stored[-1])
        else:
            await self._attempted(step, done)

    def _check_deadline(self) -> None:
        if time.monotonic() >= self.deadline:
            raise LeaseLostError(f"the lease on {self.id} is over by this worker's clock")

    def _stored(self, event: HistoryEvent) -> None:
        """Feed a row that is stored already."""
        self.journal.last_id = event.id
        self.progressed = True
        self.host.happened("step", self, step=event.activity_id, kind=event.event_type)
        self.body.feed(event, None)
        self._record_taken()

    async def _effect(self, step: EffectStep) -> None:
        if step.id in self.body.effects:
            await self._commit(step.id, HistoryEventType.ACTIVITY_COMPLETED, None, (step.effect,))

    async def _commit(self, id: str, kind: HistoryEventType, data: bytes | None, effects: tuple[Effect, ...]) -> None:
        """Effects and their record in one transaction; without `data` the effect's answer is recorded."""
        await self.journal.durable()
        storage = self.host.storage
        try:
            async with storage.transaction():
                answers = [await effect(storage, self.lease) for effect in effects]
                event = HistoryEvent(self.id, id, kind, encode(answers[-1]) if data is None else data)
                event_id = await storage.append_history(event, lease=self.lease)
        except REFUSALS as error:
            self._tell(id, HistoryEventType.ACTIVITY_FAILED, encode(encode_failure(error)))
            return
        self.host.wake()
        self._stored(replace(event, id=event_id))

    async def _look(self) -> None:
        """Take messages and timers of rows for the run itself, while it holds its lease."""
        self._hinted = False
        for wait in list(self.body.waits.values()):
            for id, channel in wait.ids().items():
                if wait.id in self.body.waits and id in wait.ids():
                    await self._take_message(id, channel)
        for step in self._registered():
            if step in self._registered():
                await self._take_timer(step.timer_id)

    async def _take_message(self, id: str, channel: str) -> None:
        await self.journal.durable()
        await self._listen(channel)
        offered = ChannelMessage(0, channel, "")
        if await self.host.storage.deliver_channel_message(self.id, offered, lease=self.lease, activity_id=id):
            self.progressed = True
            await self._catch_up()

    async def _take_timer(self, id: str) -> None:
        await self.journal.durable()
        if await self.host.storage.fire_timer(self.id, id, lease=self.lease):
            self.progressed = True
            await self._catch_up()

    async def _listen(self, channel: str) -> None:
        """An event's channels are subscribed to by waiting for it; the same again changes nothing."""
        wait = next((wait for wait in self.body.waits.values() if wait.kind and channel in wait.channels), None)
        if wait is None or wait.kind is None or channel in self._listening:
            return
        mode = ChannelMode.BROADCAST if channel == wait.kind else ChannelMode.DIRECT
        await self.host.storage.subscribe_to_channel(self.id, wait.kind, mode, lease=self.lease)
        self._listening.add(channel)

    # Waiting.

    def _pauses(self) -> list[ActivityStep]:
        return [step for step in self.body.activities.values() if step.pause_sec]

    async def _suspend(self) -> bool:
        """Give the lease up until the first wait is over; False if one is already, and the body was told."""
        await self.journal.durable()
        waits = await self._all_waits()
        found = await self.host.suspensions((self.lease, waits))
        if found.suspended:
            self.host.happened("wait", self)
            return True
        known = self.journal.last_id
        for wait in waits:
            if wait.activity_id in found.ready and self.journal.last_id == known:
                await self._take(wait)
        return False

    async def _all_waits(self) -> list[Wait]:
        waits: list[Wait] = [
            TimerWait(step.timer_id, step.timer_id, after=_span(step.delay_sec or 0))
            for step in (*self.body.timers.values(), *self._pauses())
        ]
        if self._ends_at is not None:
            waits.append(TimerWait(DEADLINE, EXPIRED, self._ends_at))
        taken: set[str] = set()
        for wait in self.body.waits.values():
            for id, channel in wait.ids().items():
                if channel not in taken:  # of several that wait for one channel the first is served
                    taken.add(channel)
                    await self._listen(channel)
                    waits.append(ChannelWait(channel, id, after=_span(wait.delay_sec) if wait.delay_sec else None))
        if len(waits) > WAITS_MAX:
            raise EngineError(f"{self.id} waits for {len(waits)} things at once; the limit is {WAITS_MAX}")
        return waits

    async def _take(self, wait: Wait) -> None:
        """What was ready when the run wanted to wait."""
        if isinstance(wait, TimerWait):
            await self._take_timer(wait.timer_id)
            return
        before = self.journal.last_id
        await self._take_message(wait.activity_id, wait.channel)
        if self.journal.last_id == before and await self.host.storage.expire_channel_wait(
            self.id, wait.channel, lease=self.lease
        ):
            await self._catch_up()

    async def _keep_time(self) -> None:
        """While an activity keeps the run from waiting: long times are rows all the same, short ones are kept here."""
        for step in list(self.body.timers.values()):
            if step.handle is None:
                short = _is_short(step)
                await self._watch(step, self._expiry(step) if short else self._look, row=not short)
        for pause in self._pauses():
            if pause.handle is None:
                await self._watch(pause, self._look, row=True)
        for wait in self.body.waits.values():
            if wait.handle is None and wait.delay_sec is not None:
                await self._watch(wait, self._timeout(wait), row=False)

    async def _watch(self, step: Timed, due: Callable[[], Awaitable[None]], *, row: bool) -> None:
        if row:
            timer = TimerSubscription(self.id, step.timer_id, activity_id=step.timer_id)
            after = _span(step.delay_sec or 0)
            await self.host.storage.register_timer_subscription(timer, after=after, lease=self.lease)
            step.registered = True
        step.handle = asyncio.get_running_loop().call_later(step.delay_sec or 0, self._inbox.put_nowait, due)

    def _registered(self) -> list[Timed]:
        timed: list[Timed] = [*self.body.timers.values(), *self._pauses()]
        return [step for step in timed if step.registered]

    def _expiry(self, step: TimerStep) -> Callable[[], Awaitable[None]]:
        async def expire() -> None:
            if step.timer in self.body.timers:
                self._tell(step.id, HistoryEventType.TIMER_EXPIRED, b'{"result": null}')

        return expire

    def _timeout(self, wait: WaitStep) -> Callable[[], Awaitable[None]]:
        async def expire() -> None:
            await self._look()
            if wait.id in self.body.waits:
                self._tell(next(iter(wait.ids())), HistoryEventType.MESSAGE_TIMEOUT, b'{"error_type": "TimeoutError"}')

        return expire

    # The end.

    async def _finish(self) -> End:
        try:
            value, error = self.body.outcome()
        except Recur as again:
            return await self._recur(again.input_data)
        if error is None:
            try:
                output = self.workflow.signature.encode_result(value)
                limits.size(output, "the result of a workflow")
            except (EngineError, LimitError) as unfit:
                error = unfit
        await self.journal.durable()
        await children.end_all(self.host.storage, self.body.children, f"{self.id} has ended")
        if error is None:
            await self._complete(output)
            self.host.happened("complete", self)
            return End.COMPLETED
        if self.workflow.failure_handler is None and not await self.host.storage.get_compensations(self.id, limit=1):
            await self.fail(error)
            return End.FAILED
        await self.fail(error, WorkflowStatus.COMPENSATING)
        return End.COMPENSATING

    async def _recur(self, input_data: bytes) -> End:
        """The next generation begins, under the same lease; the link to a parent goes along."""
        await self.journal.durable()
        storage = self.host.storage
        await children.end_all(storage, self.body.children, f"{self.id} begins anew")
        async with storage.transaction():
            await storage.recur_instance(self.id, input_data, lease=self.lease)
            if self.parent is not None:
                link = HistoryEvent(self.id, children.PARENT, children.LINK, encode(self.parent))
                await storage.append_history(link, lease=self.lease)
        self.host.happened("recur", self)
        return End.RECURRED

    async def _complete(self, output: bytes) -> None:
        try:
            if self.parent is None:
                await self.host.completions((self.lease, output))
            else:
                await self._complete_child(self.parent, output)
        except StorageError:
            found = await self.host.storage.get_instance(self.id)  # was it the answer that got lost?
            if found is None or (found.status, found.output_data) != (WorkflowStatus.COMPLETED, output):
                raise

    async def _complete_child(self, parent: dict[str, str], output: bytes) -> None:
        storage = self.host.storage
        end = children.completed(output)
        async with storage.transaction():
            await children.tell(storage, parent, end, self.id)
            await storage.complete_and_release(self.lease, output)

    async def fail(self, error: Exception, status: WorkflowStatus = WorkflowStatus.FAILED) -> None:
        """Record the error the run failed with; it ends so, or is undone first."""
        storage = self.host.storage
        data = encode(encode_failure(error))
        async with storage.transaction():
            if self.parent is not None and status is WorkflowStatus.FAILED:
                await children.tell(storage, self.parent, children.failed(data), self.id)
            event = HistoryEvent(self.id, FAILED_ID, HistoryEventType.WORKFLOW_FAILED, data)
            await storage.append_history(event, lease=self.lease)
            await storage.update_instance_status(self.id, status, lease=self.lease)
        if status is WorkflowStatus.FAILED:
            self.host.happened("fail", self, error=str(error))


def _is_short(step: TimerStep) -> bool:
    return step.timer.delay <= SHORT_SEC and not step.replayed


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def undoing(instance_id: str, step: ActivityStep, result: bytes) -> Effect:
    """What is committed with the outcome of an activity that can be undone: how to undo it."""
    args = b'{"input": ' + step.payload + b', "result": ' + result + b"}"
    entry = CompensationEntry(instance_id, step.id, step.activity.name, args)

    async def write(storage: Storage, lease: Lease) -> int:
        return await storage.add_compensation(entry, lease=lease)

    return write


async def _nothing() -> None:
    """Wakes the inbox."""


def _raising(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail
