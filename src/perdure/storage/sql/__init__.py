"""The statement set: one for every database, a file a room. `database.statements` tells the form."""

from functools import cache
from importlib.resources import files

from perdure.database.statements import Room, parse


@cache
def room(name: str) -> Room:
    """The statements of `<name>.sql`."""
    return Room(name, parse(name, files(__package__).joinpath(f"{name}.sql").read_text("utf-8")))
