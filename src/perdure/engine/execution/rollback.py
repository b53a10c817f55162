"""Rollback of a run that failed or was cancelled: the compensations of its steps, in reverse order.

Any worker can execute a rollback under a lease, and resume it where another worker left off, because each compensation
is recorded in the history. A compensation that fails is retried, then reported, and the others still run. At the end
the run has failed or is cancelled.

The start of an activity with a compensation is recorded. If it started but has no recorded outcome, it may or may not
have taken effect: it is compensated with `result=None` if the compensation accepts that, and otherwise it is first
executed until it has an outcome.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, get_args

from perdure import hooks
from perdure.engine.execution import children
from perdure.engine.execution.compensations import RECORDED, compensation_of
from perdure.engine.execution.endings import failed_event
from perdure.engine.execution.interfaces import (
    Attempt,
    Done,
    Drained,
    End,
    Host,
    check_deadline,
    put_down,
)
from perdure.engine.execution.rows import read_rows
from perdure.engine.execution.slots import Slot
from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.failures import encode_failure
from perdure.engine.history.records import (
    AttemptFailed,
    Compensated,
    Completed,
    Failed,
    MessageReceived,
    Parent,
    Record,
    RunCancelled,
    RunFailed,
    Started,
    record_of,
    row_of,
)
from perdure.engine.replay.context import ActivityInfo
from perdure.engine.replay.definitions import COMPENSATIONS, UNDOABLE_WORKFLOWS, ActivityDefinition, WorkflowDefinition
from perdure.errors import EngineError
from perdure.hooks import (
    CompensationCompleted,
    CompensationFailed,
    StepCompleted,
    StepFailed,
    StepRetrying,
)
from perdure.model.records import CompensationEntry, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus


class Rollback:
    """The rollback of one run."""

    def __init__(self, host: Host, workflow: WorkflowDefinition, instance: WorkflowInstance) -> None:
        self.host = host
        self.id = instance.instance_id
        self.workflow = workflow
        self.generation = instance.continued_from
        self.deadline = 0.0
        self.progressed = False
        self.resumed = False
        self.ending = False
        self._input = instance.input_data
        self._began = instance.started_at or host.now()
        self._draining = False
        self.slot: Slot
        self._lease: Lease
        self._recorded: set[str] = set()
        self._begun: dict[str, bytes] = {}
        self._attempts: dict[str, int] = {}
        self._children: set[str] = set()
        self._ends: dict[str, dict[str, Any]] = {}
        self._last_id = 0
        self._parent: Parent | None = None
        self._failure: Mapping[str, Any] = {}
        self._error = ""
        self._cancelled = False

    def drain(self) -> None:
        """Start nothing new."""
        self._draining = True

    def hint(self) -> None:
        """Do nothing: a rollback waits for no messages or timers."""

    def evict(self) -> None:
        """Do nothing: a rollback has no body in memory."""

    @property
    def at_work(self) -> bool:
        """Return whether code may execute now or very soon."""
        return not self.slot.idling

    async def execute(self, lease: Lease) -> End:
        """Execute the remaining compensations and the failure handler, and end the run."""
        self._lease = lease
        self.progressed = self.ending = False
        await self._catch_up()
        await children.end_all(self, self._children, f"its parent {self.id} is being compensated")
        for step in reversed(self._begun):
            if step not in self._recorded and ids.undo_of(step) not in self._recorded:
                await self._settle(step)
        for entry in await self.host.storage.get_compensations(self.id):
            if ids.undo_of(entry.id) not in self._recorded:
                await self._undo(entry)
        await self._handle_failure()
        return await self._end()

    # Reading the history.

    async def _catch_up(self) -> None:
        async for row in read_rows(self.host.storage, self.id, self._last_id):
            self._note(record_of(row))
            self._last_id = row.id

    def _note(self, record: Record) -> None:
        match record:
            case Started(step, arguments):
                self._begun[step] = arguments
            case AttemptFailed(step):
                self._attempts[step] = self._attempts.get(step, 0) + 1
            case Parent():
                self._parent = record
            case MessageReceived() if (record.channel or "").startswith(ids.CHILD_ENDS) and record.envelope:
                self._ends[str(record.channel)] = record.envelope["data"]
            case RunCancelled(reason):
                self._cancelled = True
                self._error = reason or "cancelled"
            case RunFailed(failure) if not self._cancelled:
                self._failure = failure
                self._error = str(failure.get("error_message") or "failed")
            case Completed(step, result) if ids.name_of(step) == ids.CHILD:
                self._children.add(json.loads(result))
        if not isinstance(record, Started | AttemptFailed):
            self._recorded.add(record.row_id)

    # Compensating.

    async def _settle(self, step: str) -> None:
        """Compensate an activity that started but has no recorded outcome."""
        activity = _known(ids.name_of(step))
        assert activity.undo is not None
        if _takes_none(activity.undo):
            await self._run_undo(activity.undo, step, self._begun[step], b"null")
            return
        done = await self._attempt(activity, step, step, self._begun[step])
        if done.error is not None:
            await self._record_outcome(step, step, activity, done)
            return
        entry = compensation_of(self.id, step, activity.name, self._begun[step], done.result)
        async with self.host.storage.transaction():
            await self.host.storage.add_compensation(entry, lease=self._lease)
            await self._record(Completed(step, done.result))
        attempt, duration = self._attempts.get(step, 0) + 1, timedelta(seconds=done.seconds)
        self.host.happened(StepCompleted(*self._about(), step, activity.name, attempt, duration))

    async def _undo(self, entry: CompensationEntry) -> None:
        about = json.loads(entry.args)
        if RECORDED in about:
            about = {"input": json.loads(self._begun[entry.activity_id]), "result": await self._result_of(entry)}
        given = json.dumps(about["input"]).encode()
        if "child" not in about:
            undo, result = _known(entry.activity_name).undo, json.dumps(about["result"]).encode()
        else:
            output = await self._output_of(about["child"], entry.activity_id)
            if output is None:
                return  # a child that did not complete has compensated its own steps
            undo, result = _known_workflow(entry.activity_name).undo, output
        assert undo is not None
        await self._run_undo(undo, entry.activity_id, given, result, entry)

    async def _result_of(self, entry: CompensationEntry) -> Any:
        """Return the recorded result of an activity."""
        async for row in read_rows(self.host.storage, self.id):
            record = record_of(row)
            if isinstance(record, Completed) and record.step == entry.activity_id:
                return json.loads(record.result)
        raise EngineError(
            f"step {entry.activity_id!r} of run {self.id!r} cannot be compensated: its result is missing in the history"
        )

    async def _output_of(self, child: str, step: str) -> bytes | None:
        """Return the result of a completed child, or None if it did not complete.

        The recorded message about its end comes first, because retention may have deleted the child's row.
        """
        channel = ids.end_channel(self.id, self.generation, ids.path_of(step))
        if channel in self._ends:
            end = self._ends[channel]
            return encode(end["output"]) if end["status"] == "completed" else None
        found = await self.host.storage.get_instance(child)
        if found is None or found.status is not WorkflowStatus.COMPLETED:
            return None
        return found.output_data or b"null"

    async def _run_undo(
        self,
        undo: ActivityDefinition,
        step: str,
        given: bytes,
        result: bytes,
        entry: CompensationEntry | None = None,
    ) -> None:
        name = entry.activity_name if entry else ids.name_of(step)
        executed = Compensated(step, name, entry.id if entry else None)
        id = executed.row_id
        done = await self._attempt(undo, id, f"undo:{step}", _arguments(undo, given, result))
        attempt = self._attempts.get(id, 0) + 1
        if done.error is None:
            await self._record(executed)
            duration = timedelta(seconds=done.seconds)
            self.host.happened(CompensationCompleted(*self._about(), step, undo.name, attempt, duration))
        else:
            failure = encode_failure(done.error)
            await self._record(replace(executed, failure=failure))
            kind, message = failure["error_type"], failure["error_message"]
            self.host.happened(CompensationFailed(*self._about(), step, undo.name, attempt, kind, message))

    async def _attempt(self, activity: ActivityDefinition, id: str, step: str, payload: bytes) -> Done:
        """Execute an activity until it succeeds or its attempts are used up; failed attempts are recorded."""
        while True:
            if self._draining:
                raise Drained(self.id)
            attempt = self._attempts.get(id, 0) + 1
            key = f"{self.id}:{self.generation or ''}:{step}"
            info = ActivityInfo(self.id, self.workflow.name, activity.name, step, attempt, key, self._lease.token)
            done = await self._execute(Attempt(activity, payload, info, lambda: check_deadline(self)))
            pause = None if done.error is None else activity.retry.pause(attempt, done.error)
            if done.error is None or pause is None:
                return done
            self._attempts[id] = attempt
            failure = encode_failure(done.error)
            await self._record(AttemptFailed(id, attempt, failure))
            self.host.happened(
                StepRetrying(
                    *self._about(),
                    step,
                    activity.name,
                    attempt,
                    max_attempts=activity.retry.attempts,
                    retry_in=timedelta(seconds=pause),
                    error_type=failure["error_type"],
                    error_message=failure["error_message"],
                )
            )
            await self.slot.pause(pause)

    async def _execute(self, attempt: Attempt) -> Done:
        task = asyncio.create_task(self.host.execute(attempt), name=f"{self.id} {attempt.info.step}")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await put_down([task], [task] if attempt.activity.plain else [])
            raise

    async def _handle_failure(self) -> None:
        handler = self.workflow.failure_handler
        if handler is None or ids.HANDLED in self._recorded:
            return
        payload = _arguments(handler, self._input, b"null", error=self._error)
        done = await self._attempt(handler, ids.HANDLED, "on_failure", payload)
        await self._record_outcome(ids.HANDLED, "on_failure", handler, done)

    async def _record_outcome(self, id: str, step: str, activity: ActivityDefinition, done: Done) -> None:
        """Record the outcome of an activity that is not a compensation."""
        attempt = self._attempts.get(id, 0) + 1
        if done.error is None:
            await self._record(Completed(id, done.result))
            duration = timedelta(seconds=done.seconds)
            self.host.happened(StepCompleted(*self._about(), step, activity.name, attempt, duration))
        else:
            failure = encode_failure(done.error)
            await self._record(Failed(id, failure))
            kind, message = failure["error_type"], failure["error_message"]
            self.host.happened(StepFailed(*self._about(), step, activity.name, attempt, kind, message))

    async def _record(self, record: Record) -> None:
        await self.host.storage.append_history(row_of(self.id, record), lease=self._lease)
        self._recorded.add(record.row_id)
        self.progressed = True

    async def _end(self) -> End:
        """End the run as failed or cancelled; a cancellation that was acknowledged counts, however late it came."""
        storage, self.ending = self.host.storage, True
        async with storage.transaction():
            held = WorkflowStatus.COMPENSATING  # unchanged, but this locks the row against a concurrent cancellation
            await storage.update_instance_status(self.id, held, lease=self._lease)
            await self._catch_up()
            status = WorkflowStatus.CANCELLED if self._cancelled else WorkflowStatus.FAILED
            if self._parent is not None:
                end = children.was_cancelled(self._error) if self._cancelled else children.failed(encode(self._failure))
                await children.notify_parent(storage, self._parent, end, self.id)
            await storage.update_instance_status(self.id, status, lease=self._lease)
        lasted = max(self.host.now() - self._began, timedelta(0))
        if self._cancelled:
            self.host.happened(hooks.RunCancelled(*self._about(), self._error, lasted))
            return End.CANCELLED
        self.host.happened(failed_event(self._about(), self._failure, lasted))
        return End.FAILED

    def _about(self) -> tuple[str, str, datetime]:
        return self.id, self.workflow.name, self.host.now()


def _known(name: str) -> ActivityDefinition:
    activity = COMPENSATIONS.get(name)
    if activity is None or activity.undo is None:
        raise EngineError(_unregistered(name))
    return activity


def _known_workflow(name: str) -> WorkflowDefinition:
    workflow = UNDOABLE_WORKFLOWS.get(name)
    if workflow is None:
        raise EngineError(_unregistered(name))
    return workflow


def _unregistered(name: str) -> str:
    return f"no compensation for {name!r} is registered in this process: start a worker that imports it"


def _takes_none(undo: ActivityDefinition) -> bool:
    hint = undo.signature.hints.get("result", Any)
    return hint in (Any, None, type(None)) or type(None) in get_args(hint)


def _arguments(activity: ActivityDefinition, given: bytes, result: bytes, **more: object) -> bytes:
    """Return the arguments of a compensation or handler: those of the call, the result and more that it names."""
    known = {**json.loads(given), **more, "result": json.loads(result)}
    return json.dumps({name: known[name] for name in activity.signature.hints if name in known}).encode()
