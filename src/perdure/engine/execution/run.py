"""A run: one instance executed under one lease, from its history until it ends or waits.

Everything that happens reaches the body one by one through an inbox: it is recorded, then passed to the body. The parts
of a run share two objects: the `Recorder` of its history, and the `StepsInProgress`, which hold the state of its steps.
"""

import asyncio
from datetime import datetime, timedelta
from functools import partial

from perdure.engine.execution import endings
from perdure.engine.execution.attempts import Attempts
from perdure.engine.execution.inbox import Handle, Inbox, nothing
from perdure.engine.execution.interfaces import Drained, End, Host, activity_info, check_deadline
from perdure.engine.execution.journal import Journal
from perdure.engine.execution.parked import ParkedRun
from perdure.engine.execution.progress import StepsInProgress
from perdure.engine.execution.recorder import Facts, Recorder
from perdure.engine.execution.slots import Slot
from perdure.engine.execution.waits import Waits
from perdure.engine.history import ids
from perdure.engine.history.records import Parent
from perdure.engine.replay.context import ActivityInfo
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.replay.replayer import Replayer
from perdure.engine.replay.steps import ActivityStep
from perdure.errors import EngineError
from perdure.hooks import RunResumed, RunStarted, RunWaiting
from perdure.model import headers
from perdure.model.envelopes import Unreadable, unreadable
from perdure.model.records import Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus

LOOK_SEC = 1.0  # poll interval for messages while a running activity keeps the run from giving up its lease
STEPS_SHOWN = 100  # maximum number of steps in a RunWaiting event


class Run:
    """The execution of one instance. It can be resumed later under another lease, without a new replay."""

    error: BaseException | None = None  # of a run that failed

    def __init__(
        self,
        host: Host,
        workflow: WorkflowDefinition,
        instance: WorkflowInstance,
        *,
        is_new: bool = False,
        parked: ParkedRun | None = None,
    ) -> None:
        self.host = host
        self.id = instance.instance_id
        self.workflow = workflow
        self.generation = instance.continued_from
        self.headers = headers.decode(instance.headers)
        self.slot: Slot
        self.deadline = 0.0  # of the lease, on the monotonic clock
        self.resumed = parked is not None  # executed before: the body was kept in memory
        self.ending = False
        self.output: bytes | None = None  # of a completed run
        self._hidden: Unreadable | None = None  # the input, if it could not be decoded
        parked = parked or self._new(instance)
        self.replayer = parked.replayer
        self._inbox = Inbox(self._proceed)
        self._steps = steps = StepsInProgress()
        facts = parked.facts or Facts()
        self.recorder = Recorder(self.id, host.storage, self.replayer, steps, host.now, parked.began, facts)
        self._attempts = Attempts(
            host, self.recorder, steps, self._inbox, self.about, self._info, partial(check_deadline, self)
        )
        self._waits = Waits(
            self.id, host.storage, self.recorder, steps, self.replayer.expects, self._inbox.post, host.now, host.clock
        )
        self._last_id = parked.last_id
        self._is_new = is_new  # created under the lease of its first execution: there is no history to read
        self._draining = False
        if self.resumed:
            self.recorder.resume()

    def _new(self, instance: WorkflowInstance) -> ParkedRun:
        self._hidden = unreadable(instance.input_data)
        replayer = Replayer(self.workflow, self.id, instance.input_data, self.generation, self.host.now, self.headers)
        return ParkedRun(replayer, self.generation, None, instance.started_at or self.host.now(), 0)

    # What others see of it.

    @property
    def lease(self) -> Lease:
        """Return the lease under which the run is executed."""
        return self.recorder.lease

    @property
    def parent(self) -> Parent | None:
        """Return the run that waits for this one."""
        return self.recorder.facts.parent

    @property
    def progressed(self) -> bool:
        """Return whether anything was recorded under the lease."""
        return self.recorder.progressed

    @property
    def at_work(self) -> bool:
        """Return whether code may execute now or very soon."""
        return not self.slot.idling

    def about(self) -> tuple[str, str, datetime]:
        """Return the first fields of every hook event."""
        return self.id, self.workflow.name, self.host.now()

    def age(self) -> timedelta:
        """Return the time since the start of the run."""
        return self.recorder.age()

    def _info(self, step: ActivityStep) -> ActivityInfo:
        return activity_info(self, step.activity.name, step.id, step.attempt, self.lease.token)

    # Executing.

    async def execute(self, lease: Lease) -> End:
        """Execute the run until it ends or waits. An error ends this try and leaves the stored run unchanged."""
        self.recorder.open(Journal(self.host.journals, lease, self._last_id))
        self._attempts.open()
        if self._hidden is not None:
            raise self._hidden.error(f"the input of run {self.id!r}")
        begun = self.replayer.begun
        try:
            if self._is_new:
                self._is_new = False
                self.recorder.begin()
            else:
                await self.recorder.catch_up()
                self.recorder.align_clock()
            kind = RunResumed if begun or self.recorder.last_id else RunStarted
            if self.host.observes(kind):
                self.host.happened(kind(*self.about()))
            self._waits.watch_deadline()
            while (end := await self._advance()) is None:
                pass
            return end
        finally:
            self._last_id = self.recorder.last_id
            await self._put_down()

    async def _advance(self) -> End | None:
        """Start what the body wants and handle what happens next; return how the execution ended, if it did."""
        if self.replayer.done:
            return await endings.finish(self)
        if self.recorder.facts.expired:
            return await self._cancel("timeout exceeded")
        if not self._draining or not self._steps.ready:
            self._attempts.start_ready()
        elif not self._under_way():
            await self.recorder.durable()
            raise Drained(self.id)
        if self._under_way():
            if self._steps.waiting:
                await self._waits.keep_time()
            await self._next()
            return None
        if not self._steps.waiting:
            raise EngineError(
                "deadlock: nothing this run awaits can ever complete; look for a lock, queue or future that is shared "
                "with other runs, or that no task of this run releases"
            )
        return End.SUSPENDED if await self._suspend() else None

    async def _next(self) -> None:
        """Handle the next item of the inbox, or poll for messages."""
        if self._inbox.empty and self._attempts.only_pausing:
            self.slot.rest()  # no code executes while the run waits for a short time
        if self._waits.polling:
            handle = await self._poll()
        else:
            handle = await self._inbox.next(alone=self.slot.held)
        if not self.slot.held:
            await self._resume()
        await handle()

    async def _poll(self) -> Handle:
        try:
            async with asyncio.timeout(LOOK_SEC):
                return await self._inbox.next(alone=False)
        except TimeoutError:
            return self._waits.look

    def _proceed(self) -> bool:
        """Start what the body wants after it got a result; return whether the run's task is needed for the rest."""
        if self.replayer.done or self._draining or self._steps.waiting or self.recorder.facts.expired:
            return True
        self._attempts.start_ready()
        return self._attempts.only_pausing

    async def _resume(self) -> None:
        """Take a slot again, before code executes."""
        try:
            await self.slot.resume()
        except Drained:
            await self.recorder.durable()
            raise

    def _under_way(self) -> bool:
        """Return whether the run keeps its lease: for a task, an item in the inbox or a short timer."""
        return self._attempts.under_way or not self._inbox.empty or self._waits.short

    async def _suspend(self) -> bool:
        """Register all waits and release the lease; return False if a wait is over already, after handling it."""
        await self.recorder.durable()
        waits = await self._waits.registrations()
        self.ending = True
        found = await self.host.suspensions((self.lease, waits))
        self.ending = found.suspended
        if not found.suspended:
            await self._waits.take_ready(waits, set(found.ready))
            return False
        steps = tuple(wait.activity_id for wait in waits[:STEPS_SHOWN] if wait.activity_id != ids.EXPIRED)
        self.host.happened(RunWaiting(*self.about(), steps))
        return True

    async def _cancel(self, reason: str) -> End:
        """Cancel this run; the worker that leases it next compensates its steps."""
        await self.recorder.durable()
        self.ending = True
        await self.host.storage.cancel_instance(self.id, reason, compensate=True, lease=self.lease)
        return End.CANCELLING

    async def give_up(self, error: BaseException, lease: Lease) -> None:
        """Record that the run failed with this error; the rollback does the rest.

        The rollback reads only the history, so it works although the body cannot be replayed.
        """
        self.recorder.open(Journal(self.host.journals, lease, self._last_id))
        await endings.fail(self, error, WorkflowStatus.COMPENSATING)

    # What the worker asks for.

    def drain(self) -> None:
        """Start nothing new; running activities may finish."""
        self._draining = True
        if not self.replayer.evicted:
            self._attempts.drain()
            self._inbox.post(nothing)

    def hint(self) -> None:
        """Poll for messages and timers of this run, because there may be one."""
        if self._steps.waits and not self.replayer.evicted:
            self._waits.hint()

    def park(self) -> ParkedRun:
        """Return what to keep in memory of this run, which waits."""
        facts, began = self.recorder.facts, self.recorder.began
        return ParkedRun(self.replayer, self.generation, None if facts == Facts() else facts, began, self._last_id)

    def evict(self) -> None:
        """Remove the body from memory; the run itself does not end."""
        if not self.replayer.evicted:
            self.replayer.evict()
            # They refer to this run. Without a cycle it is freed at once, and garbage collections are rare and short.
            del self._attempts, self._waits, self._inbox

    async def _put_down(self) -> None:
        """Stop all tasks and timers of the run in this process; rows in the database keep the time from here on."""
        self._waits.stop()
        await self._attempts.stop()
        self._inbox.clear()
