"""What came of a case, and how it differs from the undisturbed run."""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from typing import Any

from perdure.model.records import HistoryEventType, ListInstancesOptions
from perdure.storage.stores import SQLStorage
from tests.faults.table_snapshots import plain
from tests.takeover.definitions import LEDGER
from tests.takeover.features import Aspect, Change, Feature
from tests.takeover.log import LOG, Execution
from tests.takeover.marks import Marks, is_regular

ROWS_MAX = 1000
_LEFT = {
    "lease": "SELECT instance_id, locked_by FROM workflow_instances WHERE locked_by IS NOT NULL",
    "timer": "SELECT instance_id, timer_id FROM workflow_timer_subscriptions",
    "wait": "SELECT instance_id, activity_id FROM perdure_waits",
    "membership": "SELECT instance_id, group_name FROM workflow_group_memberships",
    # Those of ended runs stay until the runs are deleted; there must be no others.
    "subscription": "SELECT instance_id, channel FROM channel_subscriptions",
    "cursor": "SELECT instance_id, channel FROM channel_delivery_cursors",
}
KEPT = ("subscription", "cursor")
VARYING = (HistoryEventType.TIMER_EXPIRED, HistoryEventType.MESSAGE_TIMEOUT)  # recorded by the run or the database
_VALUE = re.compile(
    r"~[0-9.]+|.*:(publish|send_event|send_to|takeover.echo)"
)  # rows with random values or ids of messages
_NUMBERS = re.compile(r'"compensation_id": ?[0-9]+,?|"stack_trace":"(?:[^"\\]|\\.)*",?')


@dataclass(slots=True)
class Outcome:
    """All that is compared, and what explains the differences."""

    aspects: dict[Aspect, list[str]]
    executions: list[Execution]
    points: list[str]
    recorded: Collection[str] = field(default_factory=set)  # what was stored at the change
    tokens: dict[str, int] = field(default_factory=dict)  # of each run at the change


async def collect(storage: SQLStorage, marks: Marks) -> Outcome:
    """Read what came of the runs, after they have ended."""
    await marks.look()
    aspects: dict[Aspect, list[str]] = {aspect: [] for aspect in Aspect}
    page = await storage.list_instances(ListInstancesOptions(limit=ROWS_MAX))
    for run in sorted(page.instances, key=lambda row: row.instance_id):
        name = marks.name(run.instance_id)
        aspects[Aspect.RUNS].append(f"{name}: {run.status} {_text(run.output_data)}")
        if run.updated_at is not None:
            aspects[Aspect.TIMES].append(f"{name} ended: {marks.hours(run.updated_at):.1f} h")
        for row in await _history(storage, run.instance_id):
            if not is_regular(step := marks.step(row.activity_id)):
                continue
            is_varying = _VALUE.fullmatch(step) or row.event_type in VARYING
            data = "" if is_varying else _text(row.event_data)
            aspects[Aspect.HISTORY].append(f"{name} {step} {row.event_type} {data}")
            aspects[Aspect.TIMES].append(f"{name} {step}: {marks.hours(_time(row)):.1f} h")
    aspects[Aspect.STUCK] = [mark for mark in marks.seen if " stuck " in mark]
    ledger = [f"ledger: {row[0]}" for row in await storage.db().fetch(f"SELECT what FROM {LEDGER}")]
    notes = [f"{count} {note}" for note, count in Counter(LOG.notes).items()]
    aspects[Aspect.OBSERVED] = [*LOG.observed, *sorted(notes), *sorted(ledger)]
    for kind, query in _LEFT.items():
        aspects[Aspect.LEFT] += sorted(f"{kind} {tuple(row)}" for row in await storage.db().fetch(query))
    executions = [replace(each, run=marks.name(each.run, each.key.split(":")[1])) for each in LOG.executions]
    return Outcome(aspects, executions, list(marks.points))


async def _history(storage: SQLStorage, run: str) -> list[Any]:
    rows, _ = await storage.get_history_paginated(run, limit=ROWS_MAX)
    return [*await storage.get_archived_history(run, limit=ROWS_MAX), *rows]


def _time(row: Any) -> Any:
    return row.original_created_at if hasattr(row, "original_created_at") else row.created_at


def _text(data: bytes | None) -> str:
    """A value without what differs from one case to the next."""
    return "" if data is None else _NUMBERS.sub("", str(plain(data)))


def left_behind(outcome: Outcome) -> list[str]:
    """Return what no run may leave behind, disturbed or not."""
    return [each for each in outcome.aspects[Aspect.LEFT] if not each.startswith(KEPT)]


def unexpected(feature: Feature, outcome: Outcome) -> list[str]:
    """Return how the undisturbed run differs from what the table says."""
    runs, times, stuck = (outcome.aspects[each] for each in (Aspect.RUNS, Aspect.TIMES, Aspect.STUCK))
    wrong = [f"left behind: {each}" for each in left_behind(outcome)]
    if f"{feature.run}: {feature.ends}" not in map(str.strip, runs):
        wrong.append(f"it does not end with {feature.ends}: {runs}")
    if f"{feature.run} ended: {feature.hours:.1f} h" not in times:
        wrong.append(f"it does not end after {feature.hours} h: {times}")
    if len(stuck) != feature.tries:
        wrong.append(f"{feature.tries} tries without progress are expected, not {stuck}")
    return wrong


def differences(feature: Feature, change: Change, expected: Outcome, found: Outcome) -> list[str]:
    """Return the differences that the feature does not declare as legitimate."""
    wrong = [f"left behind: {each}" for each in left_behind(found)]
    for aspect in Aspect:
        if (change, aspect) in feature.legitimate:
            continue
        if aspect is Aspect.EXECUTIONS:
            wrong += _executions(change, expected, found)
            continue
        before, after = expected.aspects[aspect], found.aspects[aspect]
        if feature.unordered and aspect in (Aspect.HISTORY, Aspect.TIMES):
            before, after = sorted(before), sorted(after)
        if before != after:
            names = f"{aspect} of the undisturbed run", f"{aspect} after {change}"
            wrong.append("\n".join(unified_diff(before, after, *names, lineterm="", n=100)))
    return wrong


def _executions(change: Change, expected: Outcome, found: Outcome) -> list[str]:
    """Compare how often each attempt was executed.

    An attempt that was not recorded at a death or takeover is executed once more. A worker that has lost its lease may
    start one more, too, before it notices. A recorded attempt is never executed again.
    """
    wanted, made = (Counter(each.name for each in outcome.executions) for outcome in (expected, found))
    spare = 1 if change in (Change.DEATH, Change.LOST) else 0
    wrong = [
        f"{name} was executed {made[name]} times, not {wanted[name]}"
        for name in sorted(wanted.keys() | made.keys())
        if not wanted[name] <= made[name] <= wanted[name] + spare
    ]
    by_token = Counter((each.name, each.token) for each in found.executions)
    wrong += [f"{name} was executed {n} times under token {token}" for (name, token), n in by_token.items() if n > 1]
    late = [each for each in found.executions if each.token > found.tokens.get(each.run.partition(" ")[0], each.token)]
    return wrong + [f"{each} was recorded before the change" for each in late if _is_recorded(each, found.recorded)]


def _is_recorded(execution: Execution, marks: Collection[str]) -> bool:
    run, step, _, attempt = execution.name
    row = f"~{step}" if step.startswith("undo:") else step
    kinds = "ActivityCompleted", "ActivityFailed", "CompensationExecuted", "CompensationFailed"
    ends = [*(f"{row} {kind}" for kind in kinds), f"{row}#{attempt} ActivityAttemptFailed"]
    return any(f"{run} row {end}" in marks for end in ends)
