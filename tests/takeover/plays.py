"""One run of a feature, with a change of worker or without.

The test clock moves only when no worker has anything to do: to the next timer, timeout or expired lease, or to the next
action of the feature's script.
"""

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any

from perdure import Client, activity_info
from perdure.engine.worker.owners import worker_of
from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.model.states import TERMINAL
from perdure.storage.stores import SQLStorage
from tests.takeover.deployment import Deployment
from tests.takeover.features import RUN, Change, Feature
from tests.takeover.log import LOG
from tests.takeover.marks import Marks
from tests.takeover.outcomes import Outcome, collect
from tests.takeover.workers import LEASE_SEC, POLL_SEC, Clock, Gate, Worker, open_client

STALLED_SEC = 60.0  # of a machine that is very busy
QUIET = 2  # looks in a row, because a task may be between two calls of its storage
MARGIN = timedelta(milliseconds=20)  # by which the clock passes the time of what is due
PHASE = timedelta(minutes=10)  # each case starts so long after a full hour of the test clock


class CaseError(Exception):
    """A case does not end, or does not come to its point."""


class Play:
    """Plays a feature once. Without a change it is the undisturbed run."""

    def __init__(
        self, url: str, storage: SQLStorage, deployment: Deployment, feature: Feature, change: Change | None, point: str
    ) -> None:
        self._url, self._storage, self._deployment, self._feature = url, storage, deployment, feature
        self._change, self._point = change, point
        self._clock = Clock()
        self._clock.add(storage)
        self._script = list(feature.script)
        self._workers: list[Worker] = []
        self._client: Client | None = None  # from which the actions of the script come
        self._starting: asyncio.Task[Any] | None = None
        self._changing: Gate | None = None  # of the worker that changes, once the point is reached
        self._changed = asyncio.Event()
        self._is_evicting = False
        self._killed: Gate | None = None  # of a worker that an activity has ended
        self._recorded: set[str] = set()
        self._tokens: dict[str, int] = {}
        self._began: datetime
        self._marks: Marks

    async def run(self) -> Outcome:
        """Play until all runs have ended."""
        await self._start()
        while await self._proceed():
            pass
        if self._change is not None and self._changing is None:
            raise CaseError(f"the point was not reached; the run came through {self._marks.points}")
        outcome = await collect(self._storage, self._marks)
        outcome.recorded, outcome.tokens = self._recorded, self._tokens
        return outcome

    async def _proceed(self) -> bool:
        """Wait until there is nothing to do, then do what comes next; return False if there is nothing."""
        await self._settle()
        if self._killed is not None:
            await self._replace_killed(self._killed)
        elif self._changing is not None and not self._changed.is_set():
            await self._carry_out(self._changing)
        elif self._is_evicting:
            self._evict()
        elif self._changing is not None and self._changing.frozen:
            await self._thaw(self._changing)
        else:
            return await self._move_on()
        return True

    async def close(self) -> None:
        """Close what is open."""
        for worker in self._workers:
            worker.gate.frozen = False
            if worker.is_open:
                await worker.close(1.0)
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
        if self._starting is not None:
            await asyncio.wait([self._starting])
            self._starting.exception()  # the worker may have died before it heard of the start

    async def _start(self) -> None:
        now = await self._storage.now()
        self._began = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1) + PHASE
        self._clock.advance(self._began - now)
        self._marks = Marks(self._storage, self._began)
        LOG.kill = self._kill
        self._client = await open_client(self._url, self._clock)
        await self._open_worker()
        if not self._feature.until:
            (workflow,) = self._deployment.workflows(self._feature.workflow)
            configured = workflow.options(id=RUN, **self._feature.options)
            self._starting = asyncio.create_task(configured.start(*self._feature.arguments))

    async def _open_worker(self) -> None:
        name = f"worker{len(self._workers) + 1}"
        self._workers.append(await Worker.open(self._url, name, self._clock, self._committed, **self._settings()))

    def _settings(self) -> dict[str, Any]:
        """The settings of the next worker."""
        workflows = self._deployment.workflows(self._feature.workflow, *self._feature.serves)
        return {"workflows": workflows, "max_cached_runs": self._feature.max_cached_runs}

    @property
    def _live(self) -> list[Worker]:
        return [each for each in self._workers if each.is_open and not each.gate.frozen and not each.gate.dead]

    def _worker_at(self, gate: Gate) -> Worker:
        return next(each for each in self._workers if each.gate is gate)

    # Waiting, and moving the clock.

    async def _settle(self) -> None:
        """Wait until no worker has anything to do at this time, or something happens to one."""
        until, quiet = time.monotonic() + STALLED_SEC, 0
        while quiet < QUIET:
            if self._killed is not None or (self._changing is not None and not self._changed.is_set()):
                return
            if time.monotonic() > until:
                raise await self._stalled()
            quiet = quiet + 1 if await self._is_quiet() else 0
            await asyncio.sleep(POLL_SEC)

    async def _is_quiet(self) -> bool:
        live = self._live
        is_starting = self._starting is not None and not self._starting.done() and self._changing is None
        if is_starting or any(each.is_busy for each in live):
            return False
        if await self._leased([each.app.worker_id for each in live]):
            return False
        due, now = await self._dues(), await self._storage.now()
        if due and min(due) <= now:
            for each in live:
                each.look(now)
            return False
        return True

    async def _dues(self) -> list[datetime]:
        """The times of the next work of all runs, and of the next ticks."""
        found = await self._storage.next_work_at()
        ticks = [tick for worker in self._live for tick in worker.next_ticks()]
        return [*ticks, *([found] if found is not None else [])]

    async def _leased(self, names: list[str]) -> list[WorkflowInstance]:
        """The runs that these workers have leased."""
        return [row for row in await self._runs() if row.locked_by and worker_of(row.locked_by) in names]

    async def _runs(self) -> list[WorkflowInstance]:
        return list((await self._storage.list_instances(ListInstancesOptions(limit=100))).instances)

    async def _move_on(self) -> bool:
        """Move the clock to what comes next, and do it if it is an action; return False if there is nothing."""
        ended = all(row.status in TERMINAL for row in await self._runs())
        if ended and not self._script and not self._feature.until:
            return False
        actions = [self._began + timedelta(hours=hours) for hours, _ in self._script[:1]]
        dues = [*actions, *await self._dues()]
        if not dues:
            raise await self._stalled()
        if self._feature.until and min(dues) > self._began + timedelta(hours=self._feature.until):
            return False
        await self._move_to(min(dues))
        if actions and actions[0] == min(dues) and self._client is not None:
            _, act = self._script.pop(0)
            await act(self._client, "")
            await self._begin_change(self._live[0].gate)
        return True

    async def _move_to(self, due: datetime) -> None:
        self._clock.advance(max(due - await self._storage.now(), timedelta(0)) + MARGIN)
        now = await self._storage.now()
        for worker in self._live:
            worker.look(now)

    async def _stalled(self) -> CaseError:
        rows = [f"{row.instance_id} is {row.status} (lease: {row.locked_by})" for row in await self._runs()]
        return CaseError(f"the case does not end: {'; '.join(rows)}; it came through {self._marks.points}")

    # The change of worker.

    async def _committed(self, gate: Gate) -> None:
        """After a commit of a worker: if it is the point of the case, the worker hears of it after the change began."""
        if await self._begin_change(gate) and self._change in (Change.DRAIN, Change.DEPLOY):
            await self._changed.wait()

    async def _begin_change(self, gate: Gate) -> bool:
        """Note what is new in the database; return whether it is the point of the case."""
        fresh = await self._marks.look()
        if self._change is None or self._changing is not None or gate.dead or self._point not in fresh:
            return False
        self._changing = gate
        self._recorded, self._tokens = set(self._marks.seen), self._marks.tokens
        if self._change is Change.DEATH:
            gate.dead = True
            LOG.dead.update(self._tokens)
        elif self._change is Change.LOST:
            gate.frozen = True
        elif self._change is Change.EVICTION:
            self._is_evicting = True
            self._changed.set()
        return True

    async def _carry_out(self, gate: Gate) -> None:
        worker = self._worker_at(gate)
        if self._change is Change.DEATH:
            self._changed.set()
            await worker.close(0.0)
            await self._open_worker()
        elif self._change is Change.LOST:
            self._changed.set()
            await self._open_worker()
        elif self._change is Change.DRAIN:
            await worker.drain(self._changed.set)
            await self._open_worker()
        else:
            self._deployment.deploy()
            await self._open_worker()
            await worker.drain(self._changed.set)

    def _evict(self) -> None:
        """Remove the waiting runs from memory."""
        self._is_evicting = False
        for worker in self._live:
            worker.evict()

    async def _thaw(self, gate: Gate) -> None:
        """Let the frozen worker continue alone, once another has executed a run: its copies are outdated."""
        if await self._leased([self._worker_at(gate).app.worker_id]):
            await self._move_to(await self._storage.now() + timedelta(seconds=LEASE_SEC))
        elif self._marks.tokens != self._tokens or not await self._move_on():
            others = self._live
            gate.frozen = False
            for worker in others:
                await worker.close()

    # Activities that end their worker.

    def _kill(self) -> None:
        """End the worker whose activity calls."""
        info = activity_info()
        worker = next(each for each in self._workers if each.executes(info.workflow_id, info.fence))
        worker.gate.dead = True
        self._killed = worker.gate

    async def _replace_killed(self, gate: Gate) -> None:
        self._killed = None
        worker = self._worker_at(gate)
        if worker.is_open:
            await worker.close(0.0)
            await self._open_worker()
