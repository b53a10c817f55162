"""End the queries of connections that were cut off.

The server may notice only when such a query has ended. Until then it may wait for locks, and hold others.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from perdure.database.backends.mysql.errors import NO_SUCH_THREAD
from perdure.database.backends.mysql.native import asyncmy
from perdure.database.backends.server.retries import RETRY_SEC
from perdure.errors import StorageError

PAUSE_MIN_SEC, PAUSE_MAX_SEC = 0.02, 0.5


class OrphanedQueries:
    """Kill queries in the background, through a connection of its own."""

    def __init__(
        self, connect: Callable[[], Awaitable[Any]], discard: Callable[[Any], None], is_closed: Callable[[], bool]
    ) -> None:
        self._connect, self._discard, self._is_closed = connect, discard, is_closed
        self._orphans: list[tuple[int, str]] = []  # thread and server of each
        self._task: asyncio.Task[None] | None = None

    def end(self, connection: Any) -> None:
        """Make the server end the connection's query, soon."""
        orphan = connection.thread_id(), connection.perdure_server
        if not connection.perdure_server or orphan in self._orphans:
            return
        running = self._task is not None and not self._task.done()
        if self._is_closed() and not running:
            return  # no task would kill it in time: the server notices when the query ends
        self._orphans.append(orphan)
        if not running:
            self._task = asyncio.ensure_future(self._kill_soon())

    async def close(self) -> None:
        """Wait until the queries have been killed."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _kill_soon(self) -> None:
        # After a pause, because most have ended by then, and a burst shares one connection.
        pause, until = PAUSE_MIN_SEC, monotonic() + RETRY_SEC
        while self._orphans and monotonic() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_SEC)
            try:
                await self._kill_all()
            except (StorageError, asyncmy.MySQLError, OSError):  # the queries hold locks: retry
                if self._is_closed():
                    break
        self._orphans.clear()

    async def _kill_all(self) -> None:
        helper = await self._connect()
        try:
            while self._orphans:
                thread, server = self._orphans[-1]
                # Not on another host of the list, nor after a restart, where the number may belong to another client.
                if server == helper.perdure_server and thread < helper.thread_id():
                    await _kill(helper, thread)
                self._orphans.remove((thread, server))
        finally:
            self._discard(helper)


async def _kill(helper: Any, thread: int) -> None:
    try:
        await helper.query(f"KILL {thread}")
    except asyncmy.MySQLError as error:
        if error.args[0] != NO_SUCH_THREAD:  # it has ended already
            raise
