"""`perdure copy`."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output
from perdure.cli.settings import plain_url
from perdure.copying import CopyReport, Progress, abort_copy, copy_database, plan_copy
from perdure.database.secret import Secret
from perdure.inspection.documents import stamp

COLUMNS = (
    Column("table", lambda _, each: each["name"], is_whole=True),
    Column("rows", lambda _, each: f"{each['rows']:,}", is_whole=True),
    Column("checksum", is_whole=True),
)
PLANNED_COLUMNS = COLUMNS[:2]
PHASES = {"copy": "copying", "compare": "comparing"}


async def copy(
    *,
    source: Annotated[str, Parameter(name="--from", help="URL of the database to move.")],
    target: Annotated[
        str | None,
        Parameter(name="--to", show_default=False, help="URL of an empty database; its tables are created."),
    ] = None,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="", help="Only check and count.")] = False,
    abort: Annotated[
        bool, Parameter(negative="", help="Undo a copy: make the source usable again, and empty the target.")
    ] = False,
    force: Annotated[
        bool, Parameter(negative="", help="With --abort: also if the copy is complete, and the source was moved.")
    ] = False,
    common: Common = COMMON,
) -> None:
    """Move a whole database to another one. Nothing else can write to the source from then on.

    A copy that was interrupted is continued by the same command.
    """
    output = Output(common)
    source_url = plain_url(Secret(source))
    target_url = None if target is None else plain_url(Secret(target))
    _check(common, dry_run, abort, force)
    if abort:
        report = await abort_copy(source_url, target_url, force=force)
    elif target_url is None:
        raise exits.UsageError("say where to copy the database: --to postgresql://localhost/shop")
    elif dry_run:
        report = await plan_copy(source_url, target_url)
    else:
        try:
            with _progress() as show:
                report = await copy_database(source_url, target_url, report=show)
        except asyncio.CancelledError:  # Ctrl-C
            output.note("interrupted: the same command continues the copy, and --abort undoes it")
            raise
    output.single(_document(report), lambda: _text(output, report))


def _check(common: Common, dry_run: bool, abort: bool, force: bool) -> None:
    if common.database is not None:
        raise exits.UsageError("perdure copy does not use --database: name the databases with --from and --to")
    if abort and dry_run:
        raise exits.UsageError("--abort and --dry-run exclude each other")
    if force and not abort:
        raise exits.UsageError("--force is for --abort: nothing else can be forced")


def _document(report: CopyReport) -> dict[str, object]:
    return {
        "state": report.state,
        "source": report.source,
        "target": report.target,
        "since": stamp(report.since),
        "rows": sum(each.rows for each in report.tables),
        "tables": [asdict(each) for each in report.tables],
    }


def _text(output: Output, report: CopyReport) -> str:
    rows, tables = (
        f"{sum(each.rows for each in report.tables):,}",
        [asdict(each) for each in report.tables if each.rows],
    )
    if report.state == "aborted":
        emptied = "" if report.target is None else f"\n{report.target} is empty again"
        return f"{report.source} can be used again{emptied}"
    if report.state == "planned":
        table = f"{output.table(tables, PLANNED_COLUMNS)}\n" if tables else ""
        return f"{table}would copy {rows} rows from {report.source} to {report.target}"
    if not report.tables:
        return f"{report.source} was moved to {report.target} at {output.time(stamp(report.since))}: nothing to do"
    table = f"{output.table(tables, COLUMNS)}\n" if tables else ""
    return f"{table}moved {rows} rows from {report.source} to {report.target}"


@contextmanager
def _progress() -> Iterator[Callable[[Progress], None] | None]:
    """Show a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*parts, console=Console(stderr=True), transient=True) as bar:
        tasks = {phase: bar.add_task(PHASES[phase], total=None, visible=False) for phase in PHASES}

        def show(progress: Progress) -> None:
            text = f"{PHASES[progress.phase]} {progress.table}"
            bar.update(
                tasks[progress.phase], completed=progress.done, total=progress.total, description=text, visible=True
            )

        yield show
