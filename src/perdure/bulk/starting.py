"""Starting an action."""

from perdure.bulk.selection import Action, Selection
from perdure.bulk.workflow import Progress, bulk
from perdure.engine.api import current
from perdure.engine.api.client import Client
from perdure.engine.api.handles import RunHandle
from perdure.engine.starting import new_id


def new_action_id() -> str:
    """Return an id for the run of an action."""
    return f"bulk-{new_id()}"


async def start(
    client: Client,
    action: Action,
    selection: Selection,
    reason: str = "",
    *,
    id: str | None = None,
    audit_id: int | None = None,
) -> RunHandle[Progress]:
    """Store an action on many runs, and return a handle on its run. A second start with the same `id` does nothing.

    `reason` is that of the cancellations, and `audit_id` the row of the audit that the runs are related to. A worker
    that serves `perdure.bulk` executes the action; see `serving`.
    """
    with current.using(client):
        return await bulk.options(id=id or new_action_id()).start(action, selection, reason, audit_id)
