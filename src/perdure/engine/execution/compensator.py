"""The compensation of single steps in a rollback, and the failure handler that follows.

The start of an activity with a compensation is recorded. If it started but has no recorded outcome, it may or may not
have taken effect: it is compensated with `result=None` if the compensation accepts that, and otherwise it is first
executed until it has an outcome.
"""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure.engine.execution.compensations import (
    RECORDED,
    accepts_no_result,
    arguments,
    compensation_of,
    registered_activity,
    workflow_compensation,
)
from perdure.engine.execution.interfaces import Executable, Host
from perdure.engine.execution.rollback_attempts import RollbackAttempts
from perdure.engine.execution.rollback_history import RollbackHistory
from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.failures import encode_failure
from perdure.engine.history.records import Compensated, Completed
from perdure.engine.replay.definitions import ActivityDefinition
from perdure.errors import EngineError
from perdure.hooks import CompensationCompleted, CompensationFailed
from perdure.model.envelopes import check_readable
from perdure.model.records import CompensationEntry
from perdure.model.states import WorkflowStatus


class Compensator:
    """Compensates the steps of one run, each when the rollback says so."""

    def __init__(
        self,
        host: Host,
        history: RollbackHistory,
        attempts: RollbackAttempts,
        run: Executable,
        input_data: bytes,
    ) -> None:
        self._host = host
        self._history = history
        self._attempts = attempts
        self._run = run
        self._input = input_data

    async def settle(self, step: str) -> None:
        """Compensate an activity that started but has no recorded outcome, or execute it until it has one."""
        activity, compensation = registered_activity(ids.name_of(step))
        given = self._history.begun[step]
        if accepts_no_result(compensation):
            await self._execute(compensation, Compensated(step, ids.name_of(step)), json.loads(given), None)
            return
        done = await self._attempts.execute(activity, step, step, given)
        if done.error is not None:
            await self._attempts.record_outcome(step, step, activity, done)
            return
        entry = compensation_of(self._run.id, step, activity.name, given, done.result)
        async with self._host.storage.transaction():
            await self._host.storage.add_compensation(entry, lease=self._history.lease)
            await self._history.append(Completed(step, done.result))
        self._attempts.report_completed(step, step, activity, done)

    async def compensate(self, entry: CompensationEntry) -> None:
        """Execute a stored compensation, and record its outcome."""
        check_readable(entry.args, f"the compensation of {entry.activity_id!r} of run {entry.instance_id!r}")
        step, name, about = entry.activity_id, entry.activity_name, json.loads(entry.args)
        if RECORDED in about:
            about = {"input": json.loads(self._history.begun[step]), "result": json.loads(await self._result_of(step))}
        if "child" not in about:
            (_, compensation), result = registered_activity(name), about["result"]
        else:
            output = await self._output_of(about["child"], step)
            if output is None:
                return  # a child that did not complete has compensated its own steps
            compensation, result = workflow_compensation(name), json.loads(output)
        await self._execute(compensation, Compensated(step, name, entry.id), about["input"], result)

    async def _result_of(self, step: str) -> bytes:
        result = await self._history.result_of(step)
        if result is None:
            raise EngineError(
                f"step {step!r} of run {self._run.id!r} cannot be compensated: its result is missing in the history"
            )
        return result

    async def _output_of(self, child: str, step: str) -> bytes | None:
        """Return the result of a completed child, or None if it did not complete.

        The recorded message about its end comes first, because retention may have deleted the child's row.
        """
        channel = ids.end_channel(self._run.id, self._run.generation, ids.path_of(step))
        if channel in self._history.ends:
            end = self._history.ends[channel]
            return encode(end["output"]) if end["status"] == "completed" else None
        found = await self._host.storage.get_instance(child)
        if found is None or found.status is not WorkflowStatus.COMPLETED:
            return None
        return found.output_data or b"null"

    async def _execute(
        self, compensation: ActivityDefinition, executed: Compensated, given: dict[str, Any], result: object
    ) -> None:
        """Execute a compensation and record it as executed, or as failed."""
        id, step, name = executed.row_id, executed.step, compensation.name
        payload = arguments(compensation, given, result)
        done = await self._attempts.execute(compensation, id, f"undo:{step}", payload)
        attempt = self._history.next_attempt(id)
        if done.error is None:
            await self._history.append(executed)
            duration = timedelta(seconds=done.seconds)
            self._host.happened(CompensationCompleted(*self._run.about(), step, name, attempt, duration))
        else:
            failure = encode_failure(done.error)
            await self._history.append(replace(executed, failure=failure))
            kind, message = failure["error_type"], failure["error_message"]
            self._host.happened(CompensationFailed(*self._run.about(), step, name, attempt, kind, message))

    async def handle_failure(self) -> None:
        """Execute the failure handler of the workflow, if it has one that was not executed before."""
        handler = self._run.workflow.failure_handler
        if handler is None or self._history.has(ids.HANDLED):
            return
        check_readable(self._input, f"the input of run {self._run.id!r}")
        payload = arguments(handler, json.loads(self._input), None, error=self._history.cause.error)
        done = await self._attempts.execute(handler, ids.HANDLED, "on_failure", payload)
        await self._attempts.record_outcome(ids.HANDLED, "on_failure", handler, done)
