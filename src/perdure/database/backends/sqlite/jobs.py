"""Define what the writer runs, and how its results reach the event loops that wait for them."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from perdure.errors import DatabaseUnavailableError

T = TypeVar("T")

WAIT_SEC = 30.0  # for a turn to write


class Job(Generic[T]):
    """Run a function on the writer's connection. The first to take the ticket, writer or caller, decides its fate."""

    __slots__ = ("bare", "future", "loop", "run", "tickets", "until")

    def __init__(self, run: Callable[[sqlite3.Connection], T], *, bare: bool = False) -> None:
        self.run = run
        self.bare = bare
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.tickets = [None]
        self.until = self.loop.time() + WAIT_SEC

    def take(self) -> bool:
        """Return True for the first caller."""
        try:
            self.tickets.pop()
        except IndexError:
            return False
        return True

    def expire(self) -> None:
        """Give up waiting; a job already begun is waited for."""
        if self.take() and not self.future.done():
            self.future.set_exception(
                DatabaseUnavailableError(f"no turn to write within {WAIT_SEC:.0f} s: a caller holds a transaction open")
            )


class OpenTransaction(Job["OpenTransaction"]):
    """Represent a caller's transaction, which occupies the writer until a command ends it."""

    __slots__ = ("commands", "connection", "ended")

    def __init__(self) -> None:
        super().__init__(lambda _: self)
        self.connection: sqlite3.Connection | None = None
        self.commands: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self.ended = False


class Outcome(NamedTuple):
    """Hold the result of a job, or its error."""

    job: Job[Any]
    value: Any
    error: BaseException | None


def settle(outcomes: list[Outcome]) -> None:
    """Hand results to the event loops that wait for them, with one wake-up per loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        loops.setdefault(outcome.job.loop, []).append(outcome)
    for loop, own in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(_resolve, own)


def _resolve(outcomes: list[Outcome]) -> None:
    for job, value, error in outcomes:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(value)
        else:
            job.future.set_exception(error)
