"""Open connections to the hosts of a URL."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from perdure.database.backends.postgres.errors import is_configuration, text_of
from perdure.database.backends.postgres.native import asyncpg
from perdure.database.backends.postgres.types import Connection
from perdure.database.backends.postgres.url import Address
from perdure.database.secret import Secret, without_traces
from perdure.errors import ConfigurationError, DatabaseUnavailableError, StorageError

VERSION = 14
RECEIVED_MAX = 32 << 10  # bytes that one read from a socket may return
LEFT_SEC = 1.0  # maximum time that closing waits for connections whose callers were cancelled
# About 20 s without an answer from the other side; the last setting is in milliseconds.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 20_000}


class Hosts:
    """Try the hosts in order. If a server that accepts writes is needed, the last good one is tried first."""

    def __init__(self, address: Address, names: str, options: Mapping[str, Any]) -> None:
        self.where = f"the PostgreSQL server at {names}"
        self.fails_over = "target_session_attrs" in address.dsn
        self.connect_timeout: float = options.get("connect_timeout", 10.0)
        self._address = address
        self._each = address.hosts()
        self._needs_primary = any(f"target_session_attrs={role}" in address.dsn for role in ("read-write", "primary"))
        self._command_timeout: float | None = options.get("command_timeout")
        self._name = options.get("application_name", "perdure")
        self._left: set[asyncio.Task[Any]] = set()  # connecting, but the caller was cancelled

    async def dial(self, *, pooled: bool) -> Any:
        """Return a connection to the first usable host; raise the errors of all if there is none."""
        failures: list[StorageError] = []
        for address in list(self._each):
            try:
                connection = await self._dial_at(address, pooled)
            except StorageError as error:
                failures.append(error)
                continue
            if self._needs_primary:
                self._each.remove(address)
                self._each.insert(0, address)
            return connection
        # A fault of one host among several may be temporary: it may be restarting.
        lasting = all(isinstance(error, ConfigurationError) for error in failures)
        if lasting or len(failures) == 1:
            raise failures[0]
        raise DatabaseUnavailableError("; ".join(map(str, failures))) from failures[-1]

    async def _dial_at(self, address: Address, pooled: bool) -> Any:
        where = f"the PostgreSQL server at {address.place}" if len(self._each) > 1 else self.where
        try:
            connection = await self._connect(address, pooled)
        except Exception as error:
            failure = self._connection_error(error, where)
        else:
            major = connection.get_server_version()[0]
            if major >= VERSION:
                _detect_silence(connection)
                _receive_in_small_parts(connection)
                return connection
            connection.terminate()
            failure = ConfigurationError(f"{where} is version {major}, which is too old: use {VERSION} or later")
        raise failure

    async def _connect(self, address: Address, pooled: bool) -> Any:
        """Connect in a task that is not cancelled with its caller: asyncpg would report an error to the event loop."""
        task = asyncio.ensure_future(
            asyncpg.connect(
                **address._asdict(),
                connection_class=Connection,
                timeout=self.connect_timeout,
                command_timeout=self._command_timeout,
                statement_cache_size=0 if pooled else 100,  # for a caller's own SQL
                server_settings={"application_name": self._name, "TimeZone": "UTC"},  # a pooler keeps these, too
            )
        )
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self._left.add(task)
            task.add_done_callback(self._end_left)
            raise
        return task.result()

    def _end_left(self, task: "asyncio.Task[Any]") -> None:
        self._left.discard(task)
        if not task.cancelled() and task.exception() is None:
            task.result().terminate()

    async def close(self) -> None:
        """End the connections whose callers were cancelled while they connected."""
        if self._left:
            _, pending = await asyncio.wait(self._left, timeout=LEFT_SEC)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def _connection_error(self, error: Exception, where: str) -> StorageError:
        """Return the error for a failed connection: one sentence, without the password."""
        text = text_of(error)
        secret = self._address.password and Secret(self._address.password())
        if secret and secret in f"{error!r} {error}":
            return ConfigurationError(f"{where} cannot be used with the settings in the URL")
        if isinstance(error, TimeoutError):
            failure: StorageError = DatabaseUnavailableError(
                f"{where} did not answer within {self.connect_timeout:g} s"
            )
        elif is_configuration(error):
            failure = ConfigurationError(f"{where} cannot be used with the settings in the URL: {text}")
        else:
            failure = DatabaseUnavailableError(f"{where} cannot be reached: {text}")
        failure.__cause__ = without_traces(error)  # in asyncpg's frames the password is a local variable
        return failure


def _detect_silence(connection: Any) -> None:
    """Let the kernel detect a silent server in less than its usual quarter of an hour."""
    transport = getattr(connection, "_transport", None)
    found = transport and transport.get_extra_info("socket")
    if not found or found.family == getattr(socket, "AF_UNIX", None):
        return
    with suppress(OSError):  # the connection is lost already, which its first use reports
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _receive_in_small_parts(connection: Any) -> None:
    """Keep the heap from growing full of holes.

    asyncio allocates 256 KB for each read, and shrinks it to what has arrived. asyncpg keeps the last buffers of each
    connection, which is probably why the next 256 KB need another place: the process grows by megabytes.
    """
    transport: Any = getattr(connection, "_transport", None)
    if hasattr(transport, "max_size"):  # asyncio's, without TLS
        transport.max_size = RECEIVED_MAX
