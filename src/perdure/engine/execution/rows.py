"""Reading a history page by page."""

from collections.abc import AsyncIterator

from perdure.model.records import HistoryEvent
from perdure.storage.contract import Storage

PAGE = 1000


async def read_rows(storage: Storage, run_id: str, after_id: int = 0) -> AsyncIterator[HistoryEvent]:
    """Yield the rows of a history after an id, with one page in memory at a time."""
    more = True
    while more:
        page, more = await storage.get_history_paginated(run_id, after_id, PAGE)
        for row in page:
            after_id = row.id
            yield row
