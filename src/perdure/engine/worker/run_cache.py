"""Waiting runs that are kept in memory, so that they resume without a replay."""

from collections import OrderedDict

from perdure.engine.execution.parked import ParkedRun
from perdure.engine.execution.run import Run
from perdure.model.records import WorkflowInstance
from perdure.model.states import WorkflowStatus


class RunCache:
    """Keeps at most `most` waiting runs; the run that has waited longest is evicted first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.runs: OrderedDict[str, ParkedRun] = OrderedDict()

    def put(self, run: Run) -> None:
        """Keep a run that waits."""
        if not self._most:
            run.evict()
            return
        self.runs[run.id] = run.park()
        if len(self.runs) > self._most:
            self.runs.popitem(last=False)[1].evict()

    def take(self, instance: WorkflowInstance) -> ParkedRun | None:
        """Remove and return a run, or None; evict it if it is being compensated or is of another generation."""
        found = self.runs.pop(instance.instance_id, None)
        if found is None:
            return None
        if instance.status is not WorkflowStatus.COMPENSATING and found.generation == instance.continued_from:
            return found
        found.evict()
        return None

    def clear(self) -> None:
        """Evict all runs."""
        for run in self.runs.values():
            run.evict()
        self.runs.clear()
