"""Calls of MySQL's driver: the statements of a packet, each answered by a result."""

import asyncio
from typing import Any

import asyncmy

from tests.faults.calls import HANG_SEC, PATIENCE_SEC, Calls, Kind

_SIGNAL = b"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = %d, MESSAGE_TEXT = 'injected'"
_INSTEAD = {
    Kind.BEFORE: _SIGNAL % 1021,
    Kind.CONFLICT: b"ROLLBACK\n;" + _SIGNAL % 1213,
    Kind.HANG: b"DO SLEEP(60)",
}


def watch_mysql(backend: Any, calls: Calls) -> None:
    """Count the calls of every connection that the backend makes from now on."""
    set_up = backend._set_up

    async def counted(connection: Any, *arguments: Any, **options: Any) -> Any:
        """The driver has connected, but the caller does not know yet."""
        kind = calls.come("connect")
        if kind in (Kind.BEFORE, Kind.CONFLICT, Kind.AFTER):
            raise asyncmy.errors.OperationalError(2003, "injected")
        if kind is Kind.HANG:
            await asyncio.sleep(HANG_SEC)
            raise TimeoutError
        if kind is Kind.CANCEL:
            calls.give_up()
        if kind is Kind.LOSE:
            await calls.kill(connection.thread_id())
        await calls.passed()
        _Statements(backend, connection, calls)
        return await set_up(connection, *arguments, **options)

    backend._set_up = counted


class _Statements:
    """Takes the place of a connection's `query` and `next_result`."""

    def __init__(self, backend: Any, connection: Any, calls: Calls) -> None:
        self._backend, self._connection, self._calls = backend, connection, calls
        self._query, self._next_result = connection.query, connection.next_result
        self._texts: list[bytes] = []  # of the packet that was sent
        self._place = 0  # of the statement whose answer comes next
        connection.query, connection.next_result = self.query, self.next_result

    async def query(self, packet: bytes | str, *arguments: Any) -> Any:
        self._texts = (packet.encode() if isinstance(packet, str) else packet).split(b"\n;")
        self._place = 0
        self._calls.send([text.decode() for text in self._texts])
        sent = [
            _INSTEAD.get(kind, text) if (kind := self._calls.ahead(place, self)) else text
            for place, text in enumerate(self._texts)
        ]
        return await self._answer(lambda: self._query(b"\n;".join(sent), *arguments))

    async def next_result(self, *arguments: Any) -> Any:
        self._place += 1
        return await self._answer(lambda: self._next_result(*arguments))

    async def _answer(self, do: Any) -> Any:
        text = self._texts[self._place] if self._place < len(self._texts) else b"one of ours"
        kind = self._calls.come(text.decode(), self._place, self)
        match kind:
            case Kind.HANG:
                return await self._hang(do)
            case Kind.CANCEL:
                self._calls.give_up()
            case Kind.LOSE:
                await self._calls.kill(self._connection.thread_id())
        try:
            answer = await do()
        except BaseException:
            self._calls.take_back(self)
            raise
        finally:
            await self._calls.passed()
        if kind is Kind.AFTER:
            self._connection._transport.abort()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise asyncmy.errors.OperationalError(2013, "Lost connection to MySQL server during query")
        return answer

    async def _hang(self, do: Any) -> Any:
        """Until the backend's own watchman breaks the connection, or the caller gives up where there is no watchman."""
        timeouts, loop = self._backend._timeouts, asyncio.get_running_loop()
        usual, timeouts.seconds = timeouts.seconds, HANG_SEC
        timers = [
            loop.call_later(1.2 * HANG_SEC, timeouts.check, loop),
            loop.call_later(PATIENCE_SEC, self._give_up),
        ]
        try:
            return await do()
        finally:
            timeouts.seconds = usual
            for timer in timers:
                timer.cancel()

    def _give_up(self) -> None:
        if self._calls.caller is None:  # no caller that could: the network does
            self._connection._transport.abort()
        self._calls.give_up()
