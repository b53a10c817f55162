"""Run the storage layer's statements on a caller's own connection, of any supported driver.

The same code serves blocking and asynchronous drivers: every answer goes through `settled`, and on a blocking
connection nothing is ever awaited, so that the coroutine can be run to its end in one call. Nothing is assumed about
the session: rows are read through the driver's plainest cursor, and texts for MySQL are sent as hexadecimal digits,
independent of the session's character set and quoting rules.
"""

import inspect
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from perdure.database.backends.base import bound
from perdure.database.dialects import Features, MySQLDriver, PostgresDriver, SQLiteDriver
from perdure.database.dialects.base import Part, Rendering
from perdure.database.dialects.mysql import LARGE, literal
from perdure.database.statements import Call
from perdure.errors import ConfigurationError, StorageError, TransactionError

T = TypeVar("T")

DUPLICATE = 1062
_OPEN, _AUTOCOMMIT = 1, 2  # flags of MySQL's status


class Pyformat(PostgresDriver):
    """Render PostgreSQL with the placeholders of psycopg."""

    mark = "%(p{n})s"

    def render(self, template: str) -> Part:
        return super().render(template.replace("%", "%%"))


POSTGRES, PYFORMAT, SQLITE, MYSQL = PostgresDriver(), Pyformat(), SQLiteDriver(), MySQLDriver()


@cache
def _in_schema(pyformat: bool, schema: str) -> PostgresDriver:
    return Pyformat(schema=schema) if pyformat else PostgresDriver(schema=schema)


class Connection:
    """Wrap a caller's connection: its dialect, whether it blocks, and how a statement runs on it."""

    driver: Rendering
    blocking = False
    how = "begin one"  # what the error tells the caller to do

    def __init__(self, native: Any) -> None:
        self.native = native

    @property
    def dialect(self) -> str:
        """Return the name of the dialect: sqlite, postgresql or mysql."""
        return self.driver.name

    @property
    def features(self) -> Features:
        """Return what the database can do."""
        return self.driver.features

    def in_transaction(self) -> bool:
        """Return whether a write now belongs to a transaction that the caller commits."""
        raise NotImplementedError

    def use_schema(self, schema: str) -> None:
        """Qualify the tables with this schema on PostgreSQL, whatever search_path the session has."""
        if isinstance(self.driver, PostgresDriver):
            self.driver = _in_schema(isinstance(self.driver, Pyformat), schema)

    async def prepare(self) -> None:
        """Prepare the connection before the first statement."""

    async def do(self, part: Part, params: Mapping[str, object]) -> Any:
        """Run one part; return its rows if it reads, otherwise the number of rows written."""
        raise NotImplementedError

    async def run(self, call: Call) -> Any:
        """Run a call and return the same answer as a backend."""
        parts = self.driver.parts(call.statement)
        return parts.shape([await self.do(part, call.params) for part in parts])


class Asyncpg(Connection):
    """Wrap a connection of asyncpg, also from its pool."""

    driver = POSTGRES
    how = "use `async with connection.transaction():`"

    def in_transaction(self) -> bool:
        return bool(self.native.is_in_transaction())

    async def do(self, part: Part, params: Mapping[str, object]) -> Any:
        args = _values(self.driver, part, params)
        if part.reads:
            return [tuple(row) for row in await self.native.fetch(part.text, *args)]
        *_, count = (await self.native.execute(part.text, *args)).split()
        return int(count) if count.isdigit() else 0


class ActivityConnection(Connection):
    """Wrap what `connection()` returns to a plain function in a transactional activity."""

    blocking = True

    def __init__(self, native: Any) -> None:
        super().__init__(native)
        self.driver = {each.name: each for each in (POSTGRES, SQLITE, MYSQL)}[native.dialect]

    def in_transaction(self) -> bool:
        return True

    async def do(self, part: Part, params: Mapping[str, object]) -> Any:
        if self.driver is MYSQL:
            text, args = mysql_text(part, params), list[Any]()
        else:
            text, args = part.text, _values(self.driver, part, params)
        if part.reads and not (part.inserts and self.driver is MYSQL):
            return _texts(self.native.fetch(text, *args))
        try:
            count = self.native.execute(text, *args)
        except StorageError as error:
            return forgiven(part, error)
        return [(0,)] * count if part.inserts else count


class Cursors(Connection):
    """Wrap a connection of a driver with cursors, blocking or not."""

    def cursor(self) -> Any:
        """Return a cursor whose rows are tuples."""
        raise NotImplementedError

    def sent(self, part: Part, params: Mapping[str, object]) -> tuple[Any, ...]:
        """Return the arguments of `execute`."""
        return part.text, _values(self.driver, part, params)

    async def do(self, part: Part, params: Mapping[str, object]) -> Any:
        cursor = await settled(self.cursor())
        try:
            await settled(cursor.execute(*self.sent(part, params)))
            if part.reads and cursor.description:
                return _texts(await settled(cursor.fetchall()))
            return _written(part, cursor)
        except Exception as error:
            return forgiven(part, error)
        finally:
            await settled(cursor.close())


class SQLite(Cursors):
    """Wrap a connection of the standard library's sqlite3."""

    driver = SQLITE
    blocking = True
    how = 'execute("BEGIN") first'

    def in_transaction(self) -> bool:
        return bool(self.native.in_transaction)

    def cursor(self) -> Any:
        cursor = self.native.cursor()
        cursor.row_factory = None
        return cursor


class Aiosqlite(SQLite):
    """Wrap a connection of aiosqlite, which runs sqlite3 in a thread."""

    blocking = False

    async def cursor(self) -> Any:
        cursor = await self.native.cursor()
        cursor.row_factory = None
        return cursor


class Psycopg(Cursors):
    """Wrap a connection of psycopg 3, blocking or asynchronous."""

    driver = PYFORMAT
    how = "use `with connection.transaction():`, or turn autocommit off and run a statement first"

    def __init__(self, native: Any) -> None:
        super().__init__(native)
        self._psycopg = import_module("psycopg")
        self.blocking = not isinstance(native, self._psycopg.AsyncConnection)

    def in_transaction(self) -> bool:
        return bool(self.native.info.transaction_status != self._psycopg.pq.TransactionStatus.IDLE)

    def cursor(self) -> Any:
        kind = self._psycopg.Cursor if self.blocking else self._psycopg.AsyncCursor
        return kind(self.native, row_factory=self._psycopg.rows.tuple_row)

    def sent(self, part: Part, params: Mapping[str, object]) -> tuple[Any, ...]:
        return part.text, _named(_values(self.driver, part, params))


class MySQL(Cursors):
    """Wrap a connection of PyMySQL, MySQLdb or a similar driver, or of asyncmy or aiomysql."""

    driver = MYSQL
    how = "call `begin()`, or turn autocommit off"

    def __init__(self, native: Any, package: str) -> None:
        super().__init__(native)
        self._package = package
        self.blocking = package not in ("asyncmy", "aiomysql")

    def in_transaction(self) -> bool:
        """Return whether a transaction is open; with autocommit off the first statement begins one."""
        status = getattr(self.native, "server_status", None)
        if status is None:
            return not self.native.get_autocommit()
        return bool(status & _OPEN or not status & _AUTOCOMMIT)

    def cursor(self) -> Any:
        return self.native.cursor(import_module(f"{self._package}.cursors").Cursor)

    def sent(self, part: Part, params: Mapping[str, object]) -> tuple[Any, ...]:
        return (mysql_text(part, params),)


class SQLAlchemy(Connection):
    """Wrap a connection or session of SQLAlchemy, blocking or asynchronous, on any of the three databases."""

    how = "use `with connection.begin():` or `with session.begin():`"

    def __init__(self, native: Any) -> None:
        orm, aio = import_module("sqlalchemy.orm"), import_module("sqlalchemy.ext.asyncio")
        if isinstance(native, orm.scoped_session | aio.async_scoped_session):
            native = native()
        super().__init__(native)
        self._is_session = isinstance(native, orm.Session | aio.AsyncSession)
        self.blocking = not isinstance(native, aio.AsyncSession | aio.AsyncConnection)
        bind = native.get_bind() if self._is_session else native
        self.driver = _dialect_of(bind.dialect)
        self._style = bind.dialect.paramstyle

    def in_transaction(self) -> bool:
        return bool(self.native.in_transaction())

    async def prepare(self) -> None:
        if self._is_session:
            self.native = await settled(self.native.connection())
        inner = self.native if self.blocking else self.native.sync_connection
        level = inner.get_execution_options().get("isolation_level", inner.dialect._on_connect_isolation_level)
        if level == "AUTOCOMMIT":
            raise TransactionError("the connection is in AUTOCOMMIT mode: in_transaction= needs one that you commit")
        if self.driver is SQLITE and not inner.connection.driver_connection.in_transaction:
            await self._execute("BEGIN")  # SQLAlchemy has not sent it, and a savepoint would become the transaction

    async def _execute(self, text: str, args: Any = None) -> Any:
        options = {"no_parameters": True} if args is None else {}
        return await settled(self.native.exec_driver_sql(text, args, execution_options=options))

    async def do(self, part: Part, params: Mapping[str, object]) -> Any:
        try:
            result = await self._execute(*self._sent(part, params))
        except Exception as error:
            return forgiven(part, error)
        return _texts(result.fetchall()) if result.returns_rows else _written(part, result)

    def _sent(self, part: Part, params: Mapping[str, object]) -> tuple[Any, ...]:
        if self.driver is MYSQL:
            return (mysql_text(part, params),)
        values = _values(self.driver, part, params)
        return part.text, (_named(values) if isinstance(self.driver, Pyformat) else tuple(values)) or None


def _dialect_of(dialect: Any) -> Rendering:
    """Return our dialect for SQLAlchemy's, with its parameter style."""
    kinds: dict[tuple[str, str | None], Rendering] = {
        ("sqlite", "qmark"): SQLITE,
        ("postgresql", "numeric_dollar"): POSTGRES,
        ("postgresql", "pyformat"): PYFORMAT,
        ("mysql", None): MYSQL,
        ("mariadb", None): MYSQL,
    }
    name, style = dialect.name, dialect.paramstyle
    found = kinds.get((name, style)) or kinds.get((name, None))
    if found is None:
        raise ConfigurationError(
            f"in_transaction= does not support SQLAlchemy connections of {name}+{dialect.driver}: use sqlite, "
            "postgresql+asyncpg, postgresql+psycopg, or mysql with any driver"
        )
    return found


_KINDS: dict[str, Callable[[Any, str], Connection]] = {
    "asyncpg": lambda native, _: Asyncpg(native),
    "psycopg": lambda native, _: Psycopg(native),
    "sqlite3": lambda native, _: SQLite(native),
    "aiosqlite": lambda native, _: Aiosqlite(native),
    "sqlalchemy": lambda native, _: SQLAlchemy(native),
    "perdure.engine.worker.activities": lambda native, _: ActivityConnection(native),
    **dict.fromkeys(("pymysql", "MySQLdb", "aiomysql", "asyncmy"), MySQL),
}


def recognised(connection: Any) -> Connection:
    """Return the wrapper for a connection, by the package that its class or a base class comes from."""
    for kind in type(connection).__mro__:
        package = kind.__module__.partition(".")[0]
        known = _KINDS.get(package) or _KINDS.get(kind.__module__)
        if known is not None:
            with suppress(AttributeError):  # another object of that package: a pool, a cursor, an engine
                wrapped = known(connection, package)
                wrapped.in_transaction()
                return wrapped
    name = f"{type(connection).__module__}.{type(connection).__qualname__}".removeprefix("builtins.")
    raise ConfigurationError(
        f"in_transaction= does not support connections of type {name}: use one of asyncpg, psycopg, sqlite3, "
        "aiosqlite, PyMySQL, MySQLdb, aiomysql, asyncmy or SQLAlchemy"
    )


async def settled(value: Awaitable[T] | T) -> T:
    """Return a driver's answer, awaited if necessary."""
    return await value if inspect.isawaitable(value) else value


def forgiven(part: Part, error: Exception) -> Any:
    """Return the answer for an ignored duplicate on MySQL; raise any other error."""
    own = error.__cause__ if isinstance(error, StorageError) else getattr(error, "orig", error)
    if part.forgives and own is not None and own.args[:1] == (DUPLICATE,):
        return [] if part.inserts else 0
    raise error


def mysql_text(part: Part, params: Mapping[str, object]) -> str:
    """Return a text with its values in it, in ASCII throughout."""
    return part.text % {name: _ascii(params[name]) for name in part.names}


def _ascii(value: object) -> str:
    if not isinstance(value, str):
        return literal(value)
    data = value.encode()
    if len(data) > LARGE:
        return f"CONVERT(FROM_BASE64('{b64encode(data).decode()}') USING utf8mb4)"
    return f"_utf8mb4 x'{data.hex()}'"


def _values(driver: Rendering, part: Part, params: Mapping[str, object]) -> list[Any]:
    return bound(driver, part.names, Call(None, params))  # type: ignore[arg-type]


def _named(values: Sequence[object]) -> dict[str, object]:
    return {f"p{n}": value for n, value in enumerate(values, 1)}


def _texts(rows: Any) -> list[tuple[Any, ...]]:
    """Return rows as tuples, with bytes decoded, because a session may return texts as bytes."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]


def _written(part: Part, cursor: Any) -> Any:
    if part.inserts:
        return [(cursor.lastrowid,)] if cursor.rowcount else []
    return cursor.rowcount
