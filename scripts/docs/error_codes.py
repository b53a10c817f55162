"""The error codes of the library, the HTTP API and the command line, read from the source."""

import ast
import re
from functools import cache

from scripts.docs.definitions import SOURCE, parsed

ERRORS = "perdure.errors"
_CODE = re.compile(r"(?:http|cli)\.[a-z_]+")
_MESSAGES_OF_ASGI = {"http.disconnect"}


@cache
def error_codes() -> dict[str, str]:
    """Return the codes of `perdure.errors` by the names of their classes."""
    return {
        node.name: str(ast.literal_eval(each.value))
        for node in parsed(ERRORS).body
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None and _assigns_code(each)
    }


def _assigns_code(node: ast.Assign | ast.AnnAssign) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return ast.unparse(target) == "code"


@cache
def all_codes() -> frozenset[str]:
    """Return the codes of all errors, also those that only the HTTP API, the dashboard or the command line has."""
    files = [file for name in ("cli", "dashboard", "http") for file in (SOURCE / "perdure" / name).rglob("*.py")]
    texts = {
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset({*error_codes().values(), *filter(_CODE.fullmatch, texts)} - _MESSAGES_OF_ASGI)
