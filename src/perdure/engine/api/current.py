"""The open apps and clients of this process, and which of them a call uses."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perdure.engine.interception import Interception
from perdure.engine.replay.context import current_run
from perdure.engine.replay.stubs import StubScope, current_scope
from perdure.errors import EngineError, NotDurableError

if TYPE_CHECKING:
    from perdure.engine.api.client import Client

APP: "ContextVar[Client | None]" = ContextVar("perdure_app", default=None)
_open: "list[Client]" = []  # all open apps and clients of this process


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
        if current_run() is not None:
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


def is_served_here() -> bool:
    """Return whether the calling code runs on the event loop of an open app, whose worker it would block."""
    running = asyncio._get_running_loop() is not None
    return running and any(each.has_worker and each.home.is_here() for each in _open)


@contextmanager
def using(app: "Client") -> Iterator[None]:
    """Let the calls in the block use this app, also if others are open."""
    token = APP.set(app)
    try:
        yield
    finally:
        APP.reset(token)


def interception() -> Interception | None:
    """Return the interceptors of the app that executes the calling body or activity."""
    app = APP.get()
    return None if app is None else app.interception


def stub_scopes() -> list[StubScope]:
    """Return the scope of the calling code, or else those of all apps and clients that are open on this loop."""
    scope = current_scope()
    return [scope] if scope is not None else [each.stub_scope for each in _open if each.home.is_here()]
