"""What surrounds the code that runs: the run of a body, the attempt of an activity, the app of a program.

All of it travels in context variables, so no function needs an argument for it.
"""

import asyncio
import os
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import EngineError, NotDurableError, OutsideWorkflowError

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
        raise OutsideWorkflowError(
            "activity_info() was called outside an activity that a workflow runs: call it in the activity's code"
        )
    return info


class Home:
    """Where an app was opened: the event loop and the process that its connections belong to."""

    __slots__ = ("_loop", "_pid")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def is_here(self) -> bool:
        """Whether the code that calls runs there; code without a loop may be anywhere in the process."""
        return os.getpid() == self._pid and asyncio._get_running_loop() in (None, self._loop)

    def check(self, what: str) -> None:
        """Raise `EngineError` if the code that calls runs elsewhere."""
        if self.is_here():
            return
        if os.getpid() != self._pid:
            raise EngineError(
                f"this {what} was opened by process {self._pid}, and this is process {os.getpid()}, forked from it: "
                "its connections belong to the first one, so open an App or Client in each process, after the fork"
            )
        if RUN.get() is not None or hasattr(asyncio._get_running_loop(), "timers"):
            raise NotDurableError(f"the {what} was used in a workflow's body: use it in an activity")
        raise EngineError(
            f"this {what} was opened on another event loop, in another thread perhaps: call it from there with "
            "asyncio.run_coroutine_threadsafe(…, loop), or open a Client on this loop"
        )


def opened(app: "Client") -> None:
    """An app or client is ready to start runs."""
    _open.append(app)


def closed(app: "Client") -> None:
    """It is no longer."""
    _open.remove(app)


def is_open() -> bool:
    """Return whether an app or client is open in this process."""
    return bool(_open)


def current_app() -> "Client":
    """The app of this task, or the only one of the process."""
    app = APP.get()
    if app is not None and app in _open and app.home.is_here():
        return app
    here = [each for each in _open if each.home.is_here()]
    if len(here) == 1:
        return here[0]
    if here:
        raise EngineError(f"{len(here)} apps are open: call this inside the `async with` of the one that is meant")
    if not _open:
        raise EngineError("no App or Client is open: use `async with App(url):` around this call")
    found = app if app is not None and app in _open else _open[-1]
    found.home.check(type(found).__name__)
    return found
