"""Move a whole database to another one, show what that would copy, or undo it.

1. The target gets its tables and its guard, then the source its guard.
2. The rows are copied in batches, and the counters from which new ids come.
3. All rows of both are read and compared.
4. The source is marked as moved, then the guard of the target is removed.

Each part can be repeated, so a copy that was killed is continued by the same call.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from uuid import uuid4

from perdure.copying.batches import BATCH_ROWS, batches
from perdure.copying.catalog import Table, common_tables, read_tables
from perdure.copying.database import Database, place_of
from perdure.copying.guarding import Marker, guard, mark_moved, read_marker, release
from perdure.copying.refusals import (
    refuse_other_copy,
    refuse_rows,
    refuse_same,
    refuse_stale_rows,
    refuse_unknown_versions,
    refuse_workers,
)
from perdure.copying.transfer import copy_rows
from perdure.copying.values import Checksum
from perdure.copying.writing import Writer
from perdure.database.dialects import new_driver
from perdure.errors import CommitUnknownError, ConfigurationError, CopyError
from perdure.storage.migrations import versions
from perdure.storage.stores import is_in_memory, migration_status, open_migrated, open_storage


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table: its rows, and the checksum that they have in both databases (None if they were not compared)."""

    name: str
    rows: int
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied, or would be.

    - `source`, `target`: the two databases, without user and password.
    - `state`: `planned`, `moved`, or `aborted`.
    - `since`: since when the source is in this state; None if it is only planned.
    - `tables`: the tables in the order in which they are copied.
    """

    source: str
    target: str | None
    state: Literal["planned", "moved", "aborted"]
    since: datetime | None
    tables: tuple[CopiedTable, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is: rows of a table, and rows of all tables, in this phase."""

    phase: Literal["copy", "compare"]
    table: str
    done: int
    total: int


Report = Callable[[Progress], None]


async def copy_database(
    source_url: str, target_url: str, *, report: Report | None = None, batch_rows: int = BATCH_ROWS
) -> CopyReport:
    """Move a database, or continue to do so. `report` is called after each batch.

    Raise `CopyError` if it is refused, or if the copy differs from its source. The source stays guarded then.
    """
    _refuse_memory(source_url, target_url)
    async with _source(source_url) as source:
        if (marker := await _accepted(source)) is not None and marker.state == "moved":
            return await _finished(source, marker, target_url)
        opened = open_storage if await _is_new(target_url) else open_migrated
        async with opened(target_url) as storage:
            target = Database(target_url, storage)
            tables = await _checked(source, target)
            marker = await _guarded(source, target)
            try:
                return await _Move(source, target, marker, report or _ignore, batch_rows).run(tables)
            except CommitUnknownError as error:  # the steps at the target say what was committed
                raise CopyError(
                    f"the copy to {target.place} was interrupted: {error.__cause__ or error}. Run the command again"
                ) from error


async def plan_copy(source_url: str, target_url: str) -> CopyReport:
    """Return what would be copied, after the checks of `copy_database`; neither database is changed."""
    _refuse_memory(source_url, target_url)
    async with _source(source_url) as source:
        if (marker := await _accepted(source)) is not None and marker.state == "moved":
            return CopyReport(source.place, marker.place, "moved", marker.since, ())
        if await _is_new(target_url):
            refuse_other_copy((source.place, marker), (place_of(target_url), None))
            tables = await read_tables(source)
        else:
            async with open_migrated(target_url) as storage:
                tables = await _checked(source, Database(target_url, storage))
        counted = [CopiedTable(name, await _count(source, name)) for name in tables]
        return CopyReport(source.place, place_of(target_url), "planned", None, tuple(counted))


async def abort_copy(source_url: str, target_url: str | None = None, *, force: bool = False) -> CopyReport:
    """Let a source be used again, and empty the target of its copy, if that is given.

    Raise `CopyError` if the source was moved, unless `force`: then its runs are executed twice if workers have used
    the target.
    """
    _refuse_memory(source_url, target_url or source_url)
    async with open_migrated(source_url) as storage:
        source = Database(source_url, storage)
        marker = await read_marker(source)
        if marker is not None:
            _refuse_abort(source, marker, force)
        emptied: tuple[CopiedTable, ...] = ()
        if target_url is not None:
            async with open_migrated(target_url) as other:
                emptied = await _emptied(Database(target_url, other), marker, source.place)
        await release(source)
    target_place = None if target_url is None else place_of(target_url)
    return CopyReport(source.place, target_place, "aborted", datetime.now(UTC), emptied)


@asynccontextmanager
async def _source(url: str) -> AsyncIterator[Database]:
    async with open_migrated(url) as storage:
        source = Database(url, storage)
        await refuse_unknown_versions(source)
        yield source


async def _accepted(source: Database) -> Marker | None:
    """Return the marker of the source; raise `CopyError` if it has none and has live workers."""
    marker = await read_marker(source)
    if marker is None:
        await refuse_workers(source)
    return marker


async def _is_new(target_url: str) -> bool:
    """Return whether the target has no tables yet. One of an earlier release may be in use, and is not migrated."""
    return await migration_status(target_url, create=True) == versions(new_driver(target_url).name)


async def _guarded(source: Database, target: Database) -> Marker:
    """Guard source and target, unless they are guarded already, and return the marker of the source.

    The target comes first: if the process is killed in between, the source is still in use. Of two processes that begin
    at once, one guards the target. Raise `CopyError`, and guard neither, if a worker has started meanwhile.
    """
    of_source, of_target = await read_marker(source), await read_marker(target)
    known = of_source or of_target
    copy_id, now = known.id if known is not None else uuid4().hex, datetime.now(UTC)
    marker = of_source or Marker(copy_id, "source", "copying", target.place, now)
    await guard(target, of_target or Marker(copy_id, "target", "copying", source.place, now))
    await guard(source, marker)
    if of_source is None:
        try:
            await refuse_workers(source)
        except CopyError:
            await release(source)
            await release(target)
            raise
    return marker


async def _checked(source: Database, target: Database) -> dict[str, Table]:
    """Return the tables to copy, unless a reason refuses the copy."""
    await refuse_same(source, target)
    await refuse_unknown_versions(target)
    of_source, of_target = await read_marker(source), await read_marker(target)
    refuse_other_copy((source.place, of_source), (target.place, of_target))
    tables = common_tables(await read_tables(source), await read_tables(target))
    if of_target is None:
        await refuse_rows(target, tables.values())
    elif of_source is None:
        refuse_stale_rows(target, (await Writer(of_target.id, target).steps()).values())
    return tables


async def _finished(source: Database, marker: Marker, target_url: str) -> CopyReport:
    """Let the target of a source that was moved be used, if the copy was killed before it did that."""
    if await _is_new(target_url):
        refuse_other_copy((source.place, marker), (place_of(target_url), None))
    async with open_migrated(target_url) as storage:
        target = Database(target_url, storage)
        of_target = await read_marker(target)
        refuse_other_copy((source.place, marker), (target.place, of_target))
        if of_target is not None:
            await release(target)
    return CopyReport(source.place, target.place, "moved", marker.since, ())


class _Move:
    """Moves a guarded source to a guarded target."""

    def __init__(self, source: Database, target: Database, marker: Marker, report: Report, batch_rows: int) -> None:
        self._source, self._target = source, target
        self._marker = marker
        self._report, self._batch_rows = report, batch_rows

    async def run(self, tables: Mapping[str, Table]) -> CopyReport:
        total = sum([await _count(self._source, name) for name in tables])
        await self._copy(tables, total)
        copied = await self._compare(tables, total)
        marker = await mark_moved(self._source, self._marker)
        await release(self._target)
        return CopyReport(self._source.place, self._target.place, "moved", marker.since, copied)

    async def _copy(self, tables: Mapping[str, Table], total: int) -> None:
        done: dict[str, int] = {}
        writer = Writer(self._marker.id, self._target)
        async for table, rows in copy_rows(self._source, self._target, writer, list(tables.values()), self._batch_rows):
            done[table] = rows
            self._report(Progress("copy", table, sum(done.values()), total))

    async def _compare(self, tables: Mapping[str, Table], total: int) -> tuple[CopiedTable, ...]:
        """Read all rows of both; raise `CopyError` if their numbers or their checksums differ."""
        copied: list[CopiedTable] = []
        done = 0
        for name, table in tables.items():
            sides = Checksum(), Checksum()
            for database, checksum in zip((self._source, self._target), sides, strict=True):
                async for rows in batches(database, table, rows_max=self._batch_rows):
                    for row in rows:
                        checksum.add(row)
                    done += len(rows)
                    self._report(Progress("compare", name, done, 2 * total))
            one, other = (CopiedTable(name, each.rows, each.text) for each in sides)
            if one != other:
                raise CopyError(
                    f"the copy differs from its source in {name}: {one.rows:,} and {other.rows:,} rows, checksums "
                    f"{one.checksum} and {other.checksum}. The source is not marked as moved. Another program has "
                    f"written to {self._target.place}: undo the copy with --abort, and copy to an empty database"
                )
            copied.append(one)
        return tuple(copied)


async def _emptied(target: Database, of_source: Marker | None, source_place: str) -> tuple[CopiedTable, ...]:
    """Delete the rows that a copy has written to its target; raise `CopyError` if it is not the target of that copy."""
    marker = await read_marker(target)
    is_ours = marker is not None and marker.role == "target" and marker.place == source_place
    if marker is None or not is_ours or (of_source is not None and of_source.id != marker.id):
        raise CopyError(f"{target.place} is not the incomplete target of a copy from {source_place}: leave out --to")
    tables = await read_tables(target)
    counted = tuple([CopiedTable(name, await _count(target, name)) for name in tables])
    writer = Writer(marker.id, target)
    await writer.empty([tables[name] for name in reversed(tables)])
    await release(target)
    return counted


def _refuse_abort(source: Database, marker: Marker, force: bool) -> None:
    if marker.role == "target":
        raise CopyError(f"{source.place} is the target of a copy from {marker.place}: name that one with --from")
    if marker.state == "moved" and not force:
        raise CopyError(
            f"{source.place} was moved to {marker.place} at {marker.since:%Y-%m-%d %H:%M} UTC. If workers have used "
            "that one, its runs would be executed twice. If none has, delete it and repeat the command with --force"
        )


def _refuse_memory(*urls: str) -> None:
    if any(map(is_in_memory, urls)):
        raise ConfigurationError("a database in memory belongs to one process and cannot be copied: name a file")


async def _count(database: Database, table: str) -> int:
    ((count,),) = await database.fetch("count", table=database.table(table))
    return int(count)


def _ignore(_: Progress) -> None:
    return
