"""A TCP proxy between workers and a database server, through which the wire can fail in many ways."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
CHUNK = 1 << 16
COMMIT, ANYTHING = re.compile(rb"\bCOMMIT\b", re.IGNORECASE), re.compile(b"")  # a single statement is its own commit


@dataclass(slots=True, eq=False)
class Wire:
    """One connection through the proxy: two ends, and what is wrong with it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    drops_requests: bool = False  # what the client says gets nowhere
    drops_replies: bool = False  # what the server says gets nowhere
    armed: re.Pattern[bytes] | None = None  # the next such request is heard, and its answer gets lost
    unanswered: bool = False
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.flowing.set()

    def cut(self) -> None:
        """Both ends see their connection break."""
        self.flowing.set()
        for end in (self.client, self.server):
            end.transport.abort()


class Proxy:
    """Forwards to a server, until a test disturbs it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.wires: set[Wire] = set()
        self.answers_lost = 0
        self._open = asyncio.Event()  # new connections get through
        self._open.set()
        self.refuses = False  # as if the server were down

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Return the port to connect to."""
        server = await asyncio.start_server(self._accepted, HOST, 0, limit=CHUNK)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            self._open.set()
            for wire in list(self.wires):
                wire.cut()
            await server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        await self._open.wait()
        if self.refuses:
            client.transport.abort()
            return
        try:
            answers, server = await asyncio.open_connection(HOST, self._target, limit=CHUNK)
        except OSError:
            client.transport.abort()
            return
        wire = Wire(client, server)
        self.wires.add(wire)
        try:
            await asyncio.gather(self._forth(wire, reader), self._back(wire, answers))
        except OSError:
            pass  # one end is gone, and so the other
        finally:
            self.wires.discard(wire)
            wire.cut()

    async def _forth(self, wire: Wire, reader: asyncio.StreamReader) -> None:
        while said := await reader.read(CHUNK):
            await wire.flowing.wait()
            if wire.drops_requests:
                continue
            if wire.armed is not None and wire.armed.search(said):
                wire.unanswered = True
            wire.server.write(said)
            await wire.server.drain()
        raise ConnectionResetError

    async def _back(self, wire: Wire, reader: asyncio.StreamReader) -> None:
        while said := await reader.read(CHUNK):
            await wire.flowing.wait()
            if wire.unanswered:  # it was answered, so it happened
                self.answers_lost += 1
                break
            if not wire.drops_replies:
                wire.client.write(said)
                await wire.client.drain()
        raise ConnectionResetError

    def go_down(self) -> None:
        """Break all connections and refuse new ones."""
        self.refuses = True
        for wire in list(self.wires):
            wire.cut()

    def come_back(self) -> None:
        """Accept connections again."""
        self.refuses = False

    # What goes wrong.

    def some(self, chance: random.Random) -> list[Wire]:
        """One of them, half of them or all."""
        wires = list(self.wires)
        return chance.sample(wires, chance.choice((min(1, len(wires)), (len(wires) + 1) // 2, len(wires))))

    async def cut(self, chance: random.Random) -> None:
        """Connections break."""
        for wire in self.some(chance):
            wire.cut()

    async def stall(self, chance: random.Random) -> None:
        """Hold everything back for some time, then forward all of it."""
        wires = self.some(chance)
        self._open.clear()
        for wire in wires:
            wire.flowing.clear()
        await asyncio.sleep(chance.uniform(0.1, 2.0))
        self._open.set()
        for wire in wires:
            wire.flowing.set()

    async def half_open(self, chance: random.Random) -> None:
        """Drop everything in one direction from now on, without closing the connection."""
        for wire in self.some(chance):
            wire.drops_requests = chance.random() < 0.5
            wire.drops_replies = not wire.drops_requests

    async def lose_answers(self, chance: random.Random) -> None:
        """Commits happen whose answers never come."""
        before = self.answers_lost
        for wire in self.some(chance):
            wire.armed = chance.choice((COMMIT, ANYTHING))
        await _within(1.0, lambda: self.answers_lost > before)
        for wire in self.wires:
            wire.armed = None


async def _within(seconds: float, happened: Callable[[], bool]) -> None:
    """Wait for something that may well not happen."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not happened():  # noqa: ASYNC110 - a worker makes it true
                await asyncio.sleep(0.01)
