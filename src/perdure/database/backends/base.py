"""The seam between the rooms and a database: a backend runs operations, it knows no room.

`Backend` is what a storage needs; `Session` is one open transaction. What SQLite and the servers share is here:
driving an operation, and the sentences for what goes wrong with a connection.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from perdure.database.dialects.base import Rendering
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call
from perdure.model.records import WakeUp

T = TypeVar("T")


class Executor(Protocol):
    """Runs a caller's own SQL, in the native driver's parameter style, in the open transaction or on the pool."""

    async def execute(self, query: str, *args: object) -> int:
        """Run a statement and give the number of rows it wrote."""

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        """All rows."""

    async def fetchrow(self, query: str, *args: object) -> tuple[Any, ...] | None:
        """The first row, or None."""

    async def fetchval(self, query: str, *args: object) -> Any:
        """The first column of the first row, or None."""

    @property
    def native(self) -> Any:
        """The native connection; None on the pool, which has no single one."""


class Session(Executor, Protocol):
    """One open transaction on one connection. After an error of the connection only `rollback` is possible."""

    async def operate(self, work: Work[T]) -> T:
        """Run an operation; its own errors leave the transaction as it was before it."""

    async def savepoint(self, depth: int) -> None:
        """Mark a level inside the transaction."""

    async def release(self, depth: int) -> None:
        """Keep what was done since the mark."""

    async def rollback_to(self, depth: int) -> None:
        """Undo what was done since the mark."""

    async def commit(self) -> None:
        """Make it durable and give the connection back; a lost answer is `CommitUnknownError`."""

    async def rollback(self) -> None:
        """Undo everything and give the connection back; never raises."""


class Notifier(Protocol):
    """Who tells other processes that there may be work, once a transaction has committed."""

    def due(self, kind: str, /) -> bool:
        """Whether the transaction about to run should carry a notification itself."""

    def trail(self, kind: str, /) -> None:
        """Called after the commit of one that did not: wake local listeners, or notify a little later."""


class Backend(Protocol):
    """Connections, pools, transactions and wake-ups of one database."""

    @property
    def driver(self) -> Rendering:
        """The dialect, with the clock its statements judge by."""

    @property
    def notifier(self) -> Notifier:
        """Who wakes up others."""

    async def open(self) -> None:
        """Connect, or say in one sentence why not."""

    async def close(self) -> None:
        """Give everything back."""

    async def read(self, work: Work[T], *, bounded: bool) -> T:
        """Run an operation that writes nothing. `bounded`: an index serves it, it takes microseconds."""

    async def write(self, work: Work[T]) -> T:
        """Run an operation in a transaction of its own and commit it; a lost race for locks is run again."""

    async def begin(self) -> Session:
        """Open a transaction."""

    def executor(self) -> Executor:
        """The pool, for a caller's own SQL outside a transaction."""

    def exclusive(self) -> "AbstractAsyncContextManager[Script]":
        """A connection in autocommit mode, for migrations."""

    def wakeups(self) -> AsyncIterator[WakeUp]:
        """Hints that there may be work, from this and other processes."""


class Silent:
    """The notifier of a database that cannot notify: listeners look by themselves."""

    def due(self, kind: str) -> bool:
        return False

    def trail(self, kind: str) -> None:
        return


class Script(Protocol):
    """Runs plain statements one by one; what migrations need."""

    async def execute(self, sql: str) -> None:
        """Run one statement."""

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one query."""


async def drive(operation: Operation[T], run: Callable[[Call], Awaitable[Any]]) -> T:
    """Run an operation call by call on a connection that is awaited."""
    try:
        call = next(operation)
        while True:
            call = operation.send(await run(call))
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        operation.close()


class Rows:
    """`fetchrow` and `fetchval` on top of `fetch`."""

    async def fetch(self, query: str, *args: object) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    async def fetchrow(self, query: str, *args: object) -> tuple[Any, ...] | None:
        rows = await self.fetch(query, *args)
        return rows[0] if rows else None

    async def fetchval(self, query: str, *args: object) -> Any:
        row = await self.fetchrow(query, *args)
        return row[0] if row else None


def bound(driver: Rendering, names: Sequence[str], call: Call) -> list[object]:
    """The parameters in the order a rendered text wants them."""
    params, bind = call.params, driver.bind
    return [bind(params[name]) for name in names]
