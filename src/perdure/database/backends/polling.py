"""Poll for work where the database cannot notify: often while there is activity, rarely while there is none."""

import asyncio
from collections.abc import AsyncIterator

from perdure.database.pacing import Pace
from perdure.model.records import WakeUp

SHORTEST_SEC = 0.002  # after a local commit, however many there are; without another the pauses grow
LONGEST_SEC = 1.0  # when idle
SCAN = WakeUp("scan")


class Polling:
    """Decide when a listener scans for work: at fixed times while idle, and soon after a commit of this process."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()

    def due(self, kind: str) -> bool:
        return False

    def trail(self, kind: str) -> None:
        self.nudge()

    def nudge(self) -> None:
        """Let the listeners scan now, and more often for a while, because something was committed in this process."""
        for nudged in self._listeners:
            nudged.set()

    async def wakeups(self) -> AsyncIterator[WakeUp]:
        """Yield a hint at once, then after pauses that grow until `nudge` makes them short again."""
        loop, nudged, pace = asyncio.get_running_loop(), asyncio.Event(), Pace(SHORTEST_SEC, LONGEST_SEC)
        self._listeners.add(nudged)
        try:
            while True:
                yield SCAN
                scanned = loop.time()
                try:
                    async with asyncio.timeout(pace.pause()):
                        await nudged.wait()
                except TimeoutError:
                    continue
                pace.quicken()
                await asyncio.sleep(scanned + SHORTEST_SEC - loop.time())
                nudged.clear()
        finally:
            self._listeners.discard(nudged)
