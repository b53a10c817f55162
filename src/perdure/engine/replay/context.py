"""The context of executing code: the run of a body, or the attempt of an activity.

Context variables hold it, so that no function needs an argument for it.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.errors import OutsideWorkflowError
from perdure.model.headers import NONE, Headers, none

if TYPE_CHECKING:
    from perdure.engine.replay.body import Body


@dataclass(frozen=True, slots=True)
class ActivityInfo:
    """The activity that is being executed; returned by `activity_info()`.

    - `workflow_id`, `workflow_name`: the run's id and the name of its workflow.
    - `activity_name`, `step`: the activity's name and the id of its step.
    - `attempt`: the number of this attempt, from 1.
    - `idempotency_key`: the same for all attempts of the step, also after a crash; pass it to the services you call.
    - `fence`: the fencing token, which grows with each lease of the run. `WHERE fence <= ?` in your own tables rejects
      writes of a worker that lost its lease.
    - `headers`: the headers of the run.
    """

    workflow_id: str
    workflow_name: str
    activity_name: str
    step: str
    attempt: int
    idempotency_key: str
    fence: int
    headers: Headers = field(default_factory=none)


RUN: "ContextVar[Body | None]" = ContextVar("perdure_run", default=None)
ATTEMPT: ContextVar[ActivityInfo | None] = ContextVar("perdure_attempt", default=None)


def current_run() -> "Body | None":
    """Return the run whose body makes this call, or None; the loop identifies tasks with a context of their own."""
    run = RUN.get()
    return run if run is not None else getattr(asyncio._get_running_loop(), "timers", None)


def require_run(what: str) -> "Body":
    """Return the run whose body makes this call; raise `OutsideWorkflowError`, naming the call `what`, elsewhere."""
    run = current_run()
    if run is None:
        where = "in an activity" if ATTEMPT.get() else "outside a workflow"
        raise OutsideWorkflowError(f"{what} was called {where}: call it in a workflow's body")
    return run


def workflow_name() -> str | None:
    """Return the name of the workflow whose body or activity makes this call, or None."""
    run, info = current_run(), ATTEMPT.get()
    return run.workflow.name if run is not None else None if info is None else info.workflow_name


def inherited_headers() -> Headers:
    """Return the headers of the run whose body or activity makes this call; none elsewhere."""
    run, info = current_run(), ATTEMPT.get()
    return run.headers if run is not None else NONE if info is None else info.headers


def run_headers() -> Headers:
    """Return the headers of the run whose body or activity makes this call: a read-only mapping of texts.

    They are the same for the whole life of the run, so a body may depend on them. Raises `OutsideWorkflowError` outside
    a workflow, and in an activity that was called outside a workflow.
    """
    if current_run() is None and ATTEMPT.get() is None:
        raise OutsideWorkflowError(
            "run_headers() was called outside a workflow: call it in a workflow's body or in an activity that a "
            "workflow runs"
        )
    return inherited_headers()


def activity_info() -> ActivityInfo:
    """Return the run, step, attempt, idempotency key and fencing token of the activity that makes this call.

    Raises `OutsideWorkflowError` outside an activity, and in an activity that was called outside a workflow.
    """
    info = ATTEMPT.get()
    if info is None:
        raise OutsideWorkflowError(
            "activity_info() was called outside an activity that a workflow runs: call it in the activity's code"
        )
    return info
