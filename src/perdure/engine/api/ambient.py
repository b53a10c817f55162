"""The context of executing code: the run of a body, the attempt of an activity, the app of a program.

Context variables hold it, so that no function needs an argument for it.
"""

import asyncio
import os
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import EngineError, NotDurableError, OutsideWorkflowError

if TYPE_CHECKING:
    from perdure.engine.api.app import Client
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
_open: "list[Client]" = []  # all open apps and clients of this process


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


class Home:
    """The event loop and the process that opened an app; its connections belong to them."""

    __slots__ = ("_loop", "_pid")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def is_here(self) -> bool:
        """Return whether the calling code runs on that loop and in that process, or in the process without a loop."""
        return os.getpid() == self._pid and asyncio._get_running_loop() in (None, self._loop)

    def check(self, what: str) -> None:
        """Raise `EngineError` if the calling code runs on another loop or in another process."""
        if self.is_here():
            return
        if os.getpid() != self._pid:
            raise EngineError(
                f"this {what} was opened by process {self._pid} and cannot be used in process {os.getpid()}, forked "
                "from it: open an App or Client in each process, after the fork"
            )
        if RUN.get() is not None or hasattr(asyncio._get_running_loop(), "timers"):
            raise NotDurableError(f"the {what} was used in a workflow's body: use it in an activity")
        raise EngineError(
            f"this {what} was opened on another event loop, perhaps in another thread: call it on that loop with "
            "asyncio.run_coroutine_threadsafe(…, loop), or open a Client on this loop"
        )


def opened(app: "Client") -> None:
    """Note that an app or client was opened."""
    _open.append(app)


def closed(app: "Client") -> None:
    """Note that an app or client was closed."""
    _open.remove(app)


def is_open() -> bool:
    """Return whether an app or client is open in this process."""
    return bool(_open)


def current_app() -> "Client":
    """Return the app of this task, or the only open one on this loop; raise `EngineError` if there is none."""
    app = APP.get()
    if app is not None and app in _open and app.home.is_here():
        return app
    here = [each for each in _open if each.home.is_here()]
    if len(here) == 1:
        return here[0]
    if here:
        raise EngineError(
            f"{len(here)} Apps or Clients are open: make this call inside the `async with` of one of them"
        )
    if not _open:
        raise EngineError("no App or Client is open: use `async with App(url):` around this call")
    found = app if app is not None and app in _open else _open[-1]
    found.home.check(type(found).__name__)
    return found
