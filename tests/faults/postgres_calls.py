"""Calls of PostgreSQL's driver: what asyncpg's connections ask of their protocol."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from perdure.errors import DatabaseUnavailableError
from tests.faults.calls import HANG_SEC, Calls, Kind

_RAISE = "DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'; END $$"
_CODES = {Kind.BEFORE: "53100", Kind.CONFLICT: "40001"}
# Until its last statement the server does not look for its client. Such a session holds nothing, and ends by itself.
_SET_UP = re.compile(r"pg_backend_pid\(\)|SET (idle_in_|default_)transaction_|SET client_connection_check_interval")


def watch_postgres(backend: Any, calls: Calls) -> None:
    """Count the calls of every connection that the backend makes from now on."""
    dial = backend._dial

    async def counted(*arguments: Any, **options: Any) -> Any:
        kind = calls.come("connect")
        if kind in _CODES:
            raise DatabaseUnavailableError("injected")
        if kind is Kind.HANG:
            await asyncio.sleep(HANG_SEC)
            raise DatabaseUnavailableError("injected, after a delay")
        if kind is Kind.CANCEL:
            calls.give_up()
        connection = await dial(*arguments, **options)
        connection._protocol = _Protocol(connection, calls)
        if kind in (Kind.AFTER, Kind.LOSE):
            await calls.kill(connection.get_server_pid())
        await calls.passed()
        return connection

    backend._dial = counted


class _Protocol:
    """Asyncpg's protocol, and what may go wrong with it."""

    def __init__(self, connection: Any, calls: Calls) -> None:
        self._real, self._transport, self._calls = connection._protocol, connection._transport, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def query(self, query: str, timeout: float | None) -> Any:
        return await self._call(query, lambda: self._real.query(query, timeout))

    async def prepare(self, name: str, query: str, timeout: float | None, **options: Any) -> Any:
        return await self._call(f"prepare {query}", lambda: self._real.prepare(name, query, timeout, **options))

    async def bind_execute(self, state: Any, *arguments: Any, **options: Any) -> Any:
        return await self._call(state.query, lambda: self._real.bind_execute(state, *arguments, **options))

    async def _call(self, text: str, do: Callable[[], Awaitable[Any]]) -> Any:
        calls, kind = self._calls, self._calls.come(text)
        match kind:
            case Kind.BEFORE | Kind.CONFLICT:
                await self._real.query(_RAISE.format(code=_CODES[kind]), None)
                raise AssertionError("a server that does not raise")
            case Kind.HANG if "LISTEN" in text:  # the session of a listener holds nothing, and is left to itself
                await asyncio.sleep(HANG_SEC)
                raise TimeoutError
            case Kind.HANG:
                await self._real.query(f"SELECT pg_sleep({1 if _SET_UP.search(text) else 60})", HANG_SEC)
                raise AssertionError("a server that does not sleep")
            case Kind.CANCEL:
                calls.give_up()
            case Kind.LOSE:
                await calls.kill(self._real.get_server_pid())
        answer = await do()
        if kind is Kind.AFTER:
            self._transport.abort()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        await calls.passed()
        return answer
