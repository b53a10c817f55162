"""Define the interface between the storage aggregates and a database.

A `Backend` runs operations and knows no table; a `Session` is one open transaction. The code that SQLite and the
servers share is here, too.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, runtime_checkable

from perdure.database.dialects.base import Rendering
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call
from perdure.model.records import WakeUp

T = TypeVar("T")


class Executor(Protocol):
    """Run a caller's own SQL, in the native driver's parameter style, in the open transaction or on the pool."""

    async def execute(self, query: str, *args: object) -> int:
        """Run a statement and return the number of rows it wrote."""

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        """Return all rows."""

    async def fetchrow(self, query: str, *args: object) -> tuple[Any, ...] | None:
        """Return the first row, or None."""

    async def fetchval(self, query: str, *args: object) -> Any:
        """Return the first column of the first row, or None."""

    @property
    def native(self) -> Any:
        """Return the native connection, or None on the pool, which has no single connection."""


class Session(Executor, Protocol):
    """Hold one open transaction on one connection. After a connection error only `rollback` is possible."""

    @property
    def driver(self) -> Rendering:
        """Return the dialect, which is the backend's own."""

    async def operate(self, work: Work[T]) -> T:
        """Run an operation; if it raises an error of its own, the transaction is as it was before the operation."""

    async def savepoint(self, depth: int) -> None:
        """Set a savepoint inside the transaction."""

    async def release(self, depth: int) -> None:
        """Release the savepoint and keep what was written since."""

    async def rollback_to(self, depth: int) -> None:
        """Undo what was written since the savepoint."""

    async def commit(self) -> None:
        """Commit and return the connection to the pool; raise `CommitUnknownError` if the answer is lost."""

    async def rollback(self) -> None:
        """Undo everything and return the connection to the pool; never raises."""


class Notifier(Protocol):
    """Notify other processes that there may be work once a transaction has committed."""

    def due(self, kind: str, /) -> bool:
        """Return whether the transaction about to run should send a notification itself."""

    def trail(self, kind: str, /) -> None:
        """Wake local listeners, or notify a little later, after a commit that sent no notification."""


class Backend(Protocol):
    """Manage the connections, pools, transactions and wake-ups of one database."""

    @property
    def driver(self) -> Rendering:
        """Return the dialect, with the clock that its statements use."""

    @property
    def notifier(self) -> Notifier:
        """Return the notifier that wakes other processes."""

    async def open(self) -> None:
        """Connect, or raise an error that says in one sentence why that failed."""

    async def close(self) -> None:
        """Close all connections."""

    async def read(self, work: Work[T], *, bounded: bool) -> T:
        """Run an operation that writes nothing. `bounded`: an index serves it, so it takes microseconds."""

    async def write(self, work: Work[T]) -> T:
        """Run an operation in a transaction of its own and commit it; retry it after a deadlock."""

    async def begin(self) -> Session:
        """Open a transaction."""

    def executor(self) -> Executor:
        """Return an executor on the pool, for a caller's own SQL outside a transaction."""

    def exclusive(self) -> "AbstractAsyncContextManager[Script]":
        """Return a connection in autocommit mode, for migrations."""

    def wakeups(self) -> AsyncIterator[WakeUp]:
        """Yield hints that there may be work, from this and other processes."""


@runtime_checkable
class PooledBackend(Protocol):
    """A backend with a pool of connections."""

    @property
    def pool_use(self) -> tuple[int, int]:
        """Return how many connections are in use, and the maximum."""


class Silent:
    """Send nothing: the notifier of a database that cannot notify, where listeners poll."""

    def due(self, kind: str) -> bool:
        return False

    def trail(self, kind: str) -> None:
        return


class Script(Protocol):
    """Run plain statements one by one, for migrations."""

    async def execute(self, sql: str) -> None:
        """Run one statement."""

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one query."""


async def drive(operation: Operation[T], run: Callable[[Call], Awaitable[Any]]) -> T:
    """Run an operation call by call on an asynchronous connection."""
    try:
        call = next(operation)
        while True:
            call = operation.send(await run(call))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        operation.close()


class Rows:
    """Provide `fetchrow` and `fetchval` on top of `fetch`."""

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    async def fetchrow(self, query: str, *args: object) -> tuple[Any, ...] | None:
        rows = await self.fetch(query, *args)
        return rows[0] if rows else None

    async def fetchval(self, query: str, *args: object) -> Any:
        row = await self.fetchrow(query, *args)
        return row[0] if row else None


def bound(driver: Rendering, names: Sequence[str], call: Call) -> list[object]:
    """Return the parameters in the order of the rendered text."""
    params, bind = call.params, driver.bind
    return [bind(params[name]) for name in names]
