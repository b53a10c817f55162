"""Keep everyone else from writing to a database while it is copied: triggers on all tables, and a marker.

The marker is the only row of its own table. It says what the copy does with the database, and what the triggers tell
those who try to write. The source is guarded from the beginning, and for good once it has been moved. The target is
guarded until it is complete: the copy opens the guard inside each of its transactions, which no other one can see.

On SQLite and PostgreSQL all triggers come and go in one transaction. Those of PostgreSQL reject a write unless they see
that the marker allows it, because a transaction that began earlier does not see the marker. MySQL commits each
statement, so its triggers do nothing without a marker, and they read the latest one, whenever their transaction began.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from perdure.copying.database import Database
from perdure.database.backends.base import Executor
from perdure.errors import CopyError, SchemaError, StorageError
from perdure.storage.migrations import tables as known_tables
from perdure.storage.migrations.placement import choose_ledger, existing_tables
from perdure.storage.migrations.statements import literal

MARKER, STEPS, FUNCTION = "perdure_copy", "perdure_copy_steps", "perdure_copy_guard"
MESSAGE_MAX = 128  # characters that MySQL allows in the error of a trigger

Role = Literal["source", "target"]
State = Literal["copying", "moved"]


@dataclass(frozen=True, slots=True)
class Marker:
    """What a copy does with a database.

    - `id`: the id of the copy, the same at source and target.
    - `role`: whether the database is the source or the target.
    - `state`: whether the copy is going on or complete.
    - `place`: the other database, without user and password.
    - `since`: when the state began, in UTC.
    """

    id: str
    role: Role
    state: State
    place: str
    since: datetime

    @property
    def message(self) -> str:
        """Return what those are told who try to write."""
        at = self.since.strftime("%Y-%m-%d %H:%M UTC")
        if self.state == "moved":
            before, after = "perdure moved this database to ", f" at {at}: use it there"
        elif self.role == "source":
            before, after = "perdure copies this database to ", f" since {at}; undo: perdure copy --abort"
        else:
            before, after = "perdure copies ", f" to this database since {at}: wait until it is done"
        free = MESSAGE_MAX - len(before) - len(after)
        place = self.place if len(self.place) <= free else f"...{self.place[3 - free :]}"
        return before + place + after


async def read_marker(database: Database, transaction: Executor | None = None) -> Marker | None:
    """Return the marker of a database; None if no copy concerns it."""
    try:
        rows = await database.fetch("marker", on=transaction, table=database.table(MARKER))
    except SchemaError:  # there is no such table
        return None
    if not rows:
        return None
    id, role, state, place, since = rows[0]
    return Marker(id, role, state, place, datetime.fromisoformat(since))


async def guard(database: Database, marker: Marker) -> None:
    """Mark a database and let nobody else write to it. A guard that is incomplete after a crash is completed.

    Raise `CopyError` if another copy has marked it meanwhile.
    """
    guarded = await _guarded_tables(database)
    is_new = False
    try:
        async with database.together() as transaction:
            await database.execute("create_marker", on=transaction, table=database.table(MARKER))
            found = await read_marker(database, transaction)
            if found is None:
                await _add_marker(database, marker, transaction)
                is_new = True
            elif found.id != marker.id:
                raise CopyError(f"another process has begun to copy {database.place}: let it finish")
            await _create_triggers(database, marker, guarded, transaction)
    except BaseException:
        if is_new and not database.driver.features.transactional_ddl:
            with suppress(StorageError):  # the first error is the one that matters
                await release(database)
        raise


async def mark_moved(database: Database, marker: Marker) -> Marker:
    """Mark the source as moved, for good; raise `CopyError` if its guard was removed, so it may have changed."""
    moved = replace(marker, state="moved", since=datetime.now(UTC))
    guarded = await _guarded_tables(database)
    values = {"id": moved.id, "since": moved.since.isoformat(), "message": moved.message}
    async with database.together() as transaction:
        try:
            is_marked = await database.execute("mark_moved", values, on=transaction, table=database.table(MARKER))
        except SchemaError:  # there is no such table
            is_marked = False
        if not is_marked:
            raise CopyError(f"the copy of {database.place} was aborted by another process")
        if transaction is not None:  # the text may be a part of the triggers
            await _drop_triggers(database, guarded, transaction)
            await _create_triggers(database, moved, guarded, transaction)
    return moved


async def release(database: Database) -> None:
    """Remove the marker, the triggers and the tables of the copy."""
    guarded = await _guarded_tables(database)
    async with database.together() as transaction:
        await database.execute("create_marker", on=transaction, table=database.table(MARKER))
        await database.execute("unmark", on=transaction, table=database.table(MARKER))  # on MySQL this ends the guard
        await _drop_triggers(database, guarded, transaction)
        for table in (STEPS, MARKER):
            await database.execute("drop_table", on=transaction, table=database.table(table))


async def _add_marker(database: Database, marker: Marker, transaction: Executor | None) -> None:
    values = {
        "id": marker.id,
        "role": marker.role,
        "state": marker.state,
        "place": marker.place,
        "since": marker.since.isoformat(),
        "message": marker.message,
    }
    await database.execute("mark", values, on=transaction, table=database.table(MARKER))


async def _guarded_tables(database: Database) -> list[str]:
    """Return the tables that nobody may write to: all of perdure, and the ledger of its migrations."""
    reader, dialect, schema = database.storage.db(), database.dialect, database.storage.schema
    found = await existing_tables(reader, dialect, schema)
    return [*known_tables(dialect), await choose_ledger(reader, dialect, schema, found)]


async def _create_triggers(
    database: Database, marker: Marker, tables: Collection[str], transaction: Executor | None
) -> None:
    function = database.table(FUNCTION)
    written = {"marker": database.table(MARKER), "function": function, "message": literal(marker.message)}
    if database.driver.features.schemas:
        await database.execute("create_function", on=transaction, **written)
    existing = {_text(name) for (name,) in await database.fetch("triggers", on=transaction)}
    for table in tables:
        for text in database.texts("create_guard", name=table, table=database.table(table), **written):
            if text.split()[2] not in existing:
                await database.run(text, on=transaction)


async def _drop_triggers(database: Database, tables: Collection[str], transaction: Executor | None) -> None:
    existing = {_text(name) for (name,) in await database.fetch("triggers", on=transaction)}
    for table in tables:
        for text in database.texts("drop_guard", name=table, table=database.table(table)):
            if text.split()[4] in existing:
                await database.run(text, on=transaction)
    if database.driver.features.schemas:
        await database.execute("drop_function", on=transaction, function=database.table(FUNCTION))


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
