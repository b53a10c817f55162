"""Send fewer NOTIFYs than there are commits.

A notification costs the commit that sends it a lock that all such commits of the server share, so bursts are
coalesced: the first notification is sent with its transaction, and one more after the last commit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from perdure.errors import StorageError

log = logging.getLogger("perdure.storage")

COALESCED = '{"reason":"coalesced"}'
WINDOW_SEC = 0.005
CLOSE_SEC = 1.0  # maximum wait for notifications still to be sent


class Notifier:
    """Decide which transactions send a notification.

    `due` is called while the statement is built. If it returns False, call `trail` once the transaction has committed,
    or may have: the notification that follows is then later than that commit, however long the transaction took.
    """

    def __init__(self, send: Callable[[str, str], Awaitable[object]]) -> None:
        self.enabled = True
        self._send = send
        self._latest: dict[str, float] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def due(self, channel: str) -> bool:
        """Return True if no notification was sent within the window, so this transaction has to send one."""
        now = asyncio.get_running_loop().time()
        if not self.enabled or now - self._latest.get(channel, 0.0) < WINDOW_SEC:
            return False
        self._latest[channel] = now
        return True

    def trail(self, channel: str) -> None:
        """Notify at the end of the window; several calls until then result in one notification."""
        if self.enabled and channel not in self._timers:
            loop = asyncio.get_running_loop()
            at = self._latest.get(channel, 0.0) + WINDOW_SEC
            self._timers[channel] = loop.call_at(at, self._fire, channel)

    def _fire(self, channel: str) -> None:
        del self._timers[channel]  # a commit from now on needs another notification
        self._latest[channel] = asyncio.get_running_loop().time()
        task = asyncio.ensure_future(self._notify(channel))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _notify(self, channel: str) -> None:
        try:
            await self._send(channel, COALESCED)
        except StorageError as error:
            log.debug("notifying channel %s failed; workers find the work by polling: %s", channel, error)

    async def close(self) -> None:
        """Send the notifications that are still to be sent."""
        for channel, timer in list(self._timers.items()):
            timer.cancel()
            self._fire(channel)
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=CLOSE_SEC)
            for task in late:
                task.cancel()
