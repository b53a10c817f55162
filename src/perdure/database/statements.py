"""Keep statements as SQL in files, one text for every database.

A file is a list of statements::

    -- name
    -- What it does, in words.
    UPDATE t SET at = {now} WHERE id = :id;
    INSERT INTO u ...

    -- name [mysql]
    -- Differs because ...

`:id` is a bound parameter, `{now}` a piece that the dialect's Driver renders, `{.t}` a table with its schema. A
statement of several parts, separated by `;` at the end of a line, runs in one transaction, on MySQL in one packet; its
answer is a tuple with one entry per part. An override for one dialect follows the statement it replaces and says why
it differs. A placeholder inside a quoted literal is rejected, because the drivers would not bind it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

DIALECTS = ("sqlite", "postgresql", "mysql")

_HEADER = re.compile(r"^-- (\w+)(?: \[(\w+)\])?$")
_LITERAL = re.compile(r"'[^']*'")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")


class Statement:
    """Represent a named statement; calling it with its parameters returns what an operation yields."""

    __slots__ = ("name", "texts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: dict[str, tuple[str, ...]] = {}

    def __call__(self, **params: object) -> "Call":
        return Call(self, params)

    def for_each(self, items: "Sequence[Mapping[str, object]]") -> "Call":
        """Return a call of the statement for many items at once; only SQLite runs it."""
        return Call(self, {}, items)

    def parts(self, dialect: str) -> tuple[str, ...]:
        """Return the template's parts for this dialect."""
        return self.texts.get(dialect) or self.texts[""]

    def __repr__(self) -> str:
        return f"<statement {self.name}>"


class Call(NamedTuple):
    """Pair a statement with its parameters, to be run by a backend."""

    statement: Statement
    params: Mapping[str, object]
    each: Sequence[Mapping[str, object]] = ()  # SQLite: parts that write run for each of these, reads run once


class StatementSet:
    """Provide the statements of one file as attributes."""

    def __init__(self, name: str, statements: Mapping[str, Statement]) -> None:
        self._name = name
        self._statements = statements

    def __getattr__(self, name: str) -> Statement:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"{self._name}.sql has no statement {name!r}") from None

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._statements.values())


def parse(file_name: str, text: str) -> dict[str, Statement]:
    """Parse a file of statements."""
    statements: dict[str, Statement] = {}
    current: Statement | None = None
    dialect, lines = "", list[str]()

    def finish() -> None:
        if current is None:
            return
        parts = tuple(part.strip() for part in re.split(r";[ \t]*\n", "\n".join(lines) + "\n") if part.strip())
        if not parts or dialect in current.texts:
            raise ValueError(f"statement {current.name!r} is empty, or given twice for one dialect")
        for literal in _LITERAL.findall(" ".join(parts)):
            if _PARAMETER.search(literal):
                raise ValueError(f"statement {current.name!r} has a placeholder inside the literal {literal}")
        current.texts[dialect] = parts

    fresh = True  # a header follows a blank line; other comments belong to the text above them
    for line in text.splitlines():
        header = _HEADER.match(line) if fresh else None
        fresh = not line.strip()
        if header:
            finish()
            name, dialect = f"{file_name}.{header[1]}", header[2] or ""
            if dialect and dialect not in DIALECTS:
                raise ValueError(f"statement {name!r} has an override for the unknown dialect {dialect!r}")
            current = statements.setdefault(header[1], Statement(name))
            lines = []
        elif not line.startswith("--"):
            lines.append(line)
    finish()
    for statement in statements.values():
        if "" not in statement.texts:
            raise ValueError(f"statement {statement.name!r} has only an override: add the statement itself")
    return statements
