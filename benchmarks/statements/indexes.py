"""Indexes that no operation of the storage uses: each write pays for them, and no read gains.

The operations are those of `tests/storage/plans`, on a database with all kinds of rows. An index that enforces a
constraint is not listed. A foreign key may need an index that no operation here uses.
"""

import re
import sqlite3
from typing import Any

from perdure.database.dialects.base import Part
from perdure.database.statements import Call
from perdure.storage.stores import SQLStorage, open_storage
from tests.storage.plans.operations import run_all
from tests.storage.plans.sample_data import Growth, seed_mysql, seed_postgres, seed_sqlite
from tests.storage.plans.statement_costs import Meter
from tests.support.databases import connect_mysql, fetch_mysql

RUNS = 500
_MYSQL = """
SELECT DISTINCT s.index_name FROM information_schema.statistics s
  LEFT JOIN information_schema.index_statistics u
         ON u.table_schema = s.table_schema AND u.table_name = s.table_name AND u.index_name = s.index_name
 WHERE s.table_schema = DATABASE() AND s.non_unique = 1 AND u.rows_read IS NULL ORDER BY 1"""
_POSTGRES = """
SELECT u.indexrelname FROM pg_stat_user_indexes u JOIN pg_index i USING (indexrelid)
 WHERE u.idx_scan = 0 AND NOT i.indisunique ORDER BY 1"""


async def unused_indexes(url: str) -> list[str]:
    """Run every operation on this empty database, and return the indexes that were not used."""
    if url.startswith("sqlite"):
        return await _on_sqlite(url)
    elif url.startswith("postgresql"):
        return await _on_postgres(url)
    return await _on_mysql(url)


async def _on_sqlite(url: str) -> list[str]:
    path = url.removeprefix("sqlite:///")
    async with open_storage(url):
        for growth in (Growth(0, 0), Growth(0, RUNS)):
            seed_sqlite(path, growth)
    storage = open_storage(url)
    meter = _Used(storage)
    async with storage:
        await run_all(storage, meter)
    connection = sqlite3.connect(path)
    query = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND sql NOT LIKE 'CREATE UNIQUE%'"
    names = [row[0] for row in connection.execute(f"{query} ORDER BY 1")]
    connection.close()
    return [name for name in names if name not in meter.used]


class _Used(Meter):
    """Notes the indexes in the plan of every statement of SQLite."""

    def __init__(self, storage: SQLStorage) -> None:
        super().__init__()
        self.used: set[str] = set()
        backend: Any = storage._backend
        plain, explained = backend._operations.run_part, set[str]()

        def run(connection: sqlite3.Connection, part: Part, call: Call) -> Any:
            if part.text not in explained:
                explained.add(part.text)
                self._explain(backend._path, part)
            return plain(connection, part, call)

        backend._operations.run_part = run

    def _explain(self, path: str, part: Part) -> None:
        connection = sqlite3.connect(path)  # one of its own: an explained write counts as one, and some ask changes()
        for row in connection.execute(f"EXPLAIN QUERY PLAN {part.text}", [None] * len(part.names)):
            self.used |= set(re.findall(r"USING (?:COVERING )?INDEX (\w+)", row[3]))
        connection.close()


async def _on_postgres(url: str) -> list[str]:
    async with open_storage(url):
        for growth in (Growth(0, 0), Growth(0, RUNS)):
            await seed_postgres(url, growth)
    async with open_storage(f"{url}?pool_size=1") as storage:
        await run_all(storage, Meter())
    async with open_storage(url) as storage:  # the sessions before have reported their statistics by now
        return [row[0] for row in await storage.db().fetch(_POSTGRES)]


async def _on_mysql(url: str) -> list[str]:
    async with open_storage(url):
        for growth in (Growth(0, 0), Growth(0, RUNS)):
            await seed_mysql(url, growth)
    async with connect_mysql(url) as connection:
        if not await fetch_mysql(connection, "SHOW VARIABLES LIKE 'userstat'"):
            return ["(MySQL does not count the use of indexes as MariaDB does)"]
        await fetch_mysql(connection, "SET GLOBAL userstat = 1")
        async with open_storage(url) as storage:
            await run_all(storage, Meter())
        await fetch_mysql(connection, "SET GLOBAL userstat = 0")
        return [row[0] for row in await fetch_mysql(connection, _MYSQL)]
