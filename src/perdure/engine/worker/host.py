"""The services of a worker: for its runs (see `Host`), and for its own parts."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any

from perdure.engine.execution.clock import Clock
from perdure.engine.execution.group_commit import GroupCommit
from perdure.engine.execution.interfaces import Attempt, Done, Record
from perdure.engine.execution.journal import Journals, writing
from perdure.engine.worker.activities import Executor
from perdure.engine.worker.clock import DatabaseClock
from perdure.engine.worker.hooks import Hooks
from perdure.engine.worker.metering import metered_write
from perdure.engine.worker.results import Results
from perdure.engine.worker.supervision import Supervisor
from perdure.hooks import HookEvent
from perdure.metrics import Meter
from perdure.model.records import Lease, ResumableWorkflow, Suspension, Wait, WorkflowInstance
from perdure.storage.contract import Storage

WORK_LOOP = "work loop"
NAMED_MAX = 100  # channels or runs that notifications name; if there are more, the work loop looks at everything


class WorkerHost:
    """What the runs and the parts of one worker share."""

    def __init__(
        self,
        storage: Storage,
        worker_id: str,
        *,
        supervisor: Supervisor,
        results: Results,
        hooks: Hooks,
        activities: Executor,
        clock: Clock,
        meter: Meter | None = None,
    ) -> None:
        self.storage = storage
        self.worker_id = worker_id
        self.clock = clock
        self.database_clock = DatabaseClock(storage, clock)
        self.work = asyncio.Event()  # set if there may be work
        self.own_work = asyncio.Event()  # set as well if this process has created it
        self._sent: set[str] = set()
        self._woken: dict[str, ResumableWorkflow] = {}
        self.results = results
        watch = supervisor.watch
        self.journals: Journals = GroupCommit(
            metered_write(writing(storage), meter, "journals"), watch("group commit of journals")
        )
        self.suspensions: GroupCommit[tuple[Lease, list[Wait]], Suspension] = GroupCommit(
            metered_write(storage.suspend_instances, meter, "waits"), watch("group commit of waits")
        )
        self._work_loop = watch(WORK_LOOP)
        self._hooks = hooks
        # Every step calls these.
        self.execute_with(activities)
        self.observes = hooks.observe

    def execute_with(self, activities: Executor) -> None:
        """Execute attempts with these activities from now on; a test observes them."""
        self.activities = activities
        self.execute = activities.execute

    def now(self) -> datetime:
        """Return an estimate of the database's clock."""
        return self.database_clock.now()

    def wake(self) -> None:
        """Look for work now, because this process has created some."""
        self.work.set()
        self.own_work.set()

    def hint(self) -> None:
        """Look for work soon, because there may be some."""
        self.work.set()

    def sent(self, channel: str) -> None:
        """Deliver the messages of a channel now, because this process has sent one."""
        self._sent.add(channel)
        self.wake()

    def heard_message(self, channel: str) -> None:
        """Deliver the messages of a channel soon, because another process may have sent one."""
        if len(self._sent) <= NAMED_MAX:
            self._sent.add(channel)
        self.hint()

    def heard_run(self, instance_id: str, workflow_name: str) -> None:
        """Try to lease a run soon, because it may be due."""
        if len(self._woken) <= NAMED_MAX:
            self._woken[instance_id] = ResumableWorkflow(instance_id, workflow_name)
        self.hint()

    def take_sent(self) -> list[str]:
        """Return the channels to which messages were sent since the last call."""
        sent, self._sent = list(self._sent), set()
        return sent

    def take_woken(self) -> list[ResumableWorkflow]:
        """Return the runs that became due since the last call, as far as notifications name them."""
        woken, self._woken = list(self._woken.values()), {}
        return woken

    def unavailable(self, error: BaseException) -> None:
        """Note that the database did not answer, and check soon whether it does again."""
        self._work_loop.unavailable(error)
        self.work.set()

    async def watch_ends(self, ids: Sequence[str]) -> tuple["asyncio.Future[None]", list[WorkflowInstance]]:
        """Return a future that is done once all these runs have ended, and the rows of those that have not."""
        return await self.results.watch(ids)

    def transact(self, attempt: Attempt, record: Record) -> Coroutine[Any, Any, Done]:
        """Execute an attempt in a transaction that also records its result."""
        return self.activities.transact(attempt, self.storage, record)

    def happened(self, event: HookEvent) -> None:
        """Log an event and call the hooks."""
        self._hooks.call(event, self.worker_id)
