"""The worker: executes runs, and does its share of the work for all runs (timers, deliveries, cron ticks).

A notification, or the time of the next due work, wakes it. It then looks for due timers and timeouts, messages to
deliver and runs to lease, and processes them in batches. Notifications can be lost, so it also polls.

A run whose try ended without progress is retried with back-off: a lease without a worker keeps it from being leased,
longer after each try. The number of tries follows the `#` in the owner of that lease; the storage has the reason.
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

from perdure.engine.execution.clock import steady
from perdure.engine.execution.driven import Attempt, Done, Drained, Driven, End, Record
from perdure.engine.execution.journal import Entry, Shared, appending
from perdure.engine.execution.rollback import Rollback
from perdure.engine.execution.run import Run
from perdure.engine.execution.slots import Slot, Slots
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.replay.guard import came_by_signal, is_cancelled
from perdure.engine.starting import start_tick
from perdure.engine.worker.activities import Activities
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.engine.worker.hooks import Hooks
from perdure.engine.worker.log import seconds, summary_of
from perdure.engine.worker.relay import Relay
from perdure.engine.worker.results import Results
from perdure.engine.worker.retention import Retention, sweep_for_ever
from perdure.engine.worker.stuck import UNSERVED, is_backed_off, published, reason_of, tries_of, unclaimed_for
from perdure.engine.worker.supervision import Supervised, Supervisor
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
from perdure.model.schedules import Schedule, tick_id
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage, Wait
from perdure.storage.wakeups import OUTBOX, RESUMABLE

log = logging.getLogger("perdure.engine")

LOOK_SEC = 10.0  # poll interval without a notification
WHOLE_SEC = 30.0  # interval of the polls that look for every kind of work
CALM_SEC = 0.02  # minimum time between two polls
CLAIM_SEC = 0.2  # how long one poll continues to lease runs as slots become free
OVERDUE_SEC = 0.2  # first poll interval while work is due that another worker is processing
BATCH = 100
BACK_OFF_MAX_SEC = 300.0
DEATHS_MAX = 3  # deaths of workers in a row, without progress of the run, before it is backed off
DEATHS_PATIENCE = 6  # deaths before the back-off grows: another run of the same workers may be the cause
CONFLICTS_MAX = 10  # maximum number of immediate retries of a run whose transaction loses deadlocks
TICK_AGAIN_SEC = 60.0  # retry interval after a scheduled workflow could not be started
WARN_AGAIN_SEC = 300.0  # interval of the warnings about a workflow that no worker executes
ENDING_SEC = 1.0  # how long tasks that are cancelled at the end of the grace time may take to end
WORK_LOOP = "work loop"
NAMES_SHOWN = 5  # maximum number of workflows or runs named in one log message
RELEASE_SEC = 3.0  # how long the release of leases may take at the end


class Worker:
    """Executes at most `max_runs` runs at a time."""

    def __init__(
        self,
        storage: Storage,
        workflows: Mapping[str, WorkflowDefinition],
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
        self._context = copy_context()  # of the code that opened the app: a run must not see a caller's context
        self._driven: dict[str, asyncio.Task[None]] = {}
        self._leases: dict[str, Lease] = {}
        self._awaited: set[str] = set()
        self._runs: dict[str, Driven] = {}
        self._hearing: dict[str, Run] = {}  # the runs that may wait for messages, without the rollbacks
        self._parked: OrderedDict[str, Run] = OrderedDict()
        self._wake = asyncio.Event()
        self._slots = Slots(max_runs, self._wake.set)
        self._tasks: list[asyncio.Task[None]] = []
        self._epoch = datetime.now(UTC) - timedelta(seconds=steady())  # replaced by the database's clock at the start
        self._whole_at = 0.0  # when to look for every kind of work, by the monotonic clock
        self._fruitless = 0
        self._ticked = self.now()
        self._ticks: dict[str, datetime] = {}  # the last tick of each scheduled workflow
        self._tick_again_at: dict[str, float] = {}  # when to retry a tick that could not be started
        self._losses: set[asyncio.Task[None]] = set()  # tasks that log a lost lease
        self._died: set[str] = set()  # runs whose last worker died without progress, until they are executed again
        self._warned_at: dict[str, float] = {}  # by the names of workflows that no worker seems to execute
        self.stopping = False
        self.hurried = asyncio.Event()  # a second signal: stop without waiting

    # Starting and stopping.

    async def start(self) -> None:
        """Start the background tasks and look for work."""
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
        """Drain and stop: lease no more runs, let running activities finish within the grace time, release all leases.

        Tasks that are cancelled at the end of the grace time get a moment to end. The lease of a run is released even
        if its code has not ended by then, such as a plain function in its thread.
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
        for patience in (ENDING_SEC, RELEASE_SEC, ENDING_SEC):  # first end the code, then stop waiting and release
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
        """Wait until no run is being executed, the time is over, or a second signal arrives."""
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
        """Listen for notifications: wake the work loop, and let the runs of this worker poll for their messages."""
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
        """Do all due work and return the seconds until more is due.

        One statement finds out whether any work is due, so that a notification for nothing costs no more. Work that it
        cannot see (messages of compatible frameworks) is looked for every `WHOLE_SEC`.
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
        self._fruitless = min(self._fruitless + 1, 10)  # work is due, but others process it, or no slot is free
        return min(LOOK_SEC, self.lease_sec, delay or OVERDUE_SEC * 2.0**self._fruitless)

    async def _delay(self) -> float:
        dues = [due for each in self._workflows.values() if (due := self._next_tick(each)) is not None]
        dues += filter(None, [await self.storage.next_work_at()])
        delays = [(due - self.now()).total_seconds() for due in dues]
        return max(0.0, min(LOOK_SEC, self.lease_sec, *delays))

    async def _work(self) -> bool:
        """Do each kind of work once; return whether anything was done."""
        done = await self._expire()
        done += len(await self.storage.deliver_pending(BATCH))
        done += await self._start_ticks()
        done += await self._claim()
        return done > 0

    def _next_tick(self, workflow: WorkflowDefinition) -> datetime | None:
        if workflow.schedule is None or workflow.name in self._tick_again_at:
            return None
        try:
            return workflow.schedule.next_after(self._ticked)
        except Exception as error:
            self._tick_failed(workflow, error)
            return None

    async def _start_ticks(self) -> int:
        """Start the due ticks and return their number; workers that do so at the same time start the same run.

        A tick that cannot be started is logged and does not stop the ticks of other workflows.
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

    def _tick_failed(self, workflow: WorkflowDefinition, error: Exception) -> None:
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

    async def _start_tick(self, workflow: WorkflowDefinition, schedule: Schedule) -> int:
        tick = schedule.last_before(self._ticked)
        if self._ticks.get(workflow.name) == tick or self._forgets(tick):
            return 0
        await start_tick(self.storage, workflow, tick_id(workflow.name, tick))
        self._ticks[workflow.name] = tick
        return 1

    async def _warn_of_unserved(self) -> None:
        """Warn of workflows that this worker does not execute and whose runs have been due for a while."""
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
        """Return whether retention may have deleted the run of a tick, which must not be started a second time."""
        kept = Retention.span(self._retention.finished) if self._retention else None
        return kept is not None and self.now() - tick >= kept

    async def _expire(self) -> int:
        """Fire due timers and timeouts, and return their number."""
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
                limit += min(len(self._awaited), BATCH)  # runs that cannot be leased yet must not hide the others
                found = await self.storage.find_resumable_workflows(limit, workflow_names=list(self._workflows))
                taken = await self._take(found, slots)
            finally:
                for slot in slots:
                    slot.rest()  # the slots that are left
            claimed += taken
            if not taken or len(found) < limit:
                break
        return claimed

    async def _take(self, found: list[ResumableWorkflow], slots: list[Slot]) -> int:
        """Lease the runs that were found, in one batch per number of tries; each run takes one of the slots."""
        taken = 0
        for each in found:
            if each.instance_id in self._driven:
                self._awaited.add(each.instance_id)  # its last try has not ended yet: a thread may still run
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
        """Return the runs, of those whose worker died, for which nothing was recorded under the expired lease."""
        if not died:
            return set()
        rows = await self.storage.get_instances([each.instance_id for each in died])
        pairs = zip(died, rows, strict=True)
        return {each.instance_id for each, row in pairs if row is not None and not _progressed(each, row)}

    def _log_takeover(self, orphans: Mapping[str, Sequence[str]]) -> None:
        for worker, runs in orphans.items():
            if worker == self.worker_id:
                continue  # this worker lost the leases itself and has logged it
            log.warning(
                "worker %s takes over %d run(s) of worker %s, whose lease expired: %s%s",
                self.worker_id,
                len(runs),
                worker,
                ", ".join(runs[:NAMES_SHOWN]),
                " …" if len(runs) > NAMES_SHOWN else "",
                extra={"worker": self.worker_id, "from_worker": worker, "runs": list(runs)},
            )

    # Executing.

    def reserve_slot(self) -> Slot | None:
        """Return a slot for a run that is about to be started, or None if no slot is free."""
        slots = self._slots.reserve(1)
        return slots[0] if slots else None

    def drive(self, instance: WorkflowInstance, lease: Lease, sent: float, slot: Slot, tries: int = 0) -> None:
        """Execute an instance that this worker leased at the time `sent`, with a slot that was reserved for it."""
        run = self._taken_up(instance)
        run.slot = slot
        run.deadline = sent + self.lease_sec
        self._leases[run.id] = lease
        self._hold(run, lease)
        driving = self._drive(run, lease, slot, tries)
        self._driven[run.id] = asyncio.create_task(driving, name=f"run {run.id}", context=self._context.copy())

    def _taken_up(self, instance: WorkflowInstance) -> Driven:
        """Return the cached run if it is of the same generation, or else a new run or rollback."""
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
                self._wake.set()  # the run can be leased again

    async def _try(self, run: Driven, lease: Lease, tries: int) -> None:
        """Execute a run once. A cached run that no longer matches its history is released, to be replayed anew."""
        if run.id in self._died:
            self._died.discard(run.id)
            if tries >= min(DEATHS_MAX, run.workflow.max_tries or DEATHS_MAX):
                await self._back_off(run, lease, _deaths(tries), tries - 1, DEATHS_PATIENCE)
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
                "run %s (%s) is paused until the database is available: %s",
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
                await self._log_lost(run)  # the unexpected rows are from another worker or a cancellation
                self._wake.set()
            elif run.resumed:
                await self._release(lease)
            else:
                await self._back_off(run, lease, error, 0 if run.progressed else tries)
        else:
            if tries:
                with suppress(StorageError):  # harmless if it fails: the row no longer applies
                    await self.storage.clear_stuck([run.id])
            await self._ended(run, end)

    async def _drive_on(self, run: Driven, lease: Lease) -> tuple[Driven, End]:
        """Execute a run and its rollback or next generation under the same lease; retry after lost deadlocks."""
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
        """Return whether the worker has lost the lease; False if the database does not answer."""
        with suppress(StorageError):
            row = await self.storage.get_instance(lease.instance_id)
            return row is None or (row.locked_by, row.lock_token) != (lease.worker_id, lease.token)
        return False

    async def _next_of(self, run: Driven, lease: Lease) -> Driven:
        """Return what follows a run under the same lease: its rollback, its next generation or its next try."""
        found = await self.storage.get_instance(run.id)
        if found is None:
            raise LeaseLostError(f"run {run.id!r} was deleted")
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
            run.evict()  # ends tasks that the body did not await
            await self._results.ended(run.id)
        elif isinstance(run, Run) and self._resident and not self.stopping:
            run.resumed = True
            self._parked[run.id] = run
            if len(self._parked) > self._resident:
                self._parked.popitem(last=False)[1].evict()
        else:
            run.evict()

    async def _back_off(self, run: Driven, lease: Lease, error: BaseException, tries: int, patience: int = 1) -> None:
        """Back off: no worker leases the run for a time that doubles with each try after the first `patience` tries.

        If the workflow's `max_tries` is reached, fail the run instead.
        """
        tries += 1
        limit = run.workflow.max_tries
        if limit is not None and tries >= limit and isinstance(run, Run):
            try:
                await run.give_up(error, lease)
                rollback = await self._next_of(run, lease)
            except StorageError as refused:
                log.debug(
                    "run %s (%s) reached its max_tries but could not be failed, retrying: %s",
                    *_about(run).values(),
                    refused,
                )
                await self._release(lease)
                return
            await self._try(rollback, lease, 0)
            return
        pause = min(BACK_OFF_MAX_SEC, 2.0 ** min(max(0, tries - patience), 10))
        if patience > 1:
            pause *= random.uniform(0.75, 1.25)  # nosec B311 # so that runs of one dead worker are retried apart
        run.ending = True  # the heartbeat may find the lease gone before this returns
        try:
            await self.storage.back_off(lease, tries, reason_of(error), pause)
        except StorageError as refused:
            log.debug("run %s (%s) is retried when its lease expires: %s", *_about(run).values(), refused)
        again = timedelta(seconds=pause)
        self.happened(RunStuck(run.id, run.workflow.name, self.now(), summary_of(error), tries, again))
        if not isinstance(error, EngineError):  # unexpected, so log the traceback
            log.debug("run %s (%s) is stuck because of this error", *_about(run).values(), exc_info=error)

    async def _release(self, lease: Lease) -> None:
        with suppress(StorageError):
            await self.storage.release_lock(lease.instance_id, lease.worker_id, lease=lease)

    def _check_lease(self, instance_id: str) -> None:
        """Check the lease of a run that is executed here although it is due: it was cancelled, or the lease is lost."""
        lease = self._leases.get(instance_id)
        if lease is not None and self._runs[instance_id].at_work:
            self._heartbeat.nudge()
        elif lease is not None:
            self._lost(lease)  # it only waits, so the heartbeat would not check its lease soon

    def _lost(self, lease: Lease) -> None:
        """Stop executing a run whose lease is lost, unless the run itself is just releasing it."""
        if self._leases.get(lease.instance_id) is lease and not self._runs[lease.instance_id].ending:
            reporting = asyncio.create_task(self._log_lost(self._runs[lease.instance_id]))
            self._losses.add(reporting)
            reporting.add_done_callback(self._losses.discard)
            del self._leases[lease.instance_id]  # cancel once: a second cancellation would interrupt the clean-up
            self._heartbeat.drop(lease)
            self._driven[lease.instance_id].cancel()

    async def _log_lost(self, run: Driven) -> None:
        """Log that a lease is lost; not as a warning if the run was cancelled."""
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
        """Note that the database did not answer, and check soon whether it does again."""
        self._supervisor.watch(WORK_LOOP).unavailable(error)
        self._wake.set()

    # Services for runs.

    def now(self) -> datetime:
        """Return an estimate of the database's clock, which does not depend on changes of the local clock."""
        return self._epoch + timedelta(seconds=steady())

    def wake(self) -> None:
        """Look for work soon."""
        self._wake.set()

    async def watch_ends(self, ids: Sequence[str]) -> tuple["asyncio.Future[None]", list[WorkflowInstance]]:
        """Return a future that is done once all these runs have ended, and the rows of those that have not."""
        return await self._results.watch(ids)

    def transact(self, attempt: Attempt, record: Record) -> Coroutine[Any, Any, Done]:
        """Execute an attempt in a transaction that also records its result."""
        return self._activities.transact(attempt, self.storage, record)

    def execute(self, attempt: Attempt) -> Coroutine[Any, Any, Done]:
        """Execute an attempt."""
        return self._activities.execute(attempt)

    def happened(self, event: HookEvent) -> None:
        """Log an event and call the hooks."""
        self._hooks.call(event, self.worker_id)


async def _comes(future: "asyncio.Future[None]", seconds: float) -> bool:
    """Return whether a future is done in time; if not, it is not cancelled."""
    done, _ = await asyncio.wait([future], timeout=seconds)
    return bool(done)


def _about(run: Driven) -> dict[str, object]:
    return {"run_id": run.id, "workflow": run.workflow.name}


def _tries(owner: str | None) -> int:
    """Return the number of tries in a row without progress, including the one during which the owner died."""
    return tries_of(owner) + 1 if _is_death(owner) else tries_of(owner)


def _is_death(owner: str | None) -> bool:
    """Return whether the owner of an expired lease is a worker, which died or lost its database."""
    return owner is not None and not is_backed_off(owner)


def _deaths(count: int) -> WorkerDiedError:
    return WorkerDiedError(
        f"{count} workers in a row died or lost their database while they executed this run, and it made no progress: "
        "does its code end the process, or use too much memory?"
    )


def _progressed(found: ResumableWorkflow, row: WorkflowInstance) -> bool:
    """Return whether anything was recorded under the expired lease."""
    stamps = found.locked_at, row.updated_at
    return stamps[0] is not None and stamps[1] is not None and stamps[1] > stamps[0]
