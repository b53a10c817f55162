"""A run: one instance under one lease, from what its history says to where it can go no further.

Whatever completes reaches the body through one inbox, one thing after the other: it is recorded, then fed. Records go
to the journal without waiting. What the database decides (a message, a timer that has a row, an effect) waits for the
journal first, so that the order of the rows is the order in which the body was told.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from perdure.engine import children, endings
from perdure.engine.ambient import ActivityInfo
from perdure.engine.body import ATTEMPT_FAILED, OWN, STARTED, STATE, VALUES, Body, Effect
from perdure.engine.clock import steady
from perdure.engine.codec import encode
from perdure.engine.definitions import Workflow
from perdure.engine.digests import Call, stamp
from perdure.engine.driven import Attempt, Done, Drained, End, Host, check_deadline, put_down, rows, undoing
from perdure.engine.failures import Failure, encode_failure
from perdure.engine.guard import came_by_signal, is_cancelled
from perdure.engine.journal import Journal
from perdure.engine.slots import Slot
from perdure.engine.starting import DEADLINE
from perdure.engine.steps import ActivityStep, EffectStep, name_of
from perdure.engine.waits import EXPIRED, SHORT_SEC, UNTIL, Waits, nothing
from perdure.errors import (
    ChannelModeConflictError,
    EngineError,
    InstanceNotFoundError,
    LimitError,
    NotSubscribedError,
    RunNotFoundError,
)
from perdure.hooks import RunResumed, RunStarted, StepCompleted, StepFailed, StepRetrying
from perdure.model.records import HistoryEvent, HistoryEventType, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

LOOK_SEC = 1.0  # how often a run that cannot wait, for an activity is under way, looks for its messages
# The caller's mistakes, which the body should hear of; anything else is the database's trouble.
REFUSALS = (ChannelModeConflictError, InstanceNotFoundError, LimitError, NotSubscribedError, RunNotFoundError)


class Run:
    """One instance, driven. It may be driven again later, from where it stands, under another lease."""

    def __init__(self, host: Host, workflow: Workflow[..., Any], instance: WorkflowInstance) -> None:
        self.host = host
        self.id = instance.instance_id
        self.workflow = workflow
        self.generation = instance.continued_from
        self.body = Body(workflow, self.id, instance.input_data, self.generation, host.now)
        self._began = instance.started_at or host.now()  # the zero of the body's loop
        self.parent: dict[str, str] | None = None
        self.waits = Waits(self)
        self.journal: Journal
        self.slot: Slot
        self.deadline = 0.0  # of the lease, on the monotonic clock
        self.last_id = 0
        self.progressed = False
        self.resumed = False  # driven before: the body is a copy in memory
        self.ending = False
        self._draining = False
        self._inbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.Task[None]] = set()  # those of them that only wait for the next attempt

    @property
    def lease(self) -> Lease:
        """The lease this run is driven under."""
        return self.journal.lease

    # Driving.

    @property
    def at_work(self) -> bool:
        """Whether code may execute now or in a moment."""
        return not self.slot.idling

    async def drive(self, lease: Lease) -> End:
        """Go on until the run is finished or waits. Whatever is raised ends the try, and the run is as it was."""
        self.journal = Journal(self.host.records, lease, self.last_id)
        self.progressed = self.ending = False
        begun = self.body.begun
        try:
            await self.catch_up()
            self._began = min(self._began, self.host.now() - timedelta(seconds=self.body.time))  # of a retry: earlier
            kind = RunResumed if begun or self.journal.last_id else RunStarted
            self.host.happened(kind(*self.about()))
            self.waits.watch_deadline()
            while True:
                self._record_taken()
                if self.body.done:
                    return await endings.finish(self)
                if self.waits.expired:
                    return await self._cancel("its timeout has passed")
                if not self._draining or not self._wanting():
                    self._begin_steps()
                elif not self._under_way():
                    await self.journal.durable()
                    raise Drained(self.id)
                if not self._under_way():
                    if await self.waits.suspend():
                        return End.SUSPENDED
                    continue
                await self.waits.keep_time()
                await self._next()
        finally:
            self.last_id = self.journal.last_id
            await self._put_down()

    async def _next(self) -> None:
        """Take the next thing from the inbox, or look for messages now and then."""
        wanting = self.body.waits or self.waits.registered()
        if self._inbox.empty() and len(self._tasks) == len(self._pauses):
            self.slot.rest()  # no code executes: it only waits for a short time
        try:
            async with asyncio.timeout(LOOK_SEC if wanting else None):
                handle = await self._inbox.get()
        except TimeoutError:
            handle = self.waits.look
        if not self.slot.held:
            await self._resume()
        await handle()

    async def _resume(self) -> None:
        """Take a slot again before any code executes."""
        try:
            await self.slot.resume()
        except Drained:
            await self.journal.durable()
            raise

    def drain(self) -> None:
        """Begin nothing new; what runs may finish."""
        self._draining = True
        self.post(nothing)

    def _wanting(self) -> bool:
        """Whether the body asks for something that was not begun."""
        activities = any(not step.running and not step.pause_sec for step in self.body.activities.values())
        return activities or any(not step.running for step in self.body.effects.values())

    async def give_up(self, error: BaseException, lease: Lease) -> None:
        """Record that the run failed with this error, and leave the rest to its rollback.

        The rollback goes by the history alone, so it needs no body that can be replayed.
        """
        self.journal = Journal(self.host.records, lease, self.last_id)
        await endings.fail(self, error, WorkflowStatus.COMPENSATING)

    async def _cancel(self, reason: str) -> End:
        """Cancel the run itself: it is undone like any that is cancelled, by whoever takes it next."""
        await self.journal.durable()
        self.ending = True
        await self.host.storage.cancel_instance(self.id, reason, compensate=True, lease=self.lease)
        return End.CANCELLING

    def _under_way(self) -> bool:
        """Whether the run has something to wait for here; for a short timer it is not worth giving up the lease."""
        return bool(self._tasks) or not self._inbox.empty() or self.waits.short

    def evict(self) -> None:
        """End the body without a verdict."""
        self.body.evict()

    def hint(self) -> None:
        """There may be a message or a timer for this run."""
        self.waits.hint()

    def post(self, handle: Callable[[], Awaitable[None]]) -> None:
        """Put something in the inbox."""
        self._inbox.put_nowait(handle)

    async def _put_down(self) -> None:
        """End what is under way here, of which nothing was recorded, and leave the time to the rows."""
        self.waits.stop()
        plain = [step.task for step in self.body.activities.values() if step.activity.plain and step.task is not None]
        await put_down(self._tasks, plain)
        self._tasks, self._pauses = set(), set()
        self._inbox = asyncio.Queue()

    # The history.

    async def catch_up(self) -> None:
        """Feed the body the rows that it does not know yet; the first time, from the beginning."""
        await self.journal.durable()
        known = self._rows()
        upcoming = await anext(known, None)
        if not self.body.begun:
            self.body.begin(upcoming)
        while upcoming is not None:
            event, upcoming = upcoming, await anext(known, None)
            self.body.feed(event, upcoming)
            self.journal.last_id = event.id
        self.body.ended()
        self._record_taken()

    async def _rows(self) -> AsyncIterator[HistoryEvent]:
        """Rows of steps and values after those that are known, a page in memory at a time."""
        async for event in rows(self.host.storage, self.id, self.journal.last_id):
            self._read_own(event)
            if not event.activity_id.startswith(OWN) or event.event_type in (VALUES, STATE):
                yield event

    def _read_own(self, event: HistoryEvent) -> None:
        """Rows that are the engine's own."""
        if event.activity_id == children.PARENT:
            self.parent = json.loads(event.event_data or b"{}")
        elif event.activity_id == DEADLINE and event.created_at is not None:
            seconds = json.loads(event.event_data or b"{}")["timeout_sec"]
            self.waits.ends_at = event.created_at + timedelta(seconds=seconds)
        elif event.activity_id == EXPIRED:
            self.waits.expired = True
        elif event.activity_id.startswith(UNTIL):
            self.waits.remember(event)

    def about(self) -> tuple[str, str, datetime]:
        """What every hook event begins with."""
        return self.id, self.workflow.name, self.host.now()

    def lasted(self) -> timedelta:
        """How long ago the run started."""
        return max(self.host.now() - self._began, timedelta(0))

    def note(
        self, id: str, kind: str, data: bytes, call: Call | None = None, stored: Callable[[], None] | None = None
    ) -> HistoryEvent:
        """Record an event, of a call if it is a step's; nobody waits. `stored` is called once it is durable."""
        event = self._event(id, kind, data, call)
        self.journal.record(event, stored)
        self.progressed = True
        return event

    def _event(self, id: str, kind: str, data: bytes, call: Call | None) -> HistoryEvent:
        if call is None:
            return HistoryEvent(self.id, id, kind, data)
        elapsed = (self.host.now() - self._began).total_seconds()
        return HistoryEvent(self.id, id, kind, data, call.digest + stamp(elapsed))

    def _record_taken(self) -> None:
        taken = self.body.taken()
        if taken is not None:
            self.note(*taken)

    def tell(
        self, id: str, kind: str, data: bytes, call: Call | None = None, stored: Callable[[], None] | None = None
    ) -> None:
        """Record an event and feed it; what the body takes because of it comes right behind."""
        self.body.feed(self.note(id, kind, data, call, stored), None)
        self._record_taken()

    # Beginning what the body asks for.

    def _begin_steps(self) -> None:
        for step in list(self.body.activities.values()):
            if not step.running and not step.pause_sec:
                self._begin_activity(step)
        for effect in list(self.body.effects.values()):
            if not effect.running:
                effect.running = True
                self.post(lambda effect=effect: self._effect(effect))  # type: ignore[misc]
        if not self._under_way() and not self.body.timers and not self.body.waits and not self.waits.pauses():
            raise EngineError(
                "deadlock: nothing this run awaits can ever complete; look for a lock, queue or future that is shared "
                "with other runs, or that no task of this run releases"
            )

    def _begin_activity(self, step: ActivityStep) -> None:
        step.running = True
        if step.activity.undo is not None and not step.begun:
            self.tell(step.start_id, STARTED, step.payload, step.call)
        if step.activity.transactional:
            self.post(lambda: self._transact(step))
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
        except BaseException as error:
            if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                raise
            found = _raising(error)  # nobody awaits this task: the run has to hear of it
        if step.task is not None:
            self._tasks.discard(step.task)
        self.post(found)

    def _attempt_of(self, step: ActivityStep) -> Attempt:
        return Attempt(step.activity, step.payload, self._info(step), lambda: check_deadline(self))

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
                effects = (*effects, _undoing(self.id, step, done.result))
            stored = self._completion(step.id, step.attempt, done.seconds)
            if effects:
                await self._commit(step.id, kind, data, effects, step.call, stored)
                return
            self.tell(step.id, kind, data, step.call, stored)
            return
        pause = step.activity.retry.pause(step.attempt, done.error)
        failure = encode_failure(done.error)
        if pause is None:
            stored = self._failure(step.id, step.attempt, failure)
            self.tell(step.id, HistoryEventType.ACTIVITY_FAILED, encode(failure), step.call, stored)
            return
        lasting = pause if pause > SHORT_SEC else 0.0
        about = {**failure, "attempt": step.attempt, "pause_sec": lasting}
        stored = self._retrying(step, step.attempt, pause, failure)
        self.tell(step.attempt_id, ATTEMPT_FAILED, encode(about), step.call, stored)
        if not lasting and not step.dropped:
            step.running = True
            self._later(pause, lambda: self._begin_again(step))

    def _completion(self, step: str, attempt: int, seconds: float) -> Callable[[], None]:
        activity, duration = name_of(step), timedelta(seconds=seconds)
        return lambda: self.host.happened(StepCompleted(*self.about(), step, activity, attempt, duration))

    def _failure(self, step: str, attempt: int, failure: Failure) -> Callable[[], None]:
        kind, message = failure["error_type"], failure["error_message"]
        return lambda: self.host.happened(StepFailed(*self.about(), step, name_of(step), attempt, kind, message))

    def _retrying(self, step: ActivityStep, attempt: int, pause: float, failure: Failure) -> Callable[[], None]:
        return lambda: self.host.happened(
            StepRetrying(
                *self.about(),
                step.id,
                step.activity.name,
                attempt,
                max_attempts=step.activity.retry.attempts,
                retry_in=timedelta(seconds=pause),
                error_type=failure["error_type"],
                error_message=failure["error_message"],
            )
        )

    async def _begin_again(self, step: ActivityStep) -> None:
        if self._draining or step.dropped:
            step.running = False
        else:
            self._begin_activity(step)

    def _later(self, seconds: float, begin: Callable[[], Awaitable[None]]) -> None:
        async def pause() -> None:
            await asyncio.sleep(seconds)
            forget(task)
            self.post(begin)  # by the inbox: the run may have to take a slot first

        def forget(done: "asyncio.Task[None]") -> None:
            self._tasks.discard(done)
            self._pauses.discard(done)

        task = asyncio.create_task(pause())
        self._tasks.add(task)
        self._pauses.add(task)
        task.add_done_callback(forget)

    # What the database decides.

    async def _transact(self, step: ActivityStep) -> None:
        """A transactional activity: it ends with its record, so nothing else of the run may come between."""
        await self.journal.durable()
        if step.dropped:
            return
        stored: list[HistoryEvent] = []

        async def record(storage: Storage, result: bytes, effects: list[Effect]) -> None:
            if step.activity.undo is not None:
                effects.append(_undoing(self.id, step, result))
            for effect in effects:
                await effect(storage, self.lease)
            event = self._event(step.id, HistoryEventType.ACTIVITY_COMPLETED, result, step.call)
            stored.append(replace(event, id=await storage.append_history(event, lease=self.lease)))

        done = await self.host.transact(self._attempt_of(step), record)
        if done.error is None:
            self._stored(stored[-1], self._completion(step.id, step.attempt, done.seconds))
        else:
            await self._attempted(step, done)

    def _stored(self, event: HistoryEvent, stored: Callable[[], None]) -> None:
        """Feed a row that is stored already."""
        self.journal.last_id = event.id
        self.progressed = True
        stored()
        self.body.feed(event, None)
        self._record_taken()

    async def _effect(self, step: EffectStep) -> None:
        if step.id in self.body.effects:
            await self._commit(step.id, HistoryEventType.ACTIVITY_COMPLETED, None, (step.effect,), step.call)

    async def _commit(
        self,
        id: str,
        kind: HistoryEventType,
        data: bytes | None,
        effects: tuple[Effect, ...],
        call: Call,
        stored: Callable[[], None] | None = None,
    ) -> None:
        """Effects and their record in one transaction; without `data` the effect's answer is recorded."""
        began = steady()
        await self.journal.durable()
        storage = self.host.storage
        try:
            async with storage.transaction():
                answers = [await effect(storage, self.lease) for effect in effects]
                event = self._event(id, kind, encode(answers[-1]) if data is None else data, call)
                event_id = await storage.append_history(event, lease=self.lease)
        except REFUSALS as error:
            failure = encode_failure(error)
            failed = self._failure(id, 1, failure)
            self.tell(id, HistoryEventType.ACTIVITY_FAILED, encode(failure), call, failed)
            return
        self.host.wake()
        self._stored(replace(event, id=event_id), stored or self._completion(id, 1, steady() - began))


def _undoing(instance_id: str, step: ActivityStep, result: bytes) -> Effect:
    """What is committed with the outcome of an activity that can be undone: how to undo it."""
    entry = undoing(instance_id, step.id, step.activity.name, step.payload, result)

    async def write(storage: Storage, lease: Lease) -> int:
        return await storage.add_compensation(entry, lease=lease)

    return write


def _raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail
