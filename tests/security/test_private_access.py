"""No module uses private parts of another module's objects.

A private part is a name with a leading underscore that the module itself does not define. Tests may use them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import perdure

SOURCE = Path(perdure.__file__).parent

# The public methods of a NamedTuple begin with an underscore, so that they differ from its fields.
NAMED_TUPLE = frozenset({"_asdict", "_field_defaults", "_fields", "_make", "_replace"})

# Private parts of libraries that have no public equivalent.
LIBRARIES = {
    # asyncmy has no public way to learn whether a connection is open, to abort it, or to read several results.
    "database/backends/mysql/backend.py": {"_connected", "_proto", "_result", "_transport"},
    "database/backends/mysql/timeouts.py": {"_transport"},
    "database/backends/postgres/hosts.py": {"_transport"},  # asyncpg's, whose socket gets options
    # asyncio, for an event loop of our own that runs inside the event loop of the caller.
    "engine/api/coroutines.py": {"_is_coroutine"},
    "engine/api/current.py": {"_get_running_loop"},  # returns None where the public function raises
    "engine/replay/context.py": {"_get_running_loop"},
    "engine/replay/loop.py": {
        *("_AsCompletedIterator", "_callback", "_cancelled", "_enter_task", "_get_running_loop", "_leave_task"),
        *("_run", "_set_running_loop"),
        "_getframe",  # of sys
    },
    # SQLAlchemy's dialects.
    "integrations/connections.py": {"_on_connect_isolation_level"},
    "integrations/sqlalchemy.py": {"_asyncpg_error_translate"},
}

# A function beside the class, in the same module.
KNOWN = {"storage/stores.py": {"_backend"}}


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def _is_own(value: ast.expr) -> bool:
    """Return whether the object is `self`, `cls` or `super()`."""
    if isinstance(value, ast.Call):
        value = value.func
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines: of functions, classes, variables and attributes of `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if _is_own(value):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=slots)):
                yield from (str(slot.value) for slot in slots if isinstance(slot, ast.Constant))


def _used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the private names that a module uses, except of `self`, `cls` and `super()`, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if _is_private(name) and not _is_own(value):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[value, ast.Constant(name), *_]):
                if _is_private(name) and not _is_own(value):
                    yield node.lineno, str(name)
            case ast.ImportFrom(names=names):
                yield from ((node.lineno, alias.name) for alias in names if _is_private(alias.name))


def private_access(text: str) -> list[tuple[int, str]]:
    """Return the private names of others that a source text uses, with their lines."""
    tree = ast.parse(text)
    own = set(_defined(tree))
    return sorted((line, name) for line, name in _used(tree) if name not in own)


def _found() -> dict[str, list[tuple[int, str]]]:
    files = sorted(SOURCE.rglob("*.py"))
    return {file.relative_to(SOURCE).as_posix(): private_access(file.read_text(encoding="utf-8")) for file in files}


def test_no_module_uses_private_parts_of_others() -> None:
    wrong = [
        f"{file}:{line}: {name}"
        for file, uses in _found().items()
        for line, name in uses
        if name not in LIBRARIES.get(file, set()) | KNOWN.get(file, set())
    ]
    assert not wrong, "private parts of another module:\n" + "\n".join(wrong)


def test_every_exception_is_still_needed() -> None:
    used = {(file, name) for file, uses in _found().items() for _, name in uses}
    listed = {(file, name) for each in (LIBRARIES, KNOWN) for file, names in each.items() for name in names}
    assert not listed - used, "remove these exceptions, which no source uses any more"


def test_private_access_is_detected() -> None:
    text = """
from other import _name
class Session:
    __slots__ = ("_slot",)
    def __init__(self, backend):
        self._backend = backend
    def read(self, session, point):
        self._inherited()
        super()._inherited()
        session._backend, session._slot, point._replace(x=1)
        getattr(session, "_other", None)
        return self._backend._pool
"""
    assert private_access(text) == [(2, "_name"), (11, "_other"), (12, "_pool")]
