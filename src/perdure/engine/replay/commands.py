"""What a body wants, as commands to the code that executes its run.

They are not frozen, because each step has two of them, and making a frozen one takes twice as long.
"""

from dataclasses import dataclass

from perdure.engine.history.records import Taken
from perdure.engine.replay.steps import ActivityStep, EffectStep, TimerStep, WaitStep


@dataclass(slots=True)
class Execute:
    """Execute the next attempt of an activity."""

    step: ActivityStep


@dataclass(slots=True)
class Pause:
    """Wait before the next attempt of an activity."""

    step: ActivityStep


@dataclass(slots=True)
class Apply:
    """Write to the database and record the result in the same transaction."""

    step: EffectStep


@dataclass(slots=True)
class Await:
    """Wait for a message or an event."""

    step: WaitStep


@dataclass(slots=True)
class SetTimer:
    """Wait until a timer of the body is due."""

    step: TimerStep


@dataclass(slots=True)
class Forget:
    """Stop what is under way for a step: it has ended, or the body has cancelled it."""

    step_id: str


@dataclass(slots=True)
class Take:
    """Record the values that the body took, right behind the record that made it continue."""

    record: Taken


Command = Execute | Pause | Apply | Await | SetTimer | Forget | Take
