"""What a test App is doing: operations of its storage that are under way, and attempts of activities that execute code.

A clock may jump only while nothing happens.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from perdure.engine.execution.interfaces import Attempt, Done, Record
from perdure.engine.worker.activities import Executor
from perdure.storage.contract import Storage

# Operations that a worker repeats while nothing happens.
POLLS = frozenset(
    "beat_worker deliver_pending find_expired_channel_subscriptions find_expired_timers find_resumable_workflows "
    "get_instance get_instances get_pending_outbox_events get_stuck list_workers next_work_at now pending_migrations "
    "refresh_locks".split()
)
OPERATIONS = tuple(name for name in dir(Storage) if inspect.iscoroutinefunction(getattr(Storage, name)))

_UNOBSERVED: ContextVar[bool] = ContextVar("perdure_unobserved", default=False)


@contextmanager
def unobserved() -> Iterator[None]:
    """Don't count the operations of the block, which are those of the clock itself."""
    token = _UNOBSERVED.set(True)
    try:
        yield
    finally:
        _UNOBSERVED.reset(token)


class Observations:
    """What happens at the moment, and how much has happened so far."""

    def __init__(self) -> None:
        self.operations = 0  # under way
        self.events = 0  # operations and attempts that have begun or ended
        self.changes = 0  # those without the worker's polls
        self.executing: dict[object, float] = {}  # attempts of activities, and when each began in real time
        self.waiting = 0  # of these, those that only wait for the clock, for another run, or for their turn to complete

    def executing_since(self, moment: float) -> bool:
        """Return whether code executes that began after a moment of the real time."""
        return len(self.executing) > self.waiting and any(began > moment for began in self.executing.values())

    @property
    def is_executing(self) -> bool:
        """Return whether the code of an activity executes, and does not only wait."""
        return len(self.executing) > self.waiting

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Count the calling activity as waiting while the block lasts."""
        self.waiting += 1
        self.events += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.events += 1

    @contextmanager
    def execution(self) -> Iterator[None]:
        """Count an attempt as executing while the block lasts."""
        attempt = object()
        self.executing[attempt] = time.monotonic()
        self.events += 1
        self.changes += 1
        try:
            yield
        finally:
            del self.executing[attempt]
            self.events += 1
            self.changes += 1

    # Storages.

    @contextmanager
    def of(self, storage: Storage) -> Iterator[None]:
        """Observe all operations of a storage while the block lasts."""
        for name in OPERATIONS:
            setattr(storage, name, self._observed(name, getattr(storage, name)))
        try:
            yield
        finally:
            for name in OPERATIONS:
                delattr(storage, name)

    def _observed(self, name: str, operation: Callable[..., Awaitable[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        counts = name not in POLLS

        @wraps(operation)
        async def run(*args: Any, **kwargs: Any) -> Any:
            if _UNOBSERVED.get():
                return await operation(*args, **kwargs)
            self.operations += 1
            self.events += 1
            self.changes += counts
            try:
                return await operation(*args, **kwargs)
            finally:
                self.operations -= 1
                self.events += 1

        return run


class ObservedActivities:
    """Executes the attempts of a test App. `complete` is awaited before an outcome is passed on."""

    def __init__(
        self, activities: Executor, observations: Observations, complete: Callable[[Attempt], Awaitable[None]] | None
    ) -> None:
        self._activities = activities
        self._observations = observations
        self._complete = complete

    async def execute(self, attempt: Attempt) -> Done:
        """Execute an attempt."""
        with self._observations.execution():
            done = await self._activities.execute(attempt)
            if self._complete is not None:
                with self._observations.pausing():
                    await self._complete(attempt)
            return done

    async def transact(self, attempt: Attempt, storage: Storage, record: Record) -> Done:
        """Execute an attempt in a transaction that also records its result."""
        with self._observations.execution():
            return await self._activities.transact(attempt, storage, record)

    def close(self) -> None:
        """Let the threads end."""
        self._activities.close()
