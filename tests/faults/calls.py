"""Count the calls of a backend to its database, and make a chosen one fail.

A call is one statement that a connection is given, or a connection that is made. What goes wrong is real where it can
be: the server itself refuses, ends the session, or sleeps in place of the statement.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

HANG_SEC = 0.05  # until a timeout ends a statement that hangs
PATIENCE_SEC = 0.15  # until the caller gives up where there is no time-out


class Kind(StrEnum):
    """What befalls a call."""

    BEFORE = "before"  # refused, it is not done
    CONFLICT = "conflict"  # refused, because a race for a lock was lost; the transaction is gone
    AFTER = "after"  # done, but the connection breaks before the answer
    HANG = "hang"  # no answer until a timeout, or until the caller gives up
    CANCEL = "cancel"  # the caller is cancelled while it waits for the answer
    LOSE = "lose"  # the session is ended, just when the call is sent


class Calls:
    """Counts while it is armed. One object is for one storage and, when something goes wrong, for one case."""

    def __init__(self, kill: Callable[[int], Awaitable[None]], kind: Kind | None = None, number: int = 0) -> None:
        self.kind, self.number = kind, number
        self.texts: list[str] = []
        self.firsts: list[int] = []  # of every call, the first that was sent together with it
        self.armed = False
        self.hit = False
        self.sent_later: list[str] = []  # after the fault and on the same connection, also what was never answered
        self.gave_up = False  # the caller was cancelled
        self.after_each: Callable[[], Awaitable[None] | None] | None = None
        self.over = threading.Event()  # no caller waits any more
        self.caller: asyncio.Task[Any] | None = None  # who is cancelled
        self.kill = kill  # ends a session of the server
        self._promised: tuple[object, int] | None = None
        self._has_reconnected = False
        self._loop = asyncio.get_running_loop()

    def ahead(self, place: int, sender: object) -> Kind | None:
        """What is to befall a call that is sent now, together with so many others before it.

        It is the sender's from then on, whichever sender gets an answer first.
        """
        if self._promised is None and self._is_it(place):
            self._promised = sender, place
        return self.kind if self._promised == (sender, place) else None

    def take_back(self, sender: object) -> None:
        """Of what was sent together, one was refused: those after it were not run."""
        if self._promised is not None and self._promised[0] is sender:
            self._promised = None

    def _is_it(self, place: int = 0) -> bool:
        return self.armed and not self.hit and len(self.texts) + 1 + place >= self.number > 0

    def come(self, text: str, place: int = 0, sender: object = None) -> Kind | None:
        """Note a call, and its place among those that are sent together; return the fault that it is to meet."""
        if not self.armed:
            return None
        self._has_reconnected |= self.hit and text == "connect"
        is_it = self._is_it() if self._promised is None else not self.hit and self._promised == (sender, place)
        self.hit |= is_it
        self.firsts.append(len(self.texts) + 1 - place)
        self.texts.append(" ".join(text.split()))
        return self.kind if is_it else None

    def send(self, texts: Sequence[str]) -> None:
        """Note what is sent together."""
        if self.armed and self.hit and not self._has_reconnected:
            self.sent_later += texts

    def give_up(self) -> None:
        """Cancel the caller, from whatever thread."""
        self.gave_up = True
        if self.caller is not None:
            if threading.current_thread() is threading.main_thread():
                self.caller.cancel()
            else:
                self._loop.call_soon_threadsafe(self.caller.cancel)

    async def passed(self) -> None:
        """After a call that was done."""
        if self.armed and self.after_each is not None:
            self.armed = False
            answer = self.after_each()
            if inspect.isawaitable(answer):
                await answer
            self.armed = True
