"""`perdure migrate status`, `up` and `dump-sql`."""

from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output
from perdure.cli.settings import database_url
from perdure.database.dialects import new_driver
from perdure.storage.migrations.files import up_statements, versions
from perdure.storage.migrations.placement import LEDGER
from perdure.storage.migrations.statements import render
from perdure.storage.stores import migration_status, open_storage

COLUMNS = (Column("version", is_whole=True), Column("state", is_whole=True))


async def status(*, common: Common = COMMON) -> int:
    """Show which migrations the database has and which it lacks; the exit code is 1 if it lacks any."""
    pending = await migration_status(url := database_url(common))
    output = Output(common)
    _show(output, new_driver(url).name, pending)
    if pending:
        output.note(f"{_counted(pending)} {'is' if len(pending) == 1 else 'are'} pending: run `perdure migrate up`")
    return exits.FAILED if pending else exits.OK


async def up(*, common: Common = COMMON) -> None:
    """Create the tables, or bring them up to date. Any number of processes may do so at once."""
    url = database_url(common)
    output = Output(common)
    pending = await migration_status(url, create=True)
    async with open_storage(url) as storage:
        name = storage.dialect
    applied = {"applied": pending, "dialect": name}
    output.single(applied, lambda: f"applied {_counted(pending)} to the {name} database")


def dump_sql(
    dialect: Annotated[
        Literal["sqlite", "postgresql", "mysql"] | None, Parameter(help="Dialect (default: that of the database).")
    ] = None,
    /,
    *,
    since: Annotated[str, Parameter(show_default=False, help="Only migrations after this version.")] = "",
    common: Common = COMMON,
) -> None:
    """Print the migrations as SQL, for another migration tool, with what records that they are applied.

    Nothing is executed.
    """
    name = new_driver(database_url(common)).name if dialect is None else dialect
    output = Output(common)
    wanted = [(version, _recorded(name, version, texts)) for version, texts in up_statements(name) if version > since]
    if not output.is_table:
        documents = [{"version": version, "statements": statements} for version, statements in wanted]
        output.listing("migrations", documents, ())
        return
    for version, statements in wanted:
        output.line(f"-- migration {version}")
        for statement in statements:
            output.line(f"{statement};\n")


def _recorded(dialect: str, version: str, statements: Sequence[str]) -> list[str]:
    """Return the statements of a migration, and those by which `perdure` sees that it was applied.

    The ledger comes after the first tables: empty and alone it would be mistaken for that of another tool.
    """
    create = [render("create_ledger", dialect, ledger=LEDGER)] if version == versions(dialect)[0] else []
    return [*statements, *create, render("record", dialect, ledger=LEDGER, version=version)]


def _counted(pending: list[str]) -> str:
    return "1 migration" if len(pending) == 1 else f"{len(pending)} migrations"


def _show(output: Output, dialect: str, pending: list[str]) -> None:
    documents = [{"version": each, "state": "pending" if each in pending else "applied"} for each in versions(dialect)]
    output.listing("migrations", documents, COLUMNS)
