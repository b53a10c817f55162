"""Find calls in a workflow's source that are not deterministic and that its event loop cannot intercept.

Names are resolved as the function resolves them, so an alias is found and a user's own function named `open` is not
reported. Only calls written in the function itself are checked: not the code of functions that it calls, not methods
of local variables, not functions that are passed on without being called.
"""

import ast
import builtins
import inspect
import random
import secrets
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perdure.engine.history.hints import closure
from perdure.errors import NotDurableError

Function = Callable[..., object]

_ACTIVITY = "move it into an activity"
_NOW, _SLEEP = "use perdure.now()", "use perdure.sleep()"
_RANDOM, _UUID = "use perdure.random()", "use perdure.uuid4()"

_CALLS = {
    **{f"time.{name}": _NOW for name in "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns".split()},
    **{f"time.{name}": _NOW for name in "process_time process_time_ns thread_time thread_time_ns".split()},
    **{f"datetime.datetime.{name}": _NOW for name in "now utcnow today".split()},
    **{f"uuid.{name}": _UUID for name in "uuid1 uuid4 uuid6 uuid7".split()},
    **{f"threading.{name}": _ACTIVITY for name in "Thread Timer".split()},
    **{f"os.{name}": _ACTIVITY for name in "open popen system".split()},
    **{f"builtins.{name}": _ACTIVITY for name in "open input".split()},
    "time.sleep": _SLEEP,
    "datetime.date.today": _NOW,
    "os.urandom": _RANDOM,
}
_PACKAGES = {
    "random": _RANDOM,
    "secrets": _RANDOM,
    "numpy.random": _RANDOM,
    **dict.fromkeys("requests httpx aiohttp urllib.request urllib3 http.client socket".split(), _ACTIVITY),
    **dict.fromkeys("subprocess multiprocessing concurrent.futures.thread".split(), _ACTIVITY),
}
_HARMLESS = {"secrets.compare_digest"}


class NotDurableWarning(UserWarning):
    """A workflow's source contains a call that is not deterministic, so a replay would get another result."""


@dataclass(frozen=True)
class Named:
    """An object known only by its dotted name, such as an import of a module that is not loaded yet."""

    path: str


def check_source(function: Function, *, strict: bool) -> list[str]:
    """Warn of each call in the function that is not deterministic, and return the warnings.

    Raises `NotDurableError` with all of them instead if `strict`. Without source (a REPL, `exec`) nothing is found.
    """
    target = inspect.unwrap(function)
    findings = list(_findings(target)) if inspect.isfunction(target) else []
    if findings and strict:
        listed = "\n".join(f"- {sentence}" for _, sentence in findings)
        raise NotDurableError(f"{target.__qualname__} cannot be replayed:\n{listed}")
    for line, sentence in findings:
        warnings.warn_explicit(
            f"{target.__qualname__}, {sentence}",
            NotDurableWarning,
            target.__code__.co_filename,
            line,
            target.__module__,
        )
    return [sentence for _, sentence in findings]


def _findings(function: types.FunctionType) -> Iterator[tuple[int, str]]:
    tree = _tree(function)
    if tree is None:
        return
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    scope = _Scope(function, tree, nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = _called(scope, call)
        seeded = name == "random.Random" and (call.args or call.keywords)  # deterministic
        if (advice := _advice(name)) is not None and not seeded:
            yield call.lineno, _sentence(call, name, advice)


def _sentence(call: ast.Call, name: str, advice: str) -> str:
    written, meant = ast.unparse(call.func), name.removeprefix("builtins.")
    also = "" if written == meant else f" (that is {meant})"
    why = "blocks the worker, and every run in it" if name == "time.sleep" else "is not deterministic on replay"
    return f"line {call.lineno}: {written}(){also} {why}: {advice}"


def _tree(function: types.FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the function's syntax tree with the line numbers of its file, or None if it has no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse("if True:\n" + "".join(" " + line for line in lines))
    except Exception:  # no source, or only a part of a line: a failing check must not prevent a definition
        return None
    ast.increment_lineno(tree, max(first, 1) - 2)
    match tree.body:
        case [ast.If(body=[ast.FunctionDef() | ast.AsyncFunctionDef() as found])]:
            return found
    return None


class _Scope:
    """Resolves the names in a function to objects."""

    def __init__(
        self, function: types.FunctionType, tree: ast.FunctionDef | ast.AsyncFunctionDef, nodes: list[ast.AST]
    ) -> None:
        self._outside = {**vars(builtins), **function.__globals__, **closure(function)}
        self._imported = dict(pair for node in nodes for pair in _imports(node))
        self._bound = {name for node in [*nodes, *ast.walk(tree.args)] for name in _bindings(node)}

    def look_up(self, name: str) -> object:
        """Return the object that a name refers to, or None if that is known only when the function runs."""
        if name in self._imported:
            return self._imported[name]
        return None if name in self._bound else self._outside.get(name)


def _imports(node: ast.AST) -> Iterator[tuple[str, object]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            path = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or path, sys.modules.get(path) or Named(path)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        source = sys.modules.get(node.module) or Named(node.module)
        for alias in node.names:
            yield alias.asname or alias.name, _attribute(source, alias.name)


def _bindings(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def _called(scope: _Scope, call: ast.Call) -> str:
    """Return the dotted name of the called object in its own module; empty if unknown."""
    names: list[str] = []
    node = call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    found = scope.look_up(node.id) if isinstance(node, ast.Name) else None
    for name in reversed(names):
        found = _attribute(found, name)
    return _name(found)


def _attribute(found: object, name: str) -> object:
    """Return an attribute without executing code of a property or descriptor."""
    if isinstance(found, Named):
        return Named(f"{found.path}.{name}")
    if isinstance(found, types.ModuleType):
        return _of_module(found, name)
    if isinstance(found, type):
        return _of_class(found, name)
    kind = type(found)
    return Named(f"{kind.__module__}.{kind.__name__}.{name}") if _advice(f"{kind.__module__}.x") else None


def _of_module(found: types.ModuleType, name: str) -> object:
    value, path = vars(found).get(name), f"{found.__name__}.{name}"
    ours = _advice(path) is not None and not isinstance(value, type | types.ModuleType)
    return Named(path) if ours else value


def _of_class(found: type, name: str) -> object:
    for base in found.__mro__:
        if name in vars(base):
            return Named(f"{base.__module__}.{base.__qualname__}.{name}")
    return None


def _name(found: object) -> str:
    if isinstance(found, Named):
        return found.path
    if found is None or (isinstance(found, type) and issubclass(found, BaseException)):
        return ""
    if (known := _KNOWN.get(id(found))) is not None:
        return known
    owner = getattr(found, "__self__", None)
    if isinstance(found, types.BuiltinMethodType) and isinstance(owner, type):
        return _name(_of_class(owner, found.__name__))  # `now = datetime.now`
    if isinstance(found, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        return f"{found.__module__}.{found.__qualname__}"
    return ""


def _known() -> dict[int, str]:
    """Return the documented names of objects, by id, whose attributes say otherwise: `os.urandom` is in `posix`."""
    listed = [path.rpartition(".") for path in _CALLS]
    listed += [(module.__name__, ".", name) for module in (random, secrets) for name in module.__all__]
    modules = [(sys.modules.get(module), module, name) for module, _, name in listed]
    return {id(vars(m)[name]): f"{path}.{name}" for m, path, name in modules if m is not None and name in vars(m)}


def _advice(name: str) -> str | None:
    if name in _HARMLESS:
        return None
    if name in _CALLS:
        return _CALLS[name]
    return next((advice for package, advice in _PACKAGES.items() if name.startswith(f"{package}.")), None)


_KNOWN = _known()
