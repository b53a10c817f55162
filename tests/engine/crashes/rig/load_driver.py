"""The load driver: starts runs, sends what they wait for, and records everything that was acknowledged."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import TypeVar

from perdure import Client, HistoryEntry, RunHandle, Workflow
from perdure.engine.api.messages import Outgoing
from perdure.engine.history.codec import encode
from perdure.errors import CommitUnknownError, DatabaseUnavailableError, TransactionConflictError
from perdure.model.records import OutgoingMessage, WorkflowInstance
from perdure.model.states import WAITING
from tests.engine.crashes.rig import workflows as w
from tests.engine.crashes.rig.worker_pool import until
from tests.engine.crashes.rig.workflows import Account
from tests.engine.waiting import row_of

T = TypeVar("T")

RESULT_SEC = 180.0  # a busy machine may starve a run for long
ASK_SEC = 0.05
NEWS_COUNT, NEWS_SEC = 30, 0.25
LISTENERS = 2
JOB_WORKERS = 3
CONCURRENCY = 32
LIMIT = timedelta(hours=1)  # never reached, except by a clock that is wrong
TROUBLE = (CommitUnknownError, DatabaseUnavailableError, TransactionConflictError)


@dataclass(slots=True)
class Observed:
    """What the driver observed, which is all that the checker relies on."""

    expected: dict[str, list[str | int] | None] = field(default_factory=dict)  # of every run whose start was tried
    started: list[str] = field(default_factory=list)
    results: dict[str, Account] = field(default_factory=dict)
    ended: dict[str, WorkflowInstance] = field(default_factory=dict)  # the row when its end was first seen
    jobs: Counter[str] = field(default_factory=Counter)
    unsure_jobs: Counter[str] = field(default_factory=Counter)  # their sending may or may not have been committed
    retried: int = 0


class LoadDriver:
    """Load on one database."""

    def __init__(self, client: Client, chance: random.Random, concurrency: int = CONCURRENCY) -> None:
        self.client, self.chance, self.concurrency = client, chance, concurrency
        self.observed = Observed()
        self.stopping = asyncio.Event()
        self._numbers = count(1)
        self._cases = (self._sequence, self._fan, self._slow, self._retrying, self._napping, self._approval,
                       self._mixed, self._publisher, self._bookkeeper)  # fmt: skip

    async def run(self) -> None:
        """Keep many runs under way until it is to stop, then see all of them to their end."""
        jobs = [await self._start(w.job_worker, None) for _ in range(JOB_WORKERS)]
        listeners = [await self._start(w.listener, list(range(NEWS_COUNT)), NEWS_COUNT) for _ in range(LISTENERS)]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._news(listeners))
            for number in range(self.concurrency):
                group.create_task(self._start_runs(number))
        await self._pills()
        for handle in (*jobs, *listeners):
            await self._finish(handle)

    async def _start_runs(self, number: int) -> None:
        chance = random.Random(self.chance.random())
        turn = number  # each kind comes up, whatever the number of rounds
        while not self.stopping.is_set():
            await self._cases[turn % len(self._cases)](chance)
            turn += 1
            await self._job(f"by client {next(self._numbers)}")

    # Acknowledgements.

    async def persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the database is away; only for what may be asked twice."""
        async with asyncio.timeout(RESULT_SEC):
            while True:
                try:
                    return await call()
                except TROUBLE:
                    self.observed.retried += 1
                    await asyncio.sleep(ASK_SEC)

    async def _start(
        self, workflow: Workflow[..., Account], expected: list[str | int] | None, *args: object, key: str = ""
    ) -> RunHandle[Account]:
        id = key or self._key()
        self.observed.expected[id] = expected
        handle = await self.persist(lambda: workflow.options(id=id, timeout=LIMIT).start(*args))
        self.observed.started.append(id)
        return handle

    async def _finish(self, handle: RunHandle[Account]) -> None:
        try:
            self.observed.results[handle.id] = await self.persist(lambda: handle.result(RESULT_SEC))
        except TimeoutError:
            row = await self.persist(lambda: row_of(handle))
            raise AssertionError(f"stuck: {handle.id} did not end within {RESULT_SEC} s: {row}") from None
        self.observed.ended[handle.id] = await self.persist(lambda: row_of(handle))

    async def _job(self, job: str) -> None:
        """Publishing twice would be two messages: an unknown outcome stays one."""
        while True:
            try:
                await self.client.publish(w.JOBS, job)
            except CommitUnknownError:
                self.observed.unsure_jobs[job] += 1
            except TROUBLE:
                await asyncio.sleep(ASK_SEC)
                continue
            else:
                self.observed.jobs[job] += 1
            return

    def _key(self) -> str:
        return f"run-{next(self._numbers)}"

    # Kinds of runs.

    async def _sequence(self, chance: random.Random) -> None:
        steps = chance.randint(2, 6)
        expected: list[str | int] = [number * 2 for number in range(steps)]
        await self._finish(await self._start(w.sequence, [*expected, steps * 3], steps))

    async def _fan(self, chance: random.Random) -> None:
        width = chance.randint(2, 6)
        await self._finish(await self._start(w.fan, [sum(range(width)) * 5, 2], width))

    async def _slow(self, _: random.Random) -> None:
        await self._finish(await self._start(w.slow, [2, 5, 4]))

    async def _retrying(self, _: random.Random) -> None:
        await self._finish(await self._start(w.retrying, [2, 2]))

    async def _napping(self, _: random.Random) -> None:
        await self._finish(await self._start(w.napping, [2, 4, 6]))

    async def _publisher(self, _: random.Random) -> None:
        key = self._key()
        handle = await self._start(w.publisher, [1, 2], key, key=key)
        await self._finish(handle)
        self.observed.jobs.update([f"by activity {key}", f"by body {key}"])

    async def _bookkeeper(self, chance: random.Random) -> None:
        count = chance.randint(1, 4)
        expected: list[str | int] = [value for number in range(count) for value in (9, number * 2)]
        await self._finish(await self._start(w.bookkeeper, expected, count))

    async def _approval(self, chance: random.Random) -> None:
        key, verdict = self._key(), f"verdict {chance.random()}"
        handle = await self._start(w.approval, [2, verdict, 4], key, key=key)
        await self._decide(handle, key, verdict, chance)
        await self._finish(handle)

    async def _mixed(self, chance: random.Random) -> None:
        key, verdict = self._key(), f"verdict {chance.random()}"
        handle = await self._start(w.mixed, [verdict, 10, 15, 2], key, key=key)
        await self._decide(handle, key, verdict, chance)
        await self._finish(handle)

    async def _decide(self, handle: RunHandle[Account], key: str, verdict: str, chance: random.Random) -> None:
        """To the run alone, which keeps; or, once the run waits, together with an event that is not meant for it."""
        to = key if chance.random() < 0.5 else None
        if to is None or chance.random() < 0.5:
            await self._waiting(handle)
            wrong = self._event({"run": f"not {key}", "verdict": "wrong"}, f"{key} wrong", None)
            await asyncio.gather(wrong, self._event({"run": key, "verdict": verdict}, f"{key} right", to))
        else:
            await self._event({"run": key, "verdict": verdict}, f"{key} right", to)

    async def _event(self, data: dict[str, str], id: str, to: str | None) -> None:
        await self.persist(lambda: self.client.send_event(w.DECIDED, data, to=to, source="driver", id=id))

    async def _waiting(self, handle: RunHandle[Account]) -> None:
        """Until the run's wait is a row: events are seen from then on."""

        async def waits() -> bool:
            return (await self.persist(handle.info)).status in WAITING

        await until(waits, f"{handle.id} to wait", RESULT_SEC, ASK_SEC)

    # Messages to many.

    async def _news(self, listeners: list[RunHandle[Account]]) -> None:
        """Some all along, the rest at the end, each once the listeners are subscribed."""
        for handle in listeners:
            await self._subscribed(handle)
        for number in range(NEWS_COUNT):
            await self.persist(lambda number=number: self.client.send(_once(w.NEWS, number, number)))  # type: ignore[misc]
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), NEWS_SEC)

    async def _subscribed(self, handle: RunHandle[Account]) -> None:
        async def events() -> list[HistoryEntry]:
            return [event async for event in handle.history()]

        async def has_begun() -> bool:
            return len(await self.persist(events)) >= 2

        await until(has_begun, f"{handle.id} to listen", RESULT_SEC, ASK_SEC)

    async def _pills(self) -> None:
        for number in range(JOB_WORKERS):
            await self.persist(lambda number=number: self.client.send(_once(w.JOBS, w.PILL, number)))  # type: ignore[misc]


def _once(channel: str, data: str | int, number: int) -> Outgoing:
    """A message that may be sent again without being stored again."""
    return Outgoing(OutgoingMessage(channel, encode(data), message_id=f"{channel} {number}", source="driver"))
