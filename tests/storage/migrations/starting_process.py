"""One process of many that start at once: `starting_process.py URL [STATEMENTS]`; after that many statements it dies.

It says when it is ready, waits for a line, migrates, looks at once whether the last table is there, and prints what it
applied.
"""

import asyncio
import json
import os
import sys

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


async def main(url: str, statements: int) -> None:
    connection = await open_connection(url)
    print("ready", flush=True)
    sys.stdin.readline()
    dialect = {"sqlite": "sqlite", "mysql": "mysql"}.get(url.partition(":")[0], "postgresql")
    applied = await migrate(DyingSession(connection, statements), dialect)
    await connection.fetch("SELECT beat_at FROM perdure_workers")
    print(json.dumps(applied))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
