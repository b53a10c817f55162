"""The timeline of a run: when each step ran and waited, from the times in its history.

The history records when a step ended. It records the start only of children and of activities with a compensation. The
start of any other step is derived: no earlier than the end of the step before it in the same task, and of the steps
before that task. So a step that ran beside others of its task may look shorter than it was.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from perdure.engine.api.step_info import StepInfo, StepKind, StepStatus
from perdure.engine.history import ids
from perdure.engine.history.records import AttemptFailed, Compensated, Completed, PauseEnded, record_of
from perdure.model.records import HistoryEvent
from perdure.views.durations import short

FOLD = 5  # more equal steps than this are one row
ERRORS_MAX = 10  # failed steps that are shown below a folded row
ROWS_MAX = 200
WIDTH = 1000.0
GAP_WIDTH = 100.0  # of collapsed idle time
GAPS_MAX = 6


class Phase(StrEnum):
    """What a step does in a part of its time."""

    RUN = "run"
    WAIT = "wait"  # for an event, a message or a time
    PAUSE = "pause"  # between two attempts
    CHILD = "child"
    UNDO = "undo"
    QUEUE = "queue"  # for a worker


_NO_COUNTS: Mapping[str, int] = {}
IDLE = (Phase.WAIT, Phase.PAUSE, Phase.CHILD)


@dataclass(slots=True)  # frozen ones take much longer to make, and a run may have 10,000
class Part:
    """What a step does from one time to another."""

    phase: Phase
    begin: datetime
    end: datetime


@dataclass(slots=True)
class Row:
    """A row of the timeline: a step, or several equal steps folded into one."""

    id: str
    name: str
    kind: str
    status: str
    parts: tuple[Part, ...]
    failures: tuple[datetime, ...] = ()
    attempts: int = 1
    depth: int = 0
    exact: bool = False  # the start is recorded, not derived
    child: str | None = None
    error: str = ""
    members: int = 0  # of a folded row
    counts: Mapping[str, int] = field(default_factory=lambda: _NO_COUNTS)
    inside: bool = False  # one of several equal steps that are folded
    alike: bool = False  # other rows have the same name
    run: str = ""  # of a child's step: the child
    step: StepInfo | None = None

    @property
    def begin(self) -> datetime:
        """Return when the row begins."""
        return self.parts[0].begin

    @property
    def end(self) -> datetime:
        """Return when the row ends."""
        return self.parts[-1].end

    @property
    def duration(self) -> timedelta:
        """Return how long it takes from begin to end."""
        return self.end - self.begin

    @property
    def is_failed(self) -> bool:
        """Return whether the step failed, or all of several that are folded did."""
        return self.status == "failed" and self.counts.get("failed", 0) == self.members

    @property
    def number(self) -> str:
        """Return what tells the step from others of its name: its path, or that of the step it compensates."""
        return "" if self.step is None else ids.path_of(self.step.id.removeprefix(ids.UNDO))


@dataclass(slots=True)
class _Notes:
    """What the rows of a history say about a step besides its outcome."""

    failures: list[tuple[datetime, float | None]] = field(default_factory=list)
    resumed: dict[int, datetime] = field(default_factory=dict)
    child: str | None = None


_NOTHING = _Notes()  # shared by the steps without notes: nearly all


def rows_of(
    steps: Sequence[StepInfo], history: Iterable[HistoryEvent], started: datetime, until: datetime
) -> list[Row]:
    """Return a row for each step, in the order of their ids; compensations come last, in the order of their ends."""
    notes = _notes(history)
    paths = {each.id: _path(each.id) for each in steps}
    begins = _begins(steps, paths, started, until)
    forward = [each for each in steps if each.kind not in (StepKind.COMPENSATION, StepKind.FAILURE_HANDLER)]
    backward = [each for each in steps if each.kind in (StepKind.COMPENSATION, StepKind.FAILURE_HANDLER)]
    forward.sort(key=lambda each: paths[each.id])
    rows = [_row(each, notes.get(each.id, _NOTHING), begins[each.id], until, paths[each.id]) for each in forward]
    last = max((row.end for row in rows), default=started)
    for each in backward:
        ended = each.finished_at or until
        begin = (min(last, ended), False)
        rows.append(_row(each, notes.get(each.id, _NOTHING), begin, until, paths[each.id]))
        last = ended
    return rows


def _notes(history: Iterable[HistoryEvent]) -> dict[str, _Notes]:
    found: dict[str, _Notes] = {}
    for event in history:
        if event.event_type == Completed.kind and ids.name_of(event.activity_id) != ids.CHILD:
            continue  # nearly every row
        record, at = record_of(event), event.created_at
        match record:
            case AttemptFailed(step, _, _, pause) if at is not None:
                found.setdefault(step, _Notes()).failures.append((at, pause))
            case PauseEnded(step, attempt) if at is not None:
                found.setdefault(step, _Notes()).resumed[attempt] = at
            case Completed(step, result):
                found.setdefault(step, _Notes()).child = result.decode().strip('"')
            case Compensated():
                pass
    return found


def _path(id: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, ids.path_of(id).split(".")))
    except ValueError:
        return ()


def _begins(
    steps: Sequence[StepInfo], paths: Mapping[str, tuple[int, ...]], started: datetime, until: datetime
) -> dict[str, tuple[datetime, bool]]:
    """Return when each step began, and whether the history says so."""
    found: dict[str, tuple[datetime, bool]] = {}
    direct: dict[tuple[int, ...], list[datetime]] = {}  # the ends of the steps of a task
    within: dict[tuple[int, ...], list[datetime]] = {}  # the same with those of the tasks that it created
    for step in sorted(steps, key=lambda each: paths[each.id]):
        scope, end = paths[step.id][:-1], step.finished_at or until
        if step.started_at is not None:
            found[step.id] = (step.started_at, True)
        else:
            begin = max(started, _last_before(within.get(scope, ()), end, started))
            for depth in range(len(scope)):
                begin = max(begin, _last_before(direct.get(scope[:depth], ()), end, started))
            found[step.id] = (min(begin, end), False)
        if step.finished_at is not None:
            insort(direct.setdefault(scope, []), step.finished_at)
            for depth in range(len(scope) + 1):
                insort(within.setdefault(scope[:depth], []), step.finished_at)
    return found


def _last_before(ends: Sequence[datetime], end: datetime, default: datetime) -> datetime:
    """Return the last end before a time; what ends at the same time ran at the same time."""
    place = bisect_left(ends, end)
    return ends[place - 1] if place else default


def _row(step: StepInfo, notes: _Notes, begin: tuple[datetime, bool], until: datetime, path: tuple[int, ...]) -> Row:
    start, exact = begin
    end = max(step.finished_at or until, start)
    return Row(
        id=step.id,
        name=step.name,
        kind=step.kind.value,
        status=step.status.value,
        parts=_parts(step, notes, start, end),
        failures=tuple(at for at, _ in notes.failures) if notes.failures else (),
        attempts=len(notes.failures) + _is_last_attempt_apart(step),
        depth=max(len(path) - 1, 0),
        exact=exact,
        child=notes.child,
        error="" if step.error is None else str(step.error),
        step=step,
    )


def _is_last_attempt_apart(step: StepInfo) -> bool:
    """Return whether a step has an attempt besides those that failed and were to be repeated."""
    is_between_attempts = step.status is StepStatus.CANCELLED and step.error is not None
    return step.status is not StepStatus.RETRYING and not is_between_attempts


_PHASES = {
    StepKind.TIMER: Phase.WAIT,
    StepKind.EVENT: Phase.WAIT,
    StepKind.CHANNEL: Phase.WAIT,
    StepKind.CHILD: Phase.CHILD,
    StepKind.COMPENSATION: Phase.UNDO,
    StepKind.FAILURE_HANDLER: Phase.UNDO,
}


def _parts(step: StepInfo, notes: _Notes, start: datetime, end: datetime) -> tuple[Part, ...]:
    phase, parts, at = _PHASES.get(step.kind, Phase.RUN), [], start
    for number, (failed, pause) in enumerate(notes.failures, 1):
        parts.append(Part(phase, min(at, failed), failed))
        at = notes.resumed.get(number) or failed + timedelta(seconds=pause or 0)
        at = min(max(at, failed), max(end, failed))
        if at > failed:
            parts.append(Part(Phase.PAUSE, failed, at))
    if end > at or not parts:
        parts.append(Part(phase, at, end))
    return tuple(parts)


# Folding.


def folded(rows: Sequence[Row], opened: Collection[str]) -> list[Row]:
    """Return the rows with equal steps folded into one, except those whose group is `opened`; errors first."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    named = Counter((row.name, row.kind) for row in rows)
    for row in rows:
        groups.setdefault(_group_of(row), []).append(row)
    found: list[Row] = []
    for key, members in groups.items():
        if len(members) <= FOLD:
            found += [replace(row, alike=named[row.name, row.kind] > 1) for row in members]
            continue
        found.append(_fold(members))
        inside = sorted(members, key=lambda row: row.status not in ("failed", "retrying"))
        shown = inside if group_id(key) in opened else [row for row in inside if row.status == "failed"][:ERRORS_MAX]
        found += [replace(row, inside=True, alike=True) for row in shown]
    return found


def _group_of(row: Row) -> tuple[str, str, str]:
    """Return what equal steps have in common: name, kind, and the task that created theirs."""
    path = ids.path_of(row.id).split(".")
    return (".".join(path[:-2]) if len(path) > 1 else "", row.name, row.kind)


def group_id(key: tuple[str, str, str]) -> str:
    """Return the id of a group in URLs."""
    return "/".join(key)


def _fold(members: Sequence[Row]) -> Row:
    parts = sorted((part for row in members for part in row.parts), key=lambda part: part.begin)
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1].phase is part.phase and part.begin <= merged[-1].end:
            merged[-1] = replace(merged[-1], end=max(merged[-1].end, part.end))
        else:
            merged.append(part)
    counted = Counter(row.status for row in members)
    counts = {each: counted[each] for each in _WORST_FIRST if each in counted}
    worst = next(iter(counts))
    merged = _coarse(merged)
    merged.sort(key=lambda part: part.begin)
    last = max(merged, key=lambda part: part.end)
    merged.remove(last)
    first = members[0]
    return Row(
        id=group_id(_group_of(first)),
        name=first.name,
        kind=first.kind,
        status=worst,
        parts=(*merged, last),
        failures=tuple(at for row in members for at in (*row.failures, *_failed_at(row)))[:200],
        attempts=sum(row.attempts for row in members),
        depth=first.depth,
        members=len(members),
        counts=counts,
    )


_WORST_FIRST = ("failed", "retrying", "running", "waiting", "cancelled", "completed")


def _failed_at(row: Row) -> tuple[datetime, ...]:
    return (row.end,) if row.status == "failed" else ()


def _coarse(parts: list[Part], most: int = 200) -> list[Part]:
    """Join neighbours until there are few enough to draw."""
    while len(parts) > most:
        joined = []
        for number in range(0, len(parts), 2):
            pair = parts[number : number + 2]
            joined.append(Part(pair[0].phase, pair[0].begin, max(each.end for each in pair)))
        parts = joined
    return parts


# The scale.


@dataclass(frozen=True, slots=True)
class Gap:
    """Idle time that is drawn shorter than it was."""

    x: float
    width: float
    length: timedelta


class Scale:
    """Maps times to places from 0 to 1000; idle time that would crush everything else is collapsed."""

    def __init__(self, rows: Iterable[Row], begin: datetime, end: datetime) -> None:
        self.begin, self.end = begin, max(end, begin + timedelta(milliseconds=1))
        busy = _union([part for row in rows for part in row.parts if part.phase not in IDLE], begin, self.end)
        idle = _between(busy, begin, self.end)
        self._gaps = _collapsed(idle, self.end - begin)
        drawn = (self.end - begin) - sum((to - at for at, to in self._gaps), timedelta())
        self._unit = (WIDTH - GAP_WIDTH * len(self._gaps)) / max(drawn.total_seconds(), 1e-6)
        self.gaps = [Gap(self.place(at), GAP_WIDTH, to - at) for at, to in self._gaps]

    def place(self, at: datetime) -> float:
        """Return where a time is."""
        at = min(max(at, self.begin), self.end)
        passed, x = self.begin, 0.0
        for begin, end in self._gaps:
            if at <= begin:
                break
            x += (begin - passed).total_seconds() * self._unit
            if at < end:
                return x + GAP_WIDTH * ((at - begin) / (end - begin))
            x, passed = x + GAP_WIDTH, end
        return x + (at - passed).total_seconds() * self._unit

    def ticks(self) -> list[tuple[float, timedelta]]:
        """Return places for labels, with the time since the begin."""
        edges = [self.begin, *(each for gap in self._gaps for each in gap), self.end]
        found = []
        for begin, end in list(pairwise(edges))[::2]:
            count = max(1, round((self.place(end) - self.place(begin)) / 200))
            found += [begin + (end - begin) * number / count for number in range(count)]
        ticks: list[tuple[float, timedelta]] = []
        for at in [*found, self.end]:
            x, free = self.place(at), all(abs(self.place(at) - gap.x - gap.width / 2) >= 90 for gap in self.gaps)
            if not ticks or (free and x - ticks[-1][0] >= 90 and short(at - self.begin) != short(ticks[-1][1])):
                ticks.append((x, at - self.begin))
        return ticks


def _union(parts: Sequence[Part], begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    found: list[tuple[datetime, datetime]] = []
    for part in sorted(parts, key=lambda each: each.begin):
        at, to = max(part.begin, begin), min(part.end, end)
        if found and at <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], to))
        else:
            found.append((at, to))
    return found


def _between(
    busy: Sequence[tuple[datetime, datetime]], begin: datetime, end: datetime
) -> list[tuple[datetime, datetime]]:
    found, at = [], begin
    for start, stop in busy:
        if start > at:
            found.append((at, start))
        at = max(at, stop)
    if at < end:
        found.append((at, end))
    return found


def _collapsed(idle: Sequence[tuple[datetime, datetime]], whole: timedelta) -> list[tuple[datetime, datetime]]:
    """Return the idle times to collapse: the longest, as long as one takes more than a third of what is drawn."""
    left, chosen = whole, list[tuple[datetime, datetime]]()
    for begin, end in sorted(idle, key=lambda each: each[0] - each[1]):
        length = end - begin
        if len(chosen) == GAPS_MAX or length < timedelta(seconds=2) or length < left / 3 or length == whole:
            break
        chosen.append((begin, end))
        left -= length
    return sorted(chosen)
