"""Copy the rows, table by table and batch by batch.

A copy that is killed at any point continues after the last batch that was committed, and copies no row twice. A column
that refers to its own table is copied after all rows of the table, because the row that it refers to may come later.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from perdure.copying.batches import BATCH_ROWS, batches, key_of
from perdure.copying.catalog import Table, read_counters, write_counter
from perdure.copying.database import Database
from perdure.copying.writing import Step, Writer


async def copy_rows(
    source: Database, target: Database, writer: Writer, tables: Sequence[Table], rows_max: int = BATCH_ROWS
) -> AsyncIterator[tuple[str, int]]:
    """Copy what is not copied yet; yield after each batch the table, and how many of its rows are copied."""
    references = [(table, column) for table in tables for column in table.own_references]
    names = [*(table.name for table in tables), *(f"{table.name}.{column}" for table, column in references)]
    steps = await writer.prepare(names)
    for table in tables:
        async for step in _copy_table(source, writer, table, steps[table.name], rows_max):
            yield table.name, step.copied
    for table, column in references:
        await _copy_references(source, writer, table, column, steps[f"{table.name}.{column}"], rows_max)
    await _copy_counters(source, target, tables)


async def _copy_table(source: Database, writer: Writer, table: Table, step: Step, rows_max: int) -> AsyncIterator[Step]:
    later = [place for place, column in enumerate(table.columns) if column in table.own_references]
    if not step.is_done:
        async for rows in batches(source, table, after=step.after, rows_max=rows_max):
            before, step = step, Step(step.name, key_of(table, rows[-1]), step.copied + len(rows))
            kept = [[None if place in later else value for place, value in enumerate(row)] for row in rows]
            await writer.insert(table, kept, before, step)
            yield step
        await writer.record(step, replace(step, is_done=True))
    yield step


async def _copy_references(
    source: Database, writer: Writer, table: Table, column: str, step: Step, rows_max: int
) -> None:
    if step.is_done:
        return
    part = replace(table, columns={each: table.columns[each] for each in (*table.key, column)})
    async for rows in batches(source, part, after=step.after, rows_max=rows_max, condition=f"{column} IS NOT NULL"):
        before, step = step, Step(step.name, key_of(part, rows[-1]), step.copied + len(rows))
        await writer.set(table, column, [(key_of(part, row), row[-1]) for row in rows], before, step)
    await writer.record(step, replace(step, is_done=True))


async def _copy_counters(source: Database, target: Database, tables: Sequence[Table]) -> None:
    """Let the target generate ids after all that the source has generated, also those of deleted rows."""
    last, reached = await read_counters(source, tables), await read_counters(target, tables)
    for table in tables:
        if table.name in reached and last.get(table.name, 0) > reached[table.name]:
            await write_counter(target, table, last[table.name])
