"""Where the stubs of a test apply, and how the engine finds them; `perdure.testing.stubs` makes them.

Every open app and every stub has a scope, which is a child of that of its context. A stub applies to the scopes above
and below its own: to the apps of its test, no matter which was opened first, but not to those of another test that
runs in the same process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.engine.replay.context import ActivityInfo
from perdure.engine.replay.definitions import ActivityDefinition

UNSET: Any = object()  # the default of arguments that may be None
Sleep = Callable[[float], Awaitable[None]]
CallPlain = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class StubbedCall:
    """A call of an activity that a stub replaces.

    - `step`: the idempotency key of the step, or None for a direct call.
    - `info`: the attempt; for a direct call, that of the activity which makes the call, or None.
    - `sleep`: waits by the clock of the app.
    - `call_plain`: calls a plain function where that of the activity would be called.
    """

    activity: ActivityDefinition
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    step: str | None
    info: ActivityInfo | None
    sleep: Sleep
    call_plain: CallPlain


class InstalledStub(Protocol):
    """What is called instead of an activity's function."""

    scope: "StubScope"

    def applies_to(self, activity: ActivityDefinition, info: ActivityInfo | None) -> bool:
        """Return whether this stub replaces a call; `info` is None outside a run."""

    async def call(self, call: StubbedCall) -> Any:
        """Return the result of a call."""


class StubScope:
    """The scope of an app or of a stub. `installed` has the stubs of all scopes that are related to it, and others."""

    __slots__ = ("installed", "is_open", "is_shared", "parent", "sleep")

    def __init__(self, parent: "StubScope | None" = None, *, shared: bool = False) -> None:
        self.parent = parent
        self.installed: list[InstalledStub] = [] if parent is None else parent.installed
        self.sleep: Sleep = asyncio.sleep if parent is None else parent.sleep
        self.is_open = True
        self.is_shared = shared  # by all apps that are opened inside it, also in tasks of their own

    def find(self, activity: ActivityDefinition, info: ActivityInfo | None) -> InstalledStub | None:
        """Return the stub that replaces a call in this scope: the last one that was installed and applies, or None."""
        for stub in reversed(self.installed):
            if (stub.scope._contains(self) or self._contains(stub.scope)) and stub.applies_to(activity, info):
                return stub
        return None

    def _contains(self, other: "StubScope | None") -> bool:
        while other is not None and other is not self:
            other = other.parent
        return other is self


_SCOPE: ContextVar[StubScope | None] = ContextVar("perdure_stub_scope", default=None)


def current_scope() -> StubScope | None:
    """Return the scope of the calling code, or None."""
    scope = _SCOPE.get()
    while scope is not None and not scope.is_open:  # it was closed in another context than that which opened it
        scope = scope.parent
    return scope


@contextmanager
def new_scope(parent: StubScope | None = None, *, shared: bool = False) -> Iterator[StubScope]:
    """Open a scope, which is that of the calling code until the block ends; `parent` is for code that has none."""
    scope = StubScope(current_scope() or parent, shared=shared)
    _SCOPE.set(scope)
    try:
        yield scope
    finally:
        scope.is_open = False
        if _SCOPE.get() is scope:  # not that of a stub which outlives its app, so that the next app finds it
            _SCOPE.set(scope.parent)


@contextmanager
def scope_of_app(sleep: Sleep) -> Iterator[StubScope]:
    """Open the scope of an app, or use the shared one of the calling code; `sleep` waits by the app's clock."""
    scope = current_scope()
    if scope is not None and scope.is_shared:
        scope.sleep = sleep
        yield scope
        return
    with new_scope() as scope:
        scope.sleep = sleep
        yield scope
