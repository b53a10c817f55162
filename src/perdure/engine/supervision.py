"""Supervision: a background task that fails is logged, restarted with back-off, and shown by `app.health()`.

A task that fails ten times in a row, with no success in between, is given up on: it is still restarted, but `serve()`
raises, so that whatever runs the process notices and can start a new one. An unavailable database is no such failure:
the tasks retry until it answers, and the log has one warning for all of them.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from perdure.engine.clock import steady
from perdure.engine.guard import came_by_signal, is_cancelled
from perdure.engine.log import seconds
from perdure.errors import EngineError

log = logging.getLogger("perdure.engine")

FIRST_SEC = 1.0
LONGEST_SEC = 30.0
FAILURES_MAX = 10


@dataclass(frozen=True, slots=True)
class TaskHealth:
    """A background task: whether it runs now, how often it had to be restarted, and because of what."""

    name: str
    alive: bool
    restarts: int = 0
    failures: int = 0  # in a row, with no success in between
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """How an App or Client is, for readiness probes.

    `database` is whether the database answers, `migrations` whether it has every migration of this release, `tasks` the
    background tasks, and `oldest_due_sec` for how long the oldest run that a worker could execute has not been taken:
    None if there is no such run.
    """

    database: bool
    tasks: tuple[TaskHealth, ...] = ()
    migrations: bool = True
    oldest_due_sec: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the database answers and is migrated, and each background task runs and recovered from failures."""
        return self.database and self.migrations and all(each.alive and not each.failures for each in self.tasks)


class Outage:
    """Logs that the database is unavailable, once, and that it is available again for every task that noticed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the heartbeat is a thread
        self._noticed: set[str] = set()
        self._began = 0.0

    def notice(self, task: str, error: BaseException) -> None:
        """Say that a task cannot reach the database."""
        with self._lock:
            first = not self._noticed
            self._noticed.add(task)
        if first:
            self._began = steady()
            log.warning(
                "the database is unavailable, retrying until it answers: %s", error, extra={"reason": str(error)}
            )

    def end(self, task: str, *, reached: bool) -> None:
        """Say that a task reached the database, or ended without that."""
        if task not in self._noticed:
            return
        with self._lock:
            self._noticed.discard(task)
            last = not self._noticed
        if last and reached:
            lasted = steady() - self._began
            log.info("the database is available again after %s", seconds(lasted), extra={"duration_sec": lasted})


class Supervised:
    """One background task, as its own code sees it: it says that it succeeded, or that it failed."""

    def __init__(
        self, name: str, given_up: Callable[[str], None] = lambda why: None, outage: Outage | None = None
    ) -> None:
        self._outage = outage or Outage()
        self.name = name
        self.alive = True
        self.ended = False  # as it should: there is nothing left to do
        self._given_up = given_up
        self._restarts = self._failures = 0
        self._last_error: str | None = None

    def succeeded(self) -> None:
        """Forget the failures before this: what it does came to a good end."""
        self._failures = 0
        self._outage.end(self.name, reached=True)

    def unavailable(self, error: BaseException) -> None:
        """Say that the database does not answer, and that the task tries again. Any thread may call it."""
        self._outage.notice(self.name, error)

    def end(self) -> None:
        """Say that there is nothing left to do."""
        self.ended = True
        self._outage.end(self.name, reached=False)

    def failed(self, error: BaseException) -> float:
        """Log an unexpected error; returns the seconds to wait before it is tried again. Any thread may call it."""
        self._restarts += 1
        self._failures += 1
        self._last_error = f"{type(error).__name__}: {error}"
        pause = min(LONGEST_SEC, FIRST_SEC * 2.0 ** min(self._failures - 1, 10))
        log.error(
            "background task %r crashed (%d in a row), restarting it in %s: %s",
            self.name,
            self._failures,
            seconds(pause),
            self._last_error,
            extra={
                "task": self.name,
                "failures": self._failures,
                "retry_in_sec": pause,
                "error_type": type(error).__name__,
                "error_message": str(error),
            },
            exc_info=error,
        )
        if self._failures >= FAILURES_MAX:
            self._given_up(f"background task {self.name!r} failed {self._failures} times in a row: {self._last_error}")
        return pause

    @property
    def health(self) -> TaskHealth:
        """How it is."""
        return TaskHealth(self.name, self.alive, self._restarts, self._failures, self._last_error)


class Supervisor:
    """All background tasks of one App or Client."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of whoever opened the app: tasks belong to no caller
        self._supervised: dict[str, Supervised] = {}
        self._broken: asyncio.Future[str] = self._loop.create_future()
        self._outage = Outage()

    def watch(self, name: str) -> Supervised:
        """Keep an eye on a task that keeps itself going, such as a thread; the same name gives the same one."""
        found = self._supervised.get(name)
        if found is None:
            found = self._supervised[name] = Supervised(name, self._give_up, self._outage)
        return found

    def start(self, name: str, work: Callable[[Supervised], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run a task until it returns or is cancelled, however often it fails."""
        keeping = self._keep(self.watch(name), work)
        return asyncio.create_task(keeping, name=f"perdure {name}", context=self._context.copy())

    async def _keep(self, task: Supervised, work: Callable[[Supervised], Coroutine[Any, Any, None]]) -> None:
        task.ended = False
        try:
            while True:
                task.alive = True
                try:
                    await work(task)
                    return
                except BaseException as error:
                    if came_by_signal(error) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                        raise
                    pause = task.failed(error)
                    task.alive = False
                await asyncio.sleep(pause)
        finally:
            task.end()

    def _give_up(self, why: str) -> None:
        def tell() -> None:
            if not self._broken.done():
                self._broken.set_result(why)

        with suppress(RuntimeError):  # the loop is closed: nobody serves any more
            self._loop.call_soon_threadsafe(tell)

    async def failure(self) -> None:
        """Wait until a task is given up on, and raise that."""
        raise EngineError(await asyncio.shield(self._broken))

    def tasks(self) -> tuple[TaskHealth, ...]:
        """How they all are."""
        return tuple(each.health for each in self._supervised.values() if not each.ended)
