"""What a play of a scenario came to, and how it differs from the undisturbed play."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from perdure.engine.history import ids
from perdure.engine.replay.context import ActivityInfo
from perdure.model.records import HistoryEventType, ListInstancesOptions, WorkflowInstance
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage

PAGE = 1000
TEXT_MAX = 300  # characters of a value in a report
_COMPLETED, _FAILED = HistoryEventType.ACTIVITY_COMPLETED, HistoryEventType.ACTIVITY_FAILED
_EXECUTED, _NOT_EXECUTED = HistoryEventType.COMPENSATION_EXECUTED, HistoryEventType.COMPENSATION_FAILED
_UNDONE = (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)
_RANDOM_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

ASPECTS = {
    "runs": "runs",
    "steps": "steps of the runs",
    "compensations": "compensations",
    "activities": "calls of activities, by idempotency key",
    "messages": "messages and events",
    "left": "left behind",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the history of a run."""

    run: str
    step: str
    kind: str
    data: str

    def __str__(self) -> str:
        return f"{self.run}  {self.step}  {self.kind}  {self.data}".rstrip()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is compared after a play: values by `==`, and lines of text by their counts.

    - `result`: what the scenario returned, or its error. `effects`: what the function `effects` returned.
    - `runs`: each run with its status and its result.
    - `steps`: the steps that each run recorded. `compensations`: those that it compensated.
    - `activities`: the idempotency keys that activities were called with, each once.
    - `messages`: messages and events that are stored.
    - `left`: leases, timers, waits and subscriptions that are stored.
    - `mistakes`: what is wrong whatever the undisturbed play did.
    """

    result: object
    effects: object
    lines: "dict[str, Counter[str]]"
    mistakes: Sequence[str]
    has_random_ids: bool


class Raised:
    """The error of a scenario."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"{type(self.error).__qualname__}: {self.error}"


@dataclass(slots=True)
class Witness:
    """What is seen during a play: calls of activities, effects of bodies, and the channels that are used."""

    calls: list[ActivityInfo] = field(default_factory=list)
    body_effects: set[str] = field(default_factory=set)
    channels: set[str] = field(default_factory=set)


# Reading the database.


async def all_runs(storage: Storage) -> list[WorkflowInstance]:
    """Return all runs, the oldest first."""
    found: list[WorkflowInstance] = []
    token: str | None = None
    while True:
        page = await storage.list_instances(ListInstancesOptions(limit=PAGE, page_token=token))
        found += page.instances
        if not page.has_more:
            return found[::-1]
        token = page.next_page_token


async def histories(storage: Storage) -> list[Row]:
    """Return the rows of all runs, those of earlier generations first."""
    rows: list[Row] = []
    for run in [each.instance_id for each in await all_runs(storage)]:
        rows += [
            Row(run, each.activity_id, each.event_type, _text(each.event_data))
            for each in await storage.get_archived_history(run)
        ]
        after, more = 0, True
        while more:
            events, more = await storage.get_history_paginated(run, after, PAGE)
            rows += [Row(run, each.activity_id, each.event_type, _text(each.event_data)) for each in events]
            after = events[-1].id if events else after
    return rows


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode(errors="replace")


def shortened(text: str) -> str:
    """Return the start of a long text."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


class Names:
    """Names for the runs of a play that are the same in every play: random ids are numbered."""

    def __init__(self, runs: Iterable[WorkflowInstance]) -> None:
        self._names: dict[str, str] = {}
        counts = Counter[str]()
        for run in runs:
            for id in _RANDOM_ID.findall(run.instance_id):
                if id not in self._names:
                    counts[run.workflow_name] += 1
                    self._names[id] = f"<{run.workflow_name} {counts[run.workflow_name]}>"

    def __bool__(self) -> bool:
        return bool(self._names)

    def apply(self, lines: Iterable[str]) -> Counter[str]:
        """Count the lines, with the names in place of the ids."""
        return Counter(reduce(lambda text, each: text.replace(*each), self._names.items(), line) for line in lines)


async def collect(
    storage: Storage, witness: Witness, result: object, effects: object, uncompensated: Collection[str]
) -> Outcome:
    """Return what a play came to; `uncompensated` are the names of activities that need no compensation."""
    runs, rows = await all_runs(storage), await histories(storage)
    names, left = Names(runs), await _left(storage, runs, witness)
    lines = {
        "runs": [f"{run.instance_id} ({run.workflow_name}): {run.status} {_text(run.output_data)}" for run in runs],
        "steps": [f"{row.run} {row.step} {row.kind}" for row in rows if row.kind in (_COMPLETED, _FAILED)],
        "compensations": [f"{row.run} {_undone(row)} {row.kind}" for row in rows if _is_compensation(row)],
        "activities": {f"{call.activity_name} {call.idempotency_key}" for call in witness.calls},
        "messages": await _messages(storage, witness),
        "left": left,
    }
    mistakes = [*witness.body_effects, *(f"left behind: {each}" for each in left if each.startswith("lease"))]
    mistakes += await _left_by_ended(storage, runs)
    needing = {(call.workflow_id, call.step) for call in witness.calls if call.activity_name not in uncompensated}
    mistakes += [each for run in runs for each in _not_undone(run, rows, needing)]
    counted = {aspect: names.apply(found) for aspect, found in lines.items()}
    return Outcome(result, effects, counted, list(names.apply(mistakes)), bool(names))


async def _left(storage: Storage, runs: Sequence[WorkflowInstance], witness: Witness) -> list[str]:
    ids_of_runs = [run.instance_id for run in runs]
    found = [f"lease of run {run.instance_id}" for run in runs if run.locked_by]
    found += [f"wait of run {each.instance_id}: {each.activity_id}" for each in await storage.get_waits(ids_of_runs)]
    for run in ids_of_runs:
        for channel in sorted(witness.channels):
            if await storage.get_channel_subscription(run, channel) is not None:
                found.append(f"subscription of run {run}: {channel}")
    return found


async def _left_by_ended(storage: Storage, runs: Sequence[WorkflowInstance]) -> list[str]:
    ended = [run.instance_id for run in runs if run.status in TERMINAL]
    waits = await storage.get_waits(ended)
    return [f"run {each.instance_id} has ended, and its wait {each.activity_id} is left behind" for each in waits]


async def _messages(storage: Storage, witness: Witness) -> list[str]:
    found: list[str] = []
    for channel in sorted(witness.channels):
        if not channel.startswith(ids.CHILD_ENDS):
            sent = await storage.get_pending_channel_messages(channel)
            found += [f"{channel} {_text(each.data)}" for each in sent]
    return found


def _is_compensation(row: Row) -> bool:
    return row.kind in (_EXECUTED, _NOT_EXECUTED)


def _undone(row: Row) -> str:
    """Return the step that a row of a compensation belongs to; the row itself may have the number of a stored entry."""
    data = json.loads(row.data or "{}")
    return str(data.get("activity_id", row.step)) if isinstance(data, dict) else row.step


def _not_undone(run: WorkflowInstance, rows: Sequence[Row], needing: Collection[tuple[str, str]]) -> list[str]:
    """Return the completed steps of a failed or cancelled saga, of those that need a compensation, without one."""
    own = [row for row in rows if row.run == run.instance_id]
    undone = {_undone(row) for row in own if _is_compensation(row)}
    if run.status not in _UNDONE or not undone:
        return []
    done = [row.step for row in own if row.kind == _COMPLETED and (row.run, row.step) in needing]
    return [
        f"run {run.instance_id} {run.status} and compensated {', '.join(sorted(undone))}, but not {step}: write a "
        f"compensation for {ids.name_of(step)!r}, or name it in uncompensated= if it leaves nothing to undo"
        for step in done
        if step not in undone
    ]


# Comparing.


def differences(expected: Outcome, found: Outcome, *, restarted: bool = False) -> list[str]:
    """Return how an outcome differs from the undisturbed one.

    After a restart the scenario has sent its messages again, so only the set of messages is compared.
    """
    wrong = list(found.mistakes)
    for what, before, after in (
        ("the result of the scenario", expected.result, found.result),
        ("effects", expected.effects, found.effects),
    ):
        if before != after:
            wrong.append(f"{what}: undisturbed {shortened(repr(before))}, here {shortened(repr(after))}")
    for aspect, title in ASPECTS.items():
        before, after = expected.lines[aspect], found.lines[aspect]
        if restarted and aspect == "messages":
            before, after = Counter(set(before)), Counter(set(after))
        if before != after:
            lines = [f"  - {shortened(line)}" for line in sorted((before - after).elements())]
            lines += [f"  + {shortened(line)}" for line in sorted((after - before).elements())]
            wrong.append("\n".join([f"{title} (- undisturbed, + here):", *lines]))
    return wrong
