"""The upgrade check: would the runs of a database continue with the code of this process?

It reads a bounded sample of the runs that have not ended, and replays each of them. It writes nothing and executes
nothing.
"""

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from perdure.codecs.pipeline import Codecs, Pipeline
from perdure.engine.execution.compensations import registered_activity, workflow_compensation
from perdure.engine.execution.rollback_history import RollbackHistory
from perdure.engine.history import ids
from perdure.engine.replay.definitions import WORKFLOWS, WorkflowDefinition
from perdure.errors import CodecError, EngineError, NonDeterminismError, RunNotFoundError
from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.encoding import encoding
from perdure.storage.stores import open_read_only
from perdure.testing.exporting import Database, hidden, read_recorded
from perdure.testing.labels import place_of
from perdure.testing.redaction import Redact, redacted
from perdure.testing.replaying import replay

SAMPLE = 20
COUNT_MAX = 10_000
CANDIDATES = 100  # runs to choose from, of each status and age
LIVE = sorted(set(WorkflowStatus) - TERMINAL)
# Runs that started so long ago are looked at besides the newest ones: older runs are elsewhere in the code.
AGES = tuple(timedelta(hours=hours) for hours in (0, 1, 24, 7 * 24, 30 * 24, 365 * 24))
WAITS_PAGE = 100
_ODD = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True)
class UpgradeProblem:
    """A run that would be stuck with the code of this process.

    - `run_id`, `workflow`: the run, and the name of its workflow.
    - `step`: the id of the step at which it would be stuck, or an empty string if there is none.
    - `recorded`, `called`: what the history has there, and what the code does instead; empty for other errors.
    - `error`: the error that a worker would raise, as text.
    """

    run_id: str
    workflow: str
    step: str
    recorded: str
    called: str
    error: str

    def __str__(self) -> str:
        where = f" at {self.step}" if self.step else ""
        if not self.recorded:
            return f"{self.workflow} {self.run_id}{where}: {self.error}"
        sides = f"the history has {self.recorded}", f"the code {self.called}"
        return "\n      ".join([f"{self.workflow} {self.run_id}{where}:", *sides])


@dataclass(frozen=True, slots=True)
class Checked:
    """How many runs of a workflow were replayed, and how many have not ended, counted up to 10,000."""

    replayed: int
    live: int

    def __str__(self) -> str:
        return f"{self.replayed:,} of {self.live:,}{' or more' if self.live >= COUNT_MAX else ''} runs"


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """What `check_upgrade()` found; its text is meant for a log or a failed test.

    - `checked`: for each workflow, how many runs were replayed, of how many that have not ended.
    - `problems`: the runs that would be stuck.
    - `unknown`: workflows that have runs and are not defined in this process, with the number of these runs.
    """

    checked: Mapping[str, Checked] = field(default_factory=dict)
    problems: tuple[UpgradeProblem, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether all runs that were checked would continue, and all workflows are defined."""
        return not self.problems and not self.unknown

    def __str__(self) -> str:
        replayed = sum(each.replayed for each in self.checked.values())
        verdict = "no problem found" if not self.problems else f"{len(self.problems)} would be stuck"
        runs = "1 run" if replayed == 1 else f"{replayed:,} runs"
        lines = [f"{runs} replayed: {verdict}" if self.checked else "no runs to replay"]
        lines += [f"  {name}: {each}" for name, each in self.checked.items()]
        if self.problems:
            lines += ["stuck:", *(f"  {problem}" for problem in self.problems)]
        if self.unknown:
            lines.append("not defined in this process:")
            lines += [f"  {name}: {Checked(0, live)}" for name, live in self.unknown.items()]
        return "\n".join(lines)


async def check_upgrade(
    database: Database,
    *,
    workflows: Iterable[WorkflowDefinition] | None = None,
    sample: int = SAMPLE,
    codec: Codecs | None = None,
) -> UpgradeReport:
    """Replay a sample of the runs that have not ended against the code of this process, and report what fails.

    - `database`: a URL, which is opened read-only, or an open storage. Nothing is written.
    - `workflows`: check these only (default: all workflows that are defined in this process, and report others that
      have runs).
    - `sample`: the maximum number of runs of each workflow that are replayed (default: 20), from those that wait in
      different places, have histories of different lengths, and started recently or long ago.
    - `codec`: how the runs are stored, as `App(codec=)` (default: as JSON). A run that it cannot decode is a problem.

    Import the modules that define your workflows first. For a run that is being compensated, the report says whether
    its compensations are defined. Raises `SchemaError` if the tables are not those of this version of perdure.
    """
    known = WORKFLOWS if workflows is None else {each.name: each for each in workflows}
    checked: dict[str, Checked] = {}
    problems: list[UpgradeProblem] = []
    unknown: dict[str, int] = {}
    async with _opened(database := hidden(database), codec) as storage:
        for name in await storage.list_workflow_names():
            if name not in known:
                if workflows is None and (live := await _count(storage, name)):
                    unknown[name] = live
                continue
            live, chosen = await _sample(storage, name, sample)
            found = [await _check(storage, known[name], row) for row in chosen]
            problems += [problem for problem in found if problem is not None]
            if live:
                checked[name] = Checked(len(found), live)
    return UpgradeReport(checked, tuple(problems), unknown)


async def export_histories(
    database: Database,
    folder: str | Path,
    *,
    workflows: Iterable[WorkflowDefinition] | None = None,
    sample: int = SAMPLE,
    redact: Redact | None = None,
    codec: Codecs | None = None,
) -> list[Path]:
    """Write the histories of a sample of the runs that have not ended to files, and return their paths.

    The arguments and the sample are those of `check_upgrade`, except that workflows which are not defined in this
    process are included; `redact` is that of `export_history`. A file is named `<workflow>-<number>.json`.
    """
    wanted = None if workflows is None else {each.name for each in workflows}
    paths: list[Path] = []
    async with _opened(database := hidden(database), codec) as storage:
        for name in await storage.list_workflow_names():
            if wanted is not None and name not in wanted:
                continue
            for number, row in enumerate((await _sample(storage, name, sample))[1], 1):
                history = await read_recorded(storage, row.instance_id)
                if redact is not None:
                    history = redacted(history, redact, WORKFLOWS.get(name))
                paths.append(Path(folder) / f"{_ODD.sub('_', name)}-{number}.json")
                history.save(paths[-1])
    return paths


@asynccontextmanager
async def _opened(database: Database, codec: Codecs | None) -> AsyncIterator[Storage]:
    async with nullcontext(database) if not isinstance(database, str) else open_read_only(database) as storage:
        yield storage if codec is None else encoding(storage, Pipeline(codec))


# One run.


async def _check(storage: Storage, workflow: WorkflowDefinition, row: WorkflowInstance) -> UpgradeProblem | None:
    """Return why a run would be stuck; None if it would continue, or has ended meanwhile."""
    about = row.instance_id, workflow.name
    try:
        if row.status is WorkflowStatus.COMPENSATING:
            return await _check_rollback(storage, *about)
        replay(workflow, await read_recorded(storage, row.instance_id))
    except RunNotFoundError:
        return None
    except NonDeterminismError as error:
        return UpgradeProblem(*about, error.step, error.recorded, error.called, str(error))
    except (EngineError, CodecError) as error:  # a recorded value that does not match the type hints, for example
        return UpgradeProblem(*about, "", "", "", f"{type(error).__name__}: {error}")
    return None


async def _check_rollback(storage: Storage, run_id: str, workflow: str) -> UpgradeProblem | None:
    """Return which compensation of a run is not defined in this process, or None."""
    history = RollbackHistory(run_id, storage)
    await history.catch_up()
    needed = [(step, ids.name_of(step), False) for step in history.unsettled()]
    for entry in await storage.get_compensations(run_id):
        if not history.has(ids.undo_of(entry.id)):
            needed.append((entry.activity_id, entry.activity_name, "child" in json.loads(entry.args)))
    for step, name, is_child in needed:
        try:
            if is_child:
                workflow_compensation(name)
            else:
                registered_activity(name)
        except EngineError as error:
            return UpgradeProblem(run_id, workflow, step, "", "", str(error))
    return None


# The sample.


async def _count(storage: Storage, workflow: str) -> int:
    """Return how many runs of a workflow have not ended, counted up to a limit."""
    counts = [await storage.count_instances(_runs_of(workflow, status), limit=COUNT_MAX) for status in LIVE]
    return min(sum(counts), COUNT_MAX)


async def _sample(storage: Storage, workflow: str, limit: int) -> tuple[int, list[WorkflowInstance]]:
    """Return how many runs of a workflow have not ended, and those of them to replay."""
    if limit < 1:
        raise ValueError(f"sample= must be at least 1, not {limit}")
    now, live = await storage.now(), 0
    candidates: dict[str, WorkflowInstance] = {}
    for status in LIVE:
        options = _runs_of(workflow, status)
        count = await storage.count_instances(options, limit=COUNT_MAX)
        live += count
        for age in AGES if count > CANDIDATES else AGES[:1]:
            page = await storage.list_instances(replace(options, started_before=now - age if age else None))
            candidates.update({row.instance_id: row for row in page.instances})
    return min(live, COUNT_MAX), _spread(await _by_place(storage, list(candidates.values())), limit)


def _runs_of(workflow: str, status: WorkflowStatus) -> ListInstancesOptions:
    return ListInstancesOptions(limit=CANDIDATES, workflow_name=workflow, status_filter=status)


Place = tuple[int, tuple[str, ...]]


async def _by_place(storage: Storage, rows: Sequence[WorkflowInstance]) -> dict[Place, list[WorkflowInstance]]:
    """Group runs by where they are: by what they wait for, or by the length of their history, roughly."""
    waits: dict[str, list[str]] = {row.instance_id: [] for row in rows}
    run_ids = list(waits)
    for first in range(0, len(run_ids), WAITS_PAGE):
        for wait in await storage.get_waits(run_ids[first : first + WAITS_PAGE]):
            waits[wait.instance_id].append(ids.step_of(wait.activity_id))
    places: dict[Place, list[WorkflowInstance]] = {}
    for row in rows:
        steps = tuple(sorted(set(waits[row.instance_id]), key=place_of))
        length = 0 if steps else (await storage.get_history_count(row.instance_id)).bit_length()
        places.setdefault((length, steps), []).append(row)
    return places


def _spread(places: Mapping[Place, list[WorkflowInstance]], limit: int) -> list[WorkflowInstance]:
    """Return at most `limit` runs, from as many places as possible, the ends of the list of places included."""
    groups = [places[place] for place in sorted(places, key=lambda place: (place[0], [*map(place_of, place[1])]))]
    if len(groups) > limit:
        groups = [groups[number * (len(groups) - 1) // max(limit - 1, 1)] for number in range(limit)]
    chosen: list[WorkflowInstance] = []
    depth = 0
    while len(chosen) < limit and any(len(group) > depth for group in groups):
        chosen += [group[depth] for group in groups if len(group) > depth]
        depth += 1
    return chosen[:limit]
