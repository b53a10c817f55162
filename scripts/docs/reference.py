"""The reference: lines such as `::: perdure.App` in docs/ become signatures, docstrings and tables.

- `::: perdure.Workflow` shows a class or function. `| no constructor` hides the parameters of a class that programs do
  not create themselves, `| without a, b` leaves out methods that are not meant for programs, and `| no methods` all,
  because the docstring says where they are described.
- `::: settings perdure.App` shows a table of its parameters, and `::: settings perdure.Workflow.options` those of a
  method.
"""

import ast
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from scripts.docs.definitions import (
    PUBLIC,
    Definition,
    NotDefinedError,
    definition,
    has_base,
    line_of_bases,
    methods,
    public_definition,
    public_names,
)
from scripts.docs.error_codes import ERRORS, error_codes
from scripts.docs.signatures import settings, signature

_DIRECTIVE = re.compile(r"^::: (settings )?([\w.]+)((?: \| [^|\n]+)*)$", re.MULTILINE)
_HEADING = re.compile(r"^(#+) ", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!\[)`([\w.]+(?:\(\))?)`")
SPECIAL = ("__call__", "__await__", "__aiter__", "__iter__")


@dataclass(frozen=True)
class Directive:
    """A line of a page that shows a definition."""

    page: str
    path: str
    is_table: bool = False
    has_constructor: bool = True
    has_methods: bool = True
    without: tuple[str, ...] = ()
    level: int = 2
    line: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The name without its module."""
        return self.path.rpartition(".")[2]

    @property
    def definition(self) -> Definition:
        """The definition, found through the imports of the public module."""
        return public_definition(self.path)


def directives(page: str, text: str) -> list[Directive]:
    """Return the directives of a page; raise `NotDefinedError` if one names nothing that is public."""
    return [_directive(page, text, found) for found in _DIRECTIVE.finditer(text)]


def _directive(page: str, text: str, found: re.Match[str]) -> Directive:
    path = found[2]
    try:
        public_definition(path)
    except NotDefinedError as error:
        raise NotDefinedError(f"{page}: {error}") from error
    options = [each.strip() for each in found[3].split("|")[1:]]
    without = next((each.removeprefix("without ") for each in options if each.startswith("without ")), "")
    headings = _HEADING.findall(_FENCED.sub("", text[: found.start()]))
    return Directive(
        page,
        path,
        bool(found[1]),
        "no constructor" not in options,
        "no methods" not in options,
        tuple(without.split(", ")) if without else (),
        len(headings[-1]) + 1 if headings else 2,
        found[0],
    )


class Reference:
    """All directives of all pages, which can link to each other."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.directives = [each for page, text in pages.items() for each in directives(page, text)]
        self._shown = {_key(each.definition): each for each in self.directives if not each.is_table}
        self._links = {name: each for each in self._shown.values() for name in _names(each)}

    def undocumented(self) -> list[str]:
        """Return the public names, and the public methods of shown classes, without an entry or without a docstring."""
        missing: list[str] = []
        for module in PUBLIC:
            for name in public_names(module):
                if name.startswith("__"):
                    continue
                found = definition(module, name)
                shown = self._shown.get(_key(found))
                if shown is None:
                    missing.append(f"{module}.{name} has no line `::: {module}.{name}` in docs/reference")
                elif not found.doc:
                    missing.append(f"{module}.{name} has no docstring")
                else:
                    missing += [f"{shown.path}.{each} has no docstring" for each in self._silent_methods(shown)]
        return sorted(set(missing))

    def settings_without_meaning(self) -> list[str]:
        """Return the settings in tables that the docstring says nothing about."""
        return [
            f"{each.path}({row.name}=)"
            for each in self.directives
            if each.is_table
            for row in settings(each.definition)
            if not row.meaning
        ]

    def wrong_exclusions(self) -> list[str]:
        """Return the methods that a directive leaves out and that do not exist."""
        return [
            f"{each.path}.{name}" for each in self.directives for name in each.without if name not in self._all_of(each)
        ]

    def _silent_methods(self, shown: Directive) -> list[str]:
        return [name for name, found in self._methods(shown).items() if not found.doc]

    def _all_of(self, shown: Directive) -> dict[str, Definition]:
        """Return the methods of a class and of its bases that have no entry of their own."""
        found = shown.definition
        if not isinstance(found.node, ast.ClassDef):
            return {}
        everything: dict[str, Definition] = {}
        for each in line_of_bases(found):
            if each is found or _key(each) not in self._shown:
                for name, method in methods(each).items():
                    everything.setdefault(name, method)
        return everything

    def _methods(self, shown: Directive) -> dict[str, Definition]:
        """Return the methods that an entry shows: not those that only repeat what the base class says."""
        if not shown.has_methods:
            return {}
        inherited = self._inherited(shown.definition)
        return {
            name: method
            for name, method in self._all_of(shown).items()
            if name not in shown.without
            and (not name.startswith("_") or (name in SPECIAL and method.doc))
            and (method.doc or name not in inherited)
        }

    def _inherited(self, found: Definition) -> set[str]:
        """Return the methods of base classes that have an entry of their own."""
        if not isinstance(found.node, ast.ClassDef):
            return set()
        shown = [each for each in list(line_of_bases(found))[1:] if _key(each) in self._shown]
        return {name for each in shown for name in methods(each)}

    def expanded(self, page: str, text: str) -> str:
        """Return the Markdown of a page with its directives replaced."""
        found = iter([each for each in self.directives if each.page == page])
        return _DIRECTIVE.sub(lambda _: self._expanded(next(found)), text)

    def _expanded(self, each: Directive) -> str:
        return self._table(each) if each.is_table else self._entry(each)

    def _entry(self, each: Directive) -> str:
        found = each.definition
        parts = [
            f"{'#' * each.level} {each.name} {{#{each.path}}}",
            _code(signature(found, each.name, constructor=each.has_constructor)),
            self._linked(each, _bases(found)),
            _link_to_code(each.page, found),
            self._linked(each, found.doc),
            _values(found),
        ]
        for name, method in self._methods(each).items():
            parts += [
                f"{'#' * (each.level + 1)} {each.name}.{name.replace('__', chr(92) + '_' * 2)} {{#{each.path}.{name}}}",
                _code(signature(method, name)),
                self._linked(each, method.doc),
            ]
        return "\n\n".join(part for part in parts if part)

    def _table(self, each: Directive) -> str:
        rows = ["| setting | default | meaning |", "|---|---|---|"]
        for row in settings(each.definition):
            cells = (f"`{row.name}`<br>`{row.type}`", row.default, self._linked(each, row.meaning))
            rows.append("| " + " | ".join(cells) + " |")
        return "\n".join(rows)

    def _linked(self, inside: Directive, text: str) -> str:
        """Turn names in code of a docstring into links to their entries."""

        def link(found: re.Match[str]) -> str:
            target = self._links.get(found[1])
            if target is None or (target.path == inside.path and not inside.is_table):
                return found[0]
            page = posixpath.relpath(target.page, posixpath.dirname(inside.page) or ".")
            return f"[{found[0]}]({page}#{target.path})"

        return _SPAN.sub(link, text)


def _names(each: Directive) -> list[str]:
    """Return how docstrings write a name; a function has parentheses, because its name may be a parameter elsewhere."""
    if each.name[0].isupper():
        return [each.name, each.path, f"{each.name}()"]
    return [f"{each.name}()", f"@{each.name}", each.path]


def _key(found: Definition) -> tuple[str, str]:
    return found.module, found.name


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _bases(found: Definition) -> str:
    if not isinstance(found.node, ast.ClassDef) or not found.node.bases:
        return ""
    names = [ast.unparse(each) for each in found.node.bases if not ast.unparse(each).startswith(("Generic", "_"))]
    return "Bases: " + ", ".join(f"`{name}`" for name in names) + "." if names else ""


def _link_to_code(page: str, found: Definition) -> str:
    """Return the code of an error as a link to the page about it."""
    code = error_codes().get(found.name) if found.module == ERRORS else None
    if code is None:
        return ""
    return f"Code: [`{code}`]({posixpath.relpath(f'errors/{code}.md', posixpath.dirname(page) or '.')})."


def _values(found: Definition) -> str:
    """Return the members of an enumeration as a list."""
    if not isinstance(found.node, ast.ClassDef) or not has_base(found, "StrEnum", "Enum"):
        return ""
    members = [node for node in found.node.body if isinstance(node, ast.Assign)]
    return "\n".join(f"- `{ast.unparse(each.targets[0])}` = `{ast.unparse(each.value)}`" for each in members)
