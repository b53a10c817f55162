"""Signatures and parameters, as they are written in the source."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.docs.definitions import (
    Definition,
    Function,
    NotDefinedError,
    definition,
    has_base,
    is_dataclass,
    line_of_bases,
    methods,
)

WIDTH = 88
_ITEM = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*(?:\n  .*)*)", re.MULTILINE)
_DEFAULT = re.compile(r" ?\(default: ((?:[^()]|\([^()]*\))*)\)")


@dataclass(frozen=True)
class Parameter:
    """A parameter: name, type and default as source, the default empty if it is required; `mark` is `*` or `**`."""

    name: str
    type: str
    default: str = ""
    mark: str = ""

    def __str__(self) -> str:
        hint = f": {self.type}" if self.type else ""
        default = f" = {self.default}" if self.default else ""
        return f"{self.mark}{self.name}{hint}{default}"


@dataclass(frozen=True)
class Setting:
    """A row of a table of settings."""

    name: str
    type: str
    default: str
    meaning: str


def parameters(found: Definition) -> list[Parameter]:
    """Return the parameters of a function, or of the constructor of a class; separators have the name of `/` or `*`."""
    if isinstance(found.node, Function):
        return list(_of_function(found.module, found.node))
    for each in line_of_bases(found):
        assert isinstance(each.node, ast.ClassDef)
        if is_dataclass(each.node):
            return _fields(each)
        if "__init__" in methods(each):
            init = methods(each)["__init__"].node
            assert isinstance(init, Function)
            return list(_of_function(each.module, init))
    return []


def signature(found: Definition, name: str, *, constructor: bool = True) -> str:
    """Return the lines that show how a name is called; of an overloaded function, each form."""
    node = found.node
    if isinstance(node, ast.ClassDef):
        shown = parameters(found) if constructor and not has_base(found, "Protocol", "StrEnum", "Enum") else []
        return _call("class ", name, shown, "")
    if not isinstance(node, Function):
        return ast.unparse(node)
    if any(ast.unparse(each).endswith(("property", "cached_property")) for each in node.decorator_list):
        return f"{name}: {ast.unparse(node.returns)}" if node.returns else name
    forms = [each for each in found.nodes[:-1] if isinstance(each, Function)] or [node]
    return "\n".join(_function(found.module, each, name) for each in forms)


def _function(module: str, node: Function, name: str) -> str:
    keyword = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return _call(keyword, name, list(_of_function(module, node)), returns)


def _call(keyword: str, name: str, shown: list[Parameter], returns: str) -> str:
    if not shown and keyword == "class ":
        return f"class {name}"
    line = f"{keyword}{name}({', '.join(map(str, shown))}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{keyword}{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){returns}"


def _of_function(module: str, node: Function) -> Iterator[Parameter]:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (each, default) in enumerate(zip(positional, defaults, strict=True), 1):
        if each.arg not in ("self", "cls"):
            yield _parameter(module, each, default)
        if number == len(arguments.posonlyargs) and each.arg != "self":
            yield Parameter("/", "")
    if arguments.vararg is not None:
        yield _parameter(module, arguments.vararg, None, "*")
    elif arguments.kwonlyargs:
        yield Parameter("*", "")
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(module, each, default)
    if arguments.kwarg is not None:
        yield _parameter(module, arguments.kwarg, None, "**")


def _parameter(module: str, each: ast.arg, default: ast.expr | None, mark: str = "") -> Parameter:
    hint = "" if each.annotation is None else _hint(each.annotation)
    return Parameter(each.arg, hint, "" if default is None else _value(module, default), mark)


def _hint(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", "") if isinstance(node, ast.Constant) else ast.unparse(node)


def _value(module: str, node: ast.expr) -> str:
    """Return a default as source; of a constant, its value."""
    if isinstance(node, ast.Name):
        try:
            found = definition(module, node.id).node
        except NotDefinedError:
            return node.id
        if isinstance(found, ast.Assign | ast.AnnAssign) and found.value is not None:
            return ast.unparse(found.value)
    return ast.unparse(node)


def _fields(found: Definition) -> list[Parameter]:
    """Return the fields of a dataclass, those of its bases first."""
    fields: dict[str, Parameter] = {}
    for each in reversed(list(line_of_bases(found))):
        assert isinstance(each.node, ast.ClassDef)
        for node in each.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                hint, name = ast.unparse(node.annotation), node.target.id
                if not name.startswith("_") and not hint.startswith("ClassVar"):
                    default = "" if node.value is None else _field_default(each.module, node.value)
                    fields[name] = Parameter(name, hint, default)
    return list(fields.values())


def _field_default(module: str, node: ast.expr) -> str:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        given = {word.arg: word.value for word in node.keywords}
        if "default_factory" in given:
            return f"{ast.unparse(given['default_factory'])}()"
        return _value(module, given["default"]) if "default" in given else ""
    return _value(module, node)


def items(doc: str) -> dict[str, str]:
    """Return what the list of a docstring says about each parameter or field."""
    found: dict[str, str] = {}
    for names, text in _ITEM.findall(doc):
        for name in names.replace("`", "").split(", "):
            found[name] = " ".join(text.split())
    return found


def settings(found: Definition) -> list[Setting]:
    """Return the rows of the table of settings: parameters, with what the docstring says about each."""
    said = items(found.doc)
    return [
        _setting(each, said.get(each.name, ""))
        for each in parameters(found)
        if each.type and not each.mark and each.name not in NOT_SETTINGS
    ]


NOT_SETTINGS = ("function",)  # what a decorator decorates


def _setting(each: Parameter, said: str) -> Setting:
    default = f"`{each.default}`" if each.default else "required"
    stated = _DEFAULT.search(said)
    if stated is not None:
        default = stated[1]
    meaning = _DEFAULT.sub("", said, count=1).rstrip(".")
    return Setting(each.name, each.type, default, meaning)
