"""Listen for wake-ups on PostgreSQL, on a connection of its own.

A listener that receives nothing, because a pooler takes its connection away, detects that and polls instead.
"""

import asyncio
import json
import logging
import random
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from perdure.model.records import WakeUp

log = logging.getLogger("perdure.storage")

CHANNELS = ("workflow_resumable", "workflow_channel_message", "workflow_outbox_pending", "workflow_timer_expired")
PROBE = "perdure_probe"

CHECK_SEC = 10.0  # without a notification, after which the connection is checked; the check has the same timeout
PROOF_SEC = 3.0
RETRY_MIN_SEC, RETRY_MAX_SEC = 0.05, 1.0  # no hints arrive in between
FAILURES_MAX = 60  # in a row, about a minute: longer than a restart of the server
POLL_MIN_SEC, POLL_MAX_SEC = 0.05, 1.0
HINTS_MAX = 1000  # hints that wait for a slow consumer; more are replaced by one scan

SCAN = WakeUp("scan")


class Source(Protocol):
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

    def __init__(self, source: Source) -> None:
        self._source = source
        self._hints: asyncio.Queue[WakeUp | None] = asyncio.Queue()

    async def wakeups(self) -> AsyncGenerator[WakeUp]:
        """Yield hints as long as the backend is open, reconnecting when a connection is lost."""
        self._source.listeners.add(self)
        try:
            async with aclosing(self._forever()) as hints:
                async for hint in hints:
                    yield hint
        finally:
            self._source.listeners.discard(self)

    async def _forever(self) -> AsyncGenerator[WakeUp]:
        pause = RETRY_MIN_SEC
        failures = 0
        while not self._source.closed:
            try:
                async with aclosing(self._polled() if self._source.must_poll else self._listened()) as hints:
                    async for hint in hints:
                        pause, failures = RETRY_MIN_SEC, 0
                        yield hint
            except self._source.errors as error:
                failures += 1
                log.log(
                    logging.WARNING if failures == FAILURES_MAX else logging.DEBUG,
                    "listening for notifications failed %d time(s) in a row, retrying; workers poll meanwhile: %s: %s",
                    failures,
                    type(error).__name__,
                    error,
                    extra={"failures": failures, "error_type": type(error).__name__, "error_message": str(error)},
                )
            while not self._hints.empty():  # a scan will follow
                self._hints.get_nowait()
            if not self._source.closed:
                await self._next(random.uniform(pause / 2, pause))  # nosec B311 # a pause
            pause = min(pause * 2, RETRY_MAX_SEC)

    async def _listened(self) -> AsyncGenerator[WakeUp]:
        """Yield the hints of one connection until it is lost."""
        connection = await self._source.connect()
        try:
            if self._source.pooled and not await self._receives(connection):
                if not self._source.must_poll:
                    log.warning(
                        "notifications do not arrive through the connection pooler (transaction mode?); polling instead"
                    )
                self._source.must_poll = True
                return
            connection.add_termination_listener(self.wake)
            for channel in CHANNELS:
                await connection.add_listener(channel, self._receive)
            yield SCAN  # for work that became due before this connection listened
            while not (self._source.closed or connection.is_closed()):
                hint = await self._next(CHECK_SEC)
                if hint is not None:
                    yield hint
                elif not (self._source.closed or connection.is_closed()):
                    await connection.execute("SELECT 1", timeout=CHECK_SEC)
        finally:
            self._source.discard(connection)

    async def _receives(self, connection: Any) -> bool:
        """Return whether a notification sent through the pool arrives on this connection."""
        nonce, heard = secrets.token_hex(8), asyncio.Event()

        def probe(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            if payload == nonce:
                heard.set()

        await connection.add_listener(PROBE, probe)
        await self._source.notify(PROBE, nonce)
        try:
            async with asyncio.timeout(PROOF_SEC):
                await heard.wait()
        except TimeoutError:
            return False
        await connection.remove_listener(PROBE, probe)
        return True

    async def _polled(self) -> AsyncGenerator[WakeUp]:
        """Yield a hint periodically: often while the database is written to, once a second while it is not."""
        seen, pause = None, POLL_MAX_SEC
        while not self._source.closed:
            mark = await self._source.mark()
            pause = min(pause * 2, POLL_MAX_SEC) if mark == seen else POLL_MIN_SEC
            seen = mark
            yield SCAN
            await self._next(pause)

    def _receive(self, _connection: Any, _pid: int, channel: str, payload: str) -> None:
        if self._hints.qsize() < HINTS_MAX:
            self._hints.put_nowait(WakeUp(channel, _object(payload)))
        elif self._hints.qsize() == HINTS_MAX:
            self._hints.put_nowait(SCAN)

    def wake(self, _connection: Any = None) -> None:
        """Wake the iteration: a connection was lost, or the backend was closed."""
        self._hints.put_nowait(None)

    async def _next(self, timeout: float) -> WakeUp | None:
        """Return the next hint; None after the timeout, or when the connection or the iteration has ended."""
        try:
            async with asyncio.timeout(timeout):
                return await self._hints.get()
        except TimeoutError:
            return None


def _object(payload: str) -> dict[str, object]:
    """Return the payload's JSON object; an empty one if it is anything else, so that no hint is missed."""
    try:
        found = json.loads(payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
