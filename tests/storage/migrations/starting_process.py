"""Processes that start at once: `starting_process.py URL STATEMENTS...`; after that many statements one of them dies.

They are forks, because importing takes longer than everything else. Each has a connection of its own, waits until all
have theirs, migrates, looks at once whether the last table is there, and prints what it applied. The last line of the
output has their exit codes.
"""

import asyncio
import json
import os
import sys
import traceback

from perdure.storage.migrations import migrate
from tests.storage.migrations.databases import Connection, Row, open_connection


class DyingSession:
    """A session whose process ends without cleaning up after so many statements."""

    def __init__(self, session: Connection, statements: int) -> None:
        self._session, self._left = session, statements

    async def execute(self, sql: str) -> None:
        await self._session.execute(sql)
        self._left -= 1
        if self._left == 0:
            os._exit(9)

    async def fetch(self, sql: str) -> list[Row]:
        return await self._session.fetch(sql)


async def start(url: str, statements: int, ready: int, go: int) -> list[str]:
    """Live as one of the processes, which write a byte when they are ready, and start when `go` is closed."""
    connection = await open_connection(url)
    os.write(ready, b"r")
    os.read(go, 1)
    dialect = {"sqlite": "sqlite", "mysql": "mysql"}.get(url.partition(":")[0], "postgresql")
    applied = await migrate(DyingSession(connection, statements), dialect)
    await connection.fetch("SELECT beat_at FROM perdure_workers")
    return applied


def main(url: str, lives: list[int]) -> None:
    (ready, is_ready), (go, has_gone) = os.pipe(), os.pipe()
    children = []
    for life in lives:
        child = os.fork()
        if child == 0:
            os.close(has_gone)
            code = 1
            try:
                applied = asyncio.run(start(url, life, is_ready, go))
                os.write(1, json.dumps(applied).encode() + b"\n")  # at once, not in the middle of another's line
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    os.close(is_ready)
    for _ in lives:
        assert os.read(ready, 1), "a process ended before it was ready"
    os.close(has_gone)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


if __name__ == "__main__":
    main(sys.argv[1], list(map(int, sys.argv[2:])))
