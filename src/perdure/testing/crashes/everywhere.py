"""`crash_everywhere()`: play a scenario undisturbed, then once for each crash point, and compare the outcomes."""

import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from perdure.codecs.pipeline import Codecs
from perdure.engine.api.activity import Activity
from perdure.engine.api.workflow import Workflow
from perdure.testing.crashes.outcomes import Raised, Row, differences, shortened
from perdure.testing.crashes.plays import Play, Played, StalledPlayError
from perdure.testing.crashes.points import Point, points_of, sample
from perdure.testing.crashes.processes import Scenario, Settings
from perdure.testing.crashes.stages import Prepare, open_stage

HISTORY_SHOWN = 50  # rows


@dataclass(slots=True)
class Defaults:
    """What the options of pytest set for all calls: the only point to play, and whether to show the progress."""

    point: str | None = None
    progress: bool | None = None


DEFAULTS = Defaults()


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What `crash_everywhere()` has played.

    - `points`: the ids of the crash points that were played.
    - `total`: the number of crash points of the scenario; more than were played if there are too many.
    - `not_reached`: the ids of those that did not occur again, because the order of the writes differed.
    - `restarts`: whether the process of the scenario was crashed, too; not if runs have random ids.
    - `seconds`: the time that it took.
    """

    points: Sequence[str]
    total: int
    not_reached: Sequence[str]
    restarts: bool
    seconds: float


async def crash_everywhere(
    scenario: Scenario,
    *,
    effects: Callable[[], object] | None = None,
    setup: Callable[[], object] | None = None,
    database: str | None = None,
    workflows: Sequence[Workflow[..., Any]] | None = None,
    codec: Codecs | None = None,
    uncompensated: Sequence[Activity[..., Any]] = (),
    restarts: bool = True,
    limit: int = 1000,
    seed: int = 0,
    point: str | None = None,
    progress: bool | None = None,
) -> CrashReport:
    """Play a scenario with a crash at each write of its worker, and check that it always comes to the same.

    A scenario is an async function that takes an app, starts runs, sends events and returns a result. Its worker dies
    before, in the middle of and after each write, does not learn whether a commit was done, or is paused until another
    worker has taken over. Then the process of the scenario dies with its worker, and the scenario is executed again
    from the top. So give the runs fixed ids; with random ids only the worker is crashed.

    The result, the steps, the compensations, the messages, the idempotency keys of the activities' calls and `effects`
    must be the same as without a crash, and no lease, timer, wait or subscription may be left behind.

    - `scenario`: the async function.
    - `effects`: a function that returns what code has done outside the database, such as the mails that were sent
      (default: none). It may be async. An activity may be called again with the same idempotency key after a crash, so
      note its effects by their key.
    - `setup`: a function that is called before each play, to reset what `effects` returns (default: none).
    - `database`: the URL of a database (default: in memory). On a server a new schema or database is used, which is
      dropped at the end. A SQLite database must have no runs.
    - `workflows`: the workflows that the workers execute (default: all that are defined in this process).
    - `codec`: how the workers and the scenario store values, as `App(codec=)` (default: as JSON).
    - `uncompensated`: activities that leave nothing to undo. A failed run that compensates one of its steps must
      compensate all others, too (default: none).
    - `restarts`: also crash the process of the scenario, which is then executed again (default: True).
    - `limit`: with more crash points than this, play a sample, spread over the scenario (default: 1000).
    - `seed`: chooses the sample (default: 0).
    - `point`: play only this crash point, given by the id that a failure shows (default: all).
    - `progress`: show a line of progress on stderr (default: if it is a terminal).

    Raises `AssertionError` with the first crash point that makes a difference, the command that repeats it, and the
    history up to the crash; also if two undisturbed plays differ. An error of the scenario without a crash is raised
    unchanged.
    """
    names = frozenset(each.name for each in uncompensated)
    point = DEFAULTS.point if point is None else point
    progress = DEFAULTS.progress if progress is None else progress
    settings, began = Settings(scenario, setup, effects, workflows, names, codec=codec), time.monotonic()
    async with AsyncExitStack() as stack:
        stack.enter_context(nullcontext() if point else _without_log())
        prepare = await stack.enter_async_context(open_stage(database))
        player = _Player(settings, prepare, _Progress(progress), restarts=restarts)
        total, chosen = await player.choose(None if point is None else Point.parse(point), limit, seed)
        count = len(chosen)
        missed = [str(each) for number, each in enumerate(chosen) if not await player.check(each, number, count)]
    player.progress.end()
    return CrashReport([str(each) for each in chosen], total, missed, player.restarts, time.monotonic() - began)


@contextmanager
def _without_log() -> Iterator[None]:
    """Suppress the log of the workers, which is full of the crashes; a single point is played with it."""
    log = logging.getLogger("perdure")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


class _Player:
    """Plays the points of one scenario."""

    def __init__(self, settings: Settings, prepare: Prepare, progress: "_Progress", *, restarts: bool) -> None:
        self._settings, self._prepare = settings, prepare
        self.progress = progress
        self.restarts = restarts
        self._expected: Played

    async def choose(self, point: Point | None, limit: int, seed: int) -> tuple[int, list[Point]]:
        """Play undisturbed, in both forms; return the number of points and those to play."""
        self._expected = await self._undisturbed(alone=False)
        alone = await self._undisturbed(alone=True)
        wrong = differences(self._expected.outcome, alone.outcome)
        if wrong:
            raise AssertionError(_unstable(wrong))
        self.restarts = self.restarts and not self._expected.outcome.has_random_ids
        points = points_of(self._expected.writes, restarts=False)
        if self.restarts:
            points += points_of(alone.writes, restarts=True)
        if point is None:
            return len(points), sample(points, limit, seed)
        return len(points), [point]

    async def _undisturbed(self, *, alone: bool) -> Played:
        try:
            played = await self._play(None, alone=alone)
        except StalledPlayError as error:
            raise AssertionError(f"without a crash: {error}") from None
        if isinstance(played.outcome.result, Raised):
            raise played.outcome.result.error
        if played.outcome.mistakes:
            raise AssertionError("\n".join(["without a crash:", *played.outcome.mistakes]))
        return played

    async def check(self, point: Point, number: int, count: int) -> bool:
        """Play a point; raise if it makes a difference, and return whether it was reached."""
        self.progress.show(number, count, str(point))
        try:
            played = await self._play(point, alone=point.kind.is_restart)
            wrong = differences(self._expected.outcome, played.outcome, restarted=point.kind.is_restart)
        except StalledPlayError as error:
            raise AssertionError(_report(point, [str(error)], error.history)) from None
        if wrong:
            result = played.outcome.result
            cause = result.error if isinstance(result, Raised) else None
            raise AssertionError(_report(point, wrong, played.history)) from cause
        return played.reached

    async def _play(self, point: Point | None, *, alone: bool) -> Played:
        storage, timeline = await self._prepare()
        return await Play(self._settings, storage, timeline, point, alone=alone).run()


class _Progress:
    """The line of progress."""

    def __init__(self, wanted: bool | None) -> None:
        self._is_shown = sys.stderr.isatty() if wanted is None else wanted

    def show(self, number: int, count: int, point: str) -> None:
        """Replace the line."""
        self._write(f"\rcrash_everywhere: {number + 1}/{count} {point}\x1b[K")

    def end(self) -> None:
        """Remove the line."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._is_shown:
            with suppress(OSError, ValueError):  # the terminal is closed
                sys.stderr.write(text)
                sys.stderr.flush()


def _unstable(wrong: Sequence[str]) -> str:
    return "\n".join(
        [
            "two undisturbed plays of the scenario differ, so no crash can be judged: let the scenario and effects= "
            "return only what is the same in every play, and reset it in setup=",
            *wrong,
        ]
    )


def _report(point: Point, wrong: Sequence[str], history: Sequence[Row]) -> str:
    rows = [f"  {shortened(str(row))}" for row in history[-HISTORY_SHOWN:]]
    more = len(history) - len(rows)
    return "\n".join(
        [
            f"crash_everywhere[{point}]: {_meaning(point)}, and the outcome differs",
            *wrong,
            "the history up to the crash:",
            *([f"  … {more} earlier rows"] if more else []),
            *(rows or ["  (empty)"]),
            f"to repeat it: {repeat_command(str(point))}",
        ]
    )


_MEANINGS = {
    "before": "the worker died before write {n} of {op}",
    "middle": "the worker died in write {n} of {op}, before the commit",
    "after": "the worker died after write {n} of {op}",
    "unknown_lost": "the worker did not learn that write {n} of {op} was not committed",
    "unknown_done": "the worker did not learn that write {n} of {op} was committed",
    "takeover": "another worker took over while the first was paused before write {n} of {op}",
    "takeover_after": "another worker took over while the first was paused after write {n} of {op}",
    "restart_before": "the process died before write {n} of {op} and was started again",
    "restart_middle": "the process died in write {n} of {op}, before the commit, and was started again",
    "restart_after": "the process died after write {n} of {op} and was started again",
}


def _meaning(point: Point) -> str:
    return _MEANINGS[point.kind].format(n=point.number, op=point.operation)


def repeat_command(point: str) -> str:
    """Return the command that plays a point again: of pytest if it runs, otherwise the argument to pass."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0] if "pytest" in sys.modules else ""
    if not test:
        return f"crash_everywhere(…, point={point!r})"
    return f"python -m pytest {shlex.quote(test)} --crash-point {point}"
