"""Run the calls of one operation in a transaction of its own."""

import time
from typing import Any, Generic, TypeVar

from perdure.database.backends.server.adapter import Adapter
from perdure.database.statements import Call

C = TypeVar("C")


class OwnTransaction(Generic[C]):
    """Hold the transaction of one operation, which begins with its first call."""

    def __init__(self, adapter: Adapter[C], connection: C) -> None:
        self._adapter = adapter
        self._connection = connection
        self._run = adapter.first
        self.since = time.monotonic()  # when the last answer came

    async def run(self, call: Call) -> Any:
        """Run a call; one without an answer may be sent later, together with the next."""
        run, self._run = self._run, self._adapter.run
        answer = await run(self._connection, call)
        self.since = time.monotonic()
        return answer

    async def commit(self) -> None:
        """Send what was not sent yet, and commit."""
        await self._adapter.commit_on(self._connection)
