"""The open steps of a body: which record completes which step, and what the body wants next."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from perdure.engine.history import ids
from perdure.engine.history.codec import decode
from perdure.engine.history.failures import decode_failure
from perdure.engine.history.records import (
    AttemptFailed,
    Completed,
    Failed,
    MessageReceived,
    PauseEnded,
    Record,
    Started,
    TimerFired,
    WaitTimedOut,
)
from perdure.engine.replay.commands import Apply, Await, Command, Execute, Forget, Pause, SetTimer
from perdure.engine.replay.loop import Timer
from perdure.engine.replay.mismatch import Mismatch
from perdure.engine.replay.steps import ActivityStep, EffectStep, TimerStep, WaitStep

Accept = Callable[[Record], None]


class OpenSteps:
    """The unfinished steps of one body.

    Until `live` is set, the history decides what happens to a step, and there are no commands.
    """

    def __init__(self, mismatch: Mismatch, fire: Callable[[Timer], None]) -> None:
        self.activities: dict[str, ActivityStep] = {}
        self.effects: dict[str, EffectStep] = {}
        self.waits: dict[str, WaitStep] = {}
        self.timers: dict[Timer, TimerStep] = {}
        self.unsettled: dict[str, None] = {}  # steps with a compensation that started and have no outcome
        self.last_failure: tuple[BaseException, ActivityStep] | None = None  # the last activity's error in the body
        self.live = False
        self._mismatch = mismatch
        self._fire = fire
        self._expected: dict[str, Accept] = {}
        self._commands: list[Command] = []

    def __len__(self) -> int:
        return len(self.activities) + len(self.effects) + len(self.waits) + len(self.timers)

    # Commands.

    def go_live(self) -> None:
        """Begin to return commands, at first for all steps that are open."""
        if self.live:
            return
        self.live = True
        for activity in self.activities.values():
            self._command(Pause(activity) if activity.pause_sec else Execute(activity))
        for effect in self.effects.values():
            self._command(Apply(effect))
        for wait in self.waits.values():
            self._command(Await(wait))
        for timer in self.timers.values():
            self._command(SetTimer(timer))

    def commands(self) -> list[Command]:
        """Return the commands since the last call."""
        found, self._commands = self._commands, []
        return found

    def _command(self, command: Command) -> None:
        if self.live:
            self._commands.append(command)

    # Steps that the body begins.

    def add_activity(self, step: ActivityStep) -> None:
        """Add an activity, from its first attempt on."""
        self.activities[step.id] = step
        self._expect_attempt(step)
        self._command(Execute(step))

    def add_effect(self, step: EffectStep) -> None:
        """Add a step that writes to the database."""
        self.effects[step.id] = step
        self._expected[step.id] = lambda record: self._effect_done(step, record)
        self._command(Apply(step))
        _when_cancelled(step.future, lambda: self._drop_effect(step))

    def add_wait(self, step: WaitStep) -> None:
        """Add a wait for a message."""
        self.waits[step.id] = step
        self._expect_message(step)
        self._command(Await(step))
        _when_cancelled(step.future, lambda: self._drop_wait(step))

    def add_timer(self, step: TimerStep) -> None:
        """Add a timer of the body's loop."""
        self.timers[step.timer] = step
        self._expected[step.id] = lambda record: self._timer_fired(step, record)
        self._command(SetTimer(step))

    def drop_timer(self, timer: Timer) -> None:
        """Remove a timer that has fired or that the body cancelled."""
        step = self.timers.pop(timer, None)
        if step is not None:
            self._expected.pop(step.id, None)
            self._command(Forget(step.id))

    # Records that the history has for them.

    def expects(self, row_id: str) -> bool:
        """Return whether the body waits for a row with this id."""
        return row_id in self._expected

    def accept(self, record: Record, *, ended: str | None) -> None:
        """Pass a record to its step. Raise `NonDeterminismError` if no step waits for it.

        `ended` says how the body has ended; None if it has not.
        """
        accept = self._expected.pop(record.row_id, None)
        if accept is None and isinstance(record, AttemptFailed) and (step := self._attempted(record)) is not None:
            self._attempt_failed(step, record)
            return
        if accept is None:
            instead = ended or f"waits for {', '.join(sorted(self._expected)[:5]) or 'nothing'}"
            self._unexpected(record, f"the code {instead}")
        accept(record)

    def _unexpected(self, record: Record, instead: str) -> NoReturn:
        recorded = f"{record.row_id} ({record.kind})"
        step, called = getattr(record, "step", record.row_id), instead.removeprefix("the code ")
        self._mismatch.fail(f"the history continues with {recorded}, but {instead}", step, recorded, called)

    def _expect_attempt(self, step: ActivityStep) -> None:
        self._expected[step.id] = lambda record: self._activity_done(step, record)
        if step.undoable and not step.started:
            self._expected[ids.start_of(step.id)] = lambda record: self._activity_started(step, record)

    def _activity_started(self, step: ActivityStep, record: Record) -> None:
        if not isinstance(record, Started):
            self._unexpected(record, f"the code starts {step.id}")
        self._mismatch.check_call(step.id, step.call, record)
        step.started = True
        self.unsettled[step.id] = None

    def _attempted(self, record: AttemptFailed) -> ActivityStep | None:
        """Return the activity whose current attempt failed, or None."""
        step = self.activities.get(record.step)
        return step if step is not None and step.attempt == record.attempt and not step.pause_sec else None

    def _activity_done(self, step: ActivityStep, record: Record) -> None:
        if not isinstance(record, Completed) or record.decoded is None:  # it is in the history
            self._mismatch.check_call(step.id, step.call, record)
        self.drop_activity(step)
        self.unsettled.pop(step.id, None)
        if isinstance(record, Failed):
            error = decode_failure(record.failure)
            self.last_failure = error, step
            _raise(step.future, error)
        elif isinstance(record, Completed):
            # A result that cannot be decoded is raised here and not in the body: the code differs, not the step.
            known = record.decoded
            _settle(step.future, step.activity.signature.decode_result(record.result) if known is None else known[0])
        else:
            self._unexpected(record, f"the code executes the activity {step.id}")

    def _attempt_failed(self, step: ActivityStep, record: AttemptFailed) -> None:
        self._mismatch.check_call(step.id, step.call, record)
        self._expected.pop(step.id, None)
        step.attempt += 1
        step.pause_sec = record.pause_sec or 0.0
        if step.pause_sec:
            self._expected[step.pause_id] = lambda record: self._pause_ended(step, record)
            self._command(Pause(step))
        else:
            self._expect_attempt(step)
            self._command(Execute(step))

    def _pause_ended(self, step: ActivityStep, record: Record) -> None:
        if not isinstance(record, PauseEnded):
            self._unexpected(record, f"the code waits before attempt {step.attempt} of {step.id}")
        step.pause_sec = 0.0
        self._expect_attempt(step)
        self._command(Execute(step))

    def drop_activity(self, step: ActivityStep) -> None:
        """Remove an activity that has ended or that the body cancelled."""
        self._expected.pop(step.id, None)
        if step.undoable:
            self._expected.pop(ids.start_of(step.id), None)
        if step.pause_sec:
            self._expected.pop(step.pause_id, None)
        if self.activities.pop(step.id, None) is not None:
            self._command(Forget(step.id))

    def _effect_done(self, step: EffectStep, record: Record) -> None:
        self._mismatch.check_call(step.id, step.call, record)
        self._drop_effect(step)
        if isinstance(record, Failed):
            _raise(step.future, decode_failure(record.failure))
        elif isinstance(record, Completed):
            _settle(step.future, decode(record.result, step.hint))
        else:
            self._unexpected(record, f"the code calls {ids.name_of(step.id)}() there")

    def _drop_effect(self, step: EffectStep) -> None:
        self._expected.pop(step.id, None)
        if self.effects.pop(step.id, None) is not None:
            self._command(Forget(step.id))

    def _timer_fired(self, step: TimerStep, record: Record) -> None:
        if not isinstance(record, TimerFired):
            self._unexpected(record, f"the code waits for the timer {step.id}")
        self.drop_timer(step.timer)
        self._fire(step.timer)

    def _expect_message(self, wait: WaitStep) -> None:
        for id in wait.row_ids():
            self._expected[id] = lambda record: self._message_received(wait, record)

    def _message_received(self, wait: WaitStep, record: Record) -> None:
        if not isinstance(record, MessageReceived | WaitTimedOut):
            self._unexpected(record, f"the code waits for a message at {wait.id}")
        if not self.live:  # a live message was requested by this very code
            self._mismatch.check_channel(wait, record)
        for id in wait.row_ids():
            self._expected.pop(id, None)
        if isinstance(record, WaitTimedOut):
            self._drop_wait(wait)
            _raise(wait.future, TimeoutError(f"no {wait.awaited} came in time (step {wait.id})"))
            return
        self._mismatch.check_match(wait, record)
        try:
            found, fits = wait.read(record)
        except Exception as error:
            self._drop_wait(wait)
            _raise(wait.future, error)
            return
        if fits:
            self._drop_wait(wait)
            _settle(wait.future, found)
        else:
            wait.round += 1
            self._expect_message(wait)

    def _drop_wait(self, wait: WaitStep) -> None:
        for id in wait.row_ids():
            self._expected.pop(id, None)
        if self.waits.pop(wait.id, None) is not None:
            self._command(Forget(wait.id))


def _when_cancelled(future: "asyncio.Future[Any]", drop: Callable[[], None]) -> None:
    future.add_done_callback(lambda done: drop() if done.cancelled() else None)


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _raise(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
