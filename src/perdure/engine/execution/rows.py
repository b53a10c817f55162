"""Reading a history page by page."""

from collections.abc import AsyncIterator, Sequence

from perdure.model.records import HistoryEvent
from perdure.storage.contract import Storage

PAGE = 1000


async def read_pages(storage: Storage, run_id: str, after_id: int = 0) -> AsyncIterator[Sequence[HistoryEvent]]:
    """Yield the rows of a history after an id, page by page; none is empty."""
    more = True
    while more:
        page, more = await storage.get_history_paginated(run_id, after_id, PAGE)
        if page:
            after_id = page[-1].id
            yield page


async def read_rows(storage: Storage, run_id: str, after_id: int = 0) -> AsyncIterator[HistoryEvent]:
    """Yield the rows of a history after an id, with one page in memory at a time."""
    async for page in read_pages(storage, run_id, after_id):
        for row in page:
            yield row
