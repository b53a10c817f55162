"""Run operations on PostgreSQL.

A plan is made once per connection, often while the tables are still empty, and kept as they grow. So the sessions that
run our statements are pinned to generic plans without sequential scans, and discard them periodically: a join may
still read a whole table that had one row when the plan was made. A caller's own SQL is not affected: transactions of
callers begin with the server's settings, and so do pool connections that run a caller's SQL.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from math import ceil
from time import monotonic
from typing import Any

from perdure.database.backends.postgres.errors import classify, translate
from perdure.database.backends.postgres.hosts import Hosts
from perdure.database.backends.postgres.listener import Listener
from perdure.database.backends.postgres.native import asyncpg
from perdure.database.backends.postgres.notifier import Notifier
from perdure.database.backends.postgres.url import parse
from perdure.database.backends.server.backend import ServerBackend
from perdure.database.backends.server.retries import Fault
from perdure.database.dialects.base import Part, Rendered, naive_utc
from perdure.database.dialects.postgres import PostgresDriver
from perdure.database.operation import Operation, Work
from perdure.database.secret import Secret
from perdure.database.statements import Call
from perdure.database.statements import parse as parse_statements
from perdure.errors import ConfigurationError, StorageError, TransactionError
from perdure.model.records import WakeUp

log = logging.getLogger("perdure.storage")

STATEMENTS_MAX = 1000  # prepared statements per connection
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

_NEVER = (0.0, PLANS_MIN_SEC / 2)
_BROKEN = "connection is closed: nothing was committed"


class PostgresBackend(ServerBackend[Any]):
    """Run operations on a database of PostgreSQL 14 and later.

    The URL is `postgresql://user:password@host:5432/database?option=value`. The options are described in
    `postgres.url`; options in the URL override arguments. Several hosts, separated by commas, are tried in order; with
    `target_session_attrs=read-write` a write that meets a server which became a standby is retried on the next.
    """

    driver: PostgresDriver

    def __init__(self, url: str, *, pool_size: int = 10, pool_timeout: float = 30.0, read_only: bool = False) -> None:
        if asyncpg is None:
            raise ConfigurationError(
                "the driver asyncpg is not installed, and PostgreSQL needs it: install perdure[postgres]"
            )
        url = Secret(url)
        address, options, names = parse(url)
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
        self._read_only = read_only
        self._hosts = Hosts(address, names, options)
        self.idle_sec = options.get("idle_transaction_timeout")
        self._idle_setting = (
            f"idle_in_transaction_session_timeout = {ceil(1000 * self.idle_sec)}" if self.idle_sec else ""
        )
        self._pinned: dict[Any, tuple[float, float]] = {}  # pinned until when, and for how long
        self._prepared: dict[Any, dict[str, Any]] = {}

    async def close(self) -> None:
        await self.notifier.close()
        self.closed = True
        for listener in self.listeners:
            listener.wake()
        await super().close()
        await self._hosts.close()

    # Connections.

    async def connect(self) -> Any:
        connection = await self._dial()
        if not (self.pooled or await self._set_up(connection)):
            where = self._hosts.where
            log.info("PostgreSQL at %s is behind a connection pooler", where, extra={"server": where})
            self.pooled = True
            self.discard(connection)
            connection = await self._dial()
        return connection

    def _begin(self) -> str:
        """Return the statements that begin a transaction; behind a pooler each sets its own idle timeout."""
        return f"BEGIN; SET LOCAL {self._idle_setting}" if self.pooled and self._idle_setting else "BEGIN"

    async def _dial(self) -> Any:
        connection = await self._hosts.dial(pooled=self.pooled)
        self._prepared[connection] = {}
        return connection

    async def _set_up(self, connection: Any) -> bool:
        """Set up a server's session; return False for a pooler's, which reports an invented process id to clients."""
        timeout = self._hosts.connect_timeout
        try:
            statement = await connection.prepare("SELECT pg_backend_pid()", name="", timeout=timeout)
            pid = await statement.fetchval(timeout=timeout)
            direct = bool(pid == connection.get_server_pid())
            if direct and self._idle_setting:  # not when connecting: a pooler rejects connections with this setting
                await connection.execute(f"SET {self._idle_setting}", timeout=timeout)
            if direct and self._read_only:  # a pooler would pass the session on to other clients
                await connection.execute("SET default_transaction_read_only = on", timeout=timeout)
            if direct:
                with suppress(asyncpg.PostgresError):  # a server that only resembles PostgreSQL, or another system
                    await connection.execute(_CHECK, timeout=timeout)
        except BaseException as error:
            await self._connections.discard_after(connection, error)
            if isinstance(error, Exception):
                raise self.translate(error) from error
            raise
        return direct

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
            await self.roll_back_or_discard(connection)
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
            with suppress(asyncpg.InFailedSQLTransactionError):  # it is open and has failed: it is rolled back below
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
        return classify(error, fails_over=self._hosts.fails_over)

    def translate(self, error: Exception) -> StorageError:
        return translate(error, self.fault(error))


def _ask(name: str, **params: object) -> Operation[Any]:
    return (yield _STATEMENTS[name](**params))


def _count(status: str) -> int:
    """Return the number of rows that a command tag such as `INSERT 0 1` ends with."""
    last = status.rpartition(" ")[2]
    return int(last) if last.isdigit() else 0
