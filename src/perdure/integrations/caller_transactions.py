"""Start a run in the caller's transaction: it begins if and when that transaction commits.

Everything is written under a savepoint, on the caller's connection alone: after an error the caller's transaction
continues unchanged. The driver's own errors are not translated.
"""

import re

from perdure.codecs.pipeline import Pipeline
from perdure.database.dialects import PostgresDriver
from perdure.engine.interception import Interception
from perdure.engine.starting import RunStore, StartRequest, start
from perdure.errors import SchemaError, TransactionError
from perdure.integrations.connections import Connection, recognised
from perdure.storage.caller_transactions import NO_TABLES, CallerTransaction, find_schema
from perdure.storage.encoding import EncodingStarts

_MISSING_TABLE = re.compile(r"no such table: workflow_|workflow_\w+' doesn't exist")  # of SQLite and MySQL


class CallerConnection:
    """Start runs on a connection of the caller; see `perdure.engine.api.in_transaction`."""

    def __init__(self, connection: object) -> None:
        """Raise `ConfigurationError` if the connection is of an unknown kind."""
        self._connection: Connection = recognised(connection)
        self.blocking = self._connection.blocking
        self.dialect = self._connection.dialect
        self._pipeline: Pipeline | None = None

    def use_schema(self, schema: str) -> None:
        """Use the tables of this schema, on PostgreSQL."""
        self._connection.use_schema(schema)

    def use_codec(self, pipeline: Pipeline | None) -> None:
        """Encode what is written with these codecs."""
        self._pipeline = pipeline

    async def start(self, request: StartRequest, interception: Interception | None = None) -> str:
        """Write a start into the open transaction and return the id."""
        connection = self._connection
        if not connection.in_transaction():
            raise TransactionError(
                "the connection given as in_transaction= has no open transaction, so no commit would start the run: "
                f"{connection.how}"
            )
        await connection.prepare()
        if isinstance(connection.driver, PostgresDriver) and not connection.driver.schema:
            connection.use_schema(await find_schema(connection))
        transaction = CallerTransaction(connection, look_first=request.id is not None)
        store: RunStore = transaction if self._pipeline is None else EncodingStarts(transaction, self._pipeline)
        try:
            async with transaction.savepoint():
                return await start(store, request, interception=interception)
        except Exception as error:
            if _MISSING_TABLE.search(str(error)):
                raise SchemaError(NO_TABLES) from error
            raise
