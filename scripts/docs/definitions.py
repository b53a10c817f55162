"""Public names and their definitions, read from the source: nothing is imported, so no extra has to be installed."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from scripts.docs.pages import ROOT

SOURCE = ROOT / "src"
# The modules that programs import from; everything else is private.
PUBLIC = (
    "perdure",
    "perdure.brokers",
    "perdure.codecs",
    "perdure.dashboard",
    "perdure.errors",
    "perdure.hooks",
    "perdure.http",
    "perdure.inspection",
    "perdure.integrations.otel",
    "perdure.integrations.prometheus",
    "perdure.interceptors",
    "perdure.metrics",
    "perdure.storage",
    "perdure.testing",
    "perdure.testing.reference",
    "perdure.testing.servers",
)

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Node: TypeAlias = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


class NotDefinedError(Exception):
    """No definition has this name."""


@dataclass(frozen=True)
class Definition:
    """Where a name is defined: its module, its nodes (several if it is overloaded; the last one has the body)."""

    module: str
    name: str
    nodes: tuple[Node, ...]

    @property
    def node(self) -> Node:
        """The node with the body."""
        return self.nodes[-1]

    @property
    def doc(self) -> str:
        """The docstring; that of an assignment is the text below it."""
        if isinstance(self.node, Function | ast.ClassDef):
            return next((doc for node in self.nodes if (doc := ast.get_docstring(node))), "")  # type: ignore[arg-type]
        body = parsed(self.module).body
        following = body[body.index(self.node) + 1 : body.index(self.node) + 2]
        for each in following:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                return inspect.cleandoc(each.value.value)
        return ""


@cache
def parsed(module: str) -> ast.Module:
    """Return the source of a module as a tree."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


@cache
def public_names(module: str) -> tuple[str, ...]:
    """Return the public names of a module: its `__all__`, or else what it defines without an underscore."""
    for node in parsed(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    nodes = [node for node in parsed(module).body if isinstance(node, Function | ast.ClassDef)]
    return tuple(node.name for node in nodes if not node.name.startswith("_"))


@cache
def definition(module: str, name: str) -> Definition:
    """Return where a name that a module has is defined, through its imports; raise `NotDefinedError` if nowhere."""
    found = tuple(_defining(parsed(module), name))
    if found:
        return Definition(module, name, found)
    for node in parsed(module).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("perdure"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return definition(node.module, alias.name)
    raise NotDefinedError(f"{module} has no {name}")


def _defining(tree: ast.Module, name: str) -> Iterator[Node]:
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef | ast.Assign | ast.AnnAssign) and _defined_name(node) == name:
            yield node


def _defined_name(node: Node) -> str:
    match node:
        case ast.Assign():
            return ", ".join(map(ast.unparse, node.targets))
        case ast.AnnAssign():
            return ast.unparse(node.target)
        case _:
            return node.name


def public_definition(path: str) -> Definition:
    """Return the definition of `module.name` or `module.Class.method`; raise `NotDefinedError` if it is not public."""
    module = max((each for each in PUBLIC if path.startswith(f"{each}.")), key=len, default="")
    name, _, method = path.removeprefix(f"{module}.").partition(".")
    if not module or name not in public_names(module):
        raise NotDefinedError(f"{path} is not a public name")
    found = definition(module, name)
    if not method:
        return found
    classes = line_of_bases(found) if isinstance(found.node, ast.ClassDef) else ()
    for each in classes:
        if method in methods(each):
            return methods(each)[method]
    raise NotDefinedError(f"{module}.{name} has no method {method}")


def bases(found: Definition) -> Iterator[Definition]:
    """Yield the base classes that perdure defines."""
    assert isinstance(found.node, ast.ClassDef)
    for base in found.node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        try:
            yield definition(found.module, name)
        except NotDefinedError:
            continue


def line_of_bases(found: Definition) -> Iterator[Definition]:
    """Yield the class, then its base classes from near to far."""
    yield found
    for base in bases(found):
        yield from line_of_bases(base)


def methods(found: Definition) -> dict[str, Definition]:
    """Return the methods and properties that a class itself defines, by name, in the order of the source."""
    assert isinstance(found.node, ast.ClassDef)
    nodes: dict[str, list[Node]] = {}
    for node in found.node.body:
        if isinstance(node, Function) and not _is_setter(node):
            nodes.setdefault(node.name, []).append(node)
    return {name: Definition(found.module, name, tuple(each)) for name, each in nodes.items()}


def _is_setter(node: Function) -> bool:
    return any(ast.unparse(each).endswith(".setter") for each in node.decorator_list)


def is_dataclass(node: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass or a struct, so that its fields are the parameters of its constructor."""
    return any("dataclass" in ast.unparse(each) for each in node.decorator_list)


def has_base(found: Definition, *names: str) -> bool:
    """Return whether a class has a base class of one of these names, also if perdure does not define it."""
    return any(
        ast.unparse(base).rpartition(".")[2].partition("[")[0] in names
        for each in line_of_bases(found)
        if isinstance(each.node, ast.ClassDef)
        for base in each.node.bases
    )
