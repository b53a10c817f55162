"""The load: starts runs at a fixed rate, gives them what they wait for, and compares every outcome with its promise."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from perdure import Client, RunHandle, WorkflowCancelledError, WorkflowFailedError
from perdure.model.records import HistoryEventType
from perdure.model.states import WAITING
from perdure.storage.stores import SQLStorage
from tests.engine.crashes.rig.effect_table import TABLE
from tests.engine.crashes.rig.worker_pool import until
from tests.engine.waiting import row_of
from tests.soak import workflows as w

T = TypeVar("T")

RESULT_SEC = 300.0  # a busy machine may starve a run for long
ASK_SEC = 0.1
JOB_WORKERS = 3
COMPENSATED = HistoryEventType.COMPENSATION_EXECUTED


class Load:
    """The load on one database, and what came of it since the last sample."""

    def __init__(self, client: Client, storage: SQLStorage, published: Path, chance: random.Random) -> None:
        self._client, self._storage, self._chance = client, storage, chance
        self._published = Published(published)
        self._numbers = count(1)
        self._cases = (self._probe, self._steps, self._fan, self._retrying, self._entries, self._saga, self._cancelled,
                       self._second_chance, self._parent, self._approval, self._nap, self._parcel, self._group,
                       self._job, self._evolving)  # fmt: skip
        self._jobs: list[RunHandle[int]] = []
        self._job_total = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.wrong: list[str] = []
        self.started = self.ended = 0  # runs
        self.patched = 0  # runs that took a new path of changed code
        self.probes: list[float] = []  # seconds from start() to the first step
        self.lags: list[float] = []  # seconds from the due time of a timer to the next step

    @property
    def in_progress(self) -> int:
        return self.started - self.ended

    async def run(self, rate: float, seconds: float) -> None:
        """Start cases at a fixed rate, each kind in turn, for so long; then wait until all have ended."""
        for _ in range(JOB_WORKERS):
            self._jobs.append(await self._start(w.job_worker, 0))
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            task = asyncio.create_task(self._play(self._cases[number % len(self._cases)]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)
        await self._play(self._end_jobs)
        await self._play(self._all_published)

    async def _play(self, case: Callable[[], Awaitable[None]]) -> None:
        try:
            await case()
        except Exception as error:
            self.wrong.append(f"{case.__name__.strip('_')}: {type(error).__name__}: {error}")

    async def _start(self, workflow: Any, *args: object, id: str | None = None) -> RunHandle[Any]:
        handle: RunHandle[Any] = await workflow.options(id=id or self._key()).start(*args)
        self.started += 1
        return handle

    async def _end(self, handle: RunHandle[T]) -> T:
        try:
            return await handle.result(RESULT_SEC)
        except TimeoutError:
            raise AssertionError(f"{handle.id} did not end: {await row_of(handle)}") from None
        finally:
            self.ended += 1

    async def _ends_with(self, expected: T, handle: RunHandle[T]) -> None:
        result = await self._end(handle)
        assert result == expected, f"{handle.id} returned {result!r} instead of {expected!r}"

    async def _waits(self, *handles: RunHandle[Any]) -> None:
        for handle in handles:

            async def is_waiting(handle: RunHandle[Any] = handle) -> bool:
                return (await row_of(handle)).status in WAITING

            await until(is_waiting, f"{handle.id} to wait", RESULT_SEC, ASK_SEC)

    def _key(self) -> str:
        return f"soak-{next(self._numbers)}"

    # Steps.

    async def _probe(self) -> None:
        before = time.time()
        self.probes.append(await self._end(await self._start(w.probe)) - before)

    async def _steps(self) -> None:
        count = self._chance.randint(2, 6)
        await self._ends_with(sum(range(count + 1)), await self._start(w.steps, count))

    async def _fan(self) -> None:
        count = self._chance.randint(2, 8)
        await self._ends_with(sum(range(count + 1)), await self._start(w.fan, count))

    async def _retrying(self) -> None:
        await self._ends_with(14, await self._start(w.retrying, 7))

    async def _entries(self) -> None:
        """Each transactional activity took effect exactly once; its row is deleted, so a later one would show."""
        handle = await self._start(w.entries, 3)
        await self._ends_with(3, handle)
        found = await self._storage.db().fetch(f"SELECT step FROM {TABLE} WHERE run = '{handle.id}' ORDER BY step")
        assert [step for (step,) in found] == ["1:enter", "2:enter", "3:enter"], f"{handle.id} had the effects {found}"
        await self._storage.db().execute(f"DELETE FROM {TABLE} WHERE run = '{handle.id}'")

    async def _evolving(self) -> None:
        result = await self._end(await self._start(w.evolving, 1))
        assert result.changes == list(range(1, len(result.changes) + 1)), result
        assert result.value == 2 + sum(result.changes), result
        self.patched += bool(result.changes)

    async def _nap(self) -> None:
        lag = await self._end(await self._start(w.nap))
        assert lag > -0.01, f"a timer fired {-lag} s early"
        self.lags.append(lag)

    # Failures.

    async def _saga(self) -> None:
        handle = await self._start(w.saga)
        try:
            await self._end(handle)
        except WorkflowFailedError:
            await self._is_compensated(handle, 2)
        else:
            raise AssertionError(f"{handle.id} did not fail")

    async def _cancelled(self) -> None:
        handle = await self._start(w.reservation)
        await self._waits(handle)
        await handle.cancel("no longer needed")
        try:
            await self._end(handle)
        except WorkflowCancelledError:
            await self._is_compensated(handle, 1)
        else:
            raise AssertionError(f"{handle.id} was not cancelled")

    async def _is_compensated(self, handle: RunHandle[Any], count: int) -> None:
        kinds = [entry.kind async for entry in handle.history()]
        assert kinds.count(COMPENSATED) == count, f"{handle.id} has the history {kinds}"

    async def _second_chance(self) -> None:
        handle = await self._start(w.second_chance)
        try:
            await self._end(handle)
        except WorkflowFailedError:
            self.started += 1
            await self._ends_with(2, await self._client.retry(handle.id))
        else:
            raise AssertionError(f"{handle.id} did not fail")

    async def _parent(self) -> None:
        await self._ends_with(0 + 1 + 3, await self._start(w.parent, 3))

    # Messages.

    async def _approval(self) -> None:
        """By an event to the run alone, which is kept, or by one that only its filter finds."""
        key = self._key()
        handle = await self._start(w.approval, key, id=key)
        to = key if self._chance.random() < 0.5 else None
        if to is None:
            await self._waits(handle)
            await self._client.send_event(w.APPROVED, {"key": f"not {key}", "by": "Bob"})
        await self._client.send_event(w.APPROVED, {"key": key, "by": "Ann"}, to=to, source="soak", id=f"{key} approved")
        await self._ends_with("Ann", handle)

    async def _parcel(self) -> None:
        key = self._key()
        handle = await self._start(w.parcel, key, id=key)
        self._published.expected.add(key)
        await self._end(handle)

    async def _group(self) -> None:
        table = self._key()
        players = [await self._start(w.player, table) for _ in range(2)]
        await self._waits(*players)
        await self._ends_with(2, await self._start(w.dealer, table, "the queen"))
        for handle in players:
            await self._ends_with("the queen", handle)

    async def _job(self) -> None:
        job = self._chance.randint(1, 9)
        if job % 2:
            await self._client.publish(w.JOBS, job)
        else:
            await self._end(await self._start(w.foreman, job))
        self._job_total += job

    async def _end_jobs(self) -> None:
        for _ in self._jobs:
            await self._client.publish(w.JOBS, w.STOP)
        taken = [await self._end(handle) for handle in self._jobs]
        assert sum(taken) == self._job_total, f"jobs of {self._job_total} were sent, and {taken} taken"

    async def _all_published(self) -> None:
        await until(lambda: not self._published.missing(), "all events to be published", RESULT_SEC, ASK_SEC)


class Published:
    """The events that have to be published, and the file with those that were."""

    def __init__(self, path: Path) -> None:
        self.expected: set[str] = set()
        self._path, self._offset = path, 0

    def missing(self) -> set[str]:
        """Read what was published since the last call, and return what is missing."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.expected -= set(whole.decode().split())
        return self.expected
