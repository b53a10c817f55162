"""Connect to MySQL and MariaDB through asyncmy.

A statement of several parts is sent as one packet, and so is a transaction around it. The server runs a packet
statement by statement and stops at the first error, so `BEGIN; a; b; COMMIT` is all or nothing in one round trip.
Cancelling a query closes its connection; the server may notice only when the query ends, so another connection kills
the query, which may be waiting for locks.

Only asyncmy's text protocol is used, without its cursors and its pool. This is the only module that uses asyncmy.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import cache
from importlib import import_module
from math import ceil
from ssl import SSLError
from time import monotonic
from typing import Any

from perdure.database.backends.base import Notifier
from perdure.database.backends.mysql_url import parse
from perdure.database.backends.polling import Polling
from perdure.database.backends.server import RETRY_SEC, Fault, ServerBackend
from perdure.database.dialects.base import Part, Rendering
from perdure.database.dialects.mysql import MySQLDriver, literal, utf8
from perdure.database.secret import Secret
from perdure.database.statements import Call
from perdure.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    LimitError,
    SchemaError,
    StorageError,
)
from perdure.model.records import WakeUp

asyncmy: Any
try:
    asyncmy = import_module("asyncmy")
except ImportError:  # reported when a backend is created
    asyncmy = None

PACKET_MIN = 12 * 1024 * 1024  # a payload of 8 MiB as base64, plus the rest of its statement
LOCK_WAIT_SEC = 10
VERSIONS = {"MySQL": (8, 0), "MariaDB": (10, 6)}

_FOUND_ROWS = 2
_OPEN, _AUTOCOMMIT = 1, 2  # flags of the status that comes with an answer: in a transaction, autocommit
_QUIT = b"\x01\x00\x00\x00\x01"
# The last two settings are for MySQL and for MariaDB alone. By default MySQL considers some 500 ids too many to look up
# and reads every row; MariaDB turns a thousand into a table and joins it in an order of its own.
_SESSION = (
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin, SESSION autocommit = 1, SESSION time_zone = '+00:00', SESSION sql_mode = "
    "'STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', "
    f"SESSION innodb_lock_wait_timeout = {LOCK_WAIT_SEC} /*!80000 , SESSION range_optimizer_max_mem_size = 0 */"
    "/*M! , SESSION in_predicate_conversion_threshold = 0 */",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SELECT @@version, @@max_allowed_packet, @@read_only, CONCAT(@@hostname, ':', @@port)",
)

DUPLICATE = 1062
# Deadlock, lock timeout, changed since it was read, refused by the cluster: nothing was written. 1467 is a deadlock
# over an auto-increment value: the transaction has ended, although the server reports it as open.
_CONFLICTS = {1213, 1205, 1020, 1047, 1467}
# The session was ended from outside, or its server lost the cluster. After such an answer to a COMMIT it is unknown
# whether the transaction was committed.
_ENDED = {1053, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1927, 3169, 4031}
_ABSENT = {1146, 1054}
_READ_ONLY = {1290, 1792, 1836}
_FULL = {1021, 1114}
_DAMAGED = {126, 1034}  # of a temporary table, which means that the disk is full, too
_CROWDED = {1040, 1203, 1226}
_LOGIN = {1045, 1698, 1044, 1130, 1251, 1862, 2059, 3118}
_NO_SUCH_THREAD = 1094
_LEAVE = {1047, *_READ_ONLY}  # this host cannot serve us: the next connection may reach a better one
_DEMOTED = {1290, 1836}


class MySQLBackend(ServerBackend[Any]):
    """Run operations on a database of MySQL 8.0 or MariaDB 10.6 and later.

    The URL is `mysql://user:password@host:3306/database?option=value`. Several hosts, separated by commas, are tried in
    order, and read-only hosts are skipped. A write that meets a host which became read-only is retried on the next.
    The options are described in `mysql_url`; options in the URL override arguments.
    """

    def __init__(self, url: str, *, pool_size: int = 10, pool_timeout: float = 30.0) -> None:
        if asyncmy is None:
            raise ConfigurationError("the driver asyncmy is not installed, and MySQL needs it: install perdure[mysql]")
        url = Secret(url)
        self._hosts, self._login, options = parse(url)
        super().__init__(options.get("pool_size", pool_size), options.get("pool_timeout", pool_timeout))
        self.driver: Rendering = MySQLDriver()
        self._polling = Polling()
        self.notifier: Notifier = self._polling
        self._connect_timeout: float = options.get("connect_timeout", 10.0)
        self._read_timeout: float = options.get("read_timeout", 60.0)
        self._idle_sec: float | None = options.get("idle_transaction_timeout")
        self._packet_max = PACKET_MIN
        self._demotions = 0  # connections opened before the last demotion are not reused
        self._waiting: dict[Any, float] = {}
        self._watchman: asyncio.TimerHandle | None = None
        self._strays: list[tuple[int, str]] = []
        self._reaper: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await super().close()
        if self._watchman is not None:
            self._watchman.cancel()
        while self._reaper is not None and not self._reaper.done():
            await asyncio.wait([self._reaper])

    def wakeups(self) -> AsyncIterator[WakeUp]:
        return self._polling.wakeups()

    # Connections.

    async def connect(self) -> Any:
        failures: list[DatabaseUnavailableError] = []
        for host, port in self._hosts:
            try:
                return await self._connect_to(host, port)
            except DatabaseUnavailableError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise DatabaseUnavailableError("; ".join(map(str, failures))) from failures[-1]

    async def _connect_to(self, host: str, port: int) -> Any:
        where = f"the MySQL server at {self._login['unix_socket'] or f'{host}:{port}'}"
        connection = asyncmy.Connection(
            host=host, port=port, client_flag=_FOUND_ROWS, autocommit=None, conv=_conversions(), **self._login
        )
        connection.perdure_server, connection.perdure_demotions = "", self._demotions
        cancels = _cancels()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection.connect()
                await self._set_up(connection, where)
            if _cancels() > cancels:  # before Python 3.12, wait_for inside asyncmy can swallow a cancellation
                raise asyncio.CancelledError
        except StorageError:
            connection.close()
            raise
        except Exception as error:
            connection.close()
            raise self._turned_away(error, where) from error
        except BaseException:
            connection.close()
            raise
        return connection

    async def _set_up(self, connection: Any, where: str) -> None:
        """Set up the session, and raise an error if the server cannot provide what the contract guarantees."""
        net = f"/*M! , SESSION idle_transaction_timeout = {ceil(self._idle_sec)} */" if self._idle_sec else ""
        *_, result = await self._ask(connection, (_SESSION[0] + net, *_SESSION[1:]), [])
        version, packet_max, read_only, connection.perdure_server = result.rows[0]
        name = "MariaDB" if "MariaDB" in version else "MySQL"
        if tuple(map(int, version.split(".")[:2])) < VERSIONS[name]:
            needed = ", ".join(f"{kind} {major}.{minor}" for kind, (major, minor) in VERSIONS.items())
            raise ConfigurationError(f"{where} is {name} {version}, which is too old: use {needed} or later")
        self.idle_sec = ceil(self._idle_sec) if self._idle_sec and name == "MariaDB" else None
        if packet_max < PACKET_MIN:
            raise ConfigurationError(
                f"{where} accepts statements of at most {packet_max} bytes: set max_allowed_packet to 16M or more"
            )
        if read_only and len(self._hosts) > 1:
            raise DatabaseUnavailableError(f"{where} is read-only")
        self._packet_max = packet_max - 1  # the command takes a byte, and the limit itself is too large
        if len(self._hosts) > 1:
            await self._follow_cluster(connection)

    async def _follow_cluster(self, connection: Any) -> None:
        """On Galera, wait until commits of other nodes have arrived: now, and before every read."""
        (result,) = await self._ask(connection, ("SHOW VARIABLES LIKE 'wsrep_on'",), [])
        if result.rows and result.rows[0][1] == "ON":
            await self._ask(connection, ("SET SESSION wsrep_sync_wait = 1", "BEGIN", "COMMIT"), [])

    def _turned_away(self, error: Exception, where: str) -> StorageError:
        """Return the error for a failed connection: one sentence, without the password."""
        code, user = _code(error), self._login["user"]
        if code in (1045, 1698):
            return ConfigurationError(f"{where} rejected user {user!r}: wrong password, or the user does not exist")
        if code in (1044, 1049):
            name = self._login["database"]
            return ConfigurationError(f"{where} has no database {name!r} that user {user!r} may use: create it first")
        if code in _LOGIN or isinstance(error, RuntimeError | ValueError):
            return ConfigurationError(f"{where} rejected the login of user {user!r}: {_text(error)}")
        if code in _CROWDED:
            return DatabaseUnavailableError(f"{where} has no free connection: {_text(error)}")
        reason = (isinstance(error, asyncmy.MySQLError) and error.__cause__) or error  # asyncmy wraps network errors
        if isinstance(reason, TimeoutError):
            return DatabaseUnavailableError(f"{where} did not answer within {self._connect_timeout:g} s")
        if isinstance(reason, SSLError):
            return ConfigurationError(f"{where} and this client could not agree on encryption: {_text(reason)}")
        return DatabaseUnavailableError(f"{where} cannot be reached: {_text(reason)}")

    def alive(self, connection: Any) -> bool:
        transport, proto = connection._transport, connection._proto
        return not (transport is None or transport.is_closing() or proto.eof or not connection._connected)

    def discard(self, connection: Any) -> None:
        if self.alive(connection):
            connection._transport.write(_QUIT)  # otherwise the server logs an aborted connection
        else:
            self._end_query(connection)
        connection.close()

    def within(self, connection: Any) -> bool:
        return bool(connection.server_status & _OPEN)

    def reusable(self, connection: Any) -> bool:
        settled = connection.server_status & (_OPEN | _AUTOCOMMIT) == _AUTOCOMMIT
        return settled and connection.perdure_demotions == self._demotions and self.alive(connection)

    # Statements.

    async def run(self, connection: Any, call: Call) -> Any:
        return await self._run(connection, call)

    async def first(self, connection: Any, call: Call) -> Any:
        return await self._run(connection, call, ("BEGIN",))

    async def run_alone(self, connection: Any, call: Call) -> Any:
        if len(self.driver.parts(call.statement)) == 1:
            return await self._run(connection, call)
        try:
            return await self._run(connection, call, ("BEGIN",), ("COMMIT",))
        except Exception:
            await self._rolled_back(connection)
            raise

    async def run_within(self, connection: Any, call: Call) -> Any:
        if len(self.driver.parts(call.statement)) == 1:
            return await self._run(connection, call)
        results: list[Any] = []
        try:
            return await self._run(connection, call, ("SAVEPOINT parts",), results=results)
        except asyncmy.MySQLError as error:
            if results and self.fault(error) is Fault.REFUSED:  # else the savepoint is an earlier one's
                await self.execute_on(connection, "ROLLBACK TO SAVEPOINT parts")
            raise

    async def begin_on(self, connection: Any) -> None:
        await self._ask(connection, ("BEGIN",), [])

    async def commit_on(self, connection: Any) -> None:
        await self._ask(connection, ("COMMIT",), [])

    async def execute_on(self, connection: Any, query: str, args: tuple[object, ...] = ()) -> int:
        affected: int = (await self._own(connection, query, args)).affected_rows
        return affected

    async def fetch_on(self, connection: Any, query: str, args: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        return list((await self._own(connection, query, args)).rows or ())

    async def _own(self, connection: Any, query: str, args: tuple[object, ...]) -> Any:
        """Return the result of a caller's own SQL, which has no time limit."""
        text = query % tuple(map(literal, args)) if args else query
        *_, result = await self._ask(connection, (text,), [], timed=False)
        if result.rows is None:
            connection.server_status = result.server_status  # asyncmy keeps the previous status when no flag is set
        return result

    async def _run(
        self,
        connection: Any,
        call: Call,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        results: list[Any] | None = None,
    ) -> Any:
        """Run a call, and statements around it, in one packet, plus one for each duplicate that stopped the server."""
        parts = self.driver.parts(call.statement)
        values = {name: literal(value) for name, value in call.params.items()}
        texts = [*before, *[part.text % values for part in parts], *after]
        results = [] if results is None else results
        while len(results) < len(texts):
            try:
                await self._ask(connection, texts[len(results) :], results)
            except asyncmy.MySQLError as error:
                at = len(results) - len(before)
                if not (error.args[0] == DUPLICATE and 0 <= at < len(parts) and parts[at].forgives):
                    raise
                results.append(None)
        return parts.shape(list(map(_answer, parts, results[len(before) :])))

    async def _ask(self, connection: Any, texts: Sequence[str], results: list[Any], *, timed: bool = True) -> list[Any]:
        """Send statements as one packet; append results one by one, so that those before an error are kept."""
        if timed:
            self._watch(connection)
        try:
            for packet in self._packets(texts):
                await connection.query(packet)
                result = connection._result
                results.append(result)
                while result.has_next:
                    await connection.next_result()
                    result = connection._result
                    results.append(result)
        except (asyncio.CancelledError, GeneratorExit):  # otherwise the next query would read this answer
            connection.close()
            raise
        except asyncmy.MySQLError as error:
            if error.args[0] in _LEAVE:
                connection.close()
                if self._fails_over(error) and connection.perdure_demotions == self._demotions:
                    self._demotions += 1  # what other connections read from this host may be outdated
            raise
        finally:
            self._waiting.pop(connection, None)
        return results

    def _packets(self, texts: Sequence[str]) -> list[bytes]:
        """Return all statements in one packet, or each in its own if one packet would be too large."""
        packets = [utf8("\n;".join(texts))]
        if len(packets[0]) < self._packet_max:
            return packets
        packets = [utf8(text) for text in texts]
        largest = max(map(len, packets))
        if largest >= self._packet_max:
            raise LimitError(
                f"a statement of {largest} bytes exceeds max_allowed_packet ({self._packet_max} bytes): raise it"
            )
        return packets

    def _watch(self, connection: Any) -> None:
        """Record since when a connection waits for an answer; one timer checks all of them."""
        self._waiting[connection] = connection.loop.time()
        if self._watchman is None:
            self._watchman = connection.loop.call_later(self._read_timeout / 4, self._look, connection.loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Abort the connections that have waited too long; their callers wake up, and the server ends their queries."""
        since = loop.time() - self._read_timeout
        for connection in [connection for connection, start in self._waiting.items() if start < since]:
            if connection._transport is not None:
                connection._transport.abort()
                self._pool.clear()  # on a silent server each idle connection would cost another timeout
        self._watchman = loop.call_later(self._read_timeout / 4, self._look, loop) if self._waiting else None

    # Queries left behind by a connection that was cut off.

    def _end_query(self, connection: Any) -> None:
        """Make the server end the connection's query, which may wait for locks and hold others."""
        stray = connection.thread_id(), connection.perdure_server
        if not connection.perdure_server or stray in self._strays:
            return
        reaping = self._reaper is not None and not self._reaper.done()
        if self._pool.closed and not reaping:
            return  # no task would kill it in time: the server notices when the query ends
        self._strays.append(stray)
        if not reaping:
            self._reaper = asyncio.ensure_future(self._reap())

    async def _reap(self) -> None:
        pause, until = 0.02, monotonic() + RETRY_SEC  # most have ended by then, and a burst shares one connection
        while self._strays and monotonic() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
            try:
                await self._kill_strays()
            except (StorageError, asyncmy.MySQLError, OSError):  # the queries hold locks: retry
                if self._pool.closed:
                    break
        self._strays.clear()

    async def _kill_strays(self) -> None:
        helper = await self.connect()
        try:
            while self._strays:
                thread, server = self._strays[-1]
                # Not on another host of the list, nor after a restart, where the number may belong to another client.
                if server == helper.perdure_server and thread < helper.thread_id():
                    await self._kill(helper, thread)
                self._strays.remove((thread, server))
        finally:
            self.discard(helper)

    async def _kill(self, helper: Any, thread: int) -> None:
        try:
            await helper.query(f"KILL {thread}")
        except asyncmy.MySQLError as error:
            if error.args[0] != _NO_SUCH_THREAD:  # it has ended already
                raise

    # Errors.

    def fault(self, error: Exception) -> Fault:
        code = _code(error)
        if code in _CONFLICTS:
            return Fault.CONFLICT
        if self._fails_over(error):
            return Fault.UNSENT
        if isinstance(error, asyncmy.MySQLError):
            lost = code is None or code == 0 or code in _ENDED or 2000 <= code < 3000  # 2xxx are the client's
        else:
            lost = isinstance(error, OSError | EOFError)
        return Fault.LOST if lost else Fault.REFUSED

    def _fails_over(self, error: Exception) -> bool:
        return len(self._hosts) > 1 and _code(error) in _DEMOTED

    def translate(self, error: Exception) -> StorageError:
        code, text, fault = _code(error), _text(error), self.fault(error)
        if code in _ABSENT:
            return SchemaError(f"the schema is not up to date: {text}; call initialize(), or migrate")
        if code in _READ_ONLY:
            return DatabaseUnavailableError(f"MySQL accepts no writes at the moment: {text}")
        if code in _FULL or (code in _DAMAGED and "#sql" in text):
            return DatabaseUnavailableError(f"MySQL has no space left: {text}; nothing was written")
        if fault is Fault.CONFLICT:
            return DatabaseUnavailableError(f"other transactions kept the rows locked: {text}; nothing was written")
        if fault is Fault.LOST or code in _CROWDED:
            return DatabaseUnavailableError(f"the connection to MySQL was lost: {text}")
        if isinstance(error, asyncmy.MySQLError):
            return StorageError(f"MySQL rejected a statement: {text}")
        return StorageError(f"the operation failed: {error!r}")


def _answer(part: Part, result: Any) -> Any:
    """Return the answer to one part; a result of None is an ignored duplicate."""
    if result is None:
        return [] if part.inserts else 0
    if result.rows is not None:
        return list(result.rows)
    if part.inserts:
        return [(result.insert_id,)] if result.affected_rows else []
    return result.affected_rows


def _cancels() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _code(error: BaseException) -> int | None:
    """Return the server's or the driver's number of an error, or None."""
    code = error.args[0] if isinstance(error, asyncmy.MySQLError) and error.args else None
    return code if isinstance(code, int) else None


def _text(error: BaseException) -> str:
    return str(error.args[-1] if error.args else error) or type(error).__name__


@cache
def _conversions() -> dict[Any, Any]:
    """Return asyncmy's column converters, with one for times that is ten times as fast."""
    converters = import_module("asyncmy.converters")
    slow = converters.convert_datetime

    def moment(text: str) -> Any:
        try:
            return datetime.fromisoformat(text)
        except ValueError:  # such as a zero date
            return slow(text)

    times = [kind for kind, convert in converters.conversions.items() if convert is slow]
    return {**converters.conversions, **dict.fromkeys(times, moment)}
