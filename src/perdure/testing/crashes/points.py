"""Crash points: at which commit of a worker something happens, and what.

The points of a scenario come from the commits of its undisturbed play. A read is no point: a worker that dies before or
after it leaves the same database as one that dies after the commit before it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Say what happens at a commit.

    A worker that dies executes nothing any more, as after SIGKILL; another worker resumes its runs. With `restart_…`
    the process that executes the scenario dies with its worker, and the scenario is executed again from the top.
    """

    BEFORE = "before"  # the worker dies before it writes
    MIDDLE = "middle"  # it dies after it has written and before the commit, so all is rolled back
    AFTER = "after"  # it dies after the commit, before it is told so
    UNKNOWN_LOST = "unknown_lost"  # the commit is not done, and the worker gets a CommitUnknownError
    UNKNOWN_DONE = "unknown_done"  # the commit is done, and the worker gets a CommitUnknownError
    TAKEOVER = "takeover"  # it is paused before it writes until another worker has taken over, then it writes
    TAKEOVER_AFTER = "takeover_after"  # it is paused after the commit until another worker has taken over
    RESTART_BEFORE = "restart_before"
    RESTART_MIDDLE = "restart_middle"
    RESTART_AFTER = "restart_after"

    @property
    def is_restart(self) -> bool:
        """Return whether the process of the scenario dies, too."""
        return self in RESTARTS

    @property
    def is_takeover(self) -> bool:
        """Return whether the worker is paused, and continues after another one has taken over."""
        return self in (Kind.TAKEOVER, Kind.TAKEOVER_AFTER)

    @property
    def is_death(self) -> bool:
        """Return whether the worker dies."""
        return self in (Kind.BEFORE, Kind.MIDDLE, Kind.AFTER, *RESTARTS)

    @property
    def is_first(self) -> bool:
        """Return whether it happens before anything is written."""
        return self in (Kind.BEFORE, Kind.RESTART_BEFORE, Kind.TAKEOVER)

    @property
    def is_rolled_back(self) -> bool:
        """Return whether it happens between the write and the commit, so that nothing is committed."""
        return self in (Kind.MIDDLE, Kind.RESTART_MIDDLE, Kind.UNKNOWN_LOST)


RESTARTS = (Kind.RESTART_BEFORE, Kind.RESTART_MIDDLE, Kind.RESTART_AFTER)
_OF_WORKERS = tuple(kind for kind in Kind if kind not in RESTARTS)


@dataclass(frozen=True, slots=True)
class Write:
    """A write of the undisturbed play: the `number`-th call of an operation that changed something.

    - `searches`: whether the operation looks for work, so that only its answer says whether there was any.
    - `enclosed`: whether it is one of several writes of a transaction.
    """

    operation: str
    number: int
    searches: bool = False
    enclosed: bool = False

    def allows(self, kind: Kind) -> bool:
        """Return whether this can happen to the write."""
        if self.enclosed:
            return kind in (Kind.MIDDLE, Kind.RESTART_MIDDLE)  # the rest happens to the commit of the transaction
        return not (self.searches and kind.is_first)


@dataclass(frozen=True, slots=True)
class Point:
    """A crash point, such as `append_histories:7:after`."""

    operation: str
    number: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.operation}:{self.number}:{self.kind}"

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Return the point with this id; `crash_everywhere[…]` around it is ignored."""
        parts = text.strip().removeprefix("crash_everywhere[").removesuffix("]").split(":")
        if len(parts) != 3 or not parts[1].isdecimal() or parts[2] not in list(Kind):
            raise ValueError(
                f"{text!r} is no crash point: use the id that a failure shows, such as 'append_histories:7:after'; "
                f"the last part is one of {', '.join(Kind)}"
            )
        return cls(parts[0], int(parts[1]), Kind(parts[2]))


def points_of(writes: Sequence[Write], *, restarts: bool) -> list[Point]:
    """Return all points of these writes, in order: those of a worker that is alone, or of the scenario's process."""
    kinds = RESTARTS if restarts else _OF_WORKERS
    return [Point(each.operation, each.number, kind) for each in writes for kind in kinds if each.allows(kind)]


def sample(points: Sequence[Point], limit: int, seed: int) -> list[Point]:
    """Return at most `limit` points in order, one at random out of each of `limit` equal parts."""
    if len(points) <= limit:
        return list(points)
    chosen = random.Random(seed)
    size = len(points) / limit
    return [points[int((part + chosen.random()) * size)] for part in range(limit)]
