"""Keep statements as SQL in files, one text for every database.

A file is a list of statements::

    -- name -> token, expires_at
    -- What it does, in words.
    UPDATE t SET at = {now} WHERE id = :id;
    SELECT token, expires_at FROM t WHERE id = :id

    -- name [mysql]
    -- Differs because ...

`:id` is a bound parameter, `{now}` a piece that the dialect's Driver renders, `{.t}` a table with its schema. A
statement of several parts, separated by `;` at the end of a line, runs in one transaction, on MySQL in one packet. An
override for one dialect follows the statement it replaces and says why it differs. A placeholder inside a quoted
literal is rejected, because the drivers would not bind it.

The header declares the answer, which has the same shape on every database: a list of rows with these columns, or
`-> count`, the number of rows that were written or returned. A list of columns may continue on the next line. The
answer is that of the last part. A line above a part changes this::

    -- [answer]      the answer is that of this part
    -- [required]    the answer has no rows if this part wrote none
    -- [column]      the answer is one row; its column is the number of rows that this part wrote, or the value it read

A statement without a declared answer returns what its parts return: rows or a number, and a tuple for several parts.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

DIALECTS = ("sqlite", "postgresql", "mysql")
COUNT = ("count",)

_HEADER = re.compile(r"^-- (\w+)(?: \[(\w+)\])?(?: -> (\w+(?:, \w+)*,?))?$")
_MORE = re.compile(r"^-- +(\w+(?:, \w+)*,?)$")
_ROLE = re.compile(r"^-- \[(\w+)\]$")
_LITERAL = re.compile(r"'[^']*'")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")

Shape = Callable[[Sequence[Any]], Any]


class Statement:
    """Represent a named statement; calling it with its parameters returns what an operation yields."""

    __slots__ = ("columns", "name", "roles", "texts")

    def __init__(self, name: str, columns: tuple[str, ...] | None = None) -> None:
        self.name = name
        self.columns = columns  # the declared answer: columns, `COUNT`, nothing, or None if it is not declared
        self.texts: dict[str, tuple[str, ...]] = {}
        self.roles: dict[str, tuple[str, ...]] = {}  # of the parts

    def __call__(self, **params: object) -> "Call":
        return Call(self, params)

    def for_each(self, items: "Sequence[Mapping[str, object]]") -> "Call":
        """Return a call of the statement for many items at once, for databases with the feature `repeated_calls`."""
        return Call(self, {}, items)

    def parts(self, dialect: str) -> tuple[str, ...]:
        """Return the template's parts for this dialect."""
        return self.texts.get(dialect) or self.texts[""]

    def shape(self, dialect: str) -> Shape:
        """Return the function that makes the answer of the statement from the answers of its parts."""
        roles = self.roles.get(dialect) or self.roles.get("") or ("",) * len(self.parts(dialect))
        if self.columns is None:
            return itemgetter(0) if len(roles) == 1 else tuple
        if not self.columns:
            return _nothing
        if set(roles) & set(self.columns):
            return _row([roles.index(column) for column in self.columns])
        at = roles.index("answer") if "answer" in roles else len(roles) - 1
        if self.columns == COUNT:
            return lambda answers: _count(answers[at])
        if "required" in roles:
            required = roles.index("required")
            return lambda answers: answers[at] if answers[required] else []
        return itemgetter(at)

    def __repr__(self) -> str:
        return f"<statement {self.name}>"


def _nothing(_: Sequence[Any]) -> None:
    return None


def _row(order: Sequence[int]) -> Shape:
    return lambda answers: [tuple([_value(answers[at]) for at in order])]


def _value(answer: Any) -> Any:
    """Return the number of rows that a part wrote, or the first value that it read."""
    if isinstance(answer, list):
        return answer[0][0] if answer else None
    return answer


def _count(answer: Any) -> int:
    return len(answer) if isinstance(answer, list) else answer


class Call(NamedTuple):
    """Pair a statement with its parameters, to be run by a backend."""

    statement: Statement
    params: Mapping[str, object]
    each: Sequence[Mapping[str, object]] = ()  # parts that write run for each of these, reads run once


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
    for header, lines in _sections(text):
        name, dialect = f"{file_name}.{header[1]}", header[2] or ""
        if dialect and dialect not in DIALECTS:
            raise ValueError(f"statement {name!r} has an override for the unknown dialect {dialect!r}")
        if dialect and header[3]:
            raise ValueError(f"statement {name!r} declares another answer for one dialect: declare it once for all")
        columns = _columns(header[3], lines) if header[3] else None
        statement = statements.setdefault(header[1], Statement(name, columns))
        _add_text(statement, dialect, lines)
    for statement in statements.values():
        if "" not in statement.texts:
            raise ValueError(f"statement {statement.name!r} has only an override: add the statement itself")
    return statements


def _sections(text: str) -> Iterator[tuple[re.Match[str], list[str]]]:
    """Yield each header with the lines below it."""
    found: tuple[re.Match[str], list[str]] | None = None
    fresh = True  # a header follows a blank line; other comments belong to the text above them
    for line in text.splitlines():
        header = _HEADER.match(line) if fresh else None
        fresh = not line.strip()
        if header:
            if found:
                yield found
            found = header, []
        elif found:
            found[1].append(line)
    if found:
        yield found


def _columns(first: str, lines: list[str]) -> tuple[str, ...]:
    """Return the declared columns; as long as they end with a comma, the next line has more of them."""
    columns = first
    for line in lines:
        if not columns.endswith(",") or not (more := _MORE.match(line)):
            break
        columns += f" {more[1]}"
    return tuple(columns.split(", "))


def _add_text(statement: Statement, dialect: str, lines: Sequence[str]) -> None:
    parts, roles, role = [""], list[str](), ""
    for line in lines:
        if found := _ROLE.match(line):
            role = found[1]
        elif line.startswith("--"):
            continue
        elif line.rstrip().endswith(";"):
            parts[-1] += line.rstrip()[:-1]
            parts.append("")
            roles.append(role)
            role = ""
        else:
            parts[-1] += line + "\n"
    texts, roles = [part.strip() for part in parts if part.strip()], [*roles, role]
    if not texts or dialect in statement.texts:
        raise ValueError(f"statement {statement.name!r} is empty, or given twice for one dialect")
    for literal in _LITERAL.findall(" ".join(texts)):
        if _PARAMETER.search(literal):
            raise ValueError(f"statement {statement.name!r} has a placeholder inside the literal {literal}")
    if unknown := {*roles} - {"", "answer", "required", *(statement.columns or ())}:
        raise ValueError(f"statement {statement.name!r} has parts with unknown roles: {sorted(unknown)}")
    statement.texts[dialect], statement.roles[dialect] = tuple(texts), tuple(roles[: len(texts)])
