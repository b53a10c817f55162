"""Listen for wake-ups on PostgreSQL, on a connection of its own, and send fewer NOTIFYs than there are commits.

A notification costs the commit that sends it a lock that all such commits of the server share, so bursts are
coalesced: the first notification is sent with its transaction, and one more after the last commit. A listener that
receives nothing, because a pooler takes its connection away, detects that and polls instead.
"""

import asyncio
import json
import logging
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

from perdure.errors import StorageError
from perdure.model.records import WakeUp

log = logging.getLogger("perdure.storage")

CHANNELS = ("workflow_resumable", "workflow_channel_message", "workflow_outbox_pending", "workflow_timer_expired")
PROBE = "perdure_probe"
COALESCED = '{"reason":"coalesced"}'
WINDOW_SEC = 0.005
CLOSE_SEC = 1.0  # maximum wait for notifications still to be sent

CHECK_SEC = 10.0  # without a notification, after which the connection is checked; the check has the same timeout
PROOF_SEC = 3.0
RETRY_MIN_SEC, RETRY_MAX_SEC = 0.05, 1.0  # no hints arrive in between
FAILURES_MAX = 60  # in a row, about a minute: longer than a restart of the server
POLL_MIN_SEC, POLL_MAX_SEC = 0.05, 1.0
HEARD_MAX = 1000  # hints that wait for a slow consumer; more are replaced by one scan

SCAN = WakeUp("scan")


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


class Line(Protocol):
    """Define what a listener needs of its backend."""

    listeners: "set[Listener]"
    errors: tuple[type[Exception], ...]  # what a broken connection may raise
    pooled: bool
    must_poll: bool  # notifications do not arrive on a listener's connection
    closed: bool

    async def connect(self) -> Any:
        """Return a new connection for the listener alone."""

    def discard(self, connection: Any) -> None:
        """Close the connection."""

    async def notify(self, channel: str, payload: str) -> None:
        """Send a notification through the pool."""

    async def mark(self) -> object:
        """Return a value that changes with every write to the database."""


class Listener:
    """Iterate over wake-ups; hints received are queued here until the consumer asks for them."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._heard: asyncio.Queue[WakeUp | None] = asyncio.Queue()

    async def wakeups(self) -> AsyncGenerator[WakeUp]:
        """Yield hints as long as the backend is open, reconnecting when a connection is lost."""
        self._line.listeners.add(self)
        try:
            async with aclosing(self._forever()) as hints:
                async for hint in hints:
                    yield hint
        finally:
            self._line.listeners.discard(self)

    async def _forever(self) -> AsyncGenerator[WakeUp]:
        pause = RETRY_MIN_SEC
        failures = 0
        while not self._line.closed:
            try:
                async with aclosing(self._polled() if self._line.must_poll else self._listened()) as hints:
                    async for hint in hints:
                        pause, failures = RETRY_MIN_SEC, 0
                        yield hint
            except self._line.errors as error:
                failures += 1
                log.log(
                    logging.WARNING if failures == FAILURES_MAX else logging.DEBUG,
                    "listening for notifications failed %d time(s) in a row, retrying; workers poll meanwhile: %s: %s",
                    failures,
                    type(error).__name__,
                    error,
                    extra={"failures": failures, "error_type": type(error).__name__, "error_message": str(error)},
                )
            while not self._heard.empty():  # a scan will follow
                self._heard.get_nowait()
            if not self._line.closed:
                await self._next(random.uniform(pause / 2, pause))  # nosec B311 # a pause
            pause = min(pause * 2, RETRY_MAX_SEC)

    async def _listened(self) -> AsyncGenerator[WakeUp]:
        """Yield the hints of one connection until it is lost."""
        connection = await self._line.connect()
        try:
            if self._line.pooled and not await self._hears(connection):
                if not self._line.must_poll:
                    log.warning(
                        "notifications do not arrive through the connection pooler (transaction mode?); polling instead"
                    )
                self._line.must_poll = True
                return
            connection.add_termination_listener(self.wake)
            for channel in CHANNELS:
                await connection.add_listener(channel, self._hear)
            yield SCAN  # for work that became due before this connection listened
            while not (self._line.closed or connection.is_closed()):
                hint = await self._next(CHECK_SEC)
                if hint is not None:
                    yield hint
                elif not (self._line.closed or connection.is_closed()):
                    await connection.execute("SELECT 1", timeout=CHECK_SEC)
        finally:
            self._line.discard(connection)

    async def _hears(self, connection: Any) -> bool:
        """Return whether a notification sent through the pool arrives on this connection."""
        nonce, heard = secrets.token_hex(8), asyncio.Event()

        def probe(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            if payload == nonce:
                heard.set()

        await connection.add_listener(PROBE, probe)
        await self._line.notify(PROBE, nonce)
        try:
            async with asyncio.timeout(PROOF_SEC):
                await heard.wait()
        except TimeoutError:
            return False
        await connection.remove_listener(PROBE, probe)
        return True

    async def _polled(self) -> AsyncGenerator[WakeUp]:
        """Yield a hint now and then: often while the database is written to, once a second while it is not."""
        seen, pause = None, POLL_MAX_SEC
        while not self._line.closed:
            mark = await self._line.mark()
            pause = min(pause * 2, POLL_MAX_SEC) if mark == seen else POLL_MIN_SEC
            seen = mark
            yield SCAN
            await self._next(pause)

    def _hear(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        if self._heard.qsize() < HEARD_MAX:
            self._heard.put_nowait(WakeUp(channel, _object(payload)))
        elif self._heard.qsize() == HEARD_MAX:
            self._heard.put_nowait(SCAN)

    def wake(self, _connection: Any = None) -> None:
        """Wake the iteration: a connection was lost, or the backend was closed."""
        self._heard.put_nowait(None)

    async def _next(self, timeout: float) -> WakeUp | None:
        """Return the next hint; None after the timeout, or when the connection or the iteration has ended."""
        try:
            async with asyncio.timeout(timeout):
                return await self._heard.get()
        except TimeoutError:
            return None


def _object(payload: str) -> dict[str, object]:
    """Return the payload's JSON object; an empty one if it is anything else, so that no hint is missed."""
    try:
        found = json.loads(payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
