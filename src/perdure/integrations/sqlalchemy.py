"""Run SQLAlchemy inside a transactional activity: its SQL runs in the transaction that records the result.

SQLAlchemy gets a `Facade` on the open transaction in place of a driver's connection, in a pool of that one. Commits
are rejected: the engine commits, together with the result. A rollback goes back to where SQLAlchemy's first statement
began, by a savepoint, and the transaction continues. Nothing is set on the session, because others use it next.

The facade serves `AsyncConnection`, where it waits in SQLAlchemy's greenlet, and a plain function's `Connection`, whose
thread waits for the event loop.
"""

import asyncio
import json
import logging
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, cast
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.mysql.asyncmy import MySQLDialect_asyncmy
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool
from sqlalchemy.util import await_only, greenlet_spawn

from perdure.errors import ConfigurationError, StorageError, TransactionError

log = logging.getLogger("perdure.storage")

COMMITS = (
    "this connection shares the transaction of a transactional activity, which the engine commits together with the "
    "result: return to commit, raise to roll back, use begin_nested() for a part"
)
_COUNT = re.compile(r"(?:SELECT|UPDATE|DELETE|MERGE|INSERT \d+) (\d+)")

Wait = Callable[[Coroutine[Any, Any, Any]], Any]


class Answer(NamedTuple):
    """Hold the answer to a statement."""

    rows: Sequence[Any]
    description: Sequence[Sequence[Any]] | None
    rowcount: int
    lastrowid: int | None = None


class Facade:
    """Act as a driver's connection for SQLAlchemy."""

    def __init__(self, session: Any, dialect: Any, wait: Wait) -> None:
        self._session = session
        self._connection = session.native  # where the dialects look for the driver's own connection
        self._dialect = dialect
        self._wait = wait
        self._marked = self._ended = False

    def run(self, operation: str, parameters: Any) -> Answer:
        """Run a statement; set a savepoint before the first one."""
        if self._ended:
            raise TransactionError("the activity's transaction has ended: use the connection only inside the activity")
        if not self._marked:
            self._do("SAVEPOINT perdure_shared")
            self._marked = True
        return self._do(operation, parameters)

    def _do(self, operation: str, parameters: Any = ()) -> Answer:
        answer: Answer = self._wait(self._dialect.perdure_run(self._session, operation, parameters or ()))
        return answer

    def cursor(self, *_: object, **__: object) -> "Cursor":
        return Cursor(self)

    def commit(self) -> NoReturn:
        raise TransactionError(COMMITS)

    def rollback(self) -> None:
        """Undo what was written since SQLAlchemy's first statement."""
        if self._marked and not self._ended:
            self._do("ROLLBACK TO SAVEPOINT perdure_shared")

    def close(self) -> None:
        """Do nothing: the activity owns the connection."""

    terminate = close

    def end(self) -> None:
        """Reject everything from now on."""
        self._ended = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Cursor:
    """Run a statement and hold all of its rows."""

    arraysize = 1

    def __init__(self, facade: Facade) -> None:
        self._facade = facade
        self._rows: deque[Any] = deque()
        self.description: Sequence[Sequence[Any]] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    def execute(self, operation: str, parameters: Any = ()) -> None:
        answer = self._facade.run(operation, parameters)
        self._rows = deque(answer.rows)
        self.description, self.rowcount, self.lastrowid = answer.description, answer.rowcount, answer.lastrowid

    def executemany(self, operation: str, seq_of_parameters: Sequence[Any]) -> None:
        self.rowcount = sum(self._facade.run(operation, each).rowcount for each in seq_of_parameters)

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Any]:
        return [self._rows.popleft() for _ in range(min(size or self.arraysize, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        return [self._rows.popleft() for _ in range(len(self._rows))]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    def setinputsizes(self, *_: object) -> None:
        """Do nothing, as the drivers do."""

    def close(self) -> None:
        self._rows.clear()

    async def _async_soft_close(self) -> None:
        """Do nothing: no server-side cursor is open."""


class Borrowed:
    """Change what all three dialects have in common: leave the session's settings alone, and use the facade."""

    is_async = True
    perdure_ready = False  # whether it has queried the server's properties

    def set_isolation_level(self, dbapi_connection: object, level: object) -> NoReturn:
        raise TransactionError("the isolation level cannot be changed: the transaction is already open")


class SQLiteBorrowed(Borrowed, SQLiteDialect_pysqlite):
    supports_statement_cache = True

    @staticmethod
    async def perdure_run(session: Any, operation: str, parameters: Any) -> Answer:
        def run(connection: sqlite3.Connection) -> Answer:
            cursor = connection.execute(operation, parameters)
            rows = cursor.fetchall() if cursor.description else ()
            return Answer(rows, cursor.description, cursor.rowcount, cursor.lastrowid)

        try:
            answer: Answer = await session._do(run)
        except StorageError as error:
            raise error.__cause__ or error from None
        return answer


class PostgresBorrowed(Borrowed, PGDialect_asyncpg):
    supports_statement_cache = True
    # as text: the codecs that SQLAlchemy installs would affect the connection's next users, too
    supports_native_json_deserialization = False
    colspecs = {**PGDialect_asyncpg.colspecs, sa.JSON: JSON, JSONB: JSONB}  # noqa: RUF012 - SQLAlchemy's way
    _json_deserializer = staticmethod(json.loads)

    async def perdure_run(self, session: Any, operation: str, parameters: Any) -> Answer:
        try:
            statement = await session.native.prepare(operation, name="")
            rows = await statement.fetch(*parameters)
        except Exception as error:
            session.fail(error)
            raise self._translated(error) from error
        columns = [(each.name, each.type.oid, *[None] * 5) for each in statement.get_attributes()]
        count = _COUNT.match(statement.get_statusmsg() or "")
        return Answer(rows, columns or None, int(count[1]) if count else -1)

    def _translated(self, error: Exception) -> Exception:
        """Return the error as SQLAlchemy's own adapter translates it."""
        known = cast(Any, self.dbapi)._asyncpg_error_translate
        for kind in type(error).__mro__:
            if kind in known:
                made: Any = known[kind](f"{type(error)}: {error}")
                made.pgcode = made.sqlstate = getattr(error, "sqlstate", None)
                return made  # type: ignore[no-any-return]
        return error


class MySQLBorrowed(Borrowed, MySQLDialect_asyncmy):
    supports_statement_cache = True

    @staticmethod
    async def perdure_run(session: Any, operation: str, parameters: Any) -> Answer:
        try:
            async with session.native.cursor() as cursor:
                await cursor.execute(operation, parameters or None)
                rows = await cursor.fetchall() if cursor.description else ()
                return Answer(rows, cursor.description, cursor.rowcount, cursor.lastrowid)
        except Exception as error:
            session.fail(error)  # after a deadlock the transaction is gone: later statements would autocommit
            raise


_KINDS: dict[str, type[Any]] = {"sqlite": SQLiteBorrowed, "postgresql": PostgresBorrowed, "mysql": MySQLBorrowed}
_dialects: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()  # by driver, so that the server is queried once


class Shared(sa.Connection):
    """Connect SQLAlchemy to a transaction that is not its own; closing it does nothing."""

    def begin(self) -> sa.RootTransaction:
        if self.in_transaction():
            raise TransactionError(COMMITS)
        return super().begin()

    def commit(self) -> NoReturn:
        raise TransactionError(COMMITS)

    def close(self) -> None:
        """Do nothing: the connection is closed when the activity ends."""


class AsyncShared(AsyncConnection):
    """Provide the same for asynchronous code."""

    async def start(self, is_ctxmanager: bool = False) -> AsyncConnection:
        return self


class Sharing:
    """Provide a connection of SQLAlchemy on an open session of a backend, until it ends."""

    def __init__(self, session: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        """Create a blocking connection if `loop` is given, for a thread beside that loop."""
        dialect = _dialect(session.driver)
        self._facade = Facade(session, dialect, await_only if loop is None else _waiting_for(loop))
        pool = StaticPool(lambda: cast(Any, self._facade), reset_on_return=None, dialect=dialect)
        if isinstance(dialect, SQLiteBorrowed):
            dialect.on_connect()(cast(Any, self._facade))  # registers functions such as REGEXP
        engine = sa.Engine(pool, dialect, sa.make_url(f"{dialect.name}+{dialect.driver}://"))
        event.listen(engine, "before_execute", lambda *_: self._ask())
        self._connection = Shared(engine)
        self._connection.begin()
        self._asks = False
        if loop is not None:
            self._ask()
        self.connection: Any = self._connection if loop else AsyncShared(AsyncEngine(engine), self._connection)

    async def prepare(self) -> None:
        """Query the server now; after an error, undo it, and query again when needed."""
        try:
            await greenlet_spawn(self._ask)
        except Exception as error:
            log.debug(
                "SQLAlchemy could not query the server's properties and tries again at its first statement: %s: %s",
                type(error).__name__,
                error,
                extra={"reason": str(error)},
            )
            await greenlet_spawn(self._facade.rollback)

    def _ask(self) -> None:
        """Do what SQLAlchemy does at an engine's first connection, once per backend."""
        dialect: Any = self._connection.dialect
        if not (dialect.perdure_ready or self._asks):
            self._asks = True
            dialect.initialize(self._connection)
            dialect.perdure_ready = True

    def end(self) -> None:
        """End the sharing, because the activity's code has returned."""
        self._facade.end()
        try:
            sa.Connection.close(self._connection)
        except Exception as error:  # the activity's result does not depend on it
            log.debug(
                "SQLAlchemy's connection of a transactional activity could not be closed: %s: %s",
                type(error).__name__,
                error,
                extra={"reason": str(error)},
            )


def share(session: Any, loop: asyncio.AbstractEventLoop | None) -> Sharing:
    """Return a connection of SQLAlchemy on an open session; a blocking one if `loop` is given.

    Raise `ConfigurationError` for a storage without SQL.
    """
    if not _has_sql(session):
        raise ConfigurationError('connection("sqlalchemy") needs a storage on SQLite, PostgreSQL, MySQL or MariaDB')
    return Sharing(session, loop)


async def prepare(session: Any) -> None:
    """Let the dialect query the server's properties in a backend's first transaction: later it cannot wait."""
    if _has_sql(session) and not _dialect(session.driver).perdure_ready:
        sharing = Sharing(session, None)
        await sharing.prepare()
        sharing.end()


def _has_sql(session: Any) -> bool:
    """Return whether a storage has a database: that in memory, and those of other authors, may have none."""
    return getattr(session, "driver", None) is not None


def _waiting_for(loop: asyncio.AbstractEventLoop) -> Wait:
    return lambda call: asyncio.run_coroutine_threadsafe(call, loop).result()


def _dialect(driver: Any) -> Any:
    found = _dialects.get(driver)
    if found is None:
        kind = _KINDS[driver.name]
        found = _dialects[driver] = kind(dbapi=kind.import_dbapi())
    return found
