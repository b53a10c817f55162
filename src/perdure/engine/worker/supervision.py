"""Supervision of background tasks: a task that fails is logged, restarted with back-off and shown by `app.health()`.

After ten failures in a row `serve()` raises, so that the process manager can restart the process; until then, and
without `serve()`, the task keeps being restarted. An unavailable database does not count as a failure: the tasks retry
until it answers, and one warning is logged for all of them.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Literal

from perdure.engine.execution.clock import steady
from perdure.engine.replay.guard import is_interruption
from perdure.engine.worker.log import seconds
from perdure.errors import EngineError

log = logging.getLogger("perdure.engine")

FIRST_SEC = 1.0
LONGEST_SEC = 30.0
FAILURES_MAX = 10


@dataclass(frozen=True, slots=True)
class TaskHealth:
    """The health of a background task.

    - `name`: what the task does.
    - `alive`: whether it runs now; False while it waits for its restart.
    - `restarts`: the number of restarts since the App or Client was opened.
    - `failures`: the number of failures in a row, with no success in between.
    - `last_error`: the type and message of the last error, or None.
    - `broker`: whether its message broker is `"available"`, `"unavailable"` (it does not answer) or `"refused"`
      (`last_error` says what has to be corrected); None if the task has none, or has not used it yet.
    """

    name: str
    alive: bool
    restarts: int = 0
    failures: int = 0
    last_error: str | None = None
    broker: Literal["available", "unavailable", "refused"] | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an App or Client, for readiness probes.

    - `database`: whether the database answers.
    - `tasks`: the background tasks.
    - `migrations`: whether all migrations of this release are applied.
    - `oldest_due_sec`: for how many seconds the oldest due run has been waiting for a worker; None if no run is due.
    """

    database: bool
    tasks: tuple[TaskHealth, ...] = ()
    migrations: bool = True
    oldest_due_sec: float | None = None

    @property
    def ok(self) -> bool:
        """Return whether the database answers, all migrations are applied and all background tasks are healthy.

        Brokers do not count: without them runs are executed, and messages wait.
        """
        return self.database and self.migrations and all(each.alive and not each.failures for each in self.tasks)


class Outage:
    """Logs once that the database is unavailable, and once that it is available again for all affected tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the heartbeat is a thread
        self._noticed: set[str] = set()
        self._began = 0.0

    def notice(self, task: str, error: BaseException) -> None:
        """Note that a task cannot reach the database."""
        with self._lock:
            first = not self._noticed
            self._noticed.add(task)
        if first:
            self._began = steady()
            log.warning(
                "the database is unavailable, retrying until it answers: %s", error, extra={"reason": str(error)}
            )

    def end(self, task: str, *, reached: bool) -> None:
        """Note that a task reached the database again, or ended without reaching it."""
        if task not in self._noticed:
            return
        with self._lock:
            self._noticed.discard(task)
            last = not self._noticed
        if last and reached:
            lasted = steady() - self._began
            log.info("the database is available again after %s", seconds(lasted), extra={"duration_sec": lasted})


class Supervised:
    """The state of one background task, whose code reports its successes and failures here."""

    def __init__(
        self, name: str, given_up: Callable[[str], None] = lambda why: None, outage: Outage | None = None
    ) -> None:
        self._outage = outage or Outage()
        self.name = name
        self.alive = True
        self.ended = False  # regularly, with nothing left to do
        self._given_up = given_up
        self._restarts = self._failures = 0
        self._last_error: str | None = None
        self._broker: Literal["available", "unavailable", "refused"] | None = None

    def succeeded(self) -> None:
        """Report a success, which resets the count of failures."""
        self._failures = 0
        self._outage.end(self.name, reached=True)

    def unavailable(self, error: BaseException) -> None:
        """Report that the database does not answer and that the task retries. Any thread may call this."""
        self._outage.notice(self.name, error)

    def broker_failed(self, error: BaseException, state: Literal["unavailable", "refused"]) -> None:
        """Report that the task cannot use its broker and retries."""
        self._broker, self._last_error = state, f"{type(error).__name__}: {error}"

    def broker_answered(self) -> None:
        """Report that the broker of the task answers."""
        self._broker = "available"

    def rest(self) -> None:
        """Report that the task has nothing to do, so that it no longer counts as affected by an outage."""
        self._outage.end(self.name, reached=False)

    def end(self) -> None:
        """Report that the task has ended because nothing is left to do."""
        self.ended = True
        self.rest()

    def failed(self, error: BaseException) -> float:
        """Log an unexpected error and return the seconds to wait before a restart. Any thread may call this."""
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
        """Return the health of the task."""
        return TaskHealth(self.name, self.alive, self._restarts, self._failures, self._last_error, self._broker)


class Supervisor:
    """All background tasks of one App or Client."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of the code that opened the app: a task must not see a caller's context
        self._supervised: dict[str, Supervised] = {}
        self._broken: asyncio.Future[str] = self._loop.create_future()
        self._outage = Outage()

    def watch(self, name: str) -> Supervised:
        """Return the state of a task that restarts itself, such as a thread; the same object for the same name."""
        found = self._supervised.get(name)
        if found is None:
            found = self._supervised[name] = Supervised(name, self._give_up, self._outage)
        return found

    def start(self, name: str, work: Callable[[Supervised], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Start a task and restart it each time it fails, until it returns or is cancelled."""
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
                    if is_interruption(error):
                        raise
                    pause = task.failed(error)
                    task.alive = False
                await asyncio.sleep(pause)
        finally:
            task.end()

    def _give_up(self, why: str) -> None:
        def report() -> None:
            if not self._broken.done():
                self._broken.set_result(why)

        with suppress(RuntimeError):  # the loop is closed: no `serve()` waits for this
            self._loop.call_soon_threadsafe(report)

    async def failure(self) -> None:
        """Wait until a task has failed too often in a row, and raise `EngineError`."""
        raise EngineError(await asyncio.shield(self._broken))

    def tasks(self) -> tuple[TaskHealth, ...]:
        """Return the health of all tasks that have not ended regularly."""
        return tuple(each.health for each in self._supervised.values() if not each.ended)
