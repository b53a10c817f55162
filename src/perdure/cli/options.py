"""The options that all commands share."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter

OutputKind = Literal["table", "json", "jsonl"]
TimeKind = Literal["local", "utc", "relative"]

GROUP = Group("Common options", sort_key=100)


@Parameter(name="*", group=GROUP)
@dataclass(frozen=True)
class Common:
    """The options that all commands share."""

    database: Annotated[
        str | None,
        Parameter(
            name=("--database", "-d"),
            show_default=False,
            help="URL of the database (default: PERDURE_URL, DATABASE_URL, or [tool.perdure] in pyproject.toml).",
        ),
    ] = None
    app: Annotated[
        str | None,
        Parameter(
            name="--app",
            show_default=False,
            help="Module that defines the workflows, or module:app (default: [tool.perdure] in pyproject.toml).",
        ),
    ] = None
    output: Annotated[OutputKind, Parameter(name=("--output", "-o"), help="Form of the output.")] = "table"
    fields: Annotated[
        str | None, Parameter(name="--fields", show_default=False, help="Only these fields, separated by commas.")
    ] = None
    time: Annotated[TimeKind, Parameter(name="--time", help="How tables show times; JSON has UTC.")] = "local"
    debug: Annotated[bool, Parameter(name="--debug", negative="", help="Show the traceback of an error.")] = False


@Parameter(name="*")
@dataclass(frozen=True)
class Watching:
    """The options of commands that can repeat their output."""

    watch: Annotated[bool, Parameter(name=("--watch", "-w"), negative="", help="Repeat the output until Ctrl-C.")] = (
        False
    )
    every: Annotated[float, Parameter(name="--every", help="Seconds between two reads of --watch.")] = 2.0


@Parameter(name="*")
@dataclass(frozen=True)
class Bulk:
    """The options of commands that change all runs of a filter."""

    filter: Annotated[
        str | None,
        Parameter(
            name=("--filter", "-f"),
            show_default=False,
            help="All runs that match, such as 'state:failed workflow:order', instead of ids.",
        ),
    ] = None
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="", help="Only count the runs.")] = False
    yes: Annotated[bool, Parameter(name=("--yes", "-y"), negative="", help="Do not ask before a bulk change.")] = False


COMMON = Common()
WATCHING = Watching()
BULK = Bulk()
