"""The files and functions that docs/life-of-a-run.md names exist."""

import ast
import re

from tests.docs.marks import ROOT

PAGE = (ROOT / "docs" / "life-of-a-run.md").read_text("utf-8")
HOPS: list[tuple[str, str]] = re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", PAGE)


def _defined(file: str) -> set[str]:
    """The functions of a module, and the methods of its classes."""
    found: set[str] = set()
    for node in ast.parse((ROOT / "src" / "perdure" / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_every_hop_exists() -> None:
    assert len(HOPS) > 25
    assert [f"{file}: {name}" for file, name in HOPS if name not in _defined(file)] == []
