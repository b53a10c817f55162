"""A run: one instance executed under one lease, from its history until it ends or waits.

All completions reach the body one by one through an inbox: each is recorded, then passed to the body. Records go to
the journal without waiting. A completion that the database decides (a message, a timer with a row, an effect) first
waits for the journal, so that the order of the rows is the order in which the body saw the completions.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

from perdure.engine.execution import children, endings
from perdure.engine.execution.clock import steady
from perdure.engine.execution.driven import Attempt, Done, Drained, End, Host, check_deadline, put_down, rows, undoing
from perdure.engine.execution.journal import Journal
from perdure.engine.execution.slots import Slot
from perdure.engine.execution.waits import EXPIRED, SHORT_SEC, UNTIL, Waits, nothing
from perdure.engine.history.codec import encode
from perdure.engine.history.digests import Call, stamp
from perdure.engine.history.failures import Failure, encode_failure
from perdure.engine.replay.body import ATTEMPT_FAILED, OWN, STARTED, STATE, VALUES, Body, Effect
from perdure.engine.replay.context import ActivityInfo
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.replay.guard import came_by_signal, is_cancelled
from perdure.engine.replay.steps import ActivityStep, EffectStep, name_of
from perdure.engine.starting import DEADLINE
from perdure.errors import (
    ChannelModeConflictError,
    EngineError,
    InstanceNotFoundError,
    LimitError,
    NotSubscribedError,
    RunExistsError,
    RunNotFoundError,
)
from perdure.hooks import RunResumed, RunStarted, StepCompleted, StepFailed, StepRetrying
from perdure.model.records import HistoryEvent, HistoryEventType, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

LOOK_SEC = 1.0  # poll interval for messages while a running activity keeps the run from giving up its lease
# Mistakes of the caller, which are raised in the body; other storage errors are problems of the database.
REFUSALS = (
    ChannelModeConflictError,
    InstanceNotFoundError,
    LimitError,
    NotSubscribedError,
    RunExistsError,
    RunNotFoundError,
)


class Run:
    """The execution of one instance. It can be resumed later under another lease, without a new replay."""

    def __init__(self, host: Host, workflow: WorkflowDefinition, instance: WorkflowInstance) -> None:
        self.host = host
        self.id = instance.instance_id
        self.workflow = workflow
        self.generation = instance.continued_from
        self.body = Body(workflow, self.id, instance.input_data, self.generation, host.now)
        self._began = instance.started_at or host.now()  # time zero of the body's loop
        self.parent: dict[str, str] | None = None
        self.waits = Waits(self)
        self.journal: Journal
        self.slot: Slot
        self.deadline = 0.0  # of the lease, on the monotonic clock
        self.last_id = 0
        self.progressed = False
        self.resumed = False  # executed before: the body is cached in memory
        self.ending = False
        self._draining = False
        self._inbox: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: set[asyncio.Task[None]] = set()  # the tasks that only wait before the next attempt

    @property
    def lease(self) -> Lease:
        """Return the lease under which the run is executed."""
        return self.journal.lease

    # Executing.

    @property
    def at_work(self) -> bool:
        """Return whether code may execute now or very soon."""
        return not self.slot.idling

    async def drive(self, lease: Lease) -> End:
        """Execute the run until it ends or waits. An error ends this try and leaves the stored run unchanged."""
        self.journal = Journal(self.host.records, lease, self.last_id)
        self.progressed = self.ending = False
        begun = self.body.begun
        try:
            await self.catch_up()
            # A run that retries another one has its history, so its loop started earlier than its row says.
            self._began = min(self._began, self.host.now() - timedelta(seconds=self.body.time))
            kind = RunResumed if begun or self.journal.last_id else RunStarted
            self.host.happened(kind(*self.about()))
            self.waits.watch_deadline()
            while True:
                self._record_taken()
                if self.body.done:
                    return await endings.finish(self)
                if self.waits.expired:
                    return await self._cancel("timeout exceeded")
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
        """Handle the next item of the inbox, or poll for messages."""
        wanting = self.body.waits or self.waits.registered()
        if self._inbox.empty() and len(self._tasks) == len(self._pauses):
            self.slot.rest()  # no code executes while the run waits for a short time
        try:
            async with asyncio.timeout(LOOK_SEC if wanting else None):
                handle = await self._inbox.get()
        except TimeoutError:
            handle = self.waits.look
        if not self.slot.held:
            await self._resume()
        await handle()

    async def _resume(self) -> None:
        """Take a slot again, before code executes."""
        try:
            await self.slot.resume()
        except Drained:
            await self.journal.durable()
            raise

    def drain(self) -> None:
        """Start nothing new; running activities may finish."""
        self._draining = True
        self.post(nothing)

    def _wanting(self) -> bool:
        """Return whether the body requested a step that has not started."""
        activities = any(not step.running and not step.pause_sec for step in self.body.activities.values())
        return activities or any(not step.running for step in self.body.effects.values())

    async def give_up(self, error: BaseException, lease: Lease) -> None:
        """Record that the run failed with this error; the rollback does the rest.

        The rollback reads only the history, so it works although the body cannot be replayed.
        """
        self.journal = Journal(self.host.records, lease, self.last_id)
        await endings.fail(self, error, WorkflowStatus.COMPENSATING)

    async def _cancel(self, reason: str) -> End:
        """Cancel this run; the worker that leases it next compensates its steps."""
        await self.journal.durable()
        self.ending = True
        await self.host.storage.cancel_instance(self.id, reason, compensate=True, lease=self.lease)
        return End.CANCELLING

    def _under_way(self) -> bool:
        """Return whether the run keeps its lease: for a task, an item in the inbox or a short timer."""
        return bool(self._tasks) or not self._inbox.empty() or self.waits.short

    def evict(self) -> None:
        """Remove the body from memory; the run itself does not end."""
        self.body.evict()

    def hint(self) -> None:
        """Poll for messages and timers of this run, because there may be one."""
        self.waits.hint()

    def post(self, handle: Callable[[], Awaitable[None]]) -> None:
        """Put an item in the inbox."""
        self._inbox.put_nowait(handle)

    async def _put_down(self) -> None:
        """Stop all tasks and timers of the run in this process; rows in the database keep the time from here on."""
        self.waits.stop()
        plain = [step.task for step in self.body.activities.values() if step.activity.plain and step.task is not None]
        await put_down(self._tasks, plain)
        self._tasks, self._pauses = set(), set()
        self._inbox = asyncio.Queue()

    # The history.

    async def catch_up(self) -> None:
        """Pass the rows that the body has not seen yet to the body; the first time, all rows (a replay)."""
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
        """Yield the new rows of steps and values, with one page in memory at a time."""
        async for event in rows(self.host.storage, self.id, self.journal.last_id):
            self._read_own(event)
            if not event.activity_id.startswith(OWN) or event.event_type in (VALUES, STATE):
                yield event

    def _read_own(self, event: HistoryEvent) -> None:
        """Read a row that belongs to the engine and not to a step."""
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
        """Return the first fields of every hook event."""
        return self.id, self.workflow.name, self.host.now()

    def lasted(self) -> timedelta:
        """Return the time since the start of the run."""
        return max(self.host.now() - self._began, timedelta(0))

    def note(
        self, id: str, kind: str, data: bytes, call: Call | None = None, stored: Callable[[], None] | None = None
    ) -> HistoryEvent:
        """Record an event without waiting for the commit, and return it.

        `call` is the call of a step, to compare it on replay. `stored` is called after the commit.
        """
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
        """Record an event and pass it to the body; record the values that the body then takes right behind it."""
        self.body.feed(self.note(id, kind, data, call, stored), None)
        self._record_taken()

    # Starting the steps that the body requests.

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
        """Execute one attempt, after everything before it is durable and only while the worker has the lease."""
        try:
            await self.journal.durable()
            done = await self.host.execute(self._attempt_of(step))
            found: Callable[[], Awaitable[None]] = lambda: self._attempted(step, done)  # noqa: E731
        except BaseException as error:
            if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                raise
            found = _raising(error)  # no code awaits this task, so the inbox raises its error
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
            return  # the body has cancelled the step in the meantime
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
            self.post(begin)  # through the inbox, because the run may have to take a slot first

        def forget(done: "asyncio.Task[None]") -> None:
            self._tasks.discard(done)
            self._pauses.discard(done)

        task = asyncio.create_task(pause())
        self._tasks.add(task)
        self._pauses.add(task)
        task.add_done_callback(forget)

    # Steps that the database decides.

    async def _transact(self, step: ActivityStep) -> None:
        """Execute a transactional activity, which records its own result, so no other record may come in between."""
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
        """Pass a row that is already stored to the body."""
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
        """Commit effects and their record in one transaction; without `data`, record what the last effect returned."""
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
    """Return the effect that registers a compensation in the commit of the activity's result."""
    entry = undoing(instance_id, step.id, step.activity.name, step.payload, result)

    async def write(storage: Storage, lease: Lease) -> int:
        return await storage.add_compensation(entry, lease=lease)

    return write


def _raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail
