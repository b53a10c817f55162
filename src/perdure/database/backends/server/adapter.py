"""Define what the backend of one server adds to the common part: how to use a connection of its native driver."""

import asyncio
import logging
import time
from typing import Any, Generic, TypeVar

from perdure.database.backends.server.retries import Fault
from perdure.database.dialects.base import Rendering
from perdure.database.statements import Call
from perdure.errors import StorageError

log = logging.getLogger("perdure.storage")

C = TypeVar("C")

ROLLBACK_SEC = 5.0


class Adapter(Generic[C]):
    """Use connections of one kind of server."""

    driver: Rendering
    idle_sec: float | None = None  # after which the server ends an idle transaction

    # Connections.

    async def connect(self) -> C:
        """Return a new connection with its session set up; raise `DatabaseUnavailableError` or `ConfigurationError`."""
        raise NotImplementedError

    def alive(self, connection: C) -> bool:
        """Return False if the connection is known to be closed."""
        raise NotImplementedError

    def within(self, connection: C) -> bool:
        """Return whether a transaction is open, by the server's last answer."""
        raise NotImplementedError

    def reusable(self, connection: C) -> bool:
        """Return whether it is alive and in no transaction, which the next user's writes would become part of."""
        raise NotImplementedError

    def discard(self, connection: C) -> None:
        """Close the connection without waiting."""
        raise NotImplementedError

    # Statements.

    async def run(self, connection: C, call: Call) -> Any:
        """Run a call inside the open transaction."""
        raise NotImplementedError

    async def run_alone(self, connection: C, call: Call) -> Any:
        """Run a call as a transaction of its own."""
        raise NotImplementedError

    async def run_within(self, connection: C, call: Call) -> Any:
        """Run a call inside a caller's transaction: if it fails, nothing of it is written."""
        return await self.run(connection, call)

    async def first(self, connection: C, call: Call) -> Any:
        """Open a transaction and run its first call, in one round trip if the server can."""
        await self.begin_on(connection)
        return await self.run(connection, call)

    async def execute_on(self, connection: C, query: str, args: tuple[object, ...] = ()) -> int:
        """Run a caller's own statement."""
        raise NotImplementedError

    async def fetch_on(self, connection: C, query: str, args: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a caller's own query."""
        raise NotImplementedError

    # Transactions.

    async def begin_on(self, connection: C) -> None:
        """Open a transaction."""
        await self.execute_on(connection, "BEGIN")

    async def commit_on(self, connection: C) -> None:
        """Commit the transaction; raise `TransactionConflictError` if the server rolled it back instead."""
        await self.execute_on(connection, "COMMIT")

    async def rollback_on(self, connection: C) -> None:
        """Roll back what is open, also after a statement that was cancelled half-way."""
        await self.execute_on(connection, "ROLLBACK")

    async def roll_back_or_discard(self, connection: C) -> None:
        """Roll back what is open; if that fails or takes too long, discard the connection."""
        if not self.alive(connection):
            return
        try:
            await asyncio.wait_for(self.rollback_on(connection), ROLLBACK_SEC)
        except Exception as error:  # the error that led to the rollback is raised to the caller
            self.discard(connection)
            log.debug(
                "a rollback failed, so its connection was closed and the server rolls back: %s: %s",
                type(error).__name__,
                error,
                extra={"reason": str(error)},
            )

    def idle_too_long(self, since: float) -> bool:
        """Return whether the server has ended a transaction that was idle since then, or is about to."""
        return self.idle_sec is not None and time.monotonic() - since > self.idle_sec

    # Errors.

    def fault(self, error: Exception) -> Fault:
        """Return what a driver's error means."""
        raise NotImplementedError

    def translate(self, error: Exception) -> StorageError:
        """Return a driver's error as one of ours."""
        raise NotImplementedError
