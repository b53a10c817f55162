"""One of the two databases of a copy, and its statements.

The statements are in `statements.sql`. Identifiers and literals (`{table}`) are written into their texts, because the
tables and columns come from the catalog; values (`:id`) are bound.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from perdure.database.backends.base import Executor
from perdure.database.dialects import MySQLDriver, PostgresDriver, SQLiteDriver, new_driver
from perdure.database.statements import Statement, parse
from perdure.errors import CopyError, TransactionConflictError
from perdure.storage.migrations.placement import qualified
from perdure.storage.migrations.statements import literal
from perdure.storage.stores import SQLStorage, sqlite_path

_NAME = re.compile(r"\{([a-z_]+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")

WAIT_SEC = 60.0  # for transactions that use a table

Row = tuple[Any, ...]


class Database:
    """An open database: its storage, where it is, and how its statements are written."""

    def __init__(self, url: str, storage: SQLStorage) -> None:
        self.storage = storage
        self.place = place_of(url)
        self.driver: SQLiteDriver | PostgresDriver | MySQLDriver = new_driver(url)

    @property
    def dialect(self) -> str:
        """Return the name of the dialect."""
        return self.storage.dialect

    def table(self, name: str) -> str:
        """Return the name of a table in a statement."""
        return qualified(name, self.storage.schema)

    async def fetch(
        self, name: str, values: Sequence[object] = (), /, *, on: Executor | None = None, **names: object
    ) -> list[Row]:
        """Run a statement that reads, and return its rows; `values` are the parameters of inserted conditions."""
        (text,) = self.texts(name, **names)
        return await (on or self.storage.db()).fetch(text, *map(self.driver.bind, values))

    async def execute(
        self,
        name: str,
        values: Sequence[object] | Mapping[str, object] = (),
        /,
        *,
        on: Executor | None = None,
        **names: object,
    ) -> int:
        """Run a statement that writes, part by part, and return the number of rows that the last part wrote."""
        written = 0
        for text in self.texts(name, **names):
            bound, ordered = self._bound(text, values) if isinstance(values, Mapping) else (text, values)
            written = await self.run(bound, ordered, on)
        return written

    async def run(self, text: str, values: Sequence[object] = (), on: Executor | None = None) -> int:
        """Run a text that writes, and return the number of rows that it wrote."""
        return await (on or self.storage.db()).execute(text, *map(self.driver.bind, values))

    def texts(self, name: str, /, **names: object) -> list[str]:
        """Return the parts of a statement with these identifiers and literals."""
        names.setdefault("schema", literal(self.storage.schema))
        return [_NAME.sub(lambda found: str(names[found[1]]), part) for part in _statements()[name].parts(self.dialect)]

    def _bound(self, text: str, values: Mapping[str, object]) -> tuple[str, list[object]]:
        ordered: list[object] = []

        def mark(found: re.Match[str]) -> str:
            ordered.append(values[found[1]])
            return self.driver.placeholder(len(ordered))

        return _PARAMETER.sub(mark, text), ordered

    @asynccontextmanager
    async def together(self) -> AsyncIterator[Executor | None]:
        """Run the statements of the block in one transaction, where that includes changes of the schema.

        Raise `CopyError` if other transactions use the tables for too long.
        """
        try:
            async with asyncio.timeout(WAIT_SEC):
                if self.driver.features.transactional_ddl:
                    async with self.storage.transaction() as transaction:
                        yield transaction
                else:
                    yield None
        except (TimeoutError, TransactionConflictError) as error:
            raise CopyError(
                f"other transactions use the tables of {self.place}: stop the programs that use the database, and run "
                "the command again"
            ) from error


def place_of(url: str) -> str:
    """Return a URL without its user, password and options, except for the schema."""
    if new_driver(url).name == "sqlite":
        return f"sqlite:///{os.path.abspath(sqlite_path(url))}"
    scheme, _, rest = str(url).partition("://")
    address, _, options = rest.partition("?")
    schema = next((each for each in options.split("&") if each.startswith("schema=")), "")
    return f"{scheme}://{address.rpartition('@')[2]}" + (f"?{schema}" if schema else "")


@cache
def _statements() -> dict[str, Statement]:
    return parse("copying", files(__package__ or "").joinpath("statements.sql").read_text("utf-8"))
