"""Why a run is stuck, as `RunInfo.stuck` shows it."""

from collections.abc import Collection
from datetime import datetime

from perdure.engine.api.run_info import StuckInfo
from perdure.engine.api.values import shown
from perdure.engine.worker.owners import is_backed_off
from perdure.engine.worker.stuck import UNSERVED, unclaimed_for
from perdure.model.records import StuckInstance, WorkflowInstance


def stuck_info(
    row: WorkflowInstance, found: StuckInstance | None, now: datetime, served: Collection[str] | None
) -> StuckInfo | None:
    """Return why a run is stuck; None if it is not. `served` has the names of workflows with a live worker."""
    if found is not None:
        return StuckInfo(
            shown(found.reason), found.since, found.next_retry_at if is_backed_off(row.locked_by) else None
        )
    waited = unclaimed_for(row, now)
    if served is None or row.workflow_name in served or waited < UNSERVED:
        return None
    reason = (
        f"no worker has taken the run for {waited.total_seconds():.0f} s, and no live worker serves workflow "
        f"{row.workflow_name!r}: was it renamed or deleted, or is its worker not running?"
    )
    return StuckInfo(reason, now - waited)
