"""What the database shows of the runs after a commit: their rows, leases, statuses and tries, each as a line of text.

The lines are the same in every case, so they have no number that a database assigns: a compensation is named by its
step, a tick by its number, and a generation by the one before.
"""

import re
from collections import Counter
from datetime import UTC, datetime

from perdure.engine.history.ids import UNTIL
from perdure.storage.stores import SQLStorage

_STATE = """
SELECT 'row', instance_id, activity_id, event_type, id FROM workflow_history
UNION ALL SELECT 'status', instance_id, status, COALESCE(continued_from, ''), lock_token FROM workflow_instances
UNION ALL SELECT 'undo', instance_id, activity_id, '', id FROM workflow_compensations
UNION ALL SELECT 'stuck', instance_id, SUBSTR(reason, 1, 11), '', tries FROM perdure_stuck
"""
_TICK = re.compile(r"@([0-9-]+T[0-9:]+)Z")
_UNDO = re.compile(r"~undo:([0-9]+)\b(?!:)")


def is_regular(step: str) -> bool:
    """Whether each run records this row; when a wait ends is recorded only if a wake-up comes just before it."""
    return not step.startswith(UNTIL)


class Marks:
    """All that was seen so far, in order. Each look that finds something new is a point of the run."""

    def __init__(self, storage: SQLStorage, began: datetime) -> None:
        self._storage, self._began = storage, began
        self._last: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._undone: dict[str, str] = {}  # the steps of the stored compensations, by the id of each
        self.seen: dict[str, None] = {}
        self.points: list[str] = []
        self.tokens: dict[str, int] = {}  # the fencing token of each run

    async def look(self) -> list[str]:
        """Return what was not there at the last look; the first of it names the point."""
        found = await self._storage.db().fetch(_STATE)
        self._undone = {str(id): step for kind, _, step, _, id in found if kind == "undo"}
        self.tokens = {run: token for kind, run, _, _, token in found if kind == "status"}
        before = {run: generation for kind, run, _, generation, _ in found if kind == "status"}
        fresh: list[str] = []
        for kind, run, what, more, number in sorted(found, key=lambda row: (row[0] == "status", row[4])):
            name = self.name(run, before[run])
            if kind == "row" and is_regular(what):
                fresh.append(f"{name} row {self.step(what)} {more}")
            elif kind == "status":
                fresh += [f"{name} lease {number}", *self._turn(f"{name} is", what)]
            elif kind == "stuck":
                fresh += self._turn(f"{name} stuck", f"{what} {number}")
        fresh = [mark for mark in fresh if mark not in self.seen]
        self.seen.update(dict.fromkeys(fresh))
        self.points += fresh[:1]
        return fresh

    def _turn(self, about: str, what: str) -> list[str]:
        """The mark of the n-th time that something has become this, if it was different before."""
        if self._last.get(about) == what:
            return []
        self._last[about] = what
        self._counts[f"{about} {what}"] += 1
        return [f"{about} {what} {self._counts[f'{about} {what}']}"]

    def name(self, run: str, before: str = "") -> str:
        """The name of a generation of a run."""
        ticks = _TICK.findall(run)
        name = f"{run.partition('@')[0]}@{self.hours(datetime.fromisoformat(ticks[0])):.0f}" if ticks else run
        return f"{name} after {before}" if before else name

    def step(self, id: str) -> str:
        """The id of a row."""
        return _UNDO.sub(lambda found: f"~undo:{self._undone[found[1]]}", id)

    def hours(self, moment: datetime) -> float:
        """The hours since the start, by the test clock."""
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - self._began).total_seconds() / 3600
