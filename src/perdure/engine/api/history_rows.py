"""The rows of a history, and the state that they have. Those of a run that recurred are in the archive."""

from collections.abc import AsyncIterator
from typing import Any

from perdure.engine.execution.rows import read_rows
from perdure.engine.history.codec import decode
from perdure.engine.history.records import STATE
from perdure.model.envelopes import unreadable
from perdure.model.records import HistoryEvent, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage


async def rows_of(storage: Storage, run: WorkflowInstance) -> AsyncIterator[HistoryEvent]:
    """Yield the rows of the history of a run, oldest first."""
    if run.status is WorkflowStatus.RECURRED:
        for row in await archived_rows(storage, run.instance_id):
            yield row
    else:
        async for row in read_rows(storage, run.instance_id):
            yield row


async def archived_rows(storage: Storage, id: str) -> list[HistoryEvent]:
    """Return the rows of an archived history, with the ids and times that they had."""
    return [
        HistoryEvent(
            each.instance_id,
            each.activity_id,
            each.event_type,
            each.event_data,
            each.event_data_binary,
            each.data_type,
            each.original_id or each.id,
            each.original_created_at or each.archived_at,
        )
        for each in await storage.get_archived_history(id)
    ]


async def state_of(storage: Storage, run: WorkflowInstance) -> Any:
    """Return the value that a run last passed to `set_state()`, or None."""
    if run.status is WorkflowStatus.RECURRED:
        archived = await archived_rows(storage, run.instance_id)
        row = next((each for each in reversed(archived) if each.event_type == STATE), None)
    else:
        row = await storage.get_last_event(run.instance_id, STATE)
    return None if row is None else unreadable(row.event_data) or decode(row.event_data or b"{}")["state"]
