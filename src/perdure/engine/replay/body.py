"""The body of a run: the workflow's function on its own event loop, replayed from its history.

The body requests steps and waits. Its input is its history, one row at a time; after each row it runs until all its
tasks wait. So a replay is deterministic, in whatever order steps completed. A row that no step waits for, or rows that
are left when the body ends, mean that the code differs from the code that made the history.

This module does no I/O, so the same class serves a live run and a replay in a test.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from perdure.engine.execution import children
from perdure.engine.history.codec import decode, encode
from perdure.engine.history.digests import Call, stamped
from perdure.engine.history.failures import decode_failure
from perdure.engine.replay.context import ATTEMPT, RUN
from perdure.engine.replay.definitions import ActivityDefinition, WorkflowDefinition
from perdure.engine.replay.loop import BodyLoop, Timer
from perdure.engine.replay.scopes import current_scope
from perdure.engine.replay.steps import ActivityStep, EffectStep, TimerStep, WaitStep
from perdure.errors import (
    EngineError,
    LimitError,
    NonDeterminismError,
    NotDurableError,
    NotSubscribedError,
    WorkflowCancelledError,
)
from perdure.model import limits, names
from perdure.model.matching import match_of
from perdure.model.records import HistoryEvent, HistoryEventType, Lease
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

STARTED = "ActivityStarted"  # only for activities with a compensation
ATTEMPT_FAILED = "ActivityAttemptFailed"
VALUES, STATE = "Values", "State"  # rows with the values taken between two steps; STATE also has a set_state()
STEPS_MAX = 10_000  # maximum number of unfinished steps
EVICTIONS_MAX = 100  # how often an evicted body may catch its cancellation
EVICTION_BUDGET = 10_000  # how many callbacks it may run after each cancellation
STATE_MAX = limits.PAYLOAD_MAX - 64  # a state shares its row with the values taken before it
VALUE_ROOM = 128  # maximum size of one more value
REFUSALS_MAX = 1_000  # how often an evicted body may request a step and catch the refusal
OWN = "~"  # prefix of the ids of the engine's own rows, which belong to no step

Outcome = tuple[Any, BaseException | None]
Effect = Callable[[Storage, Lease], Awaitable[object]]  # writes in the transaction that records its return value


class Recur(BaseException):
    """Raised by `recur()`: the run restarts with this input."""

    def __init__(self, input_data: bytes) -> None:
        super().__init__("the run restarts with new input")
        self.input_data = input_data


class RunEvicted(BaseException):
    """Raised in a workflow's body that is removed from memory before it ended.

    The run itself goes on: another worker, or this one later, resumes it from its history. Don't catch it; it derives
    from `BaseException` so that `except Exception` lets it pass.
    """


class Body:
    """The workflow's function, its event loop, and the steps that it waits for."""

    def __init__(
        self,
        workflow: WorkflowDefinition,
        instance_id: str,
        input_data: bytes,
        generation: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.workflow = workflow
        self.generation = generation
        self.instance_id = instance_id
        self.clock = clock  # for now()
        self._input = input_data
        self._loop = BodyLoop(self, self._report, seed=instance_id.partition("~r")[0])
        self._task: asyncio.Task[Any] | None = None
        self._expected: dict[str, Callable[[HistoryEvent], None]] = {}
        self.activities: dict[str, ActivityStep] = {}
        self.effects: dict[str, EffectStep] = {}
        self.waits: dict[str, WaitStep] = {}
        self.timers: dict[Timer, TimerStep] = {}
        self.unsettled: set[str] = set()  # steps with a compensation that started and have no outcome
        self.children: set[str] = set()  # children that have not ended
        self._channels: dict[str, str] = {}
        self._patches: dict[str, bool] = {}
        self._given: dict[str, Any] | None = None
        self._more = False  # replaying: further rows follow
        self._live = False  # the first replay is complete
        self._taken: dict[str, Any] = {}
        self._state: bytes | None = None
        self._numbered = False  # the next row is a set_state() of an earlier version, where it was a step
        self._fed = 0
        self._values_size = self._state_size = 0  # in their future row, replayed values included
        self._stamp = ""
        self._broken: NonDeterminismError | None = None
        self.evicted = False
        self.last_failure: tuple[BaseException, ActivityStep] | None = None  # the last activity's error in the body
        self._refusals = 0

    # Replaying and continuing.

    @property
    def begun(self) -> bool:
        """Return whether the function was called."""
        return self._task is not None

    @property
    def done(self) -> bool:
        """Return whether the function has ended."""
        return self._task is not None and self._task.done()

    @property
    def time(self) -> float:
        """Return the time of the body's loop: seconds since the function was called."""
        return self._loop.time()

    def outcome(self) -> Outcome:
        """Return what the function returned or raised. `Recur`, and `RunEvicted` of an evicted body, are raised."""
        assert self._task is not None
        if self._task.cancelled():
            return None, WorkflowCancelledError("the workflow's own code cancelled its main task")
        error = self._task.exception()
        if error is None:
            return self._task.result(), None
        if isinstance(error, Recur) or (self.evicted and isinstance(error, RunEvicted)):
            raise error
        if isinstance(error, BaseExceptionGroup):
            return None, _without_recur(error)
        return None, error

    def begin(self, upcoming: HistoryEvent | None) -> None:
        """Call the function and run it until all its tasks wait. `upcoming` is the first row of its history."""
        self._look_ahead(upcoming)
        args, kwargs = self.workflow.signature.unbind(self._input)
        context = copy_context()
        context.run(ATTEMPT.set, None)
        context.run(RUN.set, self)
        self._task = context.run(self._loop.spawn, self.workflow.function(*args, **kwargs))
        self._pump()

    def feed(self, event: HistoryEvent, upcoming: HistoryEvent | None) -> None:
        """Pass one row to the body and run it until all its tasks wait. `upcoming` is the next row, or None."""
        if event.event_type in (VALUES, STATE):
            return  # its values were used while the row before it was processed
        self._look_ahead(upcoming)
        self._fed += 1
        accept = self._expected.pop(event.activity_id, None)
        if accept is None:
            self._unexpected(event)
        if event.data_type == "json":
            self._loop.advance(stamped(event.event_data_binary))
        accept(event)
        self._pump()

    def expects(self, id: str) -> bool:
        """Return whether the body waits for a row with this id."""
        return id in self._expected

    def ended(self) -> None:
        """Note that the replay is complete and that the body now executes new code."""
        self._more, self._given, self._live = False, None, True

    def taken(self) -> tuple[str, str, bytes] | None:
        """Return the values and state that the body took since the last row, as id, type and data of a new row."""
        if self.evicted or (not self._taken and self._state is None):
            return None
        data = b'{"values": ' + encode(self._taken)
        kind = VALUES
        if self._state is not None:
            kind, data = STATE, data + b', "numbered": false, "state": ' + self._state
            self._stamp = self._stamp or f"state:{self._fed}"
        stamp, self._stamp, self._taken, self._state = self._stamp, "", {}, None
        return OWN + stamp, kind, data + b"}"

    def _look_ahead(self, upcoming: HistoryEvent | None) -> None:
        """Prepare the values that the body takes after a row; they are recorded in the next row."""
        self._values_size = self._state_size = 0
        self._more = upcoming is not None
        self._given = None
        self._numbered = False
        if upcoming is not None and upcoming.event_type in (VALUES, STATE):
            row = json.loads(upcoming.event_data or b"{}")
            self._given = dict(row["values"])
            self._numbered = upcoming.event_type == STATE and row.get("numbered", True)

    def _pump(self) -> None:
        self._loop.pump()
        if self._broken is not None:
            raise self._broken
        if self._given:
            self._mismatch(f"the history has values at {', '.join(sorted(self._given))}, which the code does not take")
        if self._more:
            self._state, self._stamp = None, ""  # already recorded
        elif self.done and self._task is not None and not self._task.cancelled():
            self._task.exception()  # retrieved, so that asyncio does not warn: `outcome()` returns it later

    def _unexpected(self, event: HistoryEvent) -> NoReturn:
        if self.done:
            instead = "the code has ended by then"
        else:
            instead = f"the code waits for {', '.join(sorted(self._expected)[:5]) or 'nothing'}"
        self._mismatch(f"the history continues with {event.activity_id} ({event.event_type}), but {instead}")

    def _mismatch(self, what: str, shown: object = None) -> NoReturn:
        """Raise `NonDeterminismError`. `shown` has the arguments of the call, which must not appear in logs."""
        about = f"run {self.instance_id!r} ({self.workflow.name}): {what}"
        advice = "deploy compatible code, or guard the change with patched()"
        raise NonDeterminismError(
            f"{about}{'' if shown is None else f': {shown}'}; {advice}", summary=f"{about}; {advice}"
        )

    def evict(self) -> None:
        """Remove the body from memory: end its tasks and refuse further steps. The run itself does not end."""
        if self.evicted:
            return
        self.evicted = True
        if not self._end_tasks() and not self._loop.abandon(EVICTIONS_MAX):
            log.warning(
                "the body of run %s (%s) could not be removed from memory, because it catches its cancellation (a bare "
                "`except:` in a loop?); it stays in memory until this process ends",
                self.instance_id,
                self.workflow.name,
                extra={"run_id": self.instance_id, "workflow": self.workflow.name},
            )
        self._loop.close()

    def _end_tasks(self) -> bool:
        """Cancel the body's tasks, repeatedly up to a limit; return whether all have ended."""
        for _ in range(EVICTIONS_MAX):
            for task in self._loop.tasks():
                task.cancel("the run is no longer executed here")
            try:
                self._loop.pump(EVICTION_BUDGET)
            except NotDurableError:
                return False
            if not self._loop.tasks():
                return True
        return False

    def _report(self, context: Mapping[str, Any]) -> None:
        """Log what asyncio reports about the body: a task whose error was never retrieved, for example."""
        message, error = str(context.get("message")), context.get("exception")
        if error is not None and message.endswith("exception was never retrieved"):
            message = f"a task failed, and the body did not await it: {type(error).__name__}: {error}"
        log.warning(
            "asyncio reported a problem in the body of run %s (%s): %s",
            self.instance_id,
            self.workflow.name,
            message,
            extra={"run_id": self.instance_id, "workflow": self.workflow.name, "reason": message},
            exc_info=error,
        )

    # The calls of the function.

    def activity(
        self, activity: ActivityDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a step that executes an activity. The call sets the step's id; the await starts it.

        A task for the coroutine gets the same path, so the ids of later steps don't depend on whether the call is
        awaited or wrapped in a task, as `gather()` does, and `wait_for()` in some versions of Python.
        """
        path = self._step()
        payload = activity.signature.bind(args, kwargs)
        if activity.undo is not None:  # the arguments are recorded before it runs, for its compensation
            if activity.name != activity.compensated_name:
                raise TypeError(
                    f"options(name={activity.name!r}) cannot be used with activity {activity.compensated_name!r}: it "
                    "has a compensation, which is found by the activity's name; leave name= out"
                )
            limits.size(payload, f"the arguments of {activity.name}, which has a compensation,")
        call = Call(*activity.signature.values(args, kwargs), encoded=payload)
        return self._loop.placed(self._perform(f"{path}:{activity.name}", activity, payload, call), path)

    async def _perform(self, id: str, activity: ActivityDefinition, payload: bytes, call: Call) -> Any:
        self._refuse_if_evicted()
        self._refuse_if_too_many()
        step = ActivityStep(id, activity, payload, call, self._future())
        self.activities[id] = step
        self._expect_attempt(step)
        self._on_drop(step.future, lambda: self._drop_activity(step))
        return await step.future

    def child(self, workflow: WorkflowDefinition, data: bytes, call: Call) -> Coroutine[Any, Any, Any]:
        """Start another workflow as a child and wait for its result."""
        return children.call(self, workflow, data, call)

    def place(self) -> str:
        """Return the path of the next step."""
        return self._step()

    def effect(self, name: str, effect: Effect, call: Call, hint: object = Any) -> "asyncio.Future[Any]":
        """Add a step that writes to the database and is recorded in the same transaction.

        `call` is compared with the history on replay.
        """
        return self.effect_at(self._step(), name, effect, call, hint)

    def effect_at(self, path: str, name: str, effect: Effect, call: Call, hint: object = Any) -> "asyncio.Future[Any]":
        """Add such a step with a given path."""
        self._refuse_if_too_many()
        step = EffectStep(f"{path}:{name}", effect, call, self._future())
        self.effects[step.id] = step

        def done(event: HistoryEvent) -> None:
            self._check_call(step.id, call, event)
            self.effects.pop(step.id, None)
            _settle(step.future, _outcome(event, lambda data: decode(data, hint)))

        self._expected[step.id] = done
        self._on_drop(step.future, lambda: self._drop(self.effects, step.id))
        return step.future

    def wait(self, wait: WaitStep) -> "asyncio.Future[Any]":
        """Add a step that waits for a message."""
        self._refuse_if_too_many()
        self.waits[wait.id] = wait
        self._expect_message(wait)
        self._on_drop(wait.future, lambda: self._drop_wait(wait))
        return wait.future

    def new_wait(
        self, name: str, channels: tuple[str, ...], hint: object, after: timedelta | None, **about: Any
    ) -> WaitStep:
        """Return a wait with the path of the next step."""
        return WaitStep(f"{self._step()}:{name}", channels, self._future(), hint, after, **about)

    def value(self, make: Callable[[], Any]) -> Any:
        """Return a new value (plain JSON) and record it; on replay, return the recorded value."""
        path = self._step()
        if self._values_size + self._state_size > STATE_MAX - VALUE_ROOM:
            raise LimitError(
                f"run {self.instance_id!r} called now(), random() or uuid4() too often without a step in between: "
                "await a step such as an activity in the loop, or call them in an activity"
            )
        if self._more and not self.evicted:
            if self._given is None or path not in self._given:
                self._broken_at(f"the code takes a value at {path}, and the history has none there")
            return self._counted(path, self._given.pop(path))
        made = self._taken[path] = make()
        self._stamp = self._stamp or path
        return self._counted(path, made)

    def _counted(self, path: str, value: Any) -> Any:
        self._values_size += len(path) + len(encode(value)) + 8
        return value

    def patched(self, name: str) -> bool:
        """Return whether the body takes the new path: True, unless its history passed this point without it."""
        self._refuse_if_evicted()
        if name not in self._patches:
            key = f"patch:{name}"
            known = self._given is not None and bool(self._given.pop(key, False))
            if not self._more:
                self._taken[key] = True
                self._stamp = self._stamp or key
            self._patches[name] = known or not self._more
        return self._patches[name]

    def set_state(self, value: object) -> None:
        """Record the value that `RunHandle.state()` returns."""
        self._refuse_if_evicted()
        if self._numbered:
            self._step()
        state = encode(value, what="the value of set_state()")
        if len(state) + self._values_size > STATE_MAX:
            raise LimitError(
                f"the value of set_state() has {len(state)} bytes, and the maximum is {STATE_MAX}: store large data "
                "elsewhere and set a reference to it"
            )
        self._state, self._state_size = state, len(state)

    def subscribed(self, channel: str, stored: str) -> None:
        """Note that the run subscribed to a channel, now or on replay."""
        self._channels[channel] = stored

    def unsubscribed(self, channel: str) -> None:
        """Note that the run ended its subscription to a channel."""
        self._channels.pop(channel, None)

    def stored_channel(self, channel: str) -> str:
        """Return the stored name of a channel; raise `NotSubscribedError` if the run is not subscribed to it."""
        if channel not in self._channels:
            raise NotSubscribedError(
                f"run {self.instance_id!r} is not subscribed to channel {channel!r}: call subscribe() first"
            )
        return self._channels[channel]

    def _step(self) -> str:
        self._refuse_if_evicted()
        scope = current_scope()
        if scope is None:
            raise EngineError(
                f"a durable call of run {self.instance_id!r} was made outside the tasks of its body: make it in the "
                "workflow's function or in a task that the function started"
            )
        return scope.next()

    def _refuse_if_evicted(self) -> None:
        """Raise `RunEvicted` if the body is evicted.

        After too many refusals, which a loop in the body must have caught, its requests wait forever instead.
        """
        if self.evicted and self._refusals < REFUSALS_MAX:
            self._refusals += 1
            raise RunEvicted(f"run {self.instance_id!r} is no longer executed here")

    def _refuse_if_too_many(self) -> None:
        if len(self.activities) + len(self.effects) + len(self.waits) + len(self.timers) >= STEPS_MAX:
            raise LimitError(
                f"a run has at most {STEPS_MAX:,} unfinished steps at once (activities, timers, waits, children): "
                "await some of them before you start more, for example in batches"
            )

    def _broken_at(self, what: str) -> NoReturn:
        try:
            self._mismatch(what)
        except NonDeterminismError as error:
            self._broken = error
        raise RunEvicted(what)  # a BaseException, so that an `except Exception` of the body does not continue

    def _future(self) -> "asyncio.Future[Any]":
        return self._loop.create_future()

    def _on_drop(self, future: "asyncio.Future[Any]", drop: Callable[[], None]) -> None:
        future.add_done_callback(lambda done: drop() if done.cancelled() else None)

    # The outcomes of steps.

    def _expect_attempt(self, step: ActivityStep) -> None:
        self._expected[step.id] = lambda event: self._activity_done(step, event)
        self._expected[step.attempt_id] = lambda event: self._attempt_failed(step, event)
        if step.activity.undo is not None and not step.begun:
            self._expected[step.start_id] = lambda event: self._begun(step, event)

    def _check_call(self, id: str, call: Call, event: HistoryEvent) -> None:
        """Raise `NonDeterminismError` if the row records the same step with different arguments."""
        if event.data_type == "json" and call.differs(event.event_data_binary):
            self._mismatch(f"the history has {id} with different arguments than the code passes now", call)

    def _check_channel(self, wait: WaitStep, channel: str, event: HistoryEvent) -> None:
        """Raise `NonDeterminismError` if the row records a message of another channel or an event of another type.

        The receiver does not count: a retried run has the events that were sent to the first one.
        """
        if self._live or event.data_type != "json":
            return  # a live message was requested by this very code
        about = json.loads(event.event_data or b"{}")
        found = about.get("channel") or about.get("channel_name") if isinstance(about, dict) else None
        if not isinstance(found, str) or found == channel:
            return
        known, name = names.public(found), names.public(wait.kind or channel)
        if known != name and (wait.kind is None or not known.startswith(f"{name}:")):
            self._mismatch(f"the history has a message of {known!r} at {wait.id}, but the code waits for {name!r}")

    def _check_match(self, wait: WaitStep, event: HistoryEvent) -> None:
        """Raise `NonDeterminismError` if the recorded event was selected by a different `where`.

        Rows of earlier versions, which also recorded events that did not match, don't have this information.
        """
        about = json.loads(event.event_data or b"{}") if event.data_type == "json" else None
        chosen_by = about.get("match") if isinstance(about, dict) else None
        if chosen_by is not None and (
            not wait.where or chosen_by != match_of(str(about["channel"]), wait.where).key  # type: ignore[index]
        ):
            asked = dict(wait.where) if wait.where else "anything"
            self._mismatch(
                f"the history has an event at {wait.id} that matched a different where= than the code passes now", asked
            )

    def _begun(self, step: ActivityStep, event: HistoryEvent) -> None:
        self._check_call(step.id, step.call, event)
        step.begin()
        self.unsettled.add(step.id)

    def _activity_done(self, step: ActivityStep, event: HistoryEvent) -> None:
        self._check_call(step.id, step.call, event)
        self._drop_activity(step)
        self.unsettled.discard(step.id)
        outcome = _outcome(event, step.activity.signature.decode_result)
        if outcome[1] is not None:
            self.last_failure = outcome[1], step
        _settle(step.future, outcome)

    def _attempt_failed(self, step: ActivityStep, event: HistoryEvent) -> None:
        self._check_call(step.id, step.call, event)
        about = json.loads(event.event_data or b"{}")
        self._expected.pop(step.id, None)
        step.failed(about.get("pause_sec") or 0.0)
        if step.pause_sec:
            self._expected[step.timer_id] = lambda _: self._paused(step)
        else:
            self._expect_attempt(step)

    def _paused(self, step: ActivityStep) -> None:
        step.resume()
        self._expect_attempt(step)

    def _drop_activity(self, step: ActivityStep) -> None:
        for id in (step.id, step.start_id, step.attempt_id, step.timer_id):
            self._expected.pop(id, None)
        self.activities.pop(step.id, None)
        step.dropped = True
        if step.task is not None:
            step.task.cancel()

    def _expect_message(self, wait: WaitStep) -> None:
        for id in wait.ids():
            self._expected[id] = lambda event, id=id: self._message_came(wait, id, event)  # type: ignore[misc]

    def _message_came(self, wait: WaitStep, id: str, event: HistoryEvent) -> None:
        self._check_channel(wait, wait.ids()[id], event)
        self._check_match(wait, event)
        for other in wait.ids():
            self._expected.pop(other, None)
        if event.event_type == HistoryEventType.MESSAGE_TIMEOUT:
            self._drop_wait(wait)
            _settle(wait.future, (None, TimeoutError(f"no {wait.awaited} came in time (step {wait.id})")))
            return
        try:
            found, fits = wait.read(id, event)
        except Exception as error:
            self._drop_wait(wait)
            _settle(wait.future, (None, error))
            return
        if fits:
            self._drop_wait(wait)
            _settle(wait.future, (found, None))
        else:
            wait.pass_over()
            self._expect_message(wait)

    def _drop_wait(self, wait: WaitStep) -> None:
        for id in wait.ids():
            self._expected.pop(id, None)
        self.waits.pop(wait.id, None)

    def _drop(self, steps: dict[str, Any], id: str) -> None:
        self._expected.pop(id, None)
        steps.pop(id, None)

    # Timers of the loop.

    def start(self, timer: Timer) -> None:
        """Add a timer that the body started."""
        self._refuse_if_evicted()
        self._refuse_if_too_many()
        step = self.timers[timer] = TimerStep(f"{timer.path}:timer", timer, replayed=self._more)
        self._expected[step.id] = lambda _: self._fire(step)

    def drop(self, timer: Timer) -> None:
        """Remove a timer that the body cancelled."""
        step = self.timers.pop(timer, None)
        if step is not None:
            self._expected.pop(step.id, None)
            step.stop()

    def _fire(self, step: TimerStep) -> None:
        self.drop(step.timer)
        self._loop.fire(step.timer)


def _without_recur(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the errors of a `TaskGroup` other than `Recur`; if there are none, raise the `Recur`."""
    recurs, errors = group.split(Recur)
    if recurs is None:
        return group
    if errors is not None:
        return errors
    first: BaseException = recurs
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    raise first


def _settle(future: "asyncio.Future[Any]", outcome: Outcome) -> None:
    value, error = outcome
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _outcome(event: HistoryEvent, read: Callable[[bytes], Any]) -> Outcome:
    """Return the outcome that a row records. A result that cannot be decoded raises: the code differs, not the step."""
    data = event.event_data or b"null"
    if event.event_type == HistoryEventType.ACTIVITY_FAILED:
        return None, decode_failure(json.loads(data))
    return read(data), None
