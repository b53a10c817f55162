"""Which runs have been retried. A retry is a new run; the run that it replaces stays failed or cancelled."""

from collections.abc import Sequence

from perdure.engine.starting import next_retry
from perdure.storage.contract import Storage


async def without_retried(storage: Storage, ids: Sequence[str]) -> list[str]:
    """Return those runs, of at most 1,000, that have not been retried."""
    following = {id: next_retry(id) for id in ids}
    rows = await storage.get_instances(list(following.values()))
    started = {row.instance_id for row in rows if row is not None}
    return [id for id in ids if following[id] not in started]
