"""The migration files: dbmate's form, one directory a dialect."""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_UP = re.compile(r"^-- migrate:up\b[^\n]*\n(.*?)(?=^-- migrate:down\b|\Z)", re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?\*/|;|[^'"`;/-]+|.""", re.DOTALL)
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \(")
_COLUMN = re.compile(r"^\s+([a-z_]+) [A-Z]", re.MULTILINE)  # keywords such as PRIMARY KEY are in capitals


class Migration(NamedTuple):
    """The up section of one file."""

    version: str
    statements: tuple[str, ...]


def versions(dialect: str) -> list[str]:
    """All versions this release knows, oldest first."""
    return [migration.version for migration in up_statements(dialect)]


@cache
def up_statements(dialect: str) -> tuple[Migration, ...]:
    """The files of one dialect, oldest first."""
    found = sorted(files("perdure.storage.migrations").joinpath(dialect).iterdir(), key=lambda file: file.name)
    return tuple(
        Migration(file.name.partition("_")[0], tuple(split(up[1])))
        for file in found
        if (up := _UP.search(file.read_text(encoding="utf-8")))
    )


@cache
def tables(dialect: str) -> dict[str, frozenset[str]]:
    """Every table of ours, in the order of creation, with the columns that it has from the beginning."""
    statements = [statement for migration in up_statements(dialect) for statement in migration.statements]
    return {
        found[1]: frozenset(_COLUMN.findall(statement))
        for statement in statements
        if (found := _TABLE.match(statement))
    }


def split(script: str) -> list[str]:
    """The statements of a script without their comments. Dollar quotes and backslash escapes are not understood."""
    texts = [""]
    for token in _TOKEN.findall(script):
        if token == ";":  # nosec B105 # of SQL
            texts.append("")
        elif not token.startswith(("--", "/*")):
            texts[-1] += token
    return [text.strip() for text in texts if text.strip()]
