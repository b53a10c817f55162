"""The open steps of a body: which record completes which step, and what the body wants next."""

import asyncio
from typing import Any, NoReturn, TypeVar, cast

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
from perdure.engine.replay.loop import BodyFuture, BodyLoop
from perdure.engine.replay.mismatch import Mismatch
from perdure.engine.replay.steps import ActivityStep, EffectStep, TimerStep, WaitStep

Step = ActivityStep | EffectStep | WaitStep | TimerStep
Kind = TypeVar("Kind", ActivityStep, EffectStep, WaitStep, TimerStep)


class OpenSteps:
    """The unfinished steps of one body.

    Until `live` is set, the history decides what happens to a step, and there are no commands.
    """

    __slots__ = ("_commands", "_loop", "_mismatch", "last_failure", "live", "open", "unsettled")

    def __init__(self, mismatch: Mismatch, loop: BodyLoop) -> None:
        self.unsettled: set[str] | None = None  # steps with a compensation that started and have no outcome
        self.last_failure: tuple[BaseException, ActivityStep] | None = None  # the last activity's error in the body
        self.live = False
        self._mismatch = mismatch
        self._loop = loop
        self.open: dict[str, Step] = {}  # by their ids, in the order of the calls; others only look at it
        self._commands: list[Command] = []

    def __len__(self) -> int:
        return len(self.open)

    def get(self, step_id: str) -> Step | None:
        """Return the step with this id, or None."""
        return self.open.get(step_id)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the steps of one class."""
        return [step for step in self.open.values() if isinstance(step, kind)]

    # Commands.

    def go_live(self) -> None:
        """Begin to return commands, at first for all steps that are open."""
        if self.live:
            return
        self.live = True
        self._command_all()

    def resume(self) -> None:
        """Repeat the commands for all steps that are open, because the run was parked: rows keep the time since."""
        for timer in self.of(TimerStep):
            timer.has_row = True
        self._command_all()

    def commands(self) -> list[Command]:
        """Return the commands since the last call."""
        found, self._commands = self._commands, []
        return found

    def _command_all(self) -> None:
        for step in self.open.values():
            self._command(_command_of(step))

    def _command(self, command: Command) -> None:
        if self.live:
            self._commands.append(command)

    # Steps that the body begins and ends.

    def add(self, step: Step) -> None:
        """Add a step that the body begins."""
        self.open[step.id] = step
        if self.live:
            self._commands.append(_command_of(step))

    def drop(self, step_id: str) -> None:
        """Remove a step that has ended or that the body cancelled."""
        if self.open.pop(step_id, None) is not None and self.live:
            self._commands.append(Forget(step_id))

    # Records that the history has for them.

    def expects(self, row_id: str) -> bool:
        """Return whether the body waits for a row with this id."""
        return self._expecting(row_id) is not None

    def _expecting(self, row_id: str) -> Step | None:
        """Return the step that waits for a row with this id."""
        step = self.open.get(row_id) or self.open.get(ids.step_of(row_id))
        return step if step is not None and step.expects(row_id) else None

    def accept(self, record: Record) -> bool:
        """Pass a record to its step; return False if no step waits for it."""
        if type(record) is Completed:  # nearly every row
            executed = self.open.get(record.step)
            if type(executed) is ActivityStep and not executed.pause_sec:
                self._activity_completed(executed, record)
                return True
        step = self._attempted(record) if isinstance(record, AttemptFailed) else self._expecting(record.row_id)
        if step is None:
            return False
        if isinstance(step, ActivityStep):
            self._accept_activity(step, record)
        elif isinstance(step, WaitStep):
            self._message_received(step, record)
        elif isinstance(step, TimerStep):
            self._timer_fired(step, record)
        else:
            self._effect_done(step, record)
        return True

    def refuse(self, record: Record, ended: str | None) -> NoReturn:
        """Raise `NonDeterminismError` for a record that no step waits for.

        `ended` says how the body has ended; None if it has not.
        """
        rows = sorted(row for step in self.open.values() for row in step.row_ids())
        instead = ended or f"waits for {', '.join(rows[:5]) or 'nothing'}"
        self._unexpected(record, f"the code {instead}")

    def _unexpected(self, record: Record, instead: str) -> NoReturn:
        recorded = f"{record.row_id} ({record.kind})"
        step, called = getattr(record, "step", record.row_id), instead.removeprefix("the code ")
        self._mismatch.fail(f"the history continues with {recorded}, but {instead}", step, recorded, called)

    # Activities.

    def _attempted(self, record: AttemptFailed) -> ActivityStep | None:
        """Return the activity whose current attempt failed, or None."""
        step = self.open.get(record.step)
        is_current = isinstance(step, ActivityStep) and step.attempt == record.attempt and not step.pause_sec
        return cast(ActivityStep, step) if is_current else None

    def _accept_activity(self, step: ActivityStep, record: Record) -> None:
        if isinstance(record, AttemptFailed):
            self._attempt_failed(step, record)
        elif record.row_id == step.id:
            self._activity_failed(step, record)
        elif step.pause_sec:
            self._pause_ended(step, record)
        else:
            self._activity_started(step, record)

    def _activity_started(self, step: ActivityStep, record: Record) -> None:
        if not isinstance(record, Started):
            self._unexpected(record, f"the code starts {step.id}")
        self._mismatch.check_call(step.id, step.call, record)
        step.started = True
        if self.unsettled is None:
            self.unsettled = set()
        self.unsettled.add(step.id)

    def _activity_completed(self, step: ActivityStep, record: Completed) -> None:
        known, future = record.decoded, step.future
        if known is None:  # it is in the history
            self._mismatch.check_call(step.id, step.call, record)
        del self.open[step.id]
        if self.live:
            self._commands.append(Forget(step.id))
        if step.undoable:
            self._settled(step)
        if not future.done():
            # A result that cannot be decoded is raised here and not in the body: the code differs, not the step.
            future.set_result(step.activity.signature.decode_result(record.result) if known is None else known[0])

    def _activity_failed(self, step: ActivityStep, record: Record) -> None:
        self._mismatch.check_call(step.id, step.call, record)
        self.drop(step.id)
        self._settled(step)
        if not isinstance(record, Failed):
            self._unexpected(record, f"the code executes the activity {step.id}")
        error = decode_failure(record.failure)
        self.last_failure = error, step
        _raise(step.future, error)

    def _settled(self, step: ActivityStep) -> None:
        if self.unsettled is not None:
            self.unsettled.discard(step.id)

    def _attempt_failed(self, step: ActivityStep, record: AttemptFailed) -> None:
        self._mismatch.check_call(step.id, step.call, record)
        step.attempt += 1
        step.pause_sec = record.pause_sec or 0.0
        self._command(_command_of(step))

    def _pause_ended(self, step: ActivityStep, record: Record) -> None:
        if not isinstance(record, PauseEnded):
            self._unexpected(record, f"the code waits before attempt {step.attempt} of {step.id}")
        step.pause_sec = 0.0
        self._command(Execute(step))

    # Other steps.

    def _effect_done(self, step: EffectStep, record: Record) -> None:
        self._mismatch.check_call(step.id, step.call, record)
        self.drop(step.id)
        if isinstance(record, Failed):
            _raise(step.future, decode_failure(record.failure))
        elif isinstance(record, Completed):
            _settle(step.future, decode(record.result, step.hint))
        else:
            self._unexpected(record, f"the code calls {ids.name_of(step.id)}() there")

    def _timer_fired(self, step: TimerStep, record: Record) -> None:
        if not isinstance(record, TimerFired):
            self._unexpected(record, f"the code waits for the timer {step.id}")
        self.drop(step.id)
        self._loop.fire(step.timer)

    def _message_received(self, wait: WaitStep, record: Record) -> None:
        if not isinstance(record, MessageReceived | WaitTimedOut):
            self._unexpected(record, f"the code waits for a message at {wait.id}")
        if not self.live:  # a live message was requested by this very code
            self._mismatch.check_channel(wait, record)
        if isinstance(record, WaitTimedOut):
            self.drop(wait.id)
            _raise(wait.future, TimeoutError(f"no {wait.awaited} came in time (step {wait.id})"))
            return
        self._mismatch.check_match(wait, record)
        try:
            found, fits = wait.read(record)
        except Exception as error:
            self.drop(wait.id)
            _raise(wait.future, error)
            return
        if fits:
            self.drop(wait.id)
            _settle(wait.future, found)
        else:
            wait.round += 1


class StepFuture(BodyFuture[Any]):
    """The future of a step that is dropped when the body cancels it."""

    __slots__ = ("_step_id", "_steps")

    def __init__(self, step_id: str, steps: OpenSteps, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._step_id = step_id  # not the step, which refers to this future
        self._steps = steps

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future and drop the step, unless it has ended."""
        cancelled = super().cancel(msg)
        if cancelled:
            self._steps.drop(self._step_id)
        return cancelled


def _command_of(step: Step) -> Command:
    """Return the command for a step that is open."""
    if isinstance(step, ActivityStep):
        return Pause(step) if step.pause_sec else Execute(step)
    if isinstance(step, WaitStep):
        return Await(step)
    return SetTimer(step) if isinstance(step, TimerStep) else Apply(step)


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _raise(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
