"""Scopes: the positions of a body's tasks in the task tree, from which step ids are derived.

Each task counts its own steps, timers and tasks, so an id does not depend on the order in which tasks run.
"""

from contextvars import Context, ContextVar
from hashlib import blake2b

PATH_MAX = 48  # the id of a child is its parent's (at most 200 characters) and the path; a row holds 255


class Scope:
    """The position of one task in the tree, and the number of paths that it has used."""

    __slots__ = ("_count", "path")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._count = 0

    def next(self) -> str:
        """Return the next path: `1`, `2`, … in the root task, `3.1`, `3.2`, … in the task with path `3`."""
        self._count += 1
        if not self.path:
            return str(self._count)
        path = f"{self.path}.{self._count}"
        return path if len(path) <= PATH_MAX else _folded(path)

    def __repr__(self) -> str:
        return f"<Scope {self.path or 'root'}, {self._count} used>"


def _folded(path: str) -> str:
    """Return a short hash for a long path, because tasks that each start the next one nest without limit."""
    return f"x{blake2b(path.encode(), digest_size=16).hexdigest()}"


_current: ContextVar[Scope | None] = ContextVar("perdure_scope", default=None)


def current_scope() -> Scope | None:
    """Return the scope of the calling code, or None outside a workflow's body."""
    return _current.get()


def enter(context: Context, scope: Scope) -> None:
    """Make `scope` the current scope of code that runs in `context`."""
    context.run(_current.set, scope)
