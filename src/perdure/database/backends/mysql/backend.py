"""Run operations on MySQL and MariaDB.

A statement of several parts is sent as one packet, and so is a transaction around it. The server runs a packet
statement by statement and stops at the first error, so `BEGIN; a; b; COMMIT` is all or nothing in one round trip. A
statement whose answer no operation needs is sent with the next one.
Cancelling a query closes its connection; the server may notice only when the query ends, so another connection kills
the query, which may be waiting for locks.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from math import ceil
from typing import Any

from perdure.database.backends.base import Notifier
from perdure.database.backends.mysql.errors import (
    DEMOTED,
    DUPLICATE,
    LEAVE,
    classify,
    code_of,
    connection_error,
    translate,
)
from perdure.database.backends.mysql.native import asyncmy, conversions
from perdure.database.backends.mysql.orphans import OrphanedQueries
from perdure.database.backends.mysql.timeouts import AnswerTimeouts
from perdure.database.backends.mysql.url import parse
from perdure.database.backends.polling import Polling
from perdure.database.backends.server.backend import ServerBackend
from perdure.database.backends.server.retries import Fault
from perdure.database.backends.server.transaction import OwnTransaction
from perdure.database.dialects.base import Part, Rendered, Rendering
from perdure.database.dialects.mysql import MySQLDriver, literal, utf8
from perdure.database.secret import Secret
from perdure.database.statements import Call
from perdure.errors import ConfigurationError, DatabaseUnavailableError, LimitError, StorageError
from perdure.model.records import WakeUp

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


class MySQLBackend(ServerBackend[Any]):
    """Run operations on a database of MySQL 8.0 or MariaDB 10.6 and later.

    The URL is `mysql://user:password@host:3306/database?option=value`. Several hosts, separated by commas, are tried in
    order, and read-only hosts are skipped. A write that meets a host which became read-only is retried on the next.
    The options are described in `mysql.url`; options in the URL override arguments.
    """

    def __init__(self, url: str, *, pool_size: int = 10, pool_timeout: float = 30.0, read_only: bool = False) -> None:
        if asyncmy is None:
            raise ConfigurationError("the driver asyncmy is not installed, and MySQL needs it: install perdure[mysql]")
        url = Secret(url)
        self._hosts, self._login, options = parse(url)
        super().__init__(options.get("pool_size", pool_size), options.get("pool_timeout", pool_timeout))
        self.driver: Rendering = MySQLDriver()
        self._polling = Polling()
        self.notifier: Notifier = self._polling
        self._connect_timeout: float = options.get("connect_timeout", 10.0)
        self._idle_sec: float | None = options.get("idle_transaction_timeout")
        self._packet_max = PACKET_MIN
        self._read_only = read_only
        self._demotions = 0  # connections opened before the last demotion are not reused
        # On a silent server each idle connection would cost another timeout, so a timeout clears the pool.
        self._timeouts = AnswerTimeouts(options.get("read_timeout", 60.0), self._pool.clear)
        self._orphans = OrphanedQueries(lambda: self.connect(), self.discard, lambda: self._pool.closed)

    async def close(self) -> None:
        await super().close()
        self._timeouts.close()
        await self._orphans.close()

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
            host=host, port=port, client_flag=_FOUND_ROWS, autocommit=None, conv=conversions(), **self._login
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
            raise connection_error(error, where, self._login, self._connect_timeout) from error
        except BaseException:
            connection.close()
            raise
        return connection

    async def _set_up(self, connection: Any, where: str) -> None:
        """Set up the session, and raise an error if the server cannot provide what the contract guarantees."""
        idle = f"/*M! , SESSION idle_transaction_timeout = {ceil(self._idle_sec)} */" if self._idle_sec else ""
        *_, result = await self._ask(connection, (_SESSION[0] + idle, *_SESSION[1:]), [])
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
        if self._read_only:
            await self._ask(connection, ("SET SESSION TRANSACTION READ ONLY",), [])

    async def _follow_cluster(self, connection: Any) -> None:
        """On Galera, wait until commits of other nodes have arrived: now, and before every read."""
        (result,) = await self._ask(connection, ("SHOW VARIABLES LIKE 'wsrep_on'",), [])
        if result.rows and result.rows[0][1] == "ON":
            await self._ask(connection, ("SET SESSION wsrep_sync_wait = 1", "BEGIN", "COMMIT"), [])

    def alive(self, connection: Any) -> bool:
        transport, proto = connection._transport, connection._proto
        return not (transport is None or transport.is_closing() or proto.eof or not connection._connected)

    def discard(self, connection: Any) -> None:
        if self.alive(connection):
            connection._transport.write(_QUIT)  # otherwise the server logs an aborted connection
        else:
            self._orphans.end(connection)
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

    def own_transaction(self, connection: Any) -> OwnTransaction[Any]:
        return PacketTransaction(self, connection)

    async def run_alone(self, connection: Any, call: Call) -> Any:
        if len(self.driver.parts(call.statement)) == 1:
            return await self._run(connection, call)
        try:
            return await self._run(connection, call, ("BEGIN",), ("COMMIT",))
        except Exception:
            await self.roll_back_or_discard(connection)
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
        affected: int = (await self._run_own(connection, query, args)).affected_rows
        return affected

    async def fetch_on(self, connection: Any, query: str, args: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        return list((await self._run_own(connection, query, args)).rows or ())

    async def _run_own(self, connection: Any, query: str, args: tuple[object, ...]) -> Any:
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
        parts, texts = self._rendered(call)
        results = [] if results is None else results
        forgives = [*[False] * len(before), *[part.forgives for part in parts], *[False] * len(after)]
        await self._send(connection, [*before, *texts, *after], forgives, results)
        return parts.shape(list(map(_answer, parts, results[len(before) :])))

    async def run_together(self, connection: Any, calls: Sequence[Call], *, begin: bool, commit: bool) -> Any:
        """Run calls in one packet, with the begin or the end of their transaction; return the answer to the last."""
        texts, forgives, results = ["BEGIN"] if begin else [], [False] if begin else [], list[Any]()
        parts = Rendered()
        for call in calls:
            parts, own = self._rendered(call)
            texts += own
            forgives += [part.forgives for part in parts]
        first = len(texts) - len(parts)
        await self._send(connection, [*texts, "COMMIT"] if commit else texts, [*forgives, False], results)
        return parts.shape(list(map(_answer, parts, results[first:]))) if calls else None

    def _rendered(self, call: Call) -> tuple[Rendered, list[str]]:
        """Return the parts of a call's statement, and their texts with the values of the call."""
        parts = self.driver.parts(call.statement)
        values = {name: literal(value) for name, value in call.params.items()}
        return parts, [part.text % values for part in parts]

    async def _send(self, connection: Any, texts: Sequence[str], forgives: Sequence[bool], results: list[Any]) -> None:
        """Send statements as one packet, and those after an ignored duplicate, which stops the server, as another."""
        while len(results) < len(texts):
            try:
                await self._ask(connection, texts[len(results) :], results)
            except asyncmy.MySQLError as error:
                if not (error.args[0] == DUPLICATE and forgives[len(results)]):
                    raise
                results.append(None)

    async def _ask(self, connection: Any, texts: Sequence[str], results: list[Any], *, timed: bool = True) -> list[Any]:
        """Send statements as one packet; append results one by one, so that those before an error are kept."""
        if timed:
            self._timeouts.begin(connection)
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
            if error.args[0] in LEAVE:
                connection.close()
                if self._is_demotion(error) and connection.perdure_demotions == self._demotions:
                    self._demotions += 1  # what other connections read from this host may be outdated
            raise
        finally:
            self._timeouts.end(connection)
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

    # Errors.

    def fault(self, error: Exception) -> Fault:
        return classify(error, demoted=self._is_demotion(error))

    def _is_demotion(self, error: Exception) -> bool:
        """Return whether the host became read-only, and there are others."""
        return len(self._hosts) > 1 and code_of(error) in DEMOTED

    def translate(self, error: Exception) -> StorageError:
        return translate(error, self.fault(error))


class PacketTransaction(OwnTransaction[Any]):
    """Keep the calls that have no answer, and send them in one packet with the next call or with the commit."""

    def __init__(self, backend: MySQLBackend, connection: Any) -> None:
        super().__init__(backend, connection)
        self._backend = backend
        self._kept: list[Call] = []
        self._begun = False

    async def run(self, call: Call) -> Any:
        self._kept.append(call)
        if call.statement.columns == ():
            return None
        answer = await self._flush()
        self.since = time.monotonic()
        return answer

    async def commit(self) -> None:
        await self._flush(commit=True)

    async def _flush(self, *, commit: bool = False) -> Any:
        calls, self._kept, begun, self._begun = self._kept, [], self._begun, True
        return await self._backend.run_together(self._connection, calls, begin=not begun, commit=commit)


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
