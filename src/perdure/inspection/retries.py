"""Which runs are retries of the same run."""

import re
from datetime import UTC, datetime

from perdure.model.records import WorkflowInstance
from perdure.storage.contract import Storage

AT_ONCE = 10  # ids that are asked for at once; a deleted retry may leave a gap among the numbers
_UNKNOWN = datetime.min.replace(tzinfo=UTC)
_SUFFIX = re.compile(r"~r[0-9]+\Z")


async def tries_of(storage: Storage, run_id: str) -> list[WorkflowInstance]:
    """Return a run, its retries and the run that it retries, in the order of their starts."""
    base = _SUFFIX.sub("", run_id)
    found: list[WorkflowInstance] = []
    asked, first = [base], 1
    while True:
        asked += [f"{base}~r{number}" for number in range(first, first + AT_ONCE)]
        rows = [each for each in await storage.get_instances(asked) if each is not None]
        found += rows
        if not any(each.instance_id != base for each in rows):
            break
        asked, first = [], first + AT_ONCE
    # A retry whose number was free again is later than those with a higher one.
    return sorted(found, key=lambda each: (each.started_at or _UNKNOWN, len(each.instance_id), each.instance_id))
