"""Create instances in a transaction of the caller, on the caller's own connection.

Everything is written under a savepoint: after an error the caller's transaction continues unchanged.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from perdure.database.backends.base import drive
from perdure.database.dialects import Features
from perdure.database.operation import Operation
from perdure.database.statements import Call
from perdure.errors import InstanceExistsError, SchemaError
from perdure.model.records import HistoryEvent, ParentLink, TimerWait, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage import definitions, wakeups
from perdure.storage.creation import FirstRows, announcement, first_rows
from perdure.storage.instances import creating
from perdure.storage.sql import load_statements

S = load_statements("caller_transactions")

NO_TABLES = (
    "the connection given as in_transaction= is to a database without perdure's tables: open an App or Client on that "
    "database once to create them, or pass a connection to the database of your App"
)


class Connection(Protocol):
    """Run calls on a connection of the caller."""

    @property
    def features(self) -> Features:
        """Return what the database can do."""

    async def run(self, call: Call) -> Any:
        """Run a call and return the same answer as a backend."""


class CallerTransaction:
    """Create instances and find existing ones, as a storage does, in the open transaction of a connection.

    With `look_first` an instance is looked up before it is inserted: an insert that finds the id taken would wait for
    other transactions, and keep locks.
    """

    def __init__(self, connection: Connection, *, look_first: bool) -> None:
        self._connection = connection
        self._look_first = look_first
        self._existing: WorkflowInstance | None = None

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Keep what the block writes, or undo it if the block raises or is cancelled."""
        run = self._connection.run
        await run(S.savepoint())
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the savepoint may have ended with the transaction
                await run(S.undo())
                await run(S.release())
            raise
        await run(S.release())

    async def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        source_code: str = "",
        events: Sequence[HistoryEvent] = (),
        timers: Sequence[TimerWait] = (),
        parent: ParentLink | None = None,
    ) -> None:
        """Store a new instance with its definition, first events and timers; see `InstanceManager`."""
        first = first_rows(instance, events, timers, parent)
        create = _create(instance, source_code, first, self._connection.features, self._look_first)
        self._existing = await drive(create, self._connection.run)
        if self._existing is not None:
            raise InstanceExistsError(f"run {instance.instance_id!r} already exists: use another id")

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return what identifies an instance: its workflow, input, framework, status and predecessor; or None."""
        if self._existing is not None and self._existing.instance_id == instance_id:
            return self._existing
        return await drive(_find(S.find(instance_id=instance_id), instance_id), self._connection.run)


def _create(
    instance: WorkflowInstance, source: str, first: FirstRows, features: Features, look_first: bool
) -> Operation[WorkflowInstance | None]:
    """Insert an instance, or return what identifies the existing one."""
    id = instance.instance_id
    work = creating(instance, None, 1, source, first)
    if look_first and (found := (yield from _find(S.find(instance_id=id), id))) is not None:
        return found
    if features.gap_locks:
        # In a session with REPEATABLE READ, checking whether the definition exists locks the gap where it will be, and
        # no other transaction could insert a definition there until the commit. So it is inserted without a check.
        yield definitions.S.define(
            workflow_name=instance.workflow_name, source_hash=instance.source_hash, source_code=source
        )
    try:
        yield from work.start()
    except InstanceExistsError:
        found = yield from _find(S.find_again(instance_id=id), id)
        if found is None:
            raise
        return found
    kind, about = announcement(instance, None, first)
    if features.notifications and about is not None:
        yield wakeups.S.notify(kind=kind, payload=json.dumps(about, ensure_ascii=False))
    return None


def _find(call: Call, instance_id: str) -> Operation[WorkflowInstance | None]:
    rows = yield call
    if not rows or rows[0][0] != instance_id:  # MySQL finds `a` when asked for `a `
        return None
    _, name, data, framework, status, previous = rows[0]
    return WorkflowInstance(
        instance_id, name, data.encode(), framework, WorkflowStatus(status), continued_from=previous
    )


async def find_schema(connection: Connection) -> str:
    """Return the schema of our tables on PostgreSQL, for a process without an open app or client."""
    found = await connection.run(S.schemas())
    if not found:
        raise SchemaError(NO_TABLES)
    if len(found) > 1 and found[0][1] == 2:
        names = ", ".join(repr(name) for name, _ in found)
        raise SchemaError(
            "the connection given as in_transaction= is to a database with perdure's tables in several schemas, "
            f"{names}: open a Client with ?schema= in its URL to choose one"
        )
    return str(found[0][0])
