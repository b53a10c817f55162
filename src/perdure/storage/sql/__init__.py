"""The statement set: one for every database, a file a room. `database.statements` tells the form.

What a statement reads must not grow with the database, whatever its planner believes. So the index of a sweep is named
(`{index(...)}`: MySQL would look up the equality alone and read every NULL of the next column), and a row of another
table is looked up in a scalar subquery: a join or an EXISTS can be turned round, and then that table is read whole.

What several statements say in the same words stands in `pieces.sql` and is put in by its name: `{cursor}`, or
`{waits(t)}`, which has `t.` where the piece has `of.`.
"""

import re
from functools import cache
from importlib.resources import files

from perdure.database.statements import Room, Statement, parse

_PIECE = re.compile(r"\{(\w+)(?:\((\w+)\))?\}")


@cache
def room(name: str) -> Room:
    """The statements of `<name>.sql`."""
    pieces = _read("pieces")

    def piece(found: re.Match[str]) -> str:
        if found[1] not in pieces:
            return found[0]  # the dialect's
        (text,) = pieces[found[1]].parts("")
        return _PIECE.sub(piece, text.replace("of.", f"{found[2]}."))  # pieces may have pieces

    return Room(name, parse(name, _PIECE.sub(piece, _text(name))))


@cache
def _read(name: str) -> dict[str, Statement]:
    return parse(name, _text(name))


def _text(name: str) -> str:
    return files(__name__).joinpath(f"{name}.sql").read_text("utf-8")
