"""Stuck runs: those that are backed off after tries without progress, and those that no worker takes.

A run that is backed off stays leased, to no worker, for a growing while. Why, and after how many tries, is part of the
name that the lease has for its owner.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from perdure.model.limits import NAME_MAX
from perdure.model.records import WorkflowInstance
from perdure.model.states import RESUMABLE, WorkflowStatus

PUT_OFF = "~put-off"
UNSERVED = timedelta(seconds=10)  # a run that could be taken for so long is taken by no worker
_OWNER = re.compile(rf"{PUT_OFF}#(\d+):(.*)", re.DOTALL)
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class StuckRun:
    """A run that makes no progress, and why. `next_try_at` is when a worker may take it, None if any may already."""

    id: str
    workflow: str
    status: WorkflowStatus
    reason: str
    tries: int = 0
    next_try_at: datetime | None = None
    locked_by: str | None = None

    @property
    def instance_id(self) -> str:
        """The id."""
        return self.id

    @property
    def workflow_name(self) -> str:
        """The workflow's name."""
        return self.workflow


def stuck_owner(tries: int, error: BaseException) -> str:
    """Whom a run is leased to while it is backed off: what was tried how often, and what came of it, in one line."""
    message = _SPACE.sub(" ", str(error)).strip()
    text = f"{PUT_OFF}#{tries}:{type(error).__name__}" + (f": {message}" if message else "")
    return text if len(text) <= NAME_MAX else f"{text[: NAME_MAX - 1].rstrip()}…"


def unclaimed_for(row: WorkflowInstance, now: datetime) -> timedelta:
    """How long a run could have been taken by any worker; nothing for one that cannot."""
    since = row.updated_at if row.locked_by is None else row.lock_expires_at
    if row.status not in RESUMABLE or since is None:
        return timedelta(0)
    return max(now - since, timedelta(0))


def why_stuck(row: WorkflowInstance, now: datetime, served: Collection[str]) -> StuckRun | None:
    """Return what keeps a run from going on; None if nothing does, as far as its row tells."""
    found = _OWNER.fullmatch(row.locked_by or "")
    about = row.instance_id, row.workflow_name, row.status
    if found is not None:
        return StuckRun(*about, found[2], int(found[1]), row.lock_expires_at, row.locked_by)
    waited = unclaimed_for(row, now)
    if row.framework != "perdure" or row.workflow_name in served or waited < UNSERVED:
        return None
    reason = (
        f"no worker has taken it for {waited.total_seconds():.0f} s, and {row.workflow_name!r} is not served here: was "
        "the workflow renamed or deleted, or is its worker not running?"
    )
    return StuckRun(*about, reason, locked_by=row.locked_by)
