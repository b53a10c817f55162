"""A worker: drives runs, and does the duties that all workers share.

It is woken, by hints or by the time the next thing is due, and looks for work then: due timers and time-outs, messages
to deliver, runs to take. Whatever it finds it takes in batches. A hint may be lost, so it looks now and then anyway.

A run that ended a try without progress is retried with back-off: it stays leased, to no worker, for a growing while.
How often that happened stands behind the `#` of the lease's owner, and why, in a row of the storage.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.engine.activities import Activities
from perdure.engine.clock import steady
from perdure.engine.cron import Schedule, tick_id
from perdure.engine.definitions import Workflow
from perdure.engine.driven import Attempt, Done, Drained, Driven, End, Record
from perdure.engine.guard import came_by_signal, is_cancelled
from perdure.engine.heartbeat import Heartbeat
from perdure.engine.hooks import Hooks
from perdure.engine.journal import Entry, Shared, appending
from perdure.engine.log import seconds, summary_of
from perdure.engine.relay import Relay
from perdure.engine.results import Results
from perdure.engine.retention import Retention, sweep_for_ever
from perdure.engine.rollback import Rollback
from perdure.engine.run import Run
from perdure.engine.slots import Slot, Slots
from perdure.engine.starting import start_tick
from perdure.engine.stuck import UNSERVED, is_backed_off, published, reason_of, tries_of, unclaimed_for
from perdure.engine.supervision import Supervised, Supervisor
from perdure.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    EngineError,
    LeaseLostError,
    StorageError,
    TransactionConflictError,
    WorkerDiedError,
)
from perdure.hooks import HookEvent, RunStuck
from perdure.model.limits import PAGE_MAX
from perdure.model.records import Lease, ResumableWorkflow, Suspension, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage, Wait
from perdure.storage.wakeups import OUTBOX, RESUMABLE

log = logging.getLogger("perdure.engine")

LOOK_SEC = 10.0  # without a hint, how long until a look all the same
WHOLE_SEC = 30.0  # and until one for everything there might be
CALM_SEC = 0.02  # at least so long between two looks
CLAIM_SEC = 0.2  # how long one look goes on claiming runs as slots become free
OVERDUE_SEC = 0.2  # something is due that could not be done: somebody else is at it
BATCH = 100
PUT_OFF_MAX_SEC = 300.0
DEATHS_MAX = 3  # so many workers may die under a run before it is backed off
DEATHS_PATIENCE = 6  # from then on the pauses grow: until then it may just have been with one that kills workers
CONFLICTS_MAX = 10  # how often a run whose transaction lost a deadlock is run again at once
TICK_AGAIN_SEC = 60.0  # after a scheduled workflow could not be started
WARN_AGAIN_SEC = 300.0  # until a workflow that no worker serves is mentioned again
ENDING_SEC = 1.0  # how long what is cancelled at the end of the grace time may take to end
WORK_LOOP = "work loop"
NAMES_SHOWN = 5  # of workflows or runs in one log message
RELEASE_SEC = 3.0  # and how long the database may take to give leases back


class Worker:
    """Drives up to `max_runs` at a time."""

    def __init__(
        self,
        storage: Storage,
        workflows: Mapping[str, Workflow[..., Any]],
        results: Results,
        hooks: Hooks,
        *,
        worker_id: str,
        lease_sec: float,
        max_runs: int,
        resident: int,
        activities: Activities,
        supervisor: Supervisor,
        heartbeat: Callable[[Callable[[Lease], None]], Heartbeat],
        retention: Retention | None = None,
        relay: Relay | None = None,
    ) -> None:
        self.storage = storage
        self.records: Shared[Entry, int] = Shared(appending(storage))
        self.completions: Shared[tuple[Lease, bytes], None] = Shared(storage.complete_instances)
        self.suspensions: Shared[tuple[Lease, list[Wait]], Suspension] = Shared(storage.suspend_instances)
        self.worker_id = worker_id
        self.lease_sec = lease_sec
        self._workflows = workflows
        self._results = results
        self._hooks = hooks
        self._resident = resident
        self._activities = activities
        self._retention = retention
        self._relay = relay
        self._supervisor = supervisor
        for shared, name in ((self.records, "records"), (self.completions, "ends"), (self.suspensions, "waits")):
            shared.supervised = supervisor.watch(f"group commit of {name}")
        self._heartbeat = heartbeat(self._lost)
        self._context = copy_context()  # of whoever opened the app: runs belong to no caller
        self._driven: dict[str, asyncio.Task[None]] = {}
        self._leases: dict[str, Lease] = {}
        self._awaited: set[str] = set()
        self._runs: dict[str, Driven] = {}
        self._hearing: dict[str, Run] = {}  # those of them that may wait for messages; rollbacks can be very many
        self._parked: OrderedDict[str, Run] = OrderedDict()
        self._wake = asyncio.Event()
        self._slots = Slots(max_runs, self._wake.set)
        self._tasks: list[asyncio.Task[None]] = []
        self._epoch = datetime.now(UTC) - timedelta(seconds=steady())  # by the database's clock, once it was asked
        self._whole_at = 0.0  # when to look for everything, by the monotonic clock
        self._fruitless = 0
        self._ticked = self.now()
        self._ticks: dict[str, datetime] = {}  # the last one of each workflow that starts by the clock
        self._tick_again_at: dict[str, float] = {}  # of those whose last tick could not be started
        self._losses: set[asyncio.Task[None]] = set()  # leases that were lost and are about to be logged
        self._died: set[str] = set()  # runs whose last worker died without progress, before they are driven again
        self._warned_at: dict[str, float] = {}  # names of workflows that nobody seems to serve
        self.stopping = False
        self.hurried = asyncio.Event()  # whoever stops it does not want to wait for anything

    # Life.

    async def start(self) -> None:
        """Begin to look for work."""
        await self._set_clock()
        self._heartbeat.start()
        start = self._supervisor.start
        self._tasks = [start("listener", self._listen), start(WORK_LOOP, self._look_for_ever)]
        if self._retention is not None:
            policy = self._retention
            self._tasks.append(
                start("retention", lambda task: sweep_for_ever(self.storage, policy, self.worker_id, task))
            )
        if self._relay is not None:
            self._relay.start(self._supervisor)
        names = sorted(self._workflows)
        log.info(
            "worker %s started, serving %d workflow%s%s",
            self.worker_id,
            len(names),
            "" if len(names) == 1 else "s",
            f": {', '.join(names[:NAMES_SHOWN])}{' …' if len(names) > NAMES_SHOWN else ''}" if names else "",
            extra={"worker": self.worker_id, "workflows": names},
        )

    async def stop(self, grace_sec: float) -> None:
        """Take no more; let activities that run finish within the time, hand the rest over, give leases back.

        What is cancelled when the time is up gets a moment to end. Whatever has not ended by then, such as a plain
        function in its thread, is left behind: its lease is given back all the same.
        """
        until = steady() + grace_sec
        self.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._driven:
            log.info(
                "worker %s is draining: %d run(s) have up to %s to finish",
                self.worker_id,
                len(self._driven),
                seconds(grace_sec),
                extra={"worker": self.worker_id, "runs": sorted(self._driven)[:100]},
            )
        for run in self._runs.values():
            run.drain()
        self._slots.drain()
        relaying = None if self._relay is None else asyncio.create_task(self._relay.stop(grace_sec, self.hurried))
        await self._wait_for_runs(until - steady())
        if self._driven:
            log.warning(
                "worker %s hands over %d run(s) that did not finish within %s",
                self.worker_id,
                len(self._driven),
                seconds(grace_sec),
                extra={"worker": self.worker_id, "runs": sorted(self._driven)[:100]},
            )
        for patience in (ENDING_SEC, RELEASE_SEC, ENDING_SEC):  # end what runs; then leave it, and give leases back
            for task in self._driven.values():
                task.cancel()
            if self._driven:
                await asyncio.wait(self._driven.values(), timeout=patience)
        for run in self._parked.values():
            run.evict()
        self._parked.clear()
        if relaying is not None:
            await relaying
        if self._losses:
            await asyncio.wait(self._losses, timeout=ENDING_SEC)
        await self._heartbeat.stop()
        self._activities.close()
        log.info("worker %s stopped", self.worker_id, extra={"worker": self.worker_id})

    async def _wait_for_runs(self, seconds: float) -> None:
        """Wait until no run is driven, or the time is up, or somebody is in a hurry."""
        until = steady() + seconds
        hurry = asyncio.create_task(self.hurried.wait())
        while self._driven and not self.hurried.is_set() and (left := until - steady()) > 0:
            runs = asyncio.gather(*(asyncio.shield(task) for task in self._driven.values()), return_exceptions=True)
            either: list[asyncio.Future[Any]] = [hurry, runs]
            await asyncio.wait(either, timeout=left, return_when="FIRST_COMPLETED")
        hurry.cancel()

    async def _set_clock(self) -> None:
        await self.storage.beat_worker(self.worker_id, published(self._workflows, self.lease_sec))
        before = steady()
        for worker in await self.storage.list_workers():
            if worker.worker_id == self.worker_id:
                self._epoch = worker.beat_at - timedelta(seconds=before)

    async def _listen(self, task: Supervised) -> None:
        """Hints wake the look; messages are told to the runs that are driven here, which take their own."""
        while True:
            try:
                async for hint in self.storage.wakeups():
                    task.succeeded()
                    self._wake.set()
                    self._results.hint(hint)
                    if self._relay is not None and hint.kind in (OUTBOX, "scan"):
                        self._relay.wake()
                    if hint.kind == "scan" or hint.payload.get("reason") == "cancelled":
                        self._heartbeat.nudge()
                    if hint.kind != RESUMABLE:
                        for run in list(self._hearing.values()):
                            run.hint()
            except StorageError as error:
                log.debug("listening for notifications failed, retrying in a second: %s", error)
                self._unavailable(error)
            await asyncio.sleep(1)

    # Looking for work.

    async def _look_for_ever(self, task: Supervised) -> None:
        while True:
            self._wake.clear()
            granted = self._slots.searching
            try:
                delay = await self._look()
                task.succeeded()
            except (DatabaseUnavailableError, CommitUnknownError) as error:
                task.unavailable(error)
                delay = 1.0
            except StorageError as error:
                log.exception(
                    "worker %s could not look for work, retrying in a second: %s: %s",
                    self.worker_id,
                    type(error).__name__,
                    error,
                    extra={"worker": self.worker_id, "reason": str(error)},
                )
                delay = 1.0
            self._slots.end_search(granted)
            await asyncio.sleep(CALM_SEC)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

    async def _look(self) -> float:
        """Do what there is to do; gives the seconds until something more is due.

        One statement tells whether there is anything, so that a vague hint costs no more. What it cannot see (messages
        of the rest of the family) is looked for now and then.
        """
        whole = time.monotonic() >= self._whole_at
        delay = await self._delay()
        if delay > 0 and not whole:
            return delay
        if whole:
            self._whole_at = time.monotonic() + WHOLE_SEC
            await self._set_clock()
            await self._warn_of_unserved()
        if await self._work():
            self._fruitless = 0
            return await self._delay()
        self._fruitless = min(self._fruitless + 1, 10)  # due, but others are at it, or there is no room
        return min(LOOK_SEC, self.lease_sec, delay or OVERDUE_SEC * 2.0**self._fruitless)

    async def _delay(self) -> float:
        dues = [due for each in self._workflows.values() if (due := self._next_tick(each)) is not None]
        dues += filter(None, [await self.storage.next_work_at()])
        delays = [(due - self.now()).total_seconds() for due in dues]
        return max(0.0, min(LOOK_SEC, self.lease_sec, *delays))

    async def _work(self) -> bool:
        """Everything once; whether it came to anything."""
        done = await self._expire()
        done += len(await self.storage.deliver_pending(BATCH))
        done += await self._start_ticks()
        done += await self._claim()
        return done > 0

    def _next_tick(self, workflow: Workflow[..., Any]) -> datetime | None:
        if workflow.schedule is None or workflow.name in self._tick_again_at:
            return None
        try:
            return workflow.schedule.next_after(self._ticked)
        except Exception as error:
            self._tick_failed(workflow, error)
            return None

    async def _start_ticks(self) -> int:
        """Start what the clock says, once; workers that do so at the same time start the same run.

        What goes wrong with the tick of one workflow is no reason not to start those of the others.
        """
        started, self._ticked = 0, self.now()
        for workflow in self._workflows.values():
            if workflow.schedule is None or steady() < self._tick_again_at.get(workflow.name, 0.0):
                continue
            try:
                started += await self._start_tick(workflow, workflow.schedule)
                self._tick_again_at.pop(workflow.name, None)
            except StorageError:
                raise
            except Exception as error:
                self._tick_failed(workflow, error)
        return started

    def _tick_failed(self, workflow: Workflow[..., Any], error: Exception) -> None:
        log.error(
            "the scheduled workflow %s could not be started, retrying in %g s: %s: %s",
            workflow.name,
            TICK_AGAIN_SEC,
            type(error).__name__,
            error,
            extra={
                "workflow": workflow.name,
                "worker": self.worker_id,
                "retry_in_sec": TICK_AGAIN_SEC,
                "error_type": type(error).__name__,
                "error_message": str(error),
            },
            exc_info=error,
        )
        self._tick_again_at[workflow.name] = steady() + TICK_AGAIN_SEC

    async def _start_tick(self, workflow: Workflow[..., Any], schedule: Schedule) -> int:
        tick = schedule.last_before(self._ticked)
        if self._ticks.get(workflow.name) == tick or self._forgets(tick):
            return 0
        instance = WorkflowInstance(
            tick_id(workflow.name, tick),
            workflow.name,
            workflow.signature.bind((), {}),
            source_hash=workflow.source_hash,
            owner_service="perdure",
        )
        await start_tick(self.storage, instance, workflow.source)
        self._ticks[workflow.name] = tick
        return 1

    async def _warn_of_unserved(self) -> None:
        """Say which workflows have runs that could be taken for a while, and that this worker does not know."""
        found = await self.storage.find_resumable_workflows(PAGE_MAX) if self._workflows else []
        names = {each.instance_id: each.workflow_name for each in found if each.workflow_name not in self._workflows}
        if not names:
            return
        rows = await self.storage.get_instances(list(names))
        waiting: dict[str, list[str]] = {}
        for row in rows:
            if row is not None and unclaimed_for(row, self.now()) >= UNSERVED:
                waiting.setdefault(row.workflow_name, []).append(row.instance_id)
        for name, ids in sorted(waiting.items()):
            if steady() >= self._warned_at.get(name, 0.0):
                self._warned_at[name] = steady() + WARN_AGAIN_SEC
                log.warning(
                    "no worker has taken %d run(s) of workflow %r, for example %s, and worker %s does not serve it: "
                    "was the workflow renamed or deleted, or is its worker not running?",
                    len(ids),
                    name,
                    ids[0],
                    self.worker_id,
                    extra={"workflow": name, "runs": ids[:100], "worker": self.worker_id},
                )

    def _forgets(self, tick: datetime) -> bool:
        """Whether retention may have removed the run of a tick: it must not be started a second time."""
        kept = Retention.span(self._retention.finished) if self._retention else None
        return kept is not None and self.now() - tick >= kept

    async def _expire(self) -> int:
        """Fire the timers and time-outs that are due."""
        done = 0
        while timers := await self.storage.find_expired_timers(BATCH):
            fired = sum(await self.storage.fire_timers([(timer.instance_id, timer.timer_id) for timer in timers]))
            done += fired
            if len(timers) < BATCH or not fired:
                break
        while waits := await self.storage.find_expired_channel_subscriptions(BATCH):
            ended = sum(await self.storage.expire_channel_waits([(wait.instance_id, wait.channel) for wait in waits]))
            done += ended
            if len(waits) < BATCH or not ended:
                break
        return done

    async def _claim(self) -> int:
        claimed, until = 0, time.monotonic() + CLAIM_SEC
        while self._workflows:
            slots = self._slots.reserve(BATCH)
            limit = len(slots)
            if not slots:
                granted = self._slots.queue_search()
                if not claimed or time.monotonic() >= until or not await _comes(granted, CALM_SEC):
                    break
                continue
            try:
                limit += min(len(self._awaited), BATCH)  # those that cannot be taken yet must not hide the others
                found = await self.storage.find_resumable_workflows(limit, workflow_names=list(self._workflows))
                taken = await self._take(found, slots)
            finally:
                for slot in slots:
                    slot.rest()  # those that no run got
            claimed += taken
            if not taken or len(found) < limit:
                break
        return claimed

    async def _take(self, found: list[ResumableWorkflow], slots: list[Slot]) -> int:
        """Acquire what was found, those with equal numbers of tries together; each run takes one of the slots."""
        taken = 0
        for each in found:
            if each.instance_id in self._driven:
                self._awaited.add(each.instance_id)  # its last try is not put down yet: a thread may be at work
                self._check_lease(each.instance_id)
        free = [each for each in found if each.instance_id not in self._driven][: len(slots)]
        idle = await self._without_progress([each for each in free if _is_death(each.worker_id)])
        by_tries: dict[int, list[ResumableWorkflow]] = {}
        orphans: dict[str, list[str]] = {}
        for each in free:
            counts = each.instance_id in idle or not _is_death(each.worker_id)
            by_tries.setdefault(_tries(each.worker_id) if counts else 0, []).append(each)
        for tries, some in by_tries.items():
            ids = [each.instance_id for each in some]
            sent = steady()
            leases = await self.storage.acquire_locks(ids, f"{self.worker_id}#{tries}", self.lease_sec)
            rows = await self.storage.get_instances(ids)
            for each, lease, row in zip(some, leases, rows, strict=True):
                if lease is not None and row is not None:
                    taken += 1
                    if each.worker_id is not None and _is_death(each.worker_id):
                        orphans.setdefault(each.worker_id.rpartition("#")[0], []).append(row.instance_id)
                    if row.instance_id in idle:
                        self._died.add(row.instance_id)
                    self.drive(row, lease, sent, slots.pop(), tries)
        self._log_takeover(orphans)
        return taken

    async def _without_progress(self, died: list[ResumableWorkflow]) -> set[str]:
        """Return those runs, of some whose worker died, for which nothing was recorded under the expired lease."""
        if not died:
            return set()
        rows = await self.storage.get_instances([each.instance_id for each in died])
        pairs = zip(died, rows, strict=True)
        return {each.instance_id for each, row in pairs if row is not None and not _progressed(each, row)}

    def _log_takeover(self, orphans: Mapping[str, Sequence[str]]) -> None:
        for worker, runs in orphans.items():
            if worker == self.worker_id:
                continue  # it lost the leases, and logged that
            log.warning(
                "worker %s takes over %d run(s) of worker %s, whose lease expired: %s%s",
                self.worker_id,
                len(runs),
                worker,
                ", ".join(runs[:NAMES_SHOWN]),
                " …" if len(runs) > NAMES_SHOWN else "",
                extra={"worker": self.worker_id, "from_worker": worker, "runs": list(runs)},
            )

    # Driving.

    def reserve_slot(self) -> Slot | None:
        """A slot for a run that is about to be started, if one is free."""
        slots = self._slots.reserve(1)
        return slots[0] if slots else None

    def drive(self, instance: WorkflowInstance, lease: Lease, sent: float, slot: Slot, tries: int = 0) -> None:
        """Drive an instance that is leased to us since `sent`, with the slot that was reserved for it."""
        run = self._taken_up(instance)
        run.slot = slot
        run.deadline = sent + self.lease_sec
        self._leases[run.id] = lease
        self._hold(run, lease)
        driving = self._drive(run, lease, slot, tries)
        self._driven[run.id] = asyncio.create_task(driving, name=f"run {run.id}", context=self._context.copy())

    def _taken_up(self, instance: WorkflowInstance) -> Driven:
        """The copy in memory, if it is of this generation, or a new one."""
        parked = self._parked.pop(instance.instance_id, None)
        workflow = self._workflows[instance.workflow_name]
        compensating = instance.status is WorkflowStatus.COMPENSATING
        if parked is not None and not compensating and parked.generation == instance.continued_from:
            return parked
        if parked is not None:
            parked.evict()
        return Rollback(self, workflow, instance) if compensating else Run(self, workflow, instance)

    async def _drive(self, run: Driven, lease: Lease, slot: Slot, tries: int) -> None:
        try:
            await self._try(run, lease, tries)
        except asyncio.CancelledError:
            self._runs[run.id].evict()
            if self.stopping:
                await self._release(lease)
        finally:
            slot.rest()
            self._heartbeat.drop(lease)
            del self._driven[run.id], self._runs[run.id]
            self._leases.pop(run.id, None)
            self._hearing.pop(run.id, None)
            if run.id in self._awaited:
                self._awaited.discard(run.id)
                self._wake.set()  # it can be taken again

    async def _try(self, run: Driven, lease: Lease, tries: int) -> None:
        """Drive once. A copy in memory that does not fit its history any more is made anew, once."""
        if run.id in self._died:
            self._died.discard(run.id)
            if tries >= min(DEATHS_MAX, run.workflow.max_tries or DEATHS_MAX):
                await self._put_off(run, lease, _deaths(tries), tries - 1, DEATHS_PATIENCE)
                return
        try:
            run, end = await self._drive_on(run, lease)
        except Drained:
            run = self._runs[run.id]
            run.evict()
            await self._release(lease)
        except LeaseLostError:
            run = self._runs[run.id]
            run.evict()
            await self._log_lost(run)
        except (DatabaseUnavailableError, CommitUnknownError) as error:
            run = self._runs[run.id]
            self._unavailable(error)
            log.debug(
                "run %s (%s) stops until the database is available: %s",
                run.id,
                run.workflow.name,
                error,
                extra={**_about(run), "reason": str(error)},
            )
            run.evict()
            await self._release(lease)
        except BaseException as error:
            if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                raise
            run = self._runs[run.id]
            run.evict()
            if await self._is_lost(lease):
                await self._log_lost(run)  # what it found in its history is another worker's, or a cancellation
                self._wake.set()
            elif run.resumed:
                await self._release(lease)
            else:
                await self._put_off(run, lease, error, 0 if run.progressed else tries)
        else:
            if tries:
                with suppress(StorageError):  # the row is void: the run made progress
                    await self.storage.clear_stuck([run.id])
            await self._ended(run, end)

    async def _drive_on(self, run: Driven, lease: Lease) -> tuple[Driven, End]:
        """Drive a run and what follows it under the same lease; a transaction that lost a deadlock is run again."""
        conflicts = 0
        while True:
            try:
                end = await run.drive(lease)
            except TransactionConflictError as error:
                conflicts = 1 if run.progressed else conflicts + 1
                if conflicts > CONFLICTS_MAX:
                    raise
                log.debug(
                    "run %s (%s) is replayed at once after a conflict: %s",
                    run.id,
                    run.workflow.name,
                    error,
                    extra={**_about(run), "reason": str(error)},
                )
            else:
                if end not in (End.COMPENSATING, End.RECURRED):
                    return run, end
            run.evict()
            run = await self._next_of(run, lease)

    async def _is_lost(self, lease: Lease) -> bool:
        """Whether the lease is another one's by now, as far as the database answers."""
        with suppress(StorageError):
            row = await self.storage.get_instance(lease.instance_id)
            return row is None or (row.locked_by, row.lock_token) != (lease.worker_id, lease.token)
        return False

    async def _next_of(self, run: Driven, lease: Lease) -> Driven:
        """The body has failed, or begins anew: the same lease serves to undo it, or for the next generation."""
        found = await self.storage.get_instance(run.id)
        if found is None:
            raise LeaseLostError(f"{run.id} is gone")
        following = self._taken_up(found)
        following.deadline = run.deadline
        following.slot = run.slot
        self._hold(following, lease)
        return following

    def _hold(self, run: Driven, lease: Lease) -> None:
        self._runs[run.id] = run
        self._hearing.pop(run.id, None)
        if isinstance(run, Run):
            self._hearing[run.id] = run
        self._heartbeat.hold(lease, run)

    async def _ended(self, run: Driven, end: End) -> None:
        if end is End.CANCELLING:
            run.evict()
            self._wake.set()
        elif end is not End.SUSPENDED:
            run.evict()  # branches that the body did not wait for
            await self._results.ended(run.id)
        elif isinstance(run, Run) and self._resident and not self.stopping:
            run.resumed = True
            self._parked[run.id] = run
            if len(self._parked) > self._resident:
                self._parked.popitem(last=False)[1].evict()
        else:
            run.evict()

    async def _put_off(self, run: Driven, lease: Lease, error: BaseException, tries: int, patience: int = 1) -> None:
        """Back off: no worker takes the run for a while, longer each time from the try that `patience` says."""
        tries += 1
        limit = run.workflow.max_tries
        if limit is not None and tries >= limit and isinstance(run, Run):
            try:
                await run.give_up(error, lease)
                rollback = await self._next_of(run, lease)
            except StorageError as refused:
                log.debug("run %s (%s) could not be failed, and is tried again: %s", *_about(run).values(), refused)
                await self._release(lease)
                return
            await self._try(rollback, lease, 0)
            return
        pause = min(PUT_OFF_MAX_SEC, 2.0 ** min(max(0, tries - patience), 10))
        if patience > 1:
            pause *= random.uniform(0.75, 1.25)  # nosec B311 # those that died together do not meet again
        run.ending = True  # the heartbeat may find the lease gone before this returns
        try:
            await self.storage.back_off(lease, tries, reason_of(error), pause)
        except StorageError as refused:
            log.debug("run %s (%s) waits for its lease to expire: %s", *_about(run).values(), refused)
        again = timedelta(seconds=pause)
        self.happened(RunStuck(run.id, run.workflow.name, self.now(), summary_of(error), tries, again))
        if not isinstance(error, EngineError):  # unexpected, so the traceback says where it comes from
            log.debug("run %s (%s) is stuck because of this error", *_about(run).values(), exc_info=error)

    async def _release(self, lease: Lease) -> None:
        with suppress(StorageError):
            await self.storage.release_lock(lease.instance_id, lease.worker_id, lease=lease)

    def _check_lease(self, instance_id: str) -> None:
        """A run that is driven here can be claimed: it was cancelled, gives its lease back right now, or lost it."""
        lease = self._leases.get(instance_id)
        if lease is not None and self._runs[instance_id].at_work:
            self._heartbeat.nudge()
        elif lease is not None:
            self._lost(lease)  # it only waits: the heartbeat does not look after it soon

    def _lost(self, lease: Lease) -> None:
        """The heartbeat found a lease of ours gone: end the run's tasks at once, unless the run itself gave it back."""
        if self._leases.get(lease.instance_id) is lease and not self._runs[lease.instance_id].ending:
            reporting = asyncio.create_task(self._log_lost(self._runs[lease.instance_id]))
            self._losses.add(reporting)
            reporting.add_done_callback(self._losses.discard)
            del self._leases[lease.instance_id]  # told once: a second time would disturb its putting down
            self._heartbeat.drop(lease)
            self._driven[lease.instance_id].cancel()

    async def _log_lost(self, run: Driven) -> None:
        """Log that a lease is gone; to lose it to a cancellation is no reason to worry."""
        row = None
        with suppress(StorageError):
            row = await self.storage.get_instance(run.id)
        was_cancelled = row is not None and row.status in (WorkflowStatus.COMPENSATING, WorkflowStatus.CANCELLED)
        log.log(
            logging.DEBUG if was_cancelled else logging.WARNING,
            "worker %s lost its lease on run %s (%s) and stops executing it: %s",
            self.worker_id,
            run.id,
            run.workflow.name,
            "the run was cancelled" if was_cancelled else "the lease expired, or another worker took the run over",
            extra={**_about(run), "worker": self.worker_id},
        )

    def _unavailable(self, error: BaseException) -> None:
        """Note that the database did not answer, and find out whether it does by now."""
        self._supervisor.watch(WORK_LOOP).unavailable(error)
        self._wake.set()

    # What runs need.

    def now(self) -> datetime:
        """The database's clock, as far as it is known here; this machine's own may be set at any moment."""
        return self._epoch + timedelta(seconds=steady())

    def wake(self) -> None:
        """Look for work soon."""
        self._wake.set()

    async def watch_ends(self, ids: Sequence[str]) -> tuple["asyncio.Future[None]", list[WorkflowInstance]]:
        """A future that is done once all these runs have ended, and the rows of those that have not."""
        return await self._results.watch(ids)

    def transact(self, attempt: Attempt, record: Record) -> Coroutine[Any, Any, Done]:
        """Run an attempt's code in a transaction that ends with its record."""
        return self._activities.transact(attempt, self.storage, record)

    def execute(self, attempt: Attempt) -> Coroutine[Any, Any, Done]:
        """Run an attempt's code."""
        return self._activities.execute(attempt)

    def happened(self, event: HookEvent) -> None:
        """Log it and call the hooks."""
        self._hooks.call(event, self.worker_id)


async def _comes(future: "asyncio.Future[None]", seconds: float) -> bool:
    """Whether it is done in time; if not, it is left as it is."""
    done, _ = await asyncio.wait([future], timeout=seconds)
    return bool(done)


def _about(run: Driven) -> dict[str, object]:
    return {"run_id": run.id, "workflow": run.workflow.name}


def _tries(owner: str | None) -> int:
    """How many tries in a row had ended without progress, with the one that this owner did not end."""
    return tries_of(owner) + 1 if _is_death(owner) else tries_of(owner)


def _is_death(owner: str | None) -> bool:
    """Whether the owner of a lease that ran out is a worker: it died, or lost the database."""
    return owner is not None and not is_backed_off(owner)


def _deaths(count: int) -> WorkerDiedError:
    return WorkerDiedError(
        f"{count} workers in a row died or lost their database while they executed this run, and it made no progress: "
        "does its code end the process, or use too much memory?"
    )


def _progressed(found: ResumableWorkflow, row: WorkflowInstance) -> bool:
    """Whether anything was recorded under the lease that expired."""
    stamps = found.locked_at, row.updated_at
    return stamps[0] is not None and stamps[1] is not None and stamps[1] > stamps[0]
