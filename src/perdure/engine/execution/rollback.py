"""Rollback of a run that failed or was cancelled: the compensations of its steps, in reverse order.

Any worker can execute a rollback under a lease, and resume it where another worker left off, because each compensation
is recorded in the history. A compensation that fails is retried, then reported, and the others still run. At the end
the run has failed or is cancelled.
"""

from datetime import datetime, timedelta

from perdure.engine.execution import children, endings
from perdure.engine.execution.compensator import Compensator
from perdure.engine.execution.interfaces import End, Host
from perdure.engine.execution.rollback_attempts import RollbackAttempts
from perdure.engine.execution.rollback_history import RollbackHistory
from perdure.engine.execution.slots import Slot
from perdure.engine.history import ids
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.model import headers
from perdure.model.records import Lease, WorkflowInstance


class Rollback:
    """The rollback of one run: what is executed, and in which order."""

    def __init__(self, host: Host, workflow: WorkflowDefinition, instance: WorkflowInstance) -> None:
        self.host = host
        self.id = instance.instance_id
        self.workflow = workflow
        self.generation = instance.continued_from
        self.headers = headers.decode(instance.headers)
        self.deadline = 0.0
        self.resumed = False
        self.ending = False
        self.slot: Slot
        self.history = RollbackHistory(self.id, host.storage)
        self._began = instance.started_at or host.now()
        self._attempts = RollbackAttempts(host, self.history, self)
        self._compensator = Compensator(host, self.history, self._attempts, self, instance.input_data)

    # What others see of it.

    @property
    def progressed(self) -> bool:
        """Return whether anything was recorded under the lease."""
        return self.history.progressed

    @property
    def at_work(self) -> bool:
        """Return whether code may execute now or very soon."""
        return not self.slot.idling

    def about(self) -> tuple[str, str, datetime]:
        """Return the first fields of every hook event."""
        return self.id, self.workflow.name, self.host.now()

    def age(self) -> timedelta:
        """Return the time since the start of the run."""
        return max(self.host.now() - self._began, timedelta(0))

    # Executing.

    async def execute(self, lease: Lease) -> End:
        """Execute the remaining compensations and the failure handler, and end the run."""
        await self.history.open(lease)
        await children.end_all(self, self.history.children, f"its parent {self.id} is being compensated")
        for step in self.history.unsettled():
            await self._compensator.settle(step)
        for entry in await self.host.storage.get_compensations(self.id):
            if not self.history.has(ids.undo_of(entry.id)):
                await self._compensator.compensate(entry)
        await self._compensator.handle_failure()
        self.ending = True
        return await endings.finish_rollback(self)

    # What the worker asks for.

    def drain(self) -> None:
        """Start nothing new."""
        self._attempts.drain()

    def hint(self) -> None:
        """Do nothing: a rollback waits for no messages or timers."""

    def evict(self) -> None:
        """Do nothing: a rollback has no body in memory."""
