"""A pytest plugin that writes down which lines and which statements of perdure each test executes.

Modules of perdure are changed while they are imported: every statement of a function first marks its line. That costs a
tenth of what a trace function does, and works in every thread. What runs during the import belongs to no test.
"""

import ast
import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TextIO

import pytest

FOLDER_VARIABLE = "PERDURE_MUTANTS_TRACES"  # where each process of pytest writes a file
HITS: dict[str, bytearray] = {}  # by file: one byte per line
EXECUTED: set[str] = set()  # statements, with the dialect


class Marking(ast.NodeTransformer):
    """Mark the line of each statement in a function before it runs."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth and not isinstance(node, ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, self._marked(node, block))
        return node

    def _marked(self, parent: ast.AST, block: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for position, statement in enumerate(block):
            is_docstring = (
                not position and isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and _is_text(statement)
            )
            found += [statement] if is_docstring else [_mark(statement), statement]
        return found


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _mark(statement: ast.stmt) -> ast.stmt:
    (mark,) = ast.parse(f"__hits__[{statement.lineno}] = 1").body
    for node in ast.walk(mark):
        ast.copy_location(node, statement)
    return mark


class Loader(SourceFileLoader):
    """Load a module with its lines marked, without a file of bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        tree = Marking().visit(ast.parse(self.get_data(self.path)))
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        lines = self.get_data(self.path).count(b"\n") + 2
        module.__dict__["__hits__"] = HITS[_name(self.path)] = bytearray(lines)
        super().exec_module(module)
        if module.__name__ == "perdure.database.statements":
            _watch(module.Statement, lambda statement, dialect: f"{statement.name} {dialect}")
        if module.__name__ == "perdure.database.dialects.base":
            _watch(module.Rendering, lambda rendering, statement: f"{statement.name} {rendering.name}")


def _name(path: str) -> str:
    """Return the name of a file of perdure, from its package."""
    return path.rpartition("/src/perdure/")[2]


class Finder(MetaPathFinder):
    """Find the modules of perdure, except those that are tests themselves."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not f"{fullname}.".startswith("perdure.") or fullname.startswith("perdure.testing"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


class Traces:
    """Write what the imports executed, then one line for each test."""

    def __init__(self, out: TextIO, root: Path) -> None:
        self._out, self._root = out, root
        self._seconds, self._passed = 0.0, True

    def pytest_collection_finish(self) -> None:
        self._write({"sources": source_digests(self._root), "imported": _lines()})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        EXECUTED.clear()
        for hits in HITS.values():
            hits[:] = bytes(len(hits))
        self._seconds, self._passed = 0.0, True
        answer = yield
        self._write(self._row(item))
        return answer

    def _write(self, row: Mapping[str, object]) -> None:
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        self._passed &= report.passed

    def _row(self, item: pytest.Item) -> dict[str, object]:
        source = item.function.__code__.co_filename if isinstance(item, pytest.Function) else str(item.path)
        return {
            "test": item.nodeid,
            "digest": digest(source),
            "seconds": round(self._seconds, 3),
            "passed": self._passed,
            "lines": _lines(),
            "sql": sorted(EXECUTED),
        }


def _lines() -> dict[str, str]:
    """Return the lines that were executed, by file, as the bits of a hexadecimal number."""
    found = {file: sum(1 << line for line, hit in enumerate(hits) if hit) for file, hits in HITS.items()}
    return {file: format(bits, "x") for file, bits in found.items() if bits}


@cache
def digest(path: str) -> str:
    """Return a digest of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def source_digests(root: Path) -> dict[str, str]:
    """Return the digest of each module of perdure."""
    folder = root / "src" / "perdure"
    return {path.relative_to(folder).as_posix(): digest(str(path)) for path in folder.rglob("*.py")}


def _watch(kind: Any, executed: Callable[[Any, Any], str]) -> None:
    """Note each statement whose parts are asked for: by a module, or by a backend that executes it."""
    parts = kind.parts

    def noted(first: Any, second: Any) -> Any:
        EXECUTED.add(executed(first, second))
        return parts(first, second)

    kind.parts = noted


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Watch what conftest.py imports, too."""
    sys.meta_path.insert(0, Finder())


def pytest_configure(config: pytest.Config) -> None:
    """Start to write, unless this process only distributes tests to others."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    path = Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.jsonl"
    config.pluginmanager.register(Traces(path.open("a"), config.rootpath))
