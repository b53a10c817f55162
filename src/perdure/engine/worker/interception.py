"""Interceptors around what a worker does: the executions of its runs, and the attempts of their activities."""

import logging
from collections.abc import Coroutine
from typing import Any

from perdure.engine.execution.clock import Clock
from perdure.engine.execution.interfaces import Attempt, Drained, End, Executable
from perdure.engine.execution.run import Run
from perdure.engine.history.messages import headers_in
from perdure.engine.interception import Checked, Execution, Interception
from perdure.engine.replay.steps import Effect
from perdure.engine.worker.activities import Activities
from perdure.engine.worker.owners import worker_of
from perdure.model.records import Lease

log = logging.getLogger("perdure.engine")


async def intercepted(interception: Interception, run: Executable, lease: Lease) -> End:
    """Execute a run or its rollback inside the interceptors, and tell them how it ended."""
    is_rollback = not isinstance(run, Run)
    about = Execution(run.id, run.workflow.name, run.headers, worker_of(lease.worker_id), lease.token, is_rollback)
    ended: End | Drained | None = None

    async def execute() -> End | Drained:
        nonlocal ended
        try:
            ended = await run.execute(lease)
        except Drained as drained:  # no error: another worker continues
            about.outcome = "released"
            ended = drained
            return drained
        finally:
            if isinstance(run, Run):
                about.error = run.error
                about.woken_by = headers_in(run.recorder.newest)
        about.outcome = ended.value
        return ended

    try:
        end = await interception.execute(about, execute)
    except Exception as error:
        if ended is None:
            raise
        log.exception(
            "an interceptor raised %s: %s after an execution of run %s (%s), which is %s: this changes nothing",
            type(error).__name__,
            error,
            run.id,
            run.workflow.name,
            about.outcome,
            extra={"run_id": run.id, "workflow": run.workflow.name, "reason": str(error)},
        )
        end = ended
    if isinstance(end, Drained):
        raise end
    return end


class InterceptedActivities(Activities):
    """Executes attempts inside the interceptors."""

    def __init__(self, interception: Interception, *settings: Any) -> None:
        super().__init__(*settings)
        self._interception = interception

    def _call(self, attempt: Attempt, outgoing: list[Effect]) -> Coroutine[Any, Any, Any]:
        around = self._interception.activity(attempt.info)
        if isinstance(around, Checked):
            return self._call_inside(around, attempt, outgoing)
        return super()._call(attempt, outgoing)

    async def _call_inside(self, around: Checked, attempt: Attempt, outgoing: list[Effect]) -> Any:
        with around:
            return await super()._call(attempt, outgoing)


def new_activities(
    interception: Interception | None,
    most: int,
    threads: int,
    transaction_sec: float | None,
    idle_sec: float,
    clock: Clock,
) -> Activities:
    """Return what executes the attempts of a worker."""
    settings = most, threads, transaction_sec, idle_sec, clock
    if interception is None or not interception.around_activities:
        return Activities(*settings)
    return InterceptedActivities(interception, *settings)
