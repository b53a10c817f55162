"""Wake-ups on SQLite: the write-ahead log changes with every commit of any process, so its stat is watched.

No SQL and no open file: opening and closing the log would drop SQLite's locks on it. The log's time stamp moves in
ticks of a few milliseconds; a commit within the same tick as one already seen leaves no trace, so every hint is
followed by a second one a little later.
"""

import asyncio
import os
from collections.abc import AsyncIterator

from perdure.model.records import WakeUp

INTERVAL_SEC = 0.008
TRAIL = 3  # intervals after a change at which one more hint is given

SCAN = WakeUp("scan")


async def watch(path: str | None) -> AsyncIterator[WakeUp]:
    """A hint at first, then whenever the log changed. A database in memory has no other process: its caller polls."""
    yield SCAN
    seen, trail = _stat(path), 0
    while True:
        await asyncio.sleep(INTERVAL_SEC if path else 1.0)
        now = _stat(path)
        if now != seen:
            seen, trail = now, TRAIL
            yield SCAN
        elif path is None:
            yield SCAN
        elif trail:
            trail -= 1
            if not trail:
                yield SCAN


def _stat(path: str | None) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path) if path else None
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found else None
