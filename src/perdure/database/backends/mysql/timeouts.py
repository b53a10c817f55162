"""Abort connections whose server does not answer."""

import asyncio
from collections.abc import Callable
from typing import Any


class AnswerTimeouts:
    """Record since when connections wait for an answer; one timer checks all, because one for each would cost more."""

    def __init__(self, seconds: float, on_timeout: Callable[[], None]) -> None:
        self.seconds = seconds
        self._on_timeout = on_timeout
        self._waiting: dict[Any, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: Any) -> None:
        """Record that the connection waits from now on."""
        self._waiting[connection] = connection.loop.time()
        if self._timer is None:
            self._timer = connection.loop.call_later(self.seconds / 4, self.check, connection.loop)

    def end(self, connection: Any) -> None:
        """Record that the connection waits no longer."""
        self._waiting.pop(connection, None)

    def check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Abort the connections that have waited too long; their callers wake up, and the server ends their queries."""
        since = loop.time() - self.seconds
        for connection in [connection for connection, start in self._waiting.items() if start < since]:
            if connection._transport is not None:
                connection._transport.abort()
                self._on_timeout()
        self._timer = loop.call_later(self.seconds / 4, self.check, loop) if self._waiting else None

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
