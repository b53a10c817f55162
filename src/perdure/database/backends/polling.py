"""Wake-ups by the clock, where the database cannot notify: often while something happens, rarely while nothing does."""

import asyncio
from collections.abc import AsyncIterator

from perdure.model.records import WakeUp

SHORTEST_SEC = 0.05  # the first pause after a nudge; each one that ends without another is followed by a longer one
LONGEST_SEC = 1.0  # when idle: one look a second
GAP_SEC = 0.01  # between two looks, however many nudges there are
SCAN = WakeUp("scan")


class Polling:
    """Says when to look for work; the look itself is the listener's query. A commit here is taken for a nudge."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()

    def due(self, kind: str) -> bool:
        return False

    def trail(self, kind: str) -> None:
        self.nudge()

    def nudge(self) -> None:
        """Something was committed here: look now, and more often for a while."""
        for nudged in self._listeners:
            nudged.set()

    async def wakeups(self) -> AsyncIterator[WakeUp]:
        """A hint at first, then after pauses that grow until a nudge makes them short again."""
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
