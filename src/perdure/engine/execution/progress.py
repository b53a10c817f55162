"""What is under way for each open step of a run: the one place for the state of steps while a worker executes them."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from perdure.engine.execution.clock import Clock, Timer
from perdure.engine.execution.inbox import Handle
from perdure.engine.execution.interfaces import Attempt
from perdure.engine.replay.commands import Apply, Await, Command, Execute, Forget, Pause, SetTimer
from perdure.engine.replay.steps import ActivityStep, EffectStep, TimerStep, WaitStep

Step = TypeVar("Step", bound=ActivityStep | EffectStep | TimerStep | WaitStep, covariant=True)


class Progress(Generic[Step]):
    """The execution of one open step."""

    __slots__ = ("attempt", "cancelled", "is_open", "registered", "step", "task", "timer")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.is_open = True  # the body waits for it
        self.attempt: Attempt | None = None
        self.task: asyncio.Task[None] | None = None  # executes the attempt
        self.cancelled: Callable[[asyncio.Task[None]], None]  # called when the task has ended after its cancellation
        self.timer: Timer | None = None  # keeps the time on the worker's loop
        self.registered = False  # a row in the database decides when the time is over

    def watch(self, clock: Clock, seconds: float, post: Callable[[Handle], None], due: Handle) -> None:
        """Put an item in the inbox after some seconds."""
        self.timer = clock.call_later(seconds, post, due)

    def stop(self) -> None:
        """Stop the timer on the worker's loop; a row in the database may keep the time from here on."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.registered = False

    def close(self) -> None:
        """Stop everything: the step has ended, or the body has cancelled it."""
        self.is_open = False
        if self.timer is not None or self.registered:
            self.stop()
        if self.task is not None and self.attempt is not None:
            self.attempt.stopped = True
            self.task.add_done_callback(self.cancelled)
            self.task.cancel()


class StepsInProgress:
    """The open steps of a run, as its commands describe them."""

    def __init__(self) -> None:
        self.ready: dict[str, Progress[ActivityStep | EffectStep]] = {}  # to be started
        self.running: dict[str, Progress[ActivityStep | EffectStep]] = {}
        self.pauses: dict[str, Progress[ActivityStep]] = {}
        self.waits: dict[str, Progress[WaitStep]] = {}
        self.timers: dict[str, Progress[TimerStep]] = {}
        # A step is in one of these.
        self._all: tuple[dict[str, Any], ...] = (self.running, self.ready, self.pauses, self.waits, self.timers)

    def apply(self, command: Command) -> None:
        """Do what the body wants; only what is `ready` is left to do."""
        if type(command) is Forget:  # these two are nearly all
            self._forget(command.step_id)
        elif type(command) is Execute:
            step = command.step
            if step.attempt > 1:
                self._forget(step.id)  # the attempt before, or the pause
            self.ready[step.id] = Progress(step)
        else:
            self._apply(command)

    def _apply(self, command: Command) -> None:
        match command:
            case Pause(step):
                self._forget(step.id)
                self.pauses[step.id] = Progress(step)
            case Apply(effect):
                self.ready[effect.id] = Progress(effect)
            case Await(wait):
                self.waits[wait.id] = Progress(wait)
            case SetTimer(timer):
                self.timers[timer.id] = Progress(timer)
            case _:
                raise AssertionError(f"not a command about a step: {command!r}")

    def _forget(self, step_id: str) -> None:
        for steps in self._all:
            progress = steps.pop(step_id, None)
            if progress is not None:
                progress.close()
                return

    def take_ready(self) -> list[Progress[ActivityStep | EffectStep]]:
        """Return the steps to start, which are running from now on; the start of one may close others."""
        taken = list(self.ready.values())
        self.running.update(self.ready)
        self.ready.clear()
        return taken

    @property
    def waiting(self) -> bool:
        """Return whether a step waits for a time or a message."""
        return bool(self.pauses or self.waits or self.timers)

    def stop_timers(self) -> None:
        """Stop all timers in memory; rows in the database keep the time from here on."""
        for steps in (self.timers, self.waits, self.pauses):
            for progress in steps.values():
                progress.stop()
