"""A body: the workflow's function on a loop of its own, fed with its history.

It asks for steps and waits; what it is told, and in which order, is exactly its history. Rows are fed one at a time,
and the body runs until it is still in between. So a replay takes the same way, whatever completed in which order. A
row that no step waits for, or rows left over at the end, mean that the code is not the one that made them.

There is no input or output here: the same object serves a live run and a replay in a test.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from perdure.engine import ambient, children, names
from perdure.engine.codec import decode, encode
from perdure.engine.definitions import Activity, Workflow
from perdure.engine.digests import Call, stamped
from perdure.engine.failures import decode_failure
from perdure.engine.loop import BodyLoop, Timer
from perdure.engine.scopes import current_scope
from perdure.engine.steps import ActivityStep, EffectStep, TimerStep, WaitStep
from perdure.errors import (
    EngineError,
    LimitError,
    NonDeterminismError,
    NotDurableError,
    NotSubscribedError,
    WorkflowCancelledError,
)
from perdure.model import limits
from perdure.model.matching import match_of
from perdure.model.records import HistoryEvent, HistoryEventType, Lease
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

STARTED = "ActivityStarted"  # of one that can be undone
ATTEMPT_FAILED = "ActivityAttemptFailed"
VALUES, STATE = "Values", "State"  # what a body took between two rows; the second shows a state as well
STEPS_MAX = 10_000  # that a body may have asked for and not got yet
EVICTIONS_MAX = 100  # how often a body may catch the cancellation that ends it
EVICTION_BUDGET = 10_000  # and how many callbacks it may run because of one
STATE_MAX = limits.PAYLOAD_MAX - 64  # a state is stored in a row with the values that were taken before it
VALUE_ROOM = 128  # what one more value may take
REFUSALS_MAX = 1_000  # and how often it may ask for something and catch the refusal
OWN = "~"  # ids of rows that are not a step's

Outcome = tuple[Any, BaseException | None]
Effect = Callable[[Storage, Lease], Awaitable[object]]  # writes in the transaction that records what it gives


class Recur(BaseException):
    """The body asks for its next generation, with this input."""

    def __init__(self, input_data: bytes) -> None:
        super().__init__("the next generation begins")
        self.input_data = input_data


class RunEvicted(BaseException):
    """The body ends here without a verdict: another worker, or this one later, goes on with the run."""


class Body:
    """The function, its loop, and what it waits for."""

    def __init__(
        self,
        workflow: Workflow[..., Any],
        instance_id: str,
        input_data: bytes,
        generation: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.workflow = workflow
        self.generation = generation
        self.instance_id = instance_id
        self.clock = clock  # what now() asks
        self._input = input_data
        self._loop = BodyLoop(self, self._report, seed=instance_id.partition("~r")[0])
        self._task: asyncio.Task[Any] | None = None
        self._expected: dict[str, Callable[[HistoryEvent], None]] = {}
        self.activities: dict[str, ActivityStep] = {}
        self.effects: dict[str, EffectStep] = {}
        self.waits: dict[str, WaitStep] = {}
        self.timers: dict[Timer, TimerStep] = {}
        self.unsettled: set[str] = set()  # activities that can be undone, begun and without an outcome
        self.children: set[str] = set()  # those that were started and have not ended
        self._channels: dict[str, str] = {}
        self._patches: dict[str, bool] = {}
        self._given: dict[str, Any] | None = None
        self._more = False  # rows are left to be fed
        self._live = False  # the history was fed to its end once
        self._taken: dict[str, Any] = {}
        self._state: bytes | None = None
        self._numbered = False  # the history comes to a set_state() of an earlier version, where it was a step
        self._fed = 0
        self._values_size = self._state_size = 0  # of the row they will be in, with those that a replay is given
        self._stamp = ""
        self._broken: NonDeterminismError | None = None
        self.evicted = False
        self.last_failure: tuple[BaseException, ActivityStep] | None = None  # of an activity, as the body was told
        self._refusals = 0

    # Feeding.

    @property
    def begun(self) -> bool:
        """Whether the function was called."""
        return self._task is not None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._task is not None and self._task.done()

    @property
    def time(self) -> float:
        """Seconds since the function was called, as it sees them."""
        return self._loop.time()

    def outcome(self) -> Outcome:
        """What it returned or raised, whatever that is; `Recur` and the end of an evicted body are raised here."""
        assert self._task is not None
        if self._task.cancelled():
            return None, WorkflowCancelledError("the workflow cancelled itself")
        error = self._task.exception()
        if error is None:
            return self._task.result(), None
        if isinstance(error, Recur) or (self.evicted and isinstance(error, RunEvicted)):
            raise error
        if isinstance(error, BaseExceptionGroup):
            return None, _without_recur(error)
        return None, error

    def begin(self, upcoming: HistoryEvent | None) -> None:
        """Call the function and let it run until it is still. `upcoming` is the first row of its history."""
        self._look_ahead(upcoming)
        args, kwargs = self.workflow.signature.unbind(self._input)
        context = copy_context()
        context.run(ambient.ATTEMPT.set, None)
        context.run(ambient.RUN.set, self)
        self._task = context.run(self._loop.spawn, self.workflow.function(*args, **kwargs))
        self._pump()

    def feed(self, event: HistoryEvent, upcoming: HistoryEvent | None) -> None:
        """Tell the body of one row, and let it run until it is still; `upcoming` is the row after, if there is one."""
        if event.event_type in (VALUES, STATE):
            return  # taken up with the row before it
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
        """Return whether the body waits for a row of this id."""
        return id in self._expected

    def ended(self) -> None:
        """The history is over: from here on the body does new things."""
        self._more, self._given, self._live = False, None, True

    def taken(self) -> tuple[str, str, bytes] | None:
        """What the body took since it was last fed, to be recorded: the row's id, type and data."""
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
        """The values that the body takes now are in the row after the one it is fed."""
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
            self._state, self._stamp = None, ""  # it is recorded already
        elif self.done and self._task is not None and not self._task.cancelled():
            self._task.exception()  # looked at: nothing is lost that asyncio should complain of

    def _unexpected(self, event: HistoryEvent) -> NoReturn:
        if self.done:
            instead = "the code has ended before that"
        else:
            instead = f"the code waits for {', '.join(sorted(self._expected)[:5]) or 'nothing'}"
        self._mismatch(f"the history goes on with {event.activity_id} ({event.event_type}), but {instead}")

    def _mismatch(self, what: str, shown: object = None) -> NoReturn:
        """Raise the error; `shown` is what the code calls the step with now, which no log may show."""
        about, advice = f"{self.workflow.name} {self.instance_id}: {what}", "deploy code that fits, or use patched()"
        raise NonDeterminismError(
            f"{about}{'' if shown is None else f': {shown}'}; {advice} for the change",
            summary=f"{about}; {advice} for the change",
        )

    def evict(self) -> None:
        """End the function without a verdict: whatever it still asks for is refused."""
        if self.evicted:
            return
        self.evicted = True
        if not self._end_tasks() and not self._loop.abandon(EVICTIONS_MAX):
            log.warning(
                "run %s (%s) left memory, but its body catches even the cancellation (a bare `except:` in a loop?): "
                "what is left of it stays in memory until this process ends",
                self.instance_id,
                self.workflow.name,
                extra={"run_id": self.instance_id, "workflow": self.workflow.name},
            )
        self._loop.close()

    def _end_tasks(self) -> bool:
        """Cancel the body's tasks, again and again within reason; whether all have ended."""
        for _ in range(EVICTIONS_MAX):
            for task in self._loop.tasks():
                task.cancel("the run is driven elsewhere")
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
            "run %s (%s): asyncio reports about its body: %s",
            self.instance_id,
            self.workflow.name,
            message,
            extra={"run_id": self.instance_id, "workflow": self.workflow.name, "reason": message},
            exc_info=error,
        )

    # What the function calls.

    def activity(
        self, activity: Activity[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a step that runs an activity. The call takes the step's place, the await begins it.

        A task that is made of it has the same place, so that it makes no difference to the steps after it whether the
        call is awaited or wrapped in a task, as `gather()` does, and `wait_for()` in some versions of Python.
        """
        path = self._step()
        payload = activity.signature.bind(args, kwargs)
        if activity.undo is not None:  # they are recorded before it runs, to undo it
            if activity.name != activity.compensated_name:
                raise TypeError(
                    f"options(name=) is not for an activity with a compensation, such as {activity.compensated_name}: "
                    "the compensation is found by the activity's name"
                )
            limits.size(payload, f"the arguments of {activity.name}, which has a compensation,")
        call = Call(*activity.signature.values(args, kwargs), encoded=payload)
        return self._loop.placed(self._perform(f"{path}:{activity.name}", activity, payload, call), path)

    async def _perform(self, id: str, activity: Activity[..., Any], payload: bytes, call: Call) -> Any:
        self._refuse_if_evicted()
        self._refuse_if_too_many()
        step = ActivityStep(id, activity, payload, call, self._future())
        self.activities[id] = step
        self._expect_attempt(step)
        self._on_drop(step.future, lambda: self._drop_activity(step))
        return await step.future

    def child(self, workflow: Workflow[..., Any], data: bytes, call: Call) -> Coroutine[Any, Any, Any]:
        """Another workflow, started and waited for."""
        return children.call(self, workflow, data, call)

    def place(self) -> str:
        """The next place in the body."""
        return self._step()

    def effect(self, name: str, effect: Effect, call: Call, hint: object = Any) -> "asyncio.Future[Any]":
        """A step that writes something, recorded in the same transaction; `call` says what, to tell it from others."""
        return self.effect_at(self._step(), name, effect, call, hint)

    def effect_at(self, path: str, name: str, effect: Effect, call: Call, hint: object = Any) -> "asyncio.Future[Any]":
        """The same, at a place that is known."""
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
        """A step that waits for a message."""
        self._refuse_if_too_many()
        self.waits[wait.id] = wait
        self._expect_message(wait)
        self._on_drop(wait.future, lambda: self._drop_wait(wait))
        return wait.future

    def new_wait(
        self, name: str, channels: tuple[str, ...], hint: object, after: timedelta | None, **about: Any
    ) -> WaitStep:
        """A wait at this place of the body."""
        return WaitStep(f"{self._step()}:{name}", channels, self._future(), hint, after, **about)

    def value(self, make: Callable[[], Any]) -> Any:
        """A value that is the same in every replay; JSON."""
        path = self._step()
        if self._values_size + self._state_size > STATE_MAX - VALUE_ROOM:
            raise LimitError("now(), random() or uuid4() was called too often without a step in between")
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
        """Whether the new way is taken: yes, unless the history went past this point without it."""
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
        """Show a value to whoever asks the run's handle."""
        self._refuse_if_evicted()
        if self._numbered:
            self._step()
        state = encode(value, what="the value of set_state()")
        if len(state) + self._values_size > STATE_MAX:
            raise LimitError(f"the value of set_state() has {len(state)} bytes, the limit is {STATE_MAX}")
        self._state, self._state_size = state, len(state)

    def subscribed(self, channel: str, stored: str) -> None:
        """A subscription was made, now or in the history."""
        self._channels[channel] = stored

    def unsubscribed(self, channel: str) -> None:
        """It was ended."""
        self._channels.pop(channel, None)

    def stored_channel(self, channel: str) -> str:
        """The stored name of a channel this run is subscribed to."""
        if channel not in self._channels:
            raise NotSubscribedError(f"this run is not subscribed to {channel!r}: call subscribe() first")
        return self._channels[channel]

    def _step(self) -> str:
        self._refuse_if_evicted()
        scope = current_scope()
        if scope is None:
            raise EngineError("a durable call from outside the tasks of its workflow")
        return scope.next()

    def _refuse_if_evicted(self) -> None:
        """A body that asks on and on, in a loop that catches the refusal, is left to wait for what never comes."""
        if self.evicted and self._refusals < REFUSALS_MAX:
            self._refusals += 1
            raise RunEvicted(f"{self.instance_id} is no longer driven here")

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
        raise RunEvicted(what)  # an `except Exception` of the body must not go on from here

    def _future(self) -> "asyncio.Future[Any]":
        return self._loop.create_future()

    def _on_drop(self, future: "asyncio.Future[Any]", drop: Callable[[], None]) -> None:
        future.add_done_callback(lambda done: drop() if done.cancelled() else None)

    # What the steps come to.

    def _expect_attempt(self, step: ActivityStep) -> None:
        self._expected[step.id] = lambda event: self._activity_done(step, event)
        self._expected[step.attempt_id] = lambda event: self._attempt_failed(step, event)
        if step.activity.undo is not None and not step.begun:
            self._expected[step.start_id] = lambda event: self._begun(step, event)

    def _check_call(self, id: str, call: Call, event: HistoryEvent) -> None:
        """Refuse a row of another call: the same step, but with other arguments."""
        if event.data_type == "json" and call.differs(event.event_data_binary):
            self._mismatch(f"the history has {id} with other arguments than the code calls it with now", call)

    def _check_channel(self, wait: WaitStep, channel: str, event: HistoryEvent) -> None:
        """Refuse a message of another channel, or an event of another type. (A run that is tried again as a new one
        has events that were sent to the first: the receiver does not count.)"""
        if self._live or event.data_type != "json":
            return  # what comes live was waited for by this very code
        about = json.loads(event.event_data or b"{}")
        found = about.get("channel") or about.get("channel_name") if isinstance(about, dict) else None
        if not isinstance(found, str) or found == channel:
            return
        known, name = names.public(found), names.public(wait.kind or channel)
        if known != name and (wait.kind is None or not known.startswith(f"{name}:")):
            self._mismatch(f"the history has a message of {known!r} at {wait.id}, but the code waits for {name!r}")

    def _check_match(self, wait: WaitStep, event: HistoryEvent) -> None:
        """Refuse an event that was chosen by other values. (Earlier versions recorded events that did not match.)"""
        about = json.loads(event.event_data or b"{}") if event.data_type == "json" else None
        chosen_by = about.get("match") if isinstance(about, dict) else None
        if chosen_by is not None and (
            not wait.where or chosen_by != match_of(str(about["channel"]), wait.where).key  # type: ignore[index]
        ):
            asked = dict(wait.where) if wait.where else "anything"
            self._mismatch(
                f"the history has an event at {wait.id} that matched other values than the code asks for now", asked
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
        """The function made a timer."""
        self._refuse_if_evicted()
        self._refuse_if_too_many()
        step = self.timers[timer] = TimerStep(f"{timer.path}:timer", timer, replayed=self._more)
        self._expected[step.id] = lambda _: self._fire(step)

    def drop(self, timer: Timer) -> None:
        """It gave the timer up."""
        step = self.timers.pop(timer, None)
        if step is not None:
            self._expected.pop(step.id, None)
            step.stop()

    def _fire(self, step: TimerStep) -> None:
        self.drop(step.timer)
        self._loop.fire(step.timer)


def _without_recur(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The errors of a `TaskGroup` in which a task called `recur()`; if there are none, that counts, and is raised."""
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
    """What a row says of a step. One that cannot be read is the code's mistake, and not the step's."""
    data = event.event_data or b"null"
    if event.event_type == HistoryEventType.ACTIVITY_FAILED:
        return None, decode_failure(json.loads(data))
    return read(data), None
