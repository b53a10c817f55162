"""Scopes: where in the tree of a body's tasks some code runs, which is what its steps are named by.

Each task counts its own steps, timers and tasks, so a name does not depend on how tasks take turns.
"""

from contextvars import Context, ContextVar
from hashlib import blake2b

PATH_MAX = 48  # a child's id is its parent's, of up to 200 characters, with the path, in a row's 255


class Scope:
    """One task's place in the tree, and the count of what it asked for."""

    __slots__ = ("_count", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._count = 0

    def next(self) -> str:
        """The path of the next thing asked for here: `1`, `2`, … in the root, `3.1`, `3.2`, … in what has path `3`."""
        self._count += 1
        if not self.path:
            return str(self._count)
        path = f"{self.path}.{self._count}"
        return path if len(path) <= PATH_MAX else _folded(path)

    def __repr__(self) -> str:
        return f"<Scope {self.path or 'root'}, {self._count} asked for>"


def _folded(path: str) -> str:
    """A short name for a deep place: tasks that each start the next one nest without end."""
    return f"x{blake2b(path.encode(), digest_size=16).hexdigest()}"


_current: ContextVar[Scope | None] = ContextVar("perdure_scope", default=None)


def current_scope() -> Scope | None:
    """The scope of the code that calls, or None outside a workflow's body."""
    return _current.get()


def enter(context: Context, scope: Scope) -> None:
    """Make `scope` the current one of what runs in `context`."""
    context.run(_current.set, scope)
