"""Connect to PostgreSQL through asyncpg.

A plan is made once per connection, often while the tables are still empty, and kept as they grow. So the sessions that
run our statements are pinned to generic plans without sequential scans, and discard them now and then: a join may
still read a whole table that had one row when the plan was made. A caller's own SQL is not affected: transactions of
callers begin with the server's settings, and so do pool connections that run a caller's SQL.

Behind a pooler in transaction mode two statements may run in different sessions: nothing is set outside a
transaction, and statements have no names. This is the only module that uses asyncpg.
"""

import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from importlib import import_module
from math import ceil
from ssl import SSLError
from time import monotonic
from typing import Any

from perdure.database.backends.listen import Listener, Notifier
from perdure.database.backends.postgres_url import Address, parse
from perdure.database.backends.server import ENDED, Fault, ServerBackend
from perdure.database.dialects.base import Part, Rendered, naive_utc
from perdure.database.dialects.postgres import PostgresDriver
from perdure.database.operation import Operation, Work
from perdure.database.secret import Secret, without_traces
from perdure.database.statements import Call
from perdure.database.statements import parse as parse_statements
from perdure.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    LimitError,
    SchemaError,
    StorageError,
    TransactionError,
)
from perdure.model.records import WakeUp

asyncpg: Any
try:
    asyncpg = import_module("asyncpg")
except ImportError:  # reported when a backend is created
    asyncpg = None

log = logging.getLogger("perdure.storage")

VERSION = 14
STATEMENTS_MAX = 1000  # prepared statements per connection
# About 20 s without an answer from the other side; the last setting is in milliseconds.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 20_000}

PLANS_MIN_SEC, PLANS_MAX_SEC = 0.5, 10.0  # how long plans are kept: longer and longer, as growth slows down

_PIN = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; "
    "DISCARD PLANS"
)
# Queries left behind by a killed worker, or by a cancellation that came too early, would keep their locks: the server
# has to check whether the client is still connected.
_CHECK = "SET client_connection_check_interval = 1000"
_UNPIN = "RESET plan_cache_mode; RESET enable_seqscan; RESET enable_bitmapscan; RESET jit"
# Custom plans, because a generic plan made here, while the table is small, would also serve our pinned sessions.
_BEGIN = (
    "BEGIN; SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan TO DEFAULT; "
    "SET LOCAL enable_bitmapscan TO DEFAULT; SET LOCAL jit TO DEFAULT"
)
_STATEMENTS = parse_statements(
    "backend",
    """
-- notify
-- Without waiting for the disk: a hint lost in a crash is replaced by the scan of each listener that reconnects.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, :payload)

-- mark
SELECT pg_snapshot_xmax(pg_current_snapshot())::text
""",
)

_IDLE = "25P03"
_CONFLICTS = {"40001", "40P01", "55P03"}
# Ended from outside, in any state: after such an answer to a COMMIT it is unknown whether it was committed.
_ENDED = {"25P04", "40003", "57P01", "57P02", "57P03", "57P04", "57P05"}
# Sent by a pooler that has no server, or by a server that got values of another type than when it prepared.
_NOT_RUN = ("query_wait_timeout", "cannot connect to server", "server login", "insufficient data left in message")
_ABSENT = {"42P01", "42703", "42704", "42883", "42P10", "3F000"}
_NOT_TEXT = {"22021", "22P05"}
_UNAVAILABLE = {
    "25006": "PostgreSQL accepts no writes at the moment",
    "53100": "PostgreSQL has no space left on its disk",
    "53200": "PostgreSQL has no memory left",
    "53300": "PostgreSQL has no free connection",
    "53400": "PostgreSQL has reached a limit of its configuration",
    "57014": "PostgreSQL cancelled the statement",
}
_NEVER = (0.0, PLANS_MIN_SEC / 2)
_BROKEN = "connection is closed: nothing was committed"


class PostgresBackend(ServerBackend[Any]):
    """Run operations on a database of PostgreSQL 14 and later.

    The URL is `postgresql://user:password@host:5432/database?option=value`. The options are described in
    `postgres_url`; options in the URL override arguments. Several hosts, separated by commas, are tried in order; with
    `target_session_attrs=read-write` a write that meets a server which became a standby is retried on the next.
    """

    driver: PostgresDriver

    def __init__(self, url: str, *, pool_size: int = 10, pool_timeout: float = 30.0) -> None:
        if asyncpg is None:
            raise ConfigurationError(
                "the driver asyncpg is not installed, and PostgreSQL needs it: install perdure[postgres]"
            )
        url = Secret(url)
        self._address, options, hosts = parse(url)
        super().__init__(options.get("pool_size", pool_size), options.get("pool_timeout", pool_timeout))
        self.driver = PostgresDriver(schema=options.get("schema", ""))
        self.notifier = Notifier(self.notify)
        self.listeners: set[Listener] = set()
        self.errors: tuple[type[Exception], ...] = (
            *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError),
            *(OSError, StorageError),
        )
        self.pooled = "pooler" in options
        self.must_poll = self.closed = False
        self._where = f"the PostgreSQL server at {hosts}"
        self._connect_timeout: float = options.get("connect_timeout", 10.0)
        self._command_timeout: float | None = options.get("command_timeout")
        self._name = options.get("application_name", "perdure")
        self.idle_sec = options.get("idle_transaction_timeout")
        self._net = f"idle_in_transaction_session_timeout = {ceil(1000 * self.idle_sec)}" if self.idle_sec else ""
        self._hosts = self._address.hosts()
        self._fails_over = "target_session_attrs" in self._address.dsn
        self._leads = any(f"target_session_attrs={role}" in self._address.dsn for role in ("read-write", "primary"))
        self._pinned: dict[Any, tuple[float, float]] = {}  # pinned until when, and for how long
        self._prepared: dict[Any, dict[str, Any]] = {}

    async def close(self) -> None:
        await self.notifier.close()
        self.closed = True
        for listener in self.listeners:
            listener.wake()
        await super().close()

    # Connections.

    async def connect(self) -> Any:
        connection = await self._dial()
        if not (self.pooled or await self._settled(connection)):
            log.info("PostgreSQL at %s is behind a connection pooler", self._where, extra={"server": self._where})
            self.pooled = True
            self.discard(connection)
            connection = await self._dial()
        return connection

    def _begin(self) -> str:
        """Return the statements that begin a transaction; behind a pooler each sets its own idle timeout."""
        return f"BEGIN; SET LOCAL {self._net}" if self.pooled and self._net else "BEGIN"

    async def _dial(self) -> Any:
        """Return a connection to the first usable host; if a leader is needed, the last good host is tried first."""
        failures: list[StorageError] = []
        for address in list(self._hosts):
            try:
                connection = await self._dial_at(address)
            except StorageError as error:
                failures.append(error)
                continue
            if self._leads:
                self._hosts.remove(address)
                self._hosts.insert(0, address)
            return connection
        # A fault of one host among several may be temporary: it may be restarting.
        lasting = all(isinstance(error, ConfigurationError) for error in failures)
        if lasting or len(failures) == 1:
            raise failures[0]
        raise DatabaseUnavailableError("; ".join(map(str, failures))) from failures[-1]

    async def _dial_at(self, address: Address) -> Any:
        where = f"the PostgreSQL server at {address.place}" if len(self._hosts) > 1 else self._where
        try:
            connection = await asyncpg.connect(
                **address._asdict(),
                timeout=self._connect_timeout,
                command_timeout=self._command_timeout,
                statement_cache_size=0 if self.pooled else 100,  # for a caller's own SQL
                server_settings={"application_name": self._name, "TimeZone": "UTC"},  # a pooler keeps these, too
            )
        except Exception as error:
            failure = self._turned_away(error, where)
        else:
            major = connection.get_server_version()[0]
            if major >= VERSION:
                _stay_alert(connection)
                self._prepared[connection] = {}
                return connection
            connection.terminate()
            failure = ConfigurationError(f"{where} is version {major}, which is too old: use {VERSION} or later")
        raise failure

    async def _settled(self, connection: Any) -> bool:
        """Set up a server's session; return False for a pooler's, which reports an invented process id to clients."""
        try:
            statement = await connection.prepare("SELECT pg_backend_pid()", name="", timeout=self._connect_timeout)
            pid = await statement.fetchval(timeout=self._connect_timeout)
            direct = bool(pid == connection.get_server_pid())
            if direct and self._net:  # not when connecting: a pooler rejects connections with this setting
                await connection.execute(f"SET {self._net}", timeout=self._connect_timeout)
            if direct:
                with suppress(asyncpg.PostgresError):  # a server that only resembles PostgreSQL, or another system
                    await connection.execute(_CHECK, timeout=self._connect_timeout)
        except BaseException as error:
            await self._part_with(connection, error)
            if isinstance(error, Exception):
                raise self.translate(error) from error
            raise
        return direct

    def _turned_away(self, error: Exception, where: str) -> StorageError:
        """Return the error for a failed connection: one sentence, without the password."""
        code, text = getattr(error, "sqlstate", None) or "", _text(error)
        secret = self._address.password and Secret(self._address.password())
        if secret and secret in f"{error!r} {error}":
            return ConfigurationError(f"{where} cannot be used with the settings in the URL")
        if isinstance(error, TimeoutError):
            failure: StorageError = DatabaseUnavailableError(
                f"{where} did not answer within {self._connect_timeout:g} s"
            )
        elif _is_configuration(error, code, text):
            failure = ConfigurationError(f"{where} cannot be used with the settings in the URL: {text}")
        else:
            failure = DatabaseUnavailableError(f"{where} cannot be reached: {text}")
        failure.__cause__ = without_traces(error)  # in asyncpg's frames the password is a local variable
        return failure

    def alive(self, connection: Any) -> bool:
        return not connection.is_closed()

    def within(self, connection: Any) -> bool:
        return bool(connection.is_in_transaction())

    def reusable(self, connection: Any) -> bool:
        return not (connection.is_closed() or connection.is_in_transaction())

    def discard(self, connection: Any) -> None:
        connection.terminate()
        self._pinned.pop(connection, None)
        self._prepared.pop(connection, None)

    def _is_pinned(self, connection: Any) -> bool:
        return self.pooled or self._pinned.get(connection, _NEVER)[0] > monotonic()

    async def _pin(self, connection: Any) -> None:
        interval = min(2 * self._pinned.get(connection, _NEVER)[1], PLANS_MAX_SEC)
        await connection.execute(_PIN)
        self._pinned[connection] = monotonic() + interval, interval

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Any]:
        async with super()._borrowed() as connection:
            if self._pinned.pop(connection, None):
                try:
                    await connection.execute(_UNPIN)
                except Exception as error:
                    if self.fault(error) is Fault.LOST:  # before the caller's own statement was sent
                        raise asyncpg.InterfaceError(_BROKEN) from error
                    raise
            yield connection

    # Statements. These functions return an awaitable where a coroutine of their own would only add overhead.

    def run(self, connection: Any, call: Call) -> Coroutine[Any, Any, Any]:
        parts = self.driver.parts(call.statement)
        if parts.plain:
            return self._do(connection, parts[0], call.params)
        return self._do_all(connection, parts, call.params)

    def run_alone(self, connection: Any, call: Call) -> Coroutine[Any, Any, Any]:
        parts = self.driver.parts(call.statement)
        if parts.plain and self._is_pinned(connection):
            return self._do(connection, parts[0], call.params)
        return self._run_alone(connection, parts, call.params)

    async def _run_alone(self, connection: Any, parts: Rendered, params: Mapping[str, object]) -> Any:
        try:
            if not self._is_pinned(connection):
                await self._pin(connection)
            if len(parts) > 1:
                await connection.execute(self._begin())
                answers = await self._do_all(connection, parts, params)
        except Exception as error:
            if self.fault(error) is Fault.LOST:
                raise asyncpg.InterfaceError(_BROKEN) from error
            await self._rolled_back(connection)
            raise
        if len(parts) == 1:
            return await self._do_all(connection, parts, params)
        await self.commit_on(connection)
        return answers  # pyright: ignore[reportPossiblyUnboundVariable]

    async def run_within(self, connection: Any, call: Call) -> Any:
        parts = self.driver.parts(call.statement)
        if len(parts) == 1:
            return await self._do_all(connection, parts, call.params)
        await connection.execute("SAVEPOINT parts")
        try:
            answers = await self._do_all(connection, parts, call.params)
        except asyncpg.PostgresError as error:
            if self.fault(error) is Fault.REFUSED:
                await connection.execute("ROLLBACK TO SAVEPOINT parts")
            raise
        await connection.execute("RELEASE SAVEPOINT parts")
        return answers

    async def first(self, connection: Any, call: Call) -> Any:
        if not self._is_pinned(connection):
            await self._pin(connection)
        await connection.execute(self._begin())
        return await self.run(connection, call)

    def _do(self, connection: Any, part: Part, params: Mapping[str, object]) -> Coroutine[Any, Any, Any]:
        args = [naive_utc(value) if isinstance(value := params[name], datetime) else value for name in part.names]
        statement = self._prepared[connection].get(part.text)
        if statement is not None and part.reads and not self.pooled:
            return statement.fetch(*args)  # type: ignore[no-any-return]
        return self._do_prepared(connection, statement, part, args)

    async def _do_prepared(self, connection: Any, statement: Any, part: Part, args: list[object]) -> Any:
        """Prepare by name, or behind a pooler without a name: then asyncpg sends the text along with the values."""
        if statement is None:
            try:
                statement = await connection.prepare(part.text, name="" if self.pooled else None)
            except Exception as error:
                if self.fault(error) is Fault.LOST:  # before the statement itself was sent
                    raise asyncpg.InterfaceError(_BROKEN) from error
                raise
            prepared = self._prepared[connection]
            if len(prepared) >= STATEMENTS_MAX:
                prepared.clear()
            prepared[part.text] = statement
        try:
            rows = await statement.fetch(*args)
        except (AssertionError, BufferError) as error:  # bytes of another type than when it was prepared
            raise asyncpg.InternalClientError("the answer cannot be decoded: was the table changed?") from error
        return rows if part.reads else _count(statement.get_statusmsg())

    async def _do_all(self, connection: Any, parts: Rendered, params: Mapping[str, object]) -> Any:
        return parts.shape([await self._do(connection, part, params) for part in parts])

    async def execute_on(self, connection: Any, query: str, args: tuple[object, ...] = ()) -> int:
        return _count(await connection.execute(query, *args))

    async def fetch_on(self, connection: Any, query: str, args: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = await connection.fetch(query, *args)
        return rows

    async def begin_on(self, connection: Any) -> None:
        await connection.execute(self._begin() if self.pooled else _BEGIN)

    async def commit_on(self, connection: Any) -> None:
        if await connection.execute("COMMIT") != "COMMIT":
            raise TransactionError("the transaction had failed before its commit, so the database rolled it back")

    async def rollback_on(self, connection: Any) -> None:
        # After a cancelled statement asyncpg waits for its end before the next, and only then is it known what is open.
        # A statement that was cancelled while being prepared keeps its locks until another statement follows.
        if not connection.is_in_transaction():
            with suppress(asyncpg.InFailedSQLTransactionError):
                await connection.execute("SELECT 1")
        if connection.is_in_transaction():
            await connection.execute("ROLLBACK")

    # Wake-ups.

    def wakeups(self) -> AsyncGenerator[WakeUp]:
        return Listener(self).wakeups()

    async def notify(self, channel: str, payload: str) -> None:
        """Notify in a transaction of its own."""
        await self.write(Work(lambda: _ask("notify", channel=channel, payload=payload), single=True, repeat=True))

    async def mark(self) -> object:
        """Return a value that changes with every write to the database."""
        return await self.read(Work(lambda: _ask("mark")), bounded=True)

    # Errors.

    def fault(self, error: Exception) -> Fault:
        code = getattr(error, "sqlstate", None) or ""
        if code in _CONFLICTS:
            return Fault.CONFLICT
        if _IDLE in (code, getattr(error.__cause__, "sqlstate", None)):  # no COMMIT has been processed after it
            return Fault.UNSENT
        if code.startswith("08") or code in _ENDED:
            return Fault.UNSENT if any(text in str(error) for text in _NOT_RUN) else Fault.LOST
        if code == "25006" and self._fails_over:
            return Fault.UNSENT
        if code == "22P03" or isinstance(error, asyncpg.InvalidCachedStatementError):  # a migration changed the types
            return Fault.UNSENT
        if isinstance(error, asyncpg.InterfaceError) and "closed" in str(error):
            return Fault.UNSENT
        # An answer that asyncpg cannot read says nothing about the statement.
        lost = isinstance(error, OSError | asyncpg.InternalClientError)
        return Fault.LOST if lost else Fault.REFUSED

    def translate(self, error: Exception) -> StorageError:
        code, text, fault = getattr(error, "sqlstate", None) or "", _text(error), self.fault(error)
        if code in _ABSENT:
            return SchemaError(f"the schema is not up to date: {text}; call initialize(), or migrate")
        if code in _UNAVAILABLE:
            return DatabaseUnavailableError(f"{_UNAVAILABLE[code]}: {text}; nothing was written")
        if fault is Fault.CONFLICT:
            return DatabaseUnavailableError(f"other transactions kept the rows locked: {text}; nothing was written")
        if fault is not Fault.REFUSED:
            return DatabaseUnavailableError(f"the connection to PostgreSQL was lost: {text}")
        if code == "25P01":
            return TransactionError(ENDED)
        if code == "25P02":
            return TransactionError("an earlier statement of this transaction failed: roll the transaction back")
        if code in _NOT_TEXT or isinstance(error.__cause__, UnicodeEncodeError):
            return LimitError(f"PostgreSQL cannot store this text: {text}")
        if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
            return StorageError(f"PostgreSQL rejected a statement: {text}")
        return StorageError(f"the operation failed: {error!r}")


def _ask(name: str, **params: object) -> Operation[Any]:
    return (yield _STATEMENTS[name](**params))


def _is_configuration(error: Exception, code: str, text: str) -> bool:
    """Return whether retrying cannot help."""
    if code == "08P01":  # PgBouncer's code for every error
        return any(sign in text for sign in ("does not exist", "startup parameter", "auth"))
    if isinstance(error, OSError):
        return isinstance(error, SSLError)
    return code[:2] not in ("08", "53", "57") and not isinstance(error, asyncpg.TargetServerAttributeNotMatched)


def _stay_alert(connection: Any) -> None:
    """Let the kernel detect a silent server in less than its usual quarter of an hour."""
    transport = getattr(connection, "_transport", None)
    found = transport and transport.get_extra_info("socket")
    if not found or found.family == getattr(socket, "AF_UNIX", None):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _count(status: str) -> int:
    """Return the number of rows that a command tag such as `INSERT 0 1` ends with."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdigit() else 0


def _text(error: BaseException) -> str:
    """Return the error's message on one line."""
    text = getattr(error, "strerror", None) or (error.args[0] if error.args else "")
    return " ".join(str(text).split()) or type(error).__name__
