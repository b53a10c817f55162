"""Poll for work where the database cannot notify: often while there is activity, rarely while there is none."""

import asyncio
from collections.abc import AsyncIterator

from perdure.model.records import WakeUp

SHORTEST_SEC = 0.05  # the first pause after a nudge; without another nudge the pauses grow
LONGEST_SEC = 1.0  # when idle
GAP_SEC = 0.01  # minimum between two scans, however many nudges there are
SCAN = WakeUp("scan")


class Polling:
    """Decide when to look for work; the listener's query does the looking. A local commit counts as a nudge."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()

    def due(self, kind: str) -> bool:
        return False

    def trail(self, kind: str) -> None:
        self.nudge()

    def nudge(self) -> None:
        """Look for work now, and more often for a while, because something was committed in this process."""
        for nudged in self._listeners:
            nudged.set()

    async def wakeups(self) -> AsyncIterator[WakeUp]:
        """Yield a hint at once, then after pauses that grow until a nudge makes them short again."""
        loop, nudged, pause = asyncio.get_running_loop(), asyncio.Event(), SHORTEST_SEC
        self._listeners.add(nudged)
        try:
            while True:
                yield SCAN
                looked = loop.time()
                try:
                    async with asyncio.timeout(pause):
                        await nudged.wait()
                except TimeoutError:
                    pause = min(2 * pause, LONGEST_SEC)
                else:
                    pause = SHORTEST_SEC
                    await asyncio.sleep(looked + GAP_SEC - loop.time())
                nudged.clear()
        finally:
            self._listeners.discard(nudged)
