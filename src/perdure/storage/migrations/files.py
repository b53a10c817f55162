"""Read the migration files: dbmate's format, one directory per dialect."""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_UP = re.compile(r"^-- migrate:up\b[^\n]*\n(.*?)(?=^-- migrate:down\b|\Z)", re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?\*/|;|[^'"`;/-]+|.""", re.DOTALL)
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \(")
_COLUMN = re.compile(r"^\s+([a-z_]+) [A-Z]", re.MULTILINE)  # keywords such as PRIMARY KEY are in capitals


class Migration(NamedTuple):
    """Hold the up section of one file."""

    version: str
    statements: tuple[str, ...]


def versions(dialect: str) -> list[str]:
    """Return all versions that this release knows, oldest first."""
    return [migration.version for migration in up_statements(dialect)]


@cache
def up_statements(dialect: str) -> tuple[Migration, ...]:
    """Return the files of one dialect, oldest first."""
    found = sorted(files("perdure.storage.migrations").joinpath(dialect).iterdir(), key=lambda file: file.name)
    return tuple(
        Migration(file.name.partition("_")[0], tuple(split(up[1])))
        for file in found
        if (up := _UP.search(file.read_text(encoding="utf-8")))
    )


@cache
def tables(dialect: str) -> dict[str, frozenset[str]]:
    """Return every table of ours, in the order of creation, with the columns of its CREATE TABLE statement."""
    statements = [statement for migration in up_statements(dialect) for statement in migration.statements]
    return {
        found[1]: frozenset(_COLUMN.findall(statement))
        for statement in statements
        if (found := _TABLE.match(statement))
    }


def split(script: str) -> list[str]:
    """Return the statements of a script without comments. Dollar quotes and backslash escapes are not supported."""
    texts = [""]
    for token in _TOKEN.findall(script):
        if token == ";":  # a separator of SQL
            texts.append("")
        elif not token.startswith(("--", "/*")):
            texts[-1] += token
    return [text.strip() for text in texts if text.strip()]
