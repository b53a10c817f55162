"""Workers that the rig can stop at a commit: each has a gate before its database, and shares the clock of the case."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from perdure import App, Client
from perdure.database.backends.base import Session
from perdure.engine.api import database as databases
from perdure.engine.execution.clock import steady
from perdure.errors import DatabaseUnavailableError
from perdure.storage.contract import Storage
from perdure.storage.stores import SQLStorage, open_storage, shift_clock

LEASE_SEC = 30.0
DRAIN_SEC = 10.0
POLL_SEC = 0.001

Committed = Callable[["Gate"], Awaitable[None]]
IS_POLL: ContextVar[bool] = ContextVar("IS_POLL", default=False)  # calls that only ask whether a run has ended


class Clock:
    """The test clock: how far the storages of one case are ahead of their database's clock."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)
        self._storages: list[SQLStorage] = []

    def add(self, storage: SQLStorage) -> None:
        self._storages.append(storage)
        shift_clock(storage, self._ahead)

    def advance(self, span: timedelta) -> None:
        self._ahead += span
        for storage in self._storages:
            shift_clock(storage, self._ahead)


class Gate:
    """Stands between a worker and its database, and reports each of its commits."""

    def __init__(self, committed: Committed) -> None:
        self.frozen = False
        self.dead = False
        self.calls = 0  # of its main storage, under way
        self._committed = committed

    async def _enter(self) -> None:
        while self.frozen:  # noqa: ASYNC110 - the heartbeat asks from another loop
            await asyncio.sleep(POLL_SEC)
        if self.dead:
            raise DatabaseUnavailableError("this worker is dead")

    async def _leave(self) -> None:
        """Report a commit; its caller hears of it only if the worker is still alive then."""
        await self._committed(self)
        await self._enter()

    def guard(self, storage: SQLStorage) -> None:
        """Let all calls of a storage pass through this gate."""
        backend: Any = storage._backend
        read, write, begin = backend.read, backend.write, backend.begin

        async def guarded_read(work: Any, *, bounded: bool) -> Any:
            await self._enter()
            return await self.counted(read(work, bounded=bounded))

        async def guarded_write(work: Any) -> Any:
            await self._enter()
            answer = await self.counted(write(work))
            await self._leave()
            return answer

        async def guarded_begin() -> Session:
            await self._enter()
            session: Any = await self.counted(begin())
            commit = session.commit

            async def guarded_commit() -> None:
                await self.counted(commit())
                await self._leave()

            session.commit = guarded_commit
            return session  # type: ignore[no-any-return]

        backend.read, backend.write, backend.begin = guarded_read, guarded_write, guarded_begin

    def guard_heartbeat(self, storage: SQLStorage) -> None:
        """Let the renewals of the heartbeat, which has a loop and a thread of its own, pass through this gate."""
        backend: Any = storage._backend
        write = backend.write

        async def guarded_write(work: Any) -> Any:
            await self._enter()
            return await write(work)

        backend.write = guarded_write

    async def counted(self, call: Awaitable[Any]) -> Any:
        """Await something that is a call under way until then."""
        if IS_POLL.get():
            return await call
        self.calls += 1
        try:
            return await call
        finally:
            self.calls -= 1


class ClockedDatabase(databases.Database):
    """The database of a client, by the test clock."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, "Client")
        self._clock = clock

    def open(self) -> AbstractAsyncContextManager[Storage]:
        storage = open_storage(self.url)
        self._clock.add(storage)
        return storage


async def open_client(url: str, clock: Clock) -> Client:
    """Open a client, which is no worker."""
    client = Client(url)
    client._database = ClockedDatabase(url, clock)
    return await client.__aenter__()


class GuardedDatabase(databases.Database):
    """The database of a worker, behind its gate."""

    def __init__(self, url: str, gate: Gate, clock: Clock) -> None:
        super().__init__(url, "App")
        self._gate, self._clock = gate, clock

    def open(self) -> AbstractAsyncContextManager[Storage]:
        storage = open_storage(self._url_with_options())
        self._clock.add(storage)
        self._gate.guard(storage)
        return storage

    def open_another(self, opened: Storage) -> AbstractAsyncContextManager[Storage]:
        storage = open_storage(self._url_with_options())
        self._clock.add(storage)
        self._gate.guard_heartbeat(storage)
        return storage


@dataclass(slots=True)
class Worker:
    """An App, its gate, and whether it is still open."""

    app: App
    gate: Gate
    is_open: bool = True

    @classmethod
    async def open(cls, url: str, name: str, clock: Clock, committed: Committed, **settings: Any) -> "Worker":
        gate = Gate(committed)
        app = App(url, lease=LEASE_SEC, worker_id=name, **settings)
        app._database = GuardedDatabase(url, gate, clock)
        await app.__aenter__()
        return cls(app, gate)

    @property
    def runs(self) -> set[str]:
        """The runs that it executes."""
        return set(self.app._worker.executor.tasks)

    @property
    def is_busy(self) -> bool:
        """Whether it executes runs or talks to its database."""
        return bool(self.runs) or self.gate.calls > 0

    def executes(self, run: str, token: int) -> bool:
        """Whether it executes a run under the lease with this token."""
        task = self.app._worker.executor.tasks.get(run)
        return task is not None and task.lease.token == token

    def next_ticks(self) -> list[datetime]:
        """When it starts scheduled runs next."""
        return self.app._worker.work_loop.cron.next_ticks()

    def look(self, now: datetime) -> None:
        """Tell it the time, and let it look for work. It must not read the clock itself: it may just freeze."""
        self.app._worker.host.database_clock._epoch = now - timedelta(seconds=steady())
        self.app._worker.wake()

    def evict(self) -> None:
        """Remove the waiting runs from its memory."""
        self.app._worker.executor.cache.clear()

    async def close(self, drain_sec: float = DRAIN_SEC) -> None:
        """Close the App; a worker that has died closes without its database."""
        self.is_open = False
        self.app._drain_sec = drain_sec
        await self.app.__aexit__(None, None, None)

    async def drain(self, begun: Callable[[], None]) -> None:
        """Close the App, and report as soon as it starts nothing new."""
        closing = asyncio.create_task(self.close())
        while not self.app._worker.executor.stopping:  # noqa: ASYNC110 - in a step or two
            await asyncio.sleep(0)
        begun()
        await closing
