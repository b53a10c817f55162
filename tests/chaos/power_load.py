"""Writers on a storage, each of whose writes can be accounted for, whatever happens to the disk under it."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Protocol, TypeVar

from perdure.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    InstanceExistsError,
    StorageError,
    TransactionConflictError,
)
from perdure.model.records import HistoryEvent, Lease, OutboxEvent, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage

T = TypeVar("T")

TROUBLE = (CommitUnknownError, DatabaseUnavailableError, TransactionConflictError)
EFFECTS = "CREATE TABLE IF NOT EXISTS effects (nonce VARCHAR(120) PRIMARY KEY, run VARCHAR(60) NOT NULL)"
COMPLETED = "ActivityCompleted"
BATCH = 3
PAUSE_SEC = 0.02
LEASE_SEC = 3600.0


class Acknowledge(Protocol):
    """Called after every acknowledgement."""

    def __call__(self, what: str, /, **about: object) -> None: ...


class Load:
    """Writers on a storage of their own each, or on one; each write carries a nonce that is never used twice."""

    def __init__(self, acknowledge: Acknowledge, chance: random.Random, pad_max: int = 6000) -> None:
        self.acknowledge, self.chance, self._pad_max = acknowledge, chance, pad_max
        self.stopping = asyncio.Event()
        self.troubles: Counter[str] = Counter()
        # Runs with a commit whose outcome is unknown. A server that crashed during it may restore it when it recovers,
        # after others have seen that it did not exist: such a run is left alone.
        self._left_alone: set[str] = set()
        self._numbers = count(1)

    async def write_runs(self, storage: SQLStorage, name: str, steps: int) -> None:
        """One instance after the other, until it is time to stop."""
        for life in count(1):
            if self.stopping.is_set():
                return
            await self._live(storage, f"{name}-{life}", steps)

    async def _live(self, storage: SQLStorage, run: str, steps: int) -> None:
        lease = await self._leased(storage, run)
        done = 0
        while done < steps and not self.stopping.is_set() and run not in self._left_alone:
            done = done + 1 if await self._step(storage, lease, done + 1) else await self._steps_in(storage, run)
            dice = self.chance.random()
            if dice < 0.1:
                lease = await self._again(storage, run)
            elif dice < 0.2:
                await self._message(storage, lease)
            elif dice < 0.3:
                await self._undone(storage, lease)
        if run not in self._left_alone:
            await self._complete(storage, lease)

    # Of an instance.

    async def _leased(self, storage: SQLStorage, run: str) -> Lease:
        async def create() -> None:
            with suppress(InstanceExistsError):
                await storage.create_instance(WorkflowInstance(run, "writer"))

        await self.persist(create)
        return await self._again(storage, run)

    async def _again(self, storage: SQLStorage, run: str) -> Lease:
        """Release the lease, if it is held, and take it again: the fencing token grows."""

        async def acquire() -> Lease | None:
            await storage.release_lock(run, "w")
            return await storage.try_acquire_lock(run, "w", LEASE_SEC)

        while (lease := await self.persist(acquire)) is None:
            pass
        self.acknowledge("token", run=run, token=lease.token)
        return lease

    async def _complete(self, storage: SQLStorage, lease: Lease) -> None:
        async def complete() -> None:
            found = await storage.get_instance(lease.instance_id)
            if found is None or found.status is not WorkflowStatus.COMPLETED:
                await storage.complete_and_release(lease, b'"done"')

        await self.persist(complete)
        self.acknowledge("done", run=lease.instance_id)

    async def _steps_in(self, storage: SQLStorage, run: str) -> int:
        """After trouble: how far the history has come."""

        async def last() -> int:
            events, more = await storage.get_history_paginated(run, limit=1000)
            assert not more, "the runs of a writer are short"
            return int(events[-1].activity_id.split(".")[0]) if events else 0

        return await self.persist(last)

    # Writes of one commit each.

    async def _step(self, storage: SQLStorage, lease: Lease, number: int) -> bool:
        return await self._try(self.chance.choice((self._alone, self._whole, self._batch)), storage, lease, number)

    async def _alone(self, storage: SQLStorage, lease: Lease, number: int, nonce: str) -> None:
        await storage.append_history(self._event(lease, f"{number}", nonce, "alone"), lease=lease)

    async def _whole(self, storage: SQLStorage, lease: Lease, number: int, nonce: str) -> None:
        """Rows of three tables in one transaction."""
        async with storage.transaction() as connection:
            await storage.append_history(self._event(lease, f"{number}", nonce, "whole"), lease=lease)
            await connection.execute(f"INSERT INTO effects (nonce, run) VALUES ('{nonce}', '{lease.instance_id}')")
            await storage.add_outbox_event(OutboxEvent(nonce, "stepped", "writer", b"{}"), lease=lease)

    async def _batch(self, storage: SQLStorage, lease: Lease, number: int, nonce: str) -> None:
        parts = [self._event(lease, f"{number}.{part}", nonce, "batch") for part in range(BATCH)]
        for answer in await storage.append_histories([(part, lease) for part in parts]):
            if isinstance(answer, StorageError):
                raise answer

    async def _message(self, storage: SQLStorage, lease: Lease) -> None:
        async def publish(storage: SQLStorage, lease: Lease, number: int, nonce: str) -> None:
            await storage.publish_to_channel(f"news {number}", self._data(nonce, "message"), message_id=nonce)

        await self._try(publish, storage, lease, self.chance.randrange(3), "message")

    async def _undone(self, storage: SQLStorage, lease: Lease) -> None:
        nonce = self._nonce(lease)
        try:
            async with storage.transaction() as connection:
                await connection.execute(f"INSERT INTO effects (nonce, run) VALUES ('{nonce}', '{lease.instance_id}')")
                await storage.add_outbox_event(OutboxEvent(nonce, "undone", "writer", b"{}"), lease=lease)
                raise ZeroDivisionError
        except ZeroDivisionError:
            self.acknowledge("never", nonce=nonce)
        except TROUBLE as error:
            self._note(error)

    async def _try(
        self,
        act: Callable[[SQLStorage, Lease, int, str], Awaitable[None]],
        storage: SQLStorage,
        lease: Lease,
        number: int,
        what: str = "step",
    ) -> bool:
        """What is unknown may be there or not; what is said not to be written must never be seen."""
        nonce = self._nonce(lease)
        try:
            await act(storage, lease, number, nonce)
        except TROUBLE as error:
            self._note(error)
            if not isinstance(error, CommitUnknownError):
                self.acknowledge("never", nonce=nonce)
            elif storage._backend.driver.name != "sqlite":
                self._left_alone.add(lease.instance_id)
            await asyncio.sleep(PAUSE_SEC)
            return False
        self.acknowledge(what, run=lease.instance_id, nonce=nonce)
        return True

    async def persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the disk is in trouble; only for what may be asked twice."""
        while True:
            try:
                return await call()
            except TROUBLE as error:
                self._note(error)
                await asyncio.sleep(PAUSE_SEC)

    def _note(self, error: StorageError) -> None:
        self.troubles[f"{type(error).__name__}: {error}"] += 1

    def _nonce(self, lease: Lease) -> str:
        return f"{lease.instance_id}/{next(self._numbers)}"

    def _event(self, lease: Lease, step: str, nonce: str, kind: str) -> HistoryEvent:
        return HistoryEvent(lease.instance_id, step, COMPLETED, self._data(nonce, kind))

    def _data(self, nonce: str, kind: str) -> bytes:
        """Mostly small, sometimes more than a page of the database, and nothing that can be compressed."""
        pad = self.chance.randint(0, self.chance.choice((0, 0, 0, 200, 1000, self._pad_max)))
        return json.dumps({"nonce": nonce, "kind": kind, "pad": self.chance.randbytes(pad // 2).hex()}).encode()
