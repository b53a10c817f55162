"""What asyncpg knows about the types of a server: read once in a process, and not again by each connection.

asyncpg asks the server about each type that it sees for the first time on a connection, arrays of numbers included.
That costs 10 ms and two round trips, more than most of what a new connection does afterwards.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from perdure.database.backends.postgres.native import asyncpg

OWN_TYPES = 16384  # oids from here on belong to one database; those below are the same on all servers of a version
_NO_STATEMENT = SimpleNamespace(name="none")  # asyncpg asks whether reading the types replaced its unnamed statement

_known: dict[tuple[tuple[int, ...], frozenset[int]], Any] = {}  # by the server's version and the oids

Connection: Any = None
if asyncpg is not None:

    class _Connection(asyncpg.Connection):  # type: ignore[misc] # the driver may be absent, so it is untyped
        async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[Any, Any]:
            oids = frozenset(typeoids)
            key = tuple(self.get_server_version()), oids
            if key in _known:
                return _known[key], _NO_STATEMENT
            types, statement = await super()._introspect_types(oids, timeout)
            if max(oids) < OWN_TYPES:
                _known[key] = types
            return types, statement

    Connection = _Connection
