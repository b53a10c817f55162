"""Render the statements of migrations as plain texts: they run before a storage is open, on a session without binding.

Values are written as literals (`:names`), and identifiers as they are (`{ledger}`).
"""

import re
from collections.abc import Collection
from functools import cache
from importlib.resources import files

from perdure.database.statements import Statement, parse

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_NAME = re.compile(r"\{([a-z_]+)\}")


def render(name: str, dialect: str, /, **values: object) -> str:
    """Return a statement of one part."""
    (text,) = render_all(name, dialect, **values)
    return text


def render_all(name: str, dialect: str, /, **values: object) -> list[str]:
    """Return the parts of a statement."""
    parts = _statements()[name].parts(dialect)
    literals = [_PARAMETER.sub(lambda found: literal(values[found[1]]), part) for part in parts]
    return [_NAME.sub(lambda found: str(values[found[1]]), part) for part in literals]


def literal(value: object) -> str:
    """Return a text, a number or a list of texts as a literal."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, Collection):
        return f"({', '.join(map(literal, value))})"
    return str(value)


@cache
def _statements() -> dict[str, Statement]:
    # Not through `perdure.storage.sql`, which needs the names of the tables from the migrations.
    return parse("migrations", files("perdure.storage").joinpath("sql", "migrations.sql").read_text("utf-8"))
