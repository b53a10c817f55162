"""The end of a run: it completes, fails, recurs, or ends after its rollback.

Everything before the end is durable by then, or is stored by the same commit if the run just completes. The commit that
ends a child also sends its outcome to its parent.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from perdure import hooks
from perdure.engine.execution import children
from perdure.engine.execution.interfaces import End
from perdure.engine.history.codec import encode
from perdure.engine.history.failures import BODY, encode_failure
from perdure.engine.history.records import Parent, RunFailed, row_of
from perdure.engine.replay.body import Recur
from perdure.errors import ActivityError, EngineError, LimitError, NonDeterminismError, StorageError
from perdure.hooks import RunCompleted, RunRecurred
from perdure.model import limits
from perdure.model.states import WorkflowStatus

if TYPE_CHECKING:
    from perdure.engine.execution.rollback import Rollback
    from perdure.engine.execution.run import Run


async def finish(run: "Run") -> End:
    """End the run with the outcome of its body."""
    try:
        value, error = run.replayer.outcome()
    except Recur as again:
        return await _recur(run, again.input_data)
    if error is None:
        try:
            output = run.workflow.signature.encode_result(value)
            limits.size(output, f"the result of workflow {run.workflow.name}")
            if run.parent is not None:
                limits.size(children.completed(output), "the result of a child workflow, in the message to its parent,")
        except (EngineError, LimitError) as unfit:
            error = unfit
    if run.replayer.children or error is not None:
        await run.recorder.durable()
        await children.end_all(run, run.replayer.children, f"its parent {run.id} has ended")
    if error is None:
        await _complete(run, output)  # pyright: ignore[reportPossiblyUnboundVariable]
        if run.host.observes(RunCompleted):
            run.host.happened(RunCompleted(*run.about(), run.age()))
        return End.COMPLETED
    if await _leaves_traces(run):
        await fail(run, error, WorkflowStatus.COMPENSATING)
        return End.COMPENSATING
    await fail(run, error)
    return End.FAILED


async def _leaves_traces(run: "Run") -> bool:
    """Return whether a failed run has compensations or a failure handler to execute before it ends."""
    if run.workflow.failure_handler is not None or run.replayer.unsettled:
        return True
    return bool(await run.host.storage.get_compensations(run.id, limit=1))


async def _recur(run: "Run", input_data: bytes) -> End:
    """Start the next generation under the same lease; it keeps the link to a parent."""
    await run.recorder.durable()
    storage = run.host.storage
    await children.end_all(run, run.replayer.children, f"its parent {run.id} recurs")
    async with storage.transaction():
        await storage.recur_instance(run.id, input_data, lease=run.lease)
        if run.parent is not None:
            await storage.append_history(row_of(run.id, run.parent), lease=run.lease)
    run.host.happened(RunRecurred(*run.about()))
    return End.RECURRED


async def _complete(run: "Run", output: bytes) -> None:
    run.ending = True
    try:
        if run.parent is None:
            await run.recorder.complete(output)
        else:
            await run.recorder.durable()
            await _complete_child(run, run.parent, output)
    except StorageError:
        found = await run.host.storage.get_instance(run.id)  # the commit may have succeeded without its answer
        if found is None or (found.status, found.output_data) != (WorkflowStatus.COMPLETED, output):
            raise
    run.output = output


async def _complete_child(run: "Run", parent: Parent, output: bytes) -> None:
    storage = run.host.storage
    end = children.completed(output)
    async with storage.transaction():
        await children.notify_parent(storage, parent, end, run.id)
        await storage.complete_and_release(run.lease, output)


async def fail(run: "Run", error: BaseException, status: WorkflowStatus = WorkflowStatus.FAILED) -> None:
    """Record the error of a failed run, which ends with this `status` or is compensated first."""
    storage = run.host.storage
    failure: dict[str, Any] = {**encode_failure(error), **_failed_step(run, error)}
    if not isinstance(error, ActivityError):
        failure["source"] = BODY
    if isinstance(error, NonDeterminismError):
        failure["summary"] = error.summary
    failed = RunFailed(failure)
    run.error = error
    run.ending = status is WorkflowStatus.FAILED
    async with storage.transaction():
        if run.parent is not None and status is WorkflowStatus.FAILED:
            await children.notify_parent(storage, run.parent, children.failed(failed.data()), run.id)
        await storage.append_history(row_of(run.id, failed), lease=run.lease)
        await storage.update_instance_status(run.id, status, lease=run.lease)
    if status is WorkflowStatus.FAILED:
        run.host.happened(failed_event(run.about(), failure, run.age()))


async def finish_rollback(run: "Rollback") -> End:
    """End the run as failed or cancelled; a cancellation that was acknowledged counts, however late it came."""
    storage, history, cause = run.host.storage, run.history, run.history.cause
    async with storage.transaction():
        held = WorkflowStatus.COMPENSATING  # unchanged, but this locks the row against a concurrent cancellation
        await storage.update_instance_status(run.id, held, lease=history.lease)
        await history.catch_up()
        status = WorkflowStatus.CANCELLED if cause.cancelled else WorkflowStatus.FAILED
        if history.parent is not None:
            end = children.was_cancelled(cause.error) if cause.cancelled else children.failed(encode(cause.failure))
            await children.notify_parent(storage, history.parent, end, run.id)
        await storage.update_instance_status(run.id, status, lease=history.lease)
    if cause.cancelled:
        run.host.happened(hooks.RunCancelled(*run.about(), cause.error, run.age()))
        return End.CANCELLED
    run.host.happened(failed_event(run.about(), cause.failure, run.age()))
    return End.FAILED


def _failed_step(run: "Run", error: BaseException) -> dict[str, object]:
    """Return the step whose error failed the run and its attempts; nothing if the error is the body's own."""
    step = run.replayer.failed_step(error)
    return {} if step is None else {"step": step.id, "attempts": step.attempt}


def failed_event(about: tuple[str, str, datetime], failure: Mapping[str, Any], duration: timedelta) -> hooks.RunFailed:
    """Return the hook event for a recorded failure."""
    return hooks.RunFailed(
        *about,
        error_type=str(failure.get("error_type") or "Exception"),
        error_message=str(failure.get("summary") or failure.get("error_message") or ""),
        step=failure.get("step"),
        attempts=int(failure.get("attempts") or 0),
        duration=duration,
    )
