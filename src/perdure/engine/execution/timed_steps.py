"""The open steps of a run that wait for a time: which are new, which are short, and which have a row in the database.

A body can have thousands of timers and waits. What happens to one of them must not cost a look at all of them, so each
is looked at once, when it is new. The dictionaries of `StepsInProgress` have the new ones at their end.
"""

from collections import deque
from typing import Any, TypeVar

from perdure.engine.execution.attempts import SHORT_SEC
from perdure.engine.execution.progress import Progress, StepsInProgress
from perdure.engine.replay.steps import ActivityStep, TimerStep, WaitStep

Timed = Progress[ActivityStep] | Progress[TimerStep]
Each = TypeVar("Each", bound=Progress[Any])

SLACK = 100  # closed steps that are remembered beside the open ones


def is_short(timer: Progress[TimerStep]) -> bool:
    """Return whether a timer is too short to release the lease for it."""
    return timer.step.delay_sec <= SHORT_SEC and not timer.step.has_row


class TimedSteps:
    """What the waits of one run know about its open steps, while one worker executes it."""

    def __init__(self, steps: StepsInProgress) -> None:
        self._steps = steps
        self._known: set[Progress[Any]] = set()
        self._timers: list[Progress[TimerStep]] = []  # these three are new
        self._pauses: list[Progress[ActivityStep]] = []
        self._waits: list[Progress[WaitStep]] = []
        self._short: deque[Progress[TimerStep]] = deque()
        self._registered: deque[Timed] = deque()

    def clear(self) -> None:
        """Forget everything: all timers have been stopped."""
        for known in (self._known, self._timers, self._pauses, self._waits, self._short, self._registered):
            known.clear()

    def any_short(self) -> bool:
        """Return whether an open timer is too short to release the lease for it."""
        self._learn()
        return _any_open(self._short)

    def take_unwatched(
        self,
    ) -> tuple[list[Progress[TimerStep]], list[Progress[ActivityStep]], list[Progress[WaitStep]]]:
        """Return the open timers, pauses and waits whose time nothing keeps yet, and count them as watched."""
        self._learn()
        found = self._timers, self._pauses, self._waits
        self._timers, self._pauses, self._waits = [], [], []
        timers, pauses, waits = found
        return _unwatched(timers), _unwatched(pauses), _unwatched(waits)

    def add_registered(self, timed: Timed) -> None:
        """Note that a row in the database decides when a step's time is over."""
        self._registered.append(timed)

    def any_registered(self) -> bool:
        """Return whether a row in the database decides when an open step's time is over."""
        return _any_open(self._registered)

    def registered(self) -> list[Timed]:
        """Return the open steps whose time a row in the database decides."""
        found = [timed for timed in self._registered if timed.is_open]
        self._registered = deque(found)
        return found

    def _learn(self) -> None:
        steps = self._steps
        timers = self._new(steps.timers)
        self._timers += timers
        self._short.extend(timer for timer in timers if is_short(timer))
        self._pauses += self._new(steps.pauses)
        self._waits += self._new(steps.waits)
        if len(self._known) > SLACK + 2 * (len(steps.timers) + len(steps.pauses) + len(steps.waits)):
            self._known = {step for step in self._known if step.is_open}

    def _new(self, steps: "dict[str, Each]") -> "list[Each]":
        """Return the steps that were added since the last call, in their order."""
        found = []
        for step in reversed(steps.values()):
            if step in self._known:
                break
            found.append(step)
        self._known.update(found)
        return found[::-1]


def _unwatched(steps: "list[Each]") -> "list[Each]":
    return [step for step in steps if step.is_open and step.timer is None]


def _any_open(steps: "deque[Each]") -> bool:
    """Return whether one of these steps is open; those at the beginning that have ended are removed."""
    while steps and not steps[0].is_open:
        steps.popleft()
    return bool(steps)
