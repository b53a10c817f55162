"""The runs that a worker executes at the moment: their tasks, their leases, and what stays in memory afterwards."""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context

from perdure.engine.execution.clock import steady
from perdure.engine.execution.interfaces import End, Executable
from perdure.engine.execution.rollback import Rollback
from perdure.engine.execution.run import Run
from perdure.engine.interception import Interception
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.lost_leases import LostLeases
from perdure.engine.worker.run_cache import RunCache
from perdure.engine.worker.run_task import LeasedRun, RunTask
from perdure.engine.worker.waiting import end_tasks, wait_unless
from perdure.model.records import Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus

ENDING_SEC = 1.0  # how long tasks that are cancelled at the end of the grace time may take to end
RELEASE_SEC = 3.0  # how long the release of leases may take at the end
HINT_SEC = 0.00003  # minimum time between two hints to the runs, for each run: about a hundred times what one costs


class RunExecutor:
    """Executes leased runs, each in a task of its own, and keeps their leases until they end or wait."""

    def __init__(
        self,
        host: WorkerHost,
        workflows: Mapping[str, WorkflowDefinition],
        heartbeat: Heartbeat,
        max_cached_runs: int,
        interception: Interception | None = None,
        lease_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self.host = host
        self.interception = interception
        self.tasks: dict[str, RunTask] = {}  # by the id of the run
        self.cache = RunCache(max_cached_runs)
        self.lost_leases = LostLeases(host.storage, host.worker_id, lease_lost)
        self.awaited: set[str] = set()  # runs that are due again, but whose last task has not ended
        self.stopping = False
        self._workflows = workflows
        self._heartbeat = heartbeat
        self._receivers: dict[str, Run] = {}  # the runs that may wait for messages, without the rollbacks
        self._hinted_at = 0.0
        self._hinting: asyncio.TimerHandle | None = None
        self._context = copy_context()  # of the code that opened the app: a run must not see a caller's context

    def begin(self, leased: LeasedRun) -> None:
        """Execute a run in a new task."""
        new = RunTask(self, leased)
        # Not by the loop's factory, which is for the tasks that an activity's code starts.
        new.task = asyncio.Task(
            new.execute(), loop=asyncio.get_running_loop(), name=f"run {new.run.id}", context=self._context.copy()
        )
        self.tasks[new.run.id] = new

    def is_executing(self, instance_id: str) -> bool:
        """Return whether this worker executes a run and will report its end, or that it is no longer executed here."""
        task = self.tasks.get(instance_id)
        return task is not None and not task.reported

    # For the tasks.

    def take_up(self, instance: WorkflowInstance, *, is_new: bool = False) -> Executable:
        """Return a run or a rollback; the body of a run may be in the cache."""
        parked, workflow = self.cache.take(instance), self._workflows[instance.workflow_name]
        if instance.status is WorkflowStatus.COMPENSATING:
            return Rollback(self.host, workflow, instance)
        return Run(self.host, workflow, instance, is_new=is_new, parked=parked)

    def hold(self, task: RunTask) -> None:
        """Renew the lease of what a task executes now, and pass notifications to it."""
        run = task.run
        if isinstance(run, Run):
            self._receivers[run.id] = run
        else:
            self._receivers.pop(run.id, None)
        self._heartbeat.hold(task.lease, run)

    def drop(self, task: RunTask) -> None:
        """Forget a task that ends."""
        id = task.run.id
        self._heartbeat.drop(task.lease)
        del self.tasks[id]
        self._receivers.pop(id, None)
        if not task.reported:
            self.host.results.released(id)
        if id in self.awaited:
            self.awaited.discard(id)
            self.host.wake()  # the run can be leased again

    async def ended(self, run: Executable, end: End) -> None:
        """Keep a run that waits in memory; report the end of a run that has ended."""
        if end is End.SUSPENDED and isinstance(run, Run) and not self.stopping:
            self.cache.put(run)
            return
        run.evict()  # ends tasks that the body did not await
        if end is End.CANCELLING:
            self.host.wake()
        elif end is not End.SUSPENDED:
            if isinstance(run, Run) and run.parent is not None:
                self.host.wake()  # its parent has got a message
            self.tasks[run.id].reported = True
            await self.host.results.ended(run.id, run.output if isinstance(run, Run) else None)

    # Notifications and leases.

    def hint(self) -> None:
        """Let the runs poll for messages, because there may be one; many calls within a short time count as one."""
        if self._hinting is None and self._receivers:
            at = self._hinted_at + HINT_SEC * len(self._receivers)
            self._hinting = asyncio.get_running_loop().call_at(at, self._hint)

    def _hint(self) -> None:
        self._hinting, self._hinted_at = None, asyncio.get_running_loop().time()
        for run in self._receivers.values():
            run.hint()

    def found_due(self, instance_id: str) -> None:
        """Check the lease of a run that is executed here although it is due: it was cancelled, or the lease is lost."""
        self.awaited.add(instance_id)  # its last try has not ended yet: a thread may still run
        task = self.tasks[instance_id]
        if task.lost:
            return
        if task.run.at_work:
            self._heartbeat.nudge()
        else:
            self.lose(task.lease)  # it only waits, so the heartbeat would not check its lease soon

    def lose(self, lease: Lease) -> None:
        """Stop executing a run whose lease is lost, unless the run itself is just releasing it."""
        task = self.tasks.get(lease.instance_id)
        if task is None or task.lease is not lease or task.lost or task.run.ending:
            return
        task.lost = True  # cancel once: a second cancellation would interrupt the clean-up
        self.lost_leases.report_soon(task.run)
        self._heartbeat.drop(lease)
        task.task.cancel()

    # Stopping.

    def drain(self) -> None:
        """Let the runs start nothing new."""
        for task in self.tasks.values():
            task.run.drain()

    async def wait(self, seconds: float, hurried: asyncio.Event) -> None:
        """Wait until no run is executed, the time is over, or the event is set."""
        until = steady() + seconds
        while self.tasks and not hurried.is_set() and (left := until - steady()) > 0:
            await wait_unless(hurried, [each.task for each in self.tasks.values()], left)

    async def stop(self) -> None:
        """End all tasks and release their leases.

        Cancelled tasks get a moment to end. The lease of a run is released even if its code has not ended by then,
        such as a plain function in its thread.
        """
        for patience in (ENDING_SEC, RELEASE_SEC, ENDING_SEC):  # first end the code, then stop waiting and release
            await end_tasks([each.task for each in self.tasks.values()], patience)
        if self._hinting is not None:
            self._hinting.cancel()
        self.cache.clear()
