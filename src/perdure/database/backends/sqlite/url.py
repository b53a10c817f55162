"""Parse the URL of a SQLite database: `sqlite:///file.db`, `sqlite:////dir/file.db` or `sqlite:///:memory:`."""

from urllib.parse import unquote

from perdure.database.secret import Secret
from perdure.errors import ConfigurationError

MEMORY = ":memory:"
_PREFIX = "sqlite:///"


def parse(url: str) -> str:
    """Return the path of the file, or `:memory:`."""
    place, _, options = Secret(url).partition("#")[0].partition("?")
    if not place.lower().startswith(_PREFIX) or place.endswith("///") or options:
        raise ConfigurationError(
            "a SQLite URL has three slashes and no options: sqlite:///file.db, sqlite:////dir/file.db or "
            "sqlite:///:memory:"
        )
    return unquote(place[len(_PREFIX) :])


def is_in_memory(url: str) -> bool:
    """Return whether the database is private to its one connection; a malformed URL is reported when it is parsed."""
    place = Secret(url).partition("#")[0].partition("?")[0]
    return place.lower().startswith(_PREFIX) and unquote(place[len(_PREFIX) :]) == MEMORY
