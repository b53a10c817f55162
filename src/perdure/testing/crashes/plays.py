"""Plays: one execution of a scenario, undisturbed or with a crash at one point.

The workers and the client of a play share one storage and one virtual clock. The clock moves only when no worker has
anything to do: to the next timer, timeout or expired lease. So the second worker takes over without waiting.
"""

import asyncio
import copy
import inspect
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from perdure.codecs.pipeline import Pipeline
from perdure.engine.replay.stubs import new_scope
from perdure.engine.worker.activities import Executor
from perdure.storage.contract import Storage
from perdure.storage.encoding import encoding
from perdure.testing.crashes.body_effects import watched
from perdure.testing.crashes.call_watch import WatchedActivities
from perdure.testing.crashes.outcomes import Outcome, Row, Witness, all_runs, collect, histories
from perdure.testing.crashes.points import Kind, Point, Write
from perdure.testing.crashes.processes import PlayedApp, PlayedClient, Process, Scenario, Settings
from perdure.testing.crashes.storage_proxy import Gate, behind
from perdure.testing.crashes.virtual_clock import Timeline
from perdure.testing.crashes.wall_clock import WallClock

STALLED_SEC = 5.0  # of real time without anything that happens or is due
HANGING_SEC = 0.3  # after so long without progress, code that executes may wait for the virtual time
POLL_SEC = 0.001
QUIET = 2  # looks in a row, because a task may be between two calls of its storage
MARGIN = timedelta(milliseconds=20)

MOVES_MAX = 10_000  # of the clock in one play
TRIES_MAX = 3  # after so many tries without progress a run is stuck for good

TAKEN_OVER = Point("acquire_locks", 1, Kind.TAKEOVER_AFTER)
SHIFTS = tuple(timedelta(hours=hours) for hours in (0.01, 5.1, 12.7, 73.0, 850.0, 4570.0))  # of the wall clock


class StalledPlayError(Exception):
    """A play does not end. `history` is the history at its point."""

    history: Sequence[Row] = ()


@dataclass(slots=True)
class Played:
    """What a play came to, what it wrote, and the history at its point."""

    outcome: Outcome
    writes: Sequence[Write]
    history: Sequence[Row]
    reached: bool


class Play:
    """Plays a scenario once, undisturbed without a target; `alone` means that its process is the worker, too."""

    def __init__(
        self, settings: Settings, storage: Storage, timeline: Timeline, target: Point | None, *, alone: bool
    ) -> None:
        self._settings, self._behind, self._timeline = settings, storage, timeline
        self._storage = storage if settings.codec is None else encoding(storage, Pipeline(settings.codec))
        self._target, self._alone = target, alone
        self._wall_clock = WallClock()
        self._witness = Witness()
        self._history: list[Row] = []
        self._gate = Gate(target, self._at_point, self._witness.channels.add)
        self._processes: list[Process] = []
        self._progress = 0, time.monotonic()  # the number of writes, and when it last changed
        self._replacement: Process | None = None  # of the worker that died or was paused

    async def run(self) -> Played:
        """Play until the scenario and all that it has started have nothing to do any more."""
        await _call(self._settings.setup)
        try:
            with self._wall_clock.installed(), watched(self._witness.body_effects), new_scope(shared=True):
                if self._alone:
                    await self._open_worker(self._gate, with_scenario=True)
                else:
                    await self._open_worker(self._gate)
                    await self._open_client()
                await self._drive()
                result = None if self._acting.result is None else self._acting.result.result()
        except StalledPlayError as error:
            error.history = self._history
            raise
        finally:
            for process in self._processes:
                process.gate.is_paused = False
                await process.close()
        effects = copy.deepcopy(await _call(self._settings.effects))
        outcome = await collect(self._storage, self._witness, result, effects, self._settings.uncompensated)
        return Played(outcome, self._gate.writes, self._history, self._gate.reached)

    # Processes.

    async def _open_worker(self, gate: Gate, *, with_scenario: bool = False) -> Process:
        def watch(activities: Executor) -> Executor:
            return WatchedActivities(activities, lambda: not gate.is_dead, self._witness.calls.append)

        storage, name = behind(gate, self._behind), f"worker{len(self._processes) + 1}"
        app = PlayedApp(storage, self._timeline, self._settings, name, watch)
        return await self._open(app, gate, self._settings.scenario if with_scenario else None)

    async def _open_client(self) -> None:
        gate = self._new_gate()
        client = PlayedClient(behind(gate, self._behind), self._timeline, self._settings)
        await self._open(client, gate, self._settings.scenario)

    async def _open(self, client: PlayedApp | PlayedClient, gate: Gate, scenario: Scenario | None) -> Process:
        process = Process(client, gate, scenario)
        self._processes.append(process)
        return await process.opened()

    def _new_gate(self, target: Point | None = None) -> Gate:
        return Gate(target, _nothing, self._witness.channels.add)

    @property
    def _first(self) -> Process:
        """Return the process to which something happens."""
        return next(each for each in self._processes if each.gate is self._gate)

    @property
    def _live(self) -> list[Process]:
        return [each for each in self._processes if each.is_live]

    @property
    def _acting(self) -> Process:
        """Return the process that executes the scenario."""
        return next(each for each in reversed(self._processes) if each.result is not None)

    @property
    def _is_done(self) -> bool:
        """Return whether the scenario has ended."""
        result = self._acting.result
        return result is not None and result.done()

    # The point.

    async def _at_point(self) -> None:
        self._history = await histories(self._storage)
        self._wall_clock.shift = _wall_shift(self._target)

    async def _react(self) -> bool:
        """Do what follows from the point, once it is reached; return whether anything was done."""
        if self._replacement is None:
            if self._gate.is_dead or self._gate.is_paused:
                await self._replace()
                return True
            return False
        paused = self._replacement.gate
        if self._gate.is_paused and (paused.is_paused or self._is_done):
            self._gate.is_paused = False  # its lease is lost, if it had one
            return True
        return False

    async def _replace(self) -> None:
        """Let another worker take over from the one that has died or is paused.

        If the first worker was only paused, the other one is paused as soon as it holds a lease, so that the first
        worker tries to write while another one executes its run.
        """
        if self._gate.is_dead:
            await self._first.close()
        gate = self._new_gate(None if self._gate.is_dead else TAKEN_OVER)
        self._replacement = await self._open_worker(gate, with_scenario=self._alone)

    async def _end_takeover(self) -> bool:
        """Close the worker that lost its leases, once it has noticed, and let the other one continue."""
        if self._replacement is None or not self._replacement.gate.is_paused:
            return False
        await self._first.close()
        self._replacement.gate.is_paused = False
        return True

    # Time.

    async def _drive(self) -> None:
        until, quiet, moves = time.monotonic() + STALLED_SEC, 0, 0
        while True:
            acted = await self._react()
            quiet = quiet + 1 if not acted and await self._is_quiet() else 0
            if quiet >= QUIET:
                quiet = 0
                if not await self._end_takeover() and not await self._move():
                    if self._is_done and not self._gate.is_paused:
                        return
                else:
                    until, moves = time.monotonic() + STALLED_SEC, moves + 1
            if time.monotonic() > until or moves > MOVES_MAX:
                raise StalledPlayError(await self._stalled())
            await asyncio.sleep(POLL_SEC)

    async def _is_quiet(self) -> bool:
        """Return whether nothing can be done at this time; otherwise let the workers look for it."""
        live = self._live
        fired = [each.clock.fire() for each in live]
        if any(fired) or (any(each.is_busy for each in live) and not self._is_hanging()):
            return False
        due = await self._next_work()
        if due is not None and due <= self._timeline.now():
            for each in live:
                each.look()
            return False
        return True

    def _is_hanging(self) -> bool:
        """Return whether nothing has been written for a while, so that an activity may wait for its timeout."""
        writes = sum(len(each.gate.writes) for each in self._processes)
        if writes != self._progress[0]:
            self._progress = writes, time.monotonic()
        return time.monotonic() - self._progress[1] > HANGING_SEC

    async def _next_work(self) -> datetime | None:
        """Return when the storage or a schedule has work."""
        found = await self._storage.next_work_at()
        ticks = [tick for each in self._live for tick in each.next_ticks()]
        return min([*ticks, *([] if found is None else [found])], default=None)

    async def _move(self) -> bool:
        """Move the clock to when there is more to do; return False if there is nothing."""
        stuck = [each for each in await self._storage.list_stuck(limit=10) if each.tries >= TRIES_MAX]
        if stuck and not self._is_done:
            raise StalledPlayError(f"run {stuck[0].instance_id!r} is stuck: {stuck[0].reason}")
        clock = self._acting.client.clock
        target = await (self._next_due() if clock.waits or clock.goal else self._next_expiry())
        if clock.goal is not None:
            target = clock.goal if target is None else min(target, clock.goal)
        if target is not None:
            span = target - self._timeline.now()
            for each in self._live:
                await each.outlast(span)
            self._timeline.move_to(target)
            for each in self._live:
                each.look()
        return (clock.end() if target in (None, clock.goal) else False) or target is not None

    async def _next_due(self) -> datetime | None:
        """Return when there is more to do."""
        now, seconds = self._timeline.now(), self._timeline.seconds()
        dues = [due for each in self._live if (due := each.clock.next_due()) is not None]
        found = [now + timedelta(seconds=due - seconds, microseconds=1) for due in dues]  # not before it
        work = await self._next_work()
        return min([*found, *([] if work is None else [work + MARGIN])], default=None)

    async def _next_expiry(self) -> datetime | None:
        """Return when the first lease expires under which no worker executes the run.

        Otherwise the time stands still while the scenario does something else than wait, and after its end.
        """
        workers = [each.client for each in self._live if isinstance(each.client, PlayedApp)]
        runs = [run for run in await all_runs(self._storage) if not any(each.executes(run) for each in workers)]
        return min((run.lock_expires_at + MARGIN for run in runs if run.lock_expires_at is not None), default=None)

    async def _stalled(self) -> str:
        runs = [f"{run.instance_id} is {run.status}" for run in await all_runs(self._storage)]
        return (
            f"the scenario does not end: nothing happens, and no timer is due ({'; '.join(runs) or 'no run'}). Look "
            "for an event that it does not send, or a lock that it waits for"
        )


async def _nothing() -> None:
    """Do nothing at the point of a replacement."""


async def _call(function: Callable[[], object] | None) -> object:
    answer = None if function is None else function()
    return await answer if inspect.isawaitable(answer) else answer


def _wall_shift(target: Point | None) -> timedelta:
    """Return how far the wall clock has moved when a run is resumed; from seconds to months, by the point."""
    return SHIFTS[zlib.crc32(str(target).encode()) % len(SHIFTS)]
