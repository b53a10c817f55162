"""Libraries that use the transaction of an activity through connections of their own.

`perdure.integrations` registers them. A library is loaded when it is used: perdure does not depend on any.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from perdure.errors import ConfigurationError


class Sharing(Protocol):
    """A library's connection on the transaction of an activity."""

    connection: Any

    def end(self) -> None:
        """Close the connection, because the activity's code has ended."""


class Library(Protocol):
    """The module that connects a library to the transaction of an activity."""

    async def prepare(self, session: Any) -> None:
        """Run the queries that the library needs before its first connection."""

    def share(self, session: Any, loop: asyncio.AbstractEventLoop | None) -> Sharing:
        """Return a connection on the transaction; a blocking one if `loop` is given."""


_loaders: dict[str, Callable[[], object]] = {}


def register(library: str, load: Callable[[], object]) -> None:
    """Register the function that imports the module for a library."""
    _loaders[library] = load


def load(library: str) -> Library:
    """Return the module for a library; raise `ImportError` if the library is not installed."""
    if library not in _loaders:
        raise ConfigurationError(f"connection({library!r}) needs perdure.integrations, which is not imported")
    return cast(Library, _loaders[library]())
