"""The storage modules choose between algorithms by features of the database, never by its name."""

import ast
import re
from pathlib import Path

import pytest

import perdure.storage

SOURCE = Path(perdure.storage.__file__).parent
MODULES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
NAMING = {
    "__init__.py",  # exports the classes of stores.py
    "stores.py",  # maps URLs to databases
    "sql/__init__.py",  # reads the names of the tables from the migrations of one dialect; all have the same tables
    "migrations/placement.py",  # asks for schemas, which only PostgreSQL has
    "migrations/runner.py",  # has the error codes of each database
}
VENDOR = re.compile(r"sqlite|postgres|mysql|mariadb", re.IGNORECASE)


def test_vendor_names_are_found() -> None:
    assert list(vendors('"""SQLite."""\nif driver.name != "mysql":  # MySQL\n    new_postgres()')) == [
        "mysql",
        "new_postgres",
    ]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in NAMING])
def test_no_storage_module_names_a_vendor(name: str) -> None:
    assert list(vendors(MODULES[name].read_text("utf-8"))) == []


def vendors(source: str) -> list[str]:
    """Return the names and texts of the code that name a vendor; docstrings and comments may say why."""
    tree = ast.parse(source)
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, scopes) and node.body and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            text = node.value
        elif isinstance(node, ast.Name):
            text = node.id
        elif isinstance(node, ast.Attribute):
            text = node.attr
        elif isinstance(node, ast.alias):
            text = node.name
        if VENDOR.search(text):
            found.append(text)
    return found
