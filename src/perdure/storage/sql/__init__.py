"""The statement set: one for every database, a file a room. `database.statements` tells the form.

What a statement reads must not grow with the database, whatever its planner believes. So the index of a sweep is named
(`{index(...)}`: MySQL would look up the equality alone and read every NULL of the next column), and a row of another
table is looked up in a scalar subquery: a join or an EXISTS can be turned round, and then that table is read whole.
"""

from functools import cache
from importlib.resources import files

from perdure.database.statements import Room, parse


@cache
def room(name: str) -> Room:
    """The statements of `<name>.sql`."""
    return Room(name, parse(name, files(__package__).joinpath(f"{name}.sql").read_text("utf-8")))
