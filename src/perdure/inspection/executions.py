"""The histories of runs, also of the earlier executions of a run that recurred, whose rows are in the archive."""

import json
from collections.abc import AsyncIterator

from perdure.engine.api.client import Client, storage_of
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.engine.api.step_reading import steps_of
from perdure.engine.history.records import hidden_in
from perdure.model.envelopes import unreadable
from perdure.model.records import HistoryEvent
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

ARCHIVE_MAX = 1_000  # rows of an archived history: a storage returns no more


async def read_steps(client: Client, run: RunInfo) -> list[StepInfo]:
    """Return the steps of a run; of an earlier execution at most those of the first 1,000 entries."""
    if run.status is not WorkflowStatus.RECURRED:
        return await client.steps(run.id)
    rows = await archived_rows(storage_of(client), run.id)
    return steps_of(run.id, rows, [], is_ended=len(rows) < ARCHIVE_MAX)


async def read_history(client: Client, run: RunInfo) -> AsyncIterator[HistoryEntry]:
    """Yield the entries of the history of a run, oldest first; of an earlier execution at most the first 1,000."""
    if run.status is not WorkflowStatus.RECURRED:
        async for entry in client.history(run.id):
            yield entry
        return
    for row in await archived_rows(storage_of(client), run.id):
        data = row.event_data_binary if row.data_type == "binary" else json.loads(row.event_data or b"null")
        shown = unreadable(row.event_data) or hidden_in(row) or data
        yield HistoryEntry(row.id, row.activity_id, str(row.event_type), row.created_at, shown)


async def archived_rows(storage: Storage, id: str) -> list[HistoryEvent]:
    """Return the first rows of the archived history of an earlier execution, with the ids and times that they had."""
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
        for each in await storage.get_archived_history(id, limit=ARCHIVE_MAX)
    ]
