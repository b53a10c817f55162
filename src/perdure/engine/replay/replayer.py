"""The replayer: a workflow's function and its history, without a database and without a clock.

`feed` passes the next record to the body, which then runs until all its tasks wait; what it wants comes back as
commands. So a replay is deterministic, in whatever order steps completed. A record that no step waits for means that
the code differs from the code that made the history.

    replayer = Replayer(workflow, run_id, input_data)
    for row in history:
        replayer.feed(record_of(row))
    commands = replayer.catch_up()
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any

from perdure.engine.history.digests import stamped
from perdure.engine.history.records import Record, Taken
from perdure.engine.replay.body import Body, Recur, RunEvicted
from perdure.engine.replay.commands import Command, Take
from perdure.engine.replay.context import ATTEMPT, RUN
from perdure.engine.replay.definitions import WorkflowDefinition
from perdure.engine.replay.loop import STEP_CALLBACKS
from perdure.engine.replay.open_steps import OpenSteps
from perdure.engine.replay.steps import ActivityStep
from perdure.errors import NotDurableError, WorkflowCancelledError
from perdure.model.headers import NONE, Headers

log = logging.getLogger("perdure.engine")

EVICTIONS_MAX = 100  # how often an evicted body may catch its cancellation
EVICTION_BUDGET = 10_000  # how many callbacks it may run after each cancellation, beside those that end its tasks

Outcome = tuple[Any, BaseException | None]


class Replayer:
    """Runs a workflow's function from the records of its history."""

    __slots__ = ("_body", "_fed", "_held", "_input", "_task", "done")

    def __init__(
        self,
        workflow: WorkflowDefinition,
        run_id: str,
        input_data: bytes,
        generation: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        headers: Headers = NONE,
    ) -> None:
        self._input = input_data  # until the body begins
        self._body = Body(workflow, run_id, generation, clock, headers)
        self._task: asyncio.Task[Any] | None = None
        self.done = False  # the function has ended
        self._held: Record | None = None  # passed to the body once the next record is known
        self._fed = 0

    # Records in, commands out.

    def feed(self, record: Record) -> list[Command]:
        """Pass the next record of the history to the body; return the commands so far, none in a first replay.

        The body sees a record when the next one is fed, or when `catch_up` is called: the values that it takes because
        of a record are in the next one.
        """
        self._feed(record)
        return self._body.steps.commands()

    def feed_all(self, records: Iterable[Record]) -> list[Command]:
        """Pass the next records of the history to the body: like `feed`, but faster."""
        self._body.loop.inside(self._feed_all, records)
        return self._body.steps.commands()

    def _feed_all(self, records: Iterable[Record]) -> None:
        values = self._body.values
        for record in records:
            if self._held is None or not values.untouched or isinstance(record, Taken):
                self._feed(record)
            else:  # nearly always: what `_feed` does where no values were taken and none follow
                held, self._held = self._held, record
                self._accept(held)
                self._run()

    def _feed(self, record: Record) -> None:
        if isinstance(record, Taken):
            self._continue(record, more=True)
        else:
            self._continue(None, more=True)
            self._held = record

    def pass_held(self) -> None:
        """Pass the last record to the body, unless it has seen it, because the next one has no values for it."""
        self._continue(None, more=True)

    def feed_live(self, record: Record) -> list[Command]:
        """Pass a record to the body at once, because it has just been made: no row follows it yet."""
        if self._held is not None or self._task is None or isinstance(record, Taken):
            return [*self.feed(record), *self.catch_up()]
        self._held = record
        if not self._body.steps.live:
            return self.catch_up()
        self._continue(None, more=False)
        return self._wanted()

    def catch_up(self) -> list[Command]:
        """Note that the history has no more records: the body now executes new code, and its steps become commands."""
        self._continue(None, more=False)
        self._body.values.end_replay()
        self._body.steps.go_live()
        return self._wanted()

    def _wanted(self) -> list[Command]:
        """Return what the body wants after it ran; first of all, that the values which it took are recorded."""
        commands = self._body.steps.commands()
        taken = None if self._body.evicted else self._body.values.record(self._fed)
        return commands if taken is None else [Take(taken), *commands]

    def resume(self) -> list[Command]:
        """Return the commands for all open steps once more, because the run was parked."""
        self._body.steps.resume()
        return self._body.steps.commands()

    def _continue(self, upcoming: Taken | None, *, more: bool) -> None:
        """Call the function, or pass it the record that was held back, and run it until all its tasks wait."""
        if self._task is not None and self._held is None:
            return
        self._body.values.look_ahead(upcoming, more=more)
        if self._task is None:
            self._begin()
        elif self._held is not None:
            record, self._held = self._held, None
            self._accept(record)
        self._run()

    def _accept(self, record: Record) -> None:
        self._fed += 1
        if record.call is not None:
            self._body.loop.advance(stamped(record.call))
        if not self._body.steps.accept(record):
            self._body.steps.refuse(record, self._end() if self.done else None)

    def _begin(self) -> None:
        workflow = self._body.workflow
        args, kwargs = workflow.signature.unbind(self._input)
        self._input = b""
        context = copy_context()
        if ATTEMPT.get() is not None:
            context.run(ATTEMPT.set, None)
        context.run(RUN.set, self._body)
        self._task = context.run(self._body.loop.spawn, workflow.function(*args, **kwargs))

    def _run(self) -> None:
        body = self._body
        body.loop.pump()
        if body.broken is not None:
            raise body.broken
        if not body.values.untouched and (left := body.values.end_turn()):
            values = f"values at {', '.join(left)}"
            what = f"the history has {values}, which the code does not take"
            self._body.mismatch.fail(what, left[0], values, "takes no value there")
        self.done = self._task is not None and self._task.done()
        if self.done:
            self._error()  # retrieved, so that asyncio does not warn of it: `outcome()` returns it later

    def _error(self) -> BaseException | None:
        """Return what the function raised."""
        return None if self._task is None or self._task.cancelled() else self._task.exception()

    def _end(self) -> str:
        """Return how the function has ended."""
        error = self._error()
        if not isinstance(error, Exception):  # it has returned, or calls recur()
            return "has ended by then"
        return f"has failed by then: {type(error).__name__}: {error}"

    # What became of the function.

    @property
    def begun(self) -> bool:
        """Return whether the function was called."""
        return self._task is not None

    @property
    def time(self) -> float:
        """Return the time of the body's loop: seconds since the function was called."""
        return self._body.loop.time()

    @property
    def unsettled(self) -> bool:
        """Return whether an activity with a compensation started and has no outcome."""
        return bool(self._body.steps.unsettled)

    @property
    def children(self) -> Collection[str]:
        """Return the children that have not ended."""
        return self._body.children

    @property
    def steps(self) -> OpenSteps:
        """Return the steps that the body waits for."""
        return self._body.steps

    def expects(self, row_id: str) -> bool:
        """Return whether the body waits for a row with this id."""
        return self._body.steps.expects(row_id)

    def failed_step(self, error: BaseException) -> ActivityStep | None:
        """Return the activity whose error this is; None if the error is the body's own."""
        last = self._body.steps.last_failure
        return None if last is None or last[0] is not error else last[1]

    def outcome(self) -> Outcome:
        """Return what the function returned or raised. `Recur`, and `RunEvicted` of an evicted body, are raised."""
        assert self._task is not None
        if self._task.cancelled():
            return None, WorkflowCancelledError("the workflow's own code cancelled its main task")
        error = self._task.exception()
        if error is None:
            return self._task.result(), None
        if isinstance(error, Recur) or (self._body.evicted and isinstance(error, RunEvicted)):
            raise error
        if isinstance(error, BaseExceptionGroup):
            return None, _without_recur(error)
        return None, error

    # Removing the body from memory.

    @property
    def evicted(self) -> bool:
        """Return whether the body was removed from memory."""
        return self._body.evicted

    def evict(self) -> None:
        """Remove the body from memory: end its tasks and refuse further steps. The run itself does not end."""
        if self._body.evicted:
            return
        self._body.evicted = True
        self._body.values.end_replay()
        if not self._body.loop.idle and not self._end_tasks() and not self._body.loop.abandon(EVICTIONS_MAX):
            log.warning(
                "the body of run %s (%s) could not be removed from memory, because it catches its cancellation (a bare "
                "`except:` in a loop?); it stays in memory until this process ends",
                self._body.run_id,
                self._body.workflow.name,
                extra={"run_id": self._body.run_id, "workflow": self._body.workflow.name},
            )
        self._body.loop.close()

    def _end_tasks(self) -> bool:
        """Cancel the body's tasks, repeatedly up to a limit; return whether all have ended."""
        loop = self._body.loop
        for _ in range(EVICTIONS_MAX):
            tasks = loop.tasks()
            for task in tasks:
                task.cancel("the run is no longer executed here")
            try:
                loop.pump(EVICTION_BUDGET + STEP_CALLBACKS * len(tasks))
            except NotDurableError:
                return False
            if not loop.tasks():
                return True
        return False


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
