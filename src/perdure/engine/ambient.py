"""What surrounds the code that runs: the run of a body, the attempt of an activity, the app of a program.

All of it travels in context variables, so no function needs an argument for it.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import EngineError, OutsideWorkflowError

if TYPE_CHECKING:
    from perdure.engine.app import Client
    from perdure.engine.body import Body


@dataclass(frozen=True, slots=True)
class ActivityInfo:
    """What an activity's code may know of itself.

    The `idempotency_key` is the same for every attempt of the step, also after a crash. The `fence` grows with every
    worker that takes the run over: `WHERE fence <= ?` in your own tables keeps a stopped one out.
    """

    workflow_id: str
    workflow_name: str
    activity_name: str
    step: str
    attempt: int
    idempotency_key: str
    fence: int


RUN: "ContextVar[Body | None]" = ContextVar("perdure_run", default=None)
ATTEMPT: ContextVar[ActivityInfo | None] = ContextVar("perdure_attempt", default=None)
APP: "ContextVar[Client | None]" = ContextVar("perdure_app", default=None)
_open: "list[Client]" = []  # every app and client of this process that is open


def current_run() -> "Body | None":
    """The run whose body calls, if one does; a task with a context of its own is found by its loop."""
    run = RUN.get()
    return run if run is not None else getattr(asyncio._get_running_loop(), "timers", None)


def require_run(what: str) -> "Body":
    """The run whose body calls; a durable call makes no sense elsewhere."""
    run = current_run()
    if run is None:
        where = "in an activity" if ATTEMPT.get() else "outside a workflow"
        raise OutsideWorkflowError(f"{what} was called {where}: call it in a workflow's body")
    return run


def workflow_name() -> str | None:
    """The workflow whose body or activity calls."""
    run, info = current_run(), ATTEMPT.get()
    return run.workflow.name if run is not None else None if info is None else info.workflow_name


def activity_info() -> ActivityInfo:
    """Who calls, from inside an activity that a workflow runs."""
    info = ATTEMPT.get()
    if info is None:
        raise OutsideWorkflowError("activity_info() was called outside an activity that a workflow runs")
    return info


def opened(app: "Client") -> None:
    """An app or client is ready to start runs."""
    _open.append(app)


def closed(app: "Client") -> None:
    """It is no longer."""
    _open.remove(app)


def current_app() -> "Client":
    """The app of this task, or the only one of the process."""
    app = APP.get()
    if app is not None and app in _open:
        return app
    if len(_open) == 1:
        return _open[0]
    if not _open:
        raise EngineError("no App or Client is open: use `async with App(url):` around this call")
    raise EngineError(f"{len(_open)} apps are open: call this inside the `async with` of the one that is meant")
