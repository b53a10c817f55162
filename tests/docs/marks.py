"""The tests of the tree with their marks, read from the source, and the tests that a page names."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFORMANCE = ROOT / "src" / "perdure" / "testing" / "conformance"
_REFERENCE = re.compile(r"`((?:tests|src)/[\w/]+\.py::\w+)`")


@dataclass(frozen=True)
class Marked:
    """One test: `path::name`, and the first arguments of its marks by name of the mark."""

    id: str
    marks: dict[str, list[int | str]] = field(default_factory=dict)


def references(text: str) -> list[str]:
    """Return the tests that a text names, as `path::name`."""
    return _REFERENCE.findall(text)


def marks_in(source: str, path: str) -> Iterator[Marked]:
    """Yield the tests of a module with their marks."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks: dict[str, list[int | str]] = {}
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).startswith("pytest.mark.") and mark.args:
                    argument = mark.args[0]
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, int | str):
                        marks.setdefault(ast.unparse(mark.func).removeprefix("pytest.mark."), []).append(argument.value)
            yield Marked(f"{path}::{node.name}", marks)


@cache
def all_tests() -> dict[str, Marked]:
    """Return every test of `tests/` and of the conformance suite by its id.

    A test calls it, not the module: parsing takes seconds, and each process of the suite imports every module.
    """
    files = [*sorted((ROOT / "tests").rglob("*.py")), *sorted(CONFORMANCE.rglob("*.py"))]
    return {
        test.id: test for file in files for test in marks_in(file.read_text("utf-8"), file.relative_to(ROOT).as_posix())
    }
