"""Load the statements: one set for every database, one file per aggregate. `database.statements` defines the format.

What a statement reads must not grow with the database, whatever its planner assumes. So a sweep names its index
(`{index(...)}`: MySQL would look up the equality alone and read every NULL of the next column), and a row of another
table is looked up in a scalar subquery: a planner may reverse a join or an EXISTS and read that whole table.

A delete of listed rows names its index as well, and a column that is not in it: `DELETE {from_index(table, index,
column)}`. MySQL would read a small table whole, and wait for every row in it that another transaction has locked.

Text that several statements share is in `pieces.sql` and is inserted by its name: `{cursor}`, or `{waits(t)}`, which
has `t.` where the piece has `of.`.

Our tables are written by their plain names and marked here, `{.workflow_instances}`, so that PostgreSQL's dialect can
qualify them with their schema.

Every statement that reads declares its answer. Columns that several statements share are declared with their piece, and
named in braces: `-- get -> {instance}`. A statement without an answer returns nothing.
"""

import re
from functools import cache
from importlib.resources import files

from perdure.database.statements import Statement, StatementSet, parse
from perdure.storage.migrations import tables

_TABLE = re.compile(rf"(?<![\w.])(?:{'|'.join(tables('postgresql'))})(?![\w.])")
_PIECE = re.compile(r"\{(\w+)(?:\((\w+)\))?\}")
_COLUMNS = re.compile(r"(?<= -> )\{(\w+)\}$", re.MULTILINE)
_READS = re.compile(r"(?:SELECT|WITH)\b|(?:.*\bRETURNING\b|.*\{returning\()", re.DOTALL)


@cache
def load_statements(name: str) -> StatementSet:
    """Return the statements of `<name>.sql`."""
    pieces = _read("pieces")

    def piece(found: re.Match[str]) -> str:
        if found[1] not in pieces:
            return found[0]  # a piece of the dialect
        (text,) = pieces[found[1]].parts("")
        return _PIECE.sub(piece, text.replace("of.", f"{found[2]}."))  # pieces may contain pieces

    text = _COLUMNS.sub(lambda found: ", ".join(pieces[found[1]].columns or ()), _text(name))
    found = statements(name, _PIECE.sub(piece, text))
    for statement in found:
        _check(statement)
    return found


def statements(name: str, text: str) -> StatementSet:
    """Return the statements of a text, with their tables marked."""
    return StatementSet(name, parse(name, _TABLE.sub(r"{.\g<0>}", text)))


def _check(statement: Statement) -> None:
    """Raise `ValueError` if a statement reads and declares no answer; any other one without an answer has none."""
    if statement.columns is None:
        if any(_READS.match(parts[-1]) for parts in statement.texts.values()):
            raise ValueError(f"statement {statement.name!r} reads and declares no answer: add `-> column, column`")
        statement.columns = ()


@cache
def _read(name: str) -> dict[str, Statement]:
    return parse(name, _text(name))


def _text(name: str) -> str:
    return files(__name__).joinpath(f"{name}.sql").read_text("utf-8")
