"""The statement set: one for every database, a file a room. `database.statements` tells the form.

What a statement reads must not grow with the database, whatever its planner believes. So the index of a sweep is named
(`{index(...)}`: MySQL would look up the equality alone and read every NULL of the next column), and a row of another
table is looked up in a scalar subquery: a join or an EXISTS can be turned round, and then that table is read whole.

What several statements say in the same words stands in `pieces.sql` and is put in by its name: `{cursor}`, or
`{waits(t)}`, which has `t.` where the piece has `of.`.

Our tables are written by their plain names and marked here, `{.workflow_instances}`, so that PostgreSQL's dialect can
qualify them with their schema.
"""

import re
from functools import cache
from importlib.resources import files

from perdure.database.statements import Statement, StatementSet, parse
from perdure.storage.migrations import tables

_TABLE = re.compile(rf"(?<![\w.])(?:{'|'.join(tables('postgresql'))})(?![\w.])")
_PIECE = re.compile(r"\{(\w+)(?:\((\w+)\))?\}")


@cache
def load_statements(name: str) -> StatementSet:
    """The statements of `<name>.sql`."""
    pieces = _read("pieces")

    def piece(found: re.Match[str]) -> str:
        if found[1] not in pieces:
            return found[0]  # the dialect's
        (text,) = pieces[found[1]].parts("")
        return _PIECE.sub(piece, text.replace("of.", f"{found[2]}."))  # pieces may have pieces

    return statements(name, _PIECE.sub(piece, _text(name)))


def statements(name: str, text: str) -> StatementSet:
    """The statements of a text, their tables marked."""
    return StatementSet(name, parse(name, _TABLE.sub(r"{.\g<0>}", text)))


@cache
def _read(name: str) -> dict[str, Statement]:
    return parse(name, _text(name))


def _text(name: str) -> str:
    return files(__name__).joinpath(f"{name}.sql").read_text("utf-8")
