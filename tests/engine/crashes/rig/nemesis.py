"""Faults of a database under load."""

import asyncio
import random
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncmy
import asyncpg

from perdure.testing.servers import Server
from tests.engine.crashes.rig.databases import NAME
from tests.support.databases import connect_mysql, fetch_mysql

AWAY_SEC = 2.0  # twice a lease
MYSQL_FULL, MYSQL_WAITED = 1040, 1205
TRIES = 30

Strike = Callable[[], Awaitable[None]]


class ServerNemesis:
    """Strikes a server of the rig's own; a subclass knows its dialect."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self._server, self._chance = server, chance

    def strikes(self) -> dict[str, Strike]:
        """What it can do besides crashes, by name."""
        return {"sessions ended": self.end_sessions, "connections used up": self.use_up, "read-only": self.read_only}

    def _pause(self) -> float:
        """Leases survive it, or they do not."""
        return self._chance.choice((0.0, self._chance.uniform(0, AWAY_SEC)))

    async def crash(self) -> None:
        """Kill the server at once, and start it again on what it left."""
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(self._pause())
        await asyncio.to_thread(self._server.start)

    async def end_sessions(self) -> None:
        """End all of the workers' sessions."""
        async with self.stranger() as stranger:
            await self._end_sessions(stranger)

    async def use_up(self) -> None:
        """Take every connection that there is, those of the workers too, and keep them for some time."""
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(self.stranger())
            await self._fill(stack)
            await self._end_sessions(first)
            until = time.monotonic() + self._chance.uniform(0.2, AWAY_SEC)
            while time.monotonic() < until:
                await self._fill(stack)
                await asyncio.sleep(0.02)

    async def _fill(self, stack: AsyncExitStack) -> None:
        while True:
            try:
                await stack.enter_async_context(self.stranger())
            except asyncpg.TooManyConnectionsError:
                return
            except asyncmy.errors.OperationalError as error:
                if error.args[0] == MYSQL_FULL:
                    return
                raise

    async def read_only(self) -> None:
        """Let the server refuse writes for some time."""
        async with self.stranger() as stranger:
            await self._set_read_only(stranger, True)
            await asyncio.sleep(self._chance.uniform(0.2, AWAY_SEC))
            await self._set_read_only(stranger, False)

    def stranger(self) -> Any:
        """Open a connection that belongs to no worker."""
        raise NotImplementedError

    async def _end_sessions(self, stranger: Any) -> None:
        raise NotImplementedError

    async def _set_read_only(self, stranger: Any, on: bool) -> None:
        raise NotImplementedError


class PostgresNemesis(ServerNemesis):
    """Strikes PostgreSQL."""

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self._server.url)
        try:
            yield connection
        finally:
            await connection.close()

    async def _end_sessions(self, stranger: Any) -> None:
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{NAME}'"
        await stranger.execute(ended)

    async def _set_read_only(self, stranger: Any, on: bool) -> None:
        await stranger.execute("SET default_transaction_read_only = off")  # not for itself
        await stranger.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
        await stranger.execute("SELECT pg_reload_conf()")


class MySQLNemesis(ServerNemesis):
    """Strikes MySQL or MariaDB."""

    def stranger(self) -> Any:
        return connect_mysql(self._server.url)

    async def _end_sessions(self, stranger: Any) -> None:
        for row in await fetch_mysql(stranger, "SHOW PROCESSLIST"):
            if row[3] == NAME:
                try:
                    await fetch_mysql(stranger, f"KILL {row[0]}")
                except asyncmy.errors.OperationalError:
                    continue  # gone by now

    async def _set_read_only(self, stranger: Any, on: bool) -> None:
        """It waits for all who write, and they for it and each other, so do as operators do: end their sessions."""
        await fetch_mysql(stranger, "SET SESSION lock_wait_timeout = 1")
        for _ in range(TRIES):
            try:
                await fetch_mysql(stranger, f"SET GLOBAL read_only = {int(on)}")
                return
            except asyncmy.errors.OperationalError as error:
                if error.args[0] != MYSQL_WAITED:
                    raise
            await self._end_sessions(stranger)
        raise AssertionError(f"in {TRIES} tries the server did not become read-only")


class FileNemesis:
    """Strikes a SQLite file, which has no server that could crash."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self._path, self._chance = path, chance

    async def lock(self) -> None:
        """Another program keeps all workers from writing."""
        await asyncio.to_thread(self._hold, self._chance.uniform(0.2, AWAY_SEC))

    def _hold(self, seconds: float) -> None:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as stranger:
            stranger.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            stranger.execute("ROLLBACK")

    async def kill_writer(self) -> None:
        """A process dies while it writes: what it wrote never happened."""
        writer = await asyncio.create_subprocess_exec(sys.executable, "-c", _WRITER, str(self._path), stdout=PIPE)
        assert writer.stdout is not None
        try:
            assert await asyncio.wait_for(writer.stdout.readline(), 60) == b"written\n"
            await asyncio.sleep(self._chance.choice((0.0, self._chance.uniform(0, AWAY_SEC))))
        finally:
            writer.kill()
            await writer.wait()


_WRITER = """
import signal, sqlite3, sys
file = sqlite3.connect(sys.argv[1], timeout=50, isolation_level=None)
file.execute("PRAGMA cache_size = 1")
file.execute("BEGIN IMMEDIATE")
file.execute("UPDATE workflow_instances SET status = 'failed', lock_token = lock_token + 100")
file.execute("DELETE FROM workflow_history")
print("written", flush=True)
signal.pause()
"""
