"""The steps of a run that execute code or write: attempts of activities, their retries, and effects."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from perdure.engine.execution.compensations import compensation_of
from perdure.engine.execution.inbox import Inbox, nothing
from perdure.engine.execution.interfaces import Attempt, Done, Host, put_down
from perdure.engine.execution.progress import Progress, StepsInProgress
from perdure.engine.execution.recorder import Recorder
from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.digests import Call
from perdure.engine.history.failures import Failure, encode_failure
from perdure.engine.history.records import AttemptFailed, Completed, Failed, Record, Started, row_of
from perdure.engine.replay.context import ActivityInfo
from perdure.engine.replay.guard import came_by_signal
from perdure.engine.replay.steps import ActivityStep, Effect, EffectStep
from perdure.errors import (
    ChannelModeConflictError,
    EventDataError,
    InstanceNotFoundError,
    LimitError,
    NotSubscribedError,
    RunExistsError,
    RunNotFoundError,
)
from perdure.hooks import StepCompleted, StepFailed, StepRetrying
from perdure.model.records import Lease
from perdure.storage.contract import Storage

SHORT_SEC = 1.0  # shorter pauses and timers are kept in memory, longer ones in the database
# Mistakes of the caller, which are raised in the body; other storage errors are problems of the database.
REFUSALS = (
    ChannelModeConflictError,
    EventDataError,
    InstanceNotFoundError,
    LimitError,
    NotSubscribedError,
    RunExistsError,
    RunNotFoundError,
)


class Attempts:
    """Starts the steps of one run that are ready. `post` puts their outcomes into the run's inbox."""

    def __init__(
        self,
        host: Host,
        recorder: Recorder,
        steps: StepsInProgress,
        inbox: Inbox,
        about: Callable[[], tuple[str, str, datetime]],
        info: Callable[[ActivityStep], ActivityInfo],
        check: Callable[[], None],
    ) -> None:
        self._host = host
        self._recorder = recorder
        self._steps = steps
        self._inbox = inbox
        self._about = about  # the first fields of every hook event
        self._info = info
        self._check = check  # raises if the lease has expired
        self._draining = self._stopped = False
        self._starting = 0  # attempts that wait until everything before them is durable
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict, which is small while it is empty
        self._pausing = 0  # the tasks that only wait before the next attempt
        self._context: Context
        self._loop: asyncio.AbstractEventLoop

    def open(self) -> None:
        """Begin to execute, in the context of the calling task."""
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    @property
    def under_way(self) -> bool:
        """Return whether an attempt is executed, or waits for a short time before it is."""
        return bool(self._tasks) or self._starting > 0

    @property
    def only_pausing(self) -> bool:
        """Return whether no code executes or is about to."""
        return len(self._tasks) == self._pausing and not self._starting

    def drain(self) -> None:
        """Start nothing new, not even after a pause."""
        self._draining = True

    def start_ready(self) -> None:
        """Start all steps that are ready; a start may make others ready, or close some."""
        steps = self._steps
        while steps.ready:
            for progress in steps.take_ready():
                if not progress.is_open:
                    continue
                if isinstance(progress.step, ActivityStep):
                    self._start_activity(cast("Progress[ActivityStep]", progress))
                else:
                    self._inbox.post(partial(self._apply, cast("Progress[EffectStep]", progress)))

    async def stop(self) -> None:
        """Cancel the tasks and wait until they have ended."""
        self._stopped = True
        plain: list[asyncio.Task[None]] = []
        for progress in self._steps.running.values():
            if progress.task is not None and progress.attempt is not None:
                progress.attempt.stopped = True
                if progress.attempt.activity.plain:
                    plain.append(progress.task)
        await put_down(self._tasks, plain)
        self._tasks, self._pausing = {}, 0

    # Attempts.

    def _start_activity(self, progress: Progress[ActivityStep]) -> None:
        """Start an attempt as soon as everything before it is durable."""
        step = progress.step
        if step.undoable and not step.started:
            self._recorder.record(Started(step.id, step.payload, self._recorder.call(step.call)))
            if not progress.is_open:
                return  # the body has cancelled it in the meantime
        if step.activity.transactional:
            self._inbox.post(partial(self._transact, progress))
            return
        self._starting += 1
        self._recorder.when_durable(partial(self._begin, progress))

    def _begin(self, progress: Progress[ActivityStep]) -> None:
        self._starting -= 1
        if self._stopped:
            return
        if self._recorder.refused is not None:
            self._inbox.post(_raising(self._recorder.refused))
        elif not progress.is_open:
            self._inbox.post(nothing)  # the body has cancelled it in the meantime
        else:
            attempt = progress.attempt = self._attempt_of(progress.step)
            # Not by the loop's factory, which is for the tasks that an activity's code starts.
            progress.task = asyncio.Task(
                self._attempt(progress, attempt),
                loop=self._loop,
                name=attempt.info.idempotency_key,
                context=self._context.copy(),
            )
            progress.cancelled = self._cancelled
            self._tasks[progress.task] = None

    async def _attempt(self, progress: Progress[ActivityStep], attempt: Attempt) -> None:
        """Execute one attempt, and pass its outcome to the body: at once if the run's task only waits for that."""
        try:
            done = await self._host.execute(attempt)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if came_by_signal(error):
                raise
            self._end(progress)
            self._inbox.post(_raising(error))  # no code awaits this task, so the inbox raises its error
            return
        self._end(progress)
        if self._is_plain(progress.step, done) and self._inbox.is_awaited():
            try:
                self._complete(progress, done)
                self._inbox.proceed()
            except BaseException as error:
                if came_by_signal(error):
                    raise
                self._inbox.post(_raising(error))
        else:
            self._inbox.post(partial(self._attempted, progress, done))

    def _end(self, progress: Progress[ActivityStep]) -> None:
        """Forget the task, which only has to pass on its outcome."""
        if progress.task is not None:
            self._tasks.pop(progress.task, None)
            progress.task = None

    def _cancelled(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        self._inbox.post(nothing)  # the run may have nothing left to do but wait

    def _attempt_of(self, step: ActivityStep) -> Attempt:
        return Attempt(step.activity, step.payload, self._info(step), self._check)

    def _is_plain(self, step: ActivityStep, done: Done) -> bool:
        """Return whether the outcome is a result that is recorded alone."""
        return done.error is None and not done.effects and not step.undoable

    def _complete(self, progress: Progress[ActivityStep], done: Done) -> None:
        """Record a result, unless the body has cancelled the step in the meantime."""
        if progress.is_open:
            step = progress.step
            completed = Completed(step.id, done.result, self._recorder.call(step.call), (done.value,))
            self._recorder.record(completed, self._completion(step.id, step.attempt, done.seconds))

    async def _attempted(self, progress: Progress[ActivityStep], done: Done) -> None:
        if not progress.is_open:
            return  # the body has cancelled the step in the meantime
        step = progress.step
        if done.error is not None:
            self._failed(step, done.error)
        elif self._is_plain(step, done):
            self._complete(progress, done)
        else:
            undo = (self._compensation(step, done.result),) if step.undoable else ()
            stored = self._completion(step.id, step.attempt, done.seconds)
            await self._commit(step.id, step.call, (*done.effects, *undo), done.result, stored)

    def _failed(self, step: ActivityStep, error: BaseException) -> None:
        """Record a failed attempt; the next one follows after a pause, unless it was the last."""
        call, attempt, failure = self._recorder.call(step.call), step.attempt, encode_failure(error)
        pause = step.activity.retry.pause(attempt, error)
        if pause is None:
            self._recorder.record(Failed(step.id, failure, call), self._failure(step.id, attempt, failure))
            return
        lasting = pause if pause > SHORT_SEC else 0.0
        retrying = self._retrying(step, attempt, pause, failure)
        self._recorder.record(AttemptFailed(step.id, attempt, failure, lasting, call), retrying)
        if not lasting and (again := self._steps.ready.get(step.id)) is not None:
            self._start_later(cast("Progress[ActivityStep]", again), pause)

    def _start_later(self, progress: Progress[ActivityStep], seconds: float) -> None:
        """Start the next attempt after a short pause, in which the run keeps its lease."""
        id = progress.step.id
        self._steps.running[id] = self._steps.ready.pop(id)

        async def start() -> None:
            if not progress.is_open:
                return
            if self._draining:
                self._steps.ready[id] = self._steps.running.pop(id)
            else:
                self._start_activity(progress)

        async def pause() -> None:
            await self._host.clock.sleep(seconds)
            forget(task)
            self._inbox.post(start)  # through the inbox, because the run may have to take a slot first

        def forget(done: "asyncio.Task[None]") -> None:
            if done in self._tasks:
                del self._tasks[done]
                self._pausing -= 1

        task = asyncio.create_task(pause())
        self._tasks[task] = None
        self._pausing += 1
        task.add_done_callback(forget)

    # Steps that are recorded in a transaction with other writes.

    async def _transact(self, progress: Progress[ActivityStep]) -> None:
        """Execute a transactional activity, which records its own result, so no other record may come in between."""
        await self._recorder.durable()
        if not progress.is_open:
            return
        step = progress.step
        written: list[tuple[Record, int]] = []

        async def record(storage: Storage, result: bytes, effects: list[Effect]) -> None:
            if step.undoable:
                effects.append(self._compensation(step, result))
            for effect in effects:
                await effect(storage, self._recorder.lease)
            completed = Completed(step.id, result, self._recorder.call(step.call))
            written.append((completed, await self._append(storage, completed)))

        done = await self._host.transact(self._attempt_of(step), record)
        if done.error is None:
            self._recorder.add_stored(*written[-1], self._completion(step.id, step.attempt, done.seconds))
        else:
            await self._attempted(progress, done)

    async def _apply(self, progress: Progress[EffectStep]) -> None:
        """Execute a step that writes, such as `publish()`, unless the body has cancelled it."""
        if progress.is_open:
            await self._commit(progress.step.id, progress.step.call, (progress.step.effect,))

    async def _commit(
        self,
        id: str,
        call: Call,
        effects: tuple[Effect, ...],
        result: bytes | None = None,
        stored: Callable[[], None] | None = None,
    ) -> None:
        """Commit effects and their record in one transaction; without `result`, record what the last effect returned.

        An effect that is refused because of a mistake in the body's code fails the step.
        """
        began = self._host.clock.steady()
        await self._recorder.durable()
        storage = self._host.storage
        try:
            async with storage.transaction():
                answers = [await effect(storage, self._recorder.lease) for effect in effects]
                result = encode(answers[-1]) if result is None else result
                completed = Completed(id, result, self._recorder.call(call))
                row_id = await self._append(storage, completed)
        except REFUSALS as error:
            failure = encode_failure(error)
            self._recorder.record(Failed(id, failure, self._recorder.call(call)), self._failure(id, 1, failure))
            return
        self._host.wake()
        stored = stored or self._completion(id, 1, self._host.clock.steady() - began)
        self._recorder.add_stored(completed, row_id, stored)

    async def _append(self, storage: Storage, record: Record) -> int:
        lease = self._recorder.lease
        return await storage.append_history(row_of(lease.instance_id, record), lease=lease)

    def _compensation(self, step: ActivityStep, result: bytes) -> Effect:
        """Return the effect that registers a compensation in the commit of the activity's result."""
        run_id = self._recorder.lease.instance_id
        entry = compensation_of(run_id, step.id, step.activity.name, step.payload, result)

        async def write(storage: Storage, lease: Lease) -> int:
            return await storage.add_compensation(entry, lease=lease)

        return write

    # Hook events, which are reported once they are stored.

    def _completion(self, step: str, attempt: int, seconds: float) -> Callable[[], None] | None:
        if not self._host.observes(StepCompleted):
            return None
        name, duration = ids.name_of(step), timedelta(seconds=seconds)
        return lambda: self._host.happened(StepCompleted(*self._about(), step, name, attempt, duration))

    def _failure(self, step: str, attempt: int, failure: Failure) -> Callable[[], None]:
        kind, message = failure["error_type"], failure["error_message"]
        return lambda: self._host.happened(StepFailed(*self._about(), step, ids.name_of(step), attempt, kind, message))

    def _retrying(self, step: ActivityStep, attempt: int, pause: float, failure: Failure) -> Callable[[], None]:
        return lambda: self._host.happened(
            StepRetrying(
                *self._about(),
                step.id,
                step.activity.name,
                attempt,
                max_attempts=step.activity.retry.attempts,
                retry_in=timedelta(seconds=pause),
                error_type=failure["error_type"],
                error_message=failure["error_message"],
            )
        )


def _raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail
