"""The body of a run, as its code sees it: the durable calls that the workflow's function makes.

Each call is a step of the body or takes a value; the history completes it. There is no I/O here, so the same class
serves a live run, a replay and a test.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime, timedelta
from types import CoroutineType
from typing import Any

from perdure.engine.history import ids
from perdure.engine.history.digests import Call
from perdure.engine.replay.definitions import ActivityDefinition, WorkflowDefinition
from perdure.engine.replay.loop import BodyLoop, Timer
from perdure.engine.replay.mismatch import Mismatch
from perdure.engine.replay.open_steps import OpenSteps, StepFuture
from perdure.engine.replay.scopes import current_scope
from perdure.engine.replay.steps import ActivityStep, Effect, EffectStep, TimerStep, WaitStep
from perdure.engine.replay.values import MissingValue, Values
from perdure.errors import EngineError, LimitError, NonDeterminismError, NotSubscribedError
from perdure.model import limits
from perdure.model.headers import NONE, Headers

log = logging.getLogger("perdure.engine")

STEPS_MAX = limits.STEPS_MAX
REFUSALS_MAX = 1_000  # how often an evicted body may request a step and catch the refusal


class Recur(BaseException):
    """Raised by `recur()`: the run restarts with this input."""

    def __init__(self, input_data: bytes) -> None:
        super().__init__("the run restarts with new input")
        self.input_data = input_data


class RunEvicted(BaseException):
    """Raised in a workflow's body that is removed from memory before it ended.

    The run itself does not end: another worker, or this one later, resumes it from its history. Don't catch it; it
    derives from `BaseException` so that `except Exception` lets it pass.
    """


class ClosedBody:
    """The names of a body, for what asyncio reports after it was removed from memory. It keeps no timers."""

    __slots__ = ("_run_id", "_workflow")

    def __init__(self, run_id: str, workflow: str) -> None:
        self._run_id = run_id
        self._workflow = workflow

    def start(self, timer: Timer) -> None:
        """Do nothing: a closed loop starts no timers."""

    def drop(self, timer: Timer) -> None:
        """Do nothing."""

    def path_of(self, coro: "CoroutineType[Any, Any, Any]") -> None:
        """Return None: a closed loop starts no tasks."""

    def closed(self) -> "ClosedBody":
        """Return itself."""
        return self

    def report(self, context: Mapping[str, Any]) -> None:
        """Log what asyncio reports about the body."""
        message, error = str(context.get("message")), context.get("exception")
        if error is not None and message.endswith("exception was never retrieved"):
            message = f"a task failed, and the body did not await it: {type(error).__name__}: {error}"
        log.warning(
            "asyncio reported a problem in the body of run %s (%s): %s",
            self._run_id,
            self._workflow,
            message,
            extra={"run_id": self._run_id, "workflow": self._workflow, "reason": message},
            exc_info=error,
        )


class Body:
    """The durable calls of one run's body."""

    __slots__ = (
        "_channels",
        "_children",
        "_refusals",
        "broken",
        "clock",
        "evicted",
        "generation",
        "headers",
        "loop",
        "mismatch",
        "run_id",
        "steps",
        "values",
        "workflow",
    )

    def __init__(
        self,
        workflow: WorkflowDefinition,
        run_id: str,
        generation: str | None,
        clock: Callable[[], datetime],
        headers: Headers = NONE,
    ) -> None:
        self.workflow = workflow
        self.headers = headers
        self.run_id = run_id
        self.generation = generation
        self.clock = clock  # for now()
        self.loop = BodyLoop(self, seed=run_id.partition("~r")[0])
        self.mismatch = Mismatch(run_id, workflow.name)
        self.steps = OpenSteps(self.mismatch, self.loop)
        self.values = Values(run_id)
        self._children: dict[str, None] | None = None  # children that have not ended
        self.evicted = False
        self.broken: NonDeterminismError | None = None  # found in the middle of the code
        self._channels: dict[str, str] | None = None  # the subscriptions
        self._refusals = 0

    # Steps.

    def activity(
        self, activity: ActivityDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a step that executes an activity. The call sets the step's id; the await starts it.

        A task for the coroutine gets the same path, so the ids of later steps don't depend on whether the call is
        awaited or wrapped in a task, as `gather()` does, and `wait_for()` in some versions of Python.
        """
        path = self.next_path()
        payload, values = activity.signature.bind_values(args, kwargs)
        undoable = activity.undo is not None
        if undoable:  # the arguments are recorded before it runs, for its compensation
            if activity.name != activity.compensated_name:
                raise TypeError(
                    f"options(name={activity.name!r}) cannot be used with activity {activity.compensated_name!r}: it "
                    "has a compensation, which is found by the activity's name; leave name= out"
                )
            limits.size(payload, f"the arguments of {activity.name}, which has a compensation,")
        call = Call(*values, encoded=payload)
        return self._perform(ids.step(path, activity.name), activity, payload, call, undoable)

    def path_of(self, coro: "CoroutineType[Any, Any, Any]") -> str | None:
        """Return the path of the step that a coroutine of `activity()` performs; None for another coroutine."""
        if coro.cr_code is not _PERFORM or coro.cr_frame is None:
            return None
        return ids.path_of(coro.cr_frame.f_locals["id"])

    async def _perform(self, id: str, activity: ActivityDefinition, payload: bytes, call: Call, undoable: bool) -> Any:
        if self.evicted:
            self._refuse_if_evicted()
        steps = self.steps
        if len(steps.open) >= STEPS_MAX:
            self._refuse_if_too_many()
        future: asyncio.Future[Any] = asyncio.Future(loop=self.loop)  # which the body never gets, so any hash will do
        step = ActivityStep(id, activity, payload, call, future, undoable=undoable)
        steps.add(step)
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                steps.drop(id)
            raise

    def effect(self, name: str, effect: Effect, call: Call, hint: object = Any) -> "asyncio.Future[Any]":
        """Add a step that writes to the database and is recorded in the same transaction.

        `call` is compared with the history on replay.
        """
        return self.effect_at(self.next_path(), name, effect, call, hint)

    def effect_at(self, path: str, name: str, effect: Effect, call: Call, hint: object = Any) -> "asyncio.Future[Any]":
        """Add such a step with a given path."""
        self._refuse_if_too_many()
        id = ids.step(path, name)
        step = EffectStep(id, effect, call, StepFuture(id, self.steps, self.loop), hint)
        self.steps.add(step)
        return step.future

    def new_wait(
        self, name: str, channels: tuple[str, ...], hint: object, after: timedelta | None, **about: Any
    ) -> WaitStep:
        """Return a wait with the path of the next step."""
        id = ids.step(self.next_path(), name)
        return WaitStep(id, channels, StepFuture(id, self.steps, self.loop), hint, after, **about)

    def wait(self, wait: WaitStep) -> "asyncio.Future[Any]":
        """Add a step that waits for a message."""
        self._refuse_if_too_many()
        self.steps.add(wait)
        return wait.future

    def next_path(self) -> str:
        """Return the path of the next step of the calling task."""
        if self.evicted:
            self._refuse_if_evicted()
        scope = current_scope()
        if scope is None:
            raise EngineError(
                f"a durable call of run {self.run_id!r} was made outside the tasks of its body: make it in the "
                "workflow's function or in a task that the function started"
            )
        return scope.next()

    # Timers, as the loop requests them.

    def start(self, timer: Timer) -> None:
        """Add a timer that the body started."""
        self._refuse_if_evicted()
        self._refuse_if_too_many()
        self.steps.add(TimerStep(ids.step(timer.path, ids.TIMER), timer, has_row=self.values.replaying))

    def drop(self, timer: Timer) -> None:
        """Remove a timer that the body cancelled."""
        self.steps.drop(ids.step(timer.path, ids.TIMER))

    def report(self, context: Mapping[str, Any]) -> None:
        """Log what asyncio reports about the body: a task whose error was never retrieved, for example."""
        self.closed().report(context)

    def closed(self) -> "ClosedBody":
        """Return what is left of the body once its loop is closed."""
        return ClosedBody(self.run_id, self.workflow.name)

    # Values.

    def value(self, make: Callable[[], Any]) -> Any:
        """Return a new value (plain JSON) and record it; on replay, return the recorded value."""
        path = self.next_path()
        try:
            return self.values.take(path, make)
        except MissingValue:
            self._break(path)
            raise RunEvicted(self.run_id) from None  # so that an `except Exception` of the body does not continue

    def _break(self, path: str) -> None:
        what = f"the code takes a value at {path}, and the history has none there"
        try:
            self.mismatch.fail(what, path, "no value there", f"takes a value at {path}")
        except NonDeterminismError as error:
            self.broken = error

    def patched(self, name: str) -> bool:
        """Return whether the body takes the new path: True, unless its history passed this point without it."""
        self._refuse_if_evicted()
        return self.values.patched(name)

    def set_state(self, value: object) -> None:
        """Record the value that `RunHandle.state()` returns."""
        self._refuse_if_evicted()
        if self.values.numbered:
            self.next_path()
        self.values.set_state(value)

    # Children.

    @property
    def children(self) -> Collection[str]:
        """Return the children that have not ended."""
        return self._children or ()

    def child_started(self, child: str) -> None:
        """Note that a child started, now or on replay."""
        if self._children is None:
            self._children = {}
        self._children[child] = None

    def child_ended(self, child: str) -> None:
        """Note that a child ended."""
        if self._children is not None:
            self._children.pop(child, None)

    # Subscriptions.

    def subscribed(self, channel: str, stored: str) -> None:
        """Note that the run subscribed to a channel, now or on replay."""
        if self._channels is None:
            self._channels = {}
        self._channels[channel] = stored

    def unsubscribed(self, channel: str) -> None:
        """Note that the run ended its subscription to a channel."""
        if self._channels is not None:
            self._channels.pop(channel, None)

    def stored_channel(self, channel: str) -> str:
        """Return the stored name of a channel; raise `NotSubscribedError` if the run is not subscribed to it."""
        stored = None if self._channels is None else self._channels.get(channel)
        if stored is None:
            raise NotSubscribedError(
                f"run {self.run_id!r} is not subscribed to channel {channel!r}: call subscribe() first"
            )
        return stored

    # Refusals.

    def _refuse_if_evicted(self) -> None:
        """Raise `RunEvicted` if the body is evicted.

        After too many refusals, which a loop in the body must have caught, its requests wait forever instead.
        """
        if self.evicted and self._refusals < REFUSALS_MAX:
            self._refusals += 1
            raise RunEvicted(f"run {self.run_id!r} is no longer executed here")

    def _refuse_if_too_many(self) -> None:
        if len(self.steps) >= STEPS_MAX:
            raise LimitError(
                f"a run has at most {STEPS_MAX:,} unfinished steps at once (activities, timers, waits, children): "
                "await some of them before you start more, for example in batches"
            )


_PERFORM = Body._perform.__code__
