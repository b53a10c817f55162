"""Warnings about workflows that no worker seems to execute."""

import logging

from perdure.engine.execution.clock import steady
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.settings import WorkerSettings
from perdure.engine.worker.stuck import UNSERVED, unclaimed_for
from perdure.model.limits import PAGE_MAX

log = logging.getLogger("perdure.engine")

WARN_AGAIN_SEC = 300.0  # interval of the warnings about one workflow


class UnservedWorkflows:
    """Warns of workflows that this worker does not execute and whose runs have been due for a while."""

    def __init__(self, host: WorkerHost, settings: WorkerSettings) -> None:
        self._host = host
        self._workflows = settings.workflows
        self._warn_at: dict[str, float] = {}  # by the name of the workflow

    async def warn(self) -> None:
        """Log a warning for each such workflow, unless there was one a short time ago."""
        for name, ids in sorted((await self._find()).items()):
            if steady() >= self._warn_at.get(name, 0.0):
                self._warn_at[name] = steady() + WARN_AGAIN_SEC
                log.warning(
                    "no worker has taken %d run(s) of workflow %r, for example %s, and worker %s does not serve it: "
                    "was the workflow renamed or deleted, or is its worker not running?",
                    len(ids),
                    name,
                    ids[0],
                    self._host.worker_id,
                    extra={"workflow": name, "runs": ids[:100], "worker": self._host.worker_id},
                )

    async def _find(self) -> dict[str, list[str]]:
        """Return the ids of the runs that no worker has taken, by workflow."""
        storage = self._host.storage
        found = await storage.find_resumable_workflows(PAGE_MAX) if self._workflows else []
        due = [each.instance_id for each in found if each.workflow_name not in self._workflows]
        waiting: dict[str, list[str]] = {}
        for row in await storage.get_instances(due) if due else []:
            if row is not None and unclaimed_for(row, self._host.now()) >= UNSERVED:
                waiting.setdefault(row.workflow_name, []).append(row.instance_id)
        return waiting
