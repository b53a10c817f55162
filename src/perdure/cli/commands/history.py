"""`perdure history`, `perdure history export` and `perdure history sample`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.apps import codec_of, import_workflows
from perdure.cli.exits import USAGE, CommandError, UsageError, usage_errors
from perdure.cli.opening import reading
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output, times
from perdure.cli.redacting import redaction
from perdure.cli.settings import database_url
from perdure.errors import SerializationError
from perdure.inspection import history_document
from perdure.inspection.documents import Document

LIMIT = 1000
COLUMNS = (Column("id"), times("at"), Column("step", is_whole=True), Column("kind", is_whole=True), Column("data"))

Redacted = Annotated[
    bool, Parameter(negative="", help="Replace all texts of the input, results and messages; numbers are kept.")
]
RedactedWith = Annotated[
    str | None, Parameter(show_default=False, help="Redact with module:function, called with a place and a value.")
]


async def show(
    id: Annotated[str, Parameter(help="Id of the run.")],
    /,
    *,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Maximum number of entries.")] = LIMIT,
    after: Annotated[int, Parameter(help="Continue after the entry with this number.")] = 0,
    common: Common = COMMON,
) -> None:
    """Show the recorded history of a run, oldest entry first."""
    if limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")
    async with reading(common) as client:
        found: list[Document] = []
        last: str | None = None
        async for entry in client.history(id):
            if entry.id <= after:
                continue
            if len(found) == limit:
                last = str(found[-1]["id"])
                break
            found.append(history_document(entry))
    Output(common).listing("history", found, COLUMNS, next=last)


async def export(
    id: Annotated[str, Parameter(help="Id of the run.")],
    path: Annotated[Path, Parameter(help="File to write.")],
    /,
    *,
    redact: Redacted = False,
    redact_with: RedactedWith = None,
    common: Common = COMMON,
) -> None:
    """Write the history of a run to a file, for `replay()` and `@pytest.mark.replay`."""
    from perdure.testing.exporting import export_history

    import_workflows(common)
    how = redaction(redact, redact_with)
    with _told_of_functions(redact_with):
        await export_history(id, path, redact=how, database=database_url(common), codec=codec_of(common))
    _report(common, [path])


async def sample(
    folder: Annotated[Path, Parameter(help="Folder to write files into.")],
    /,
    *,
    size: Annotated[int, Parameter(help="Maximum number of runs of each workflow.")] = 20,
    redact: Redacted = False,
    redact_with: RedactedWith = None,
    common: Common = COMMON,
) -> None:
    """Write the histories of a sample of the runs that have not ended to files."""
    from perdure.testing.upgrade import export_histories

    import_workflows(common)
    folder.mkdir(parents=True, exist_ok=True)
    with usage_errors(), _told_of_functions(redact_with):
        how = redaction(redact, redact_with)
        paths = await export_histories(database_url(common), folder, sample=size, redact=how, codec=codec_of(common))
    _report(common, paths)


@contextmanager
def _told_of_functions(redact_with: str | None) -> Iterator[None]:
    """Say what helps if the code of a workflow does not take the texts that `--redact` writes."""
    try:
        yield
    except SerializationError as error:
        if redact_with is not None:
            raise
        advice = "--redact replaces every text: name a function that keeps some with --redact-with module:function"
        raise CommandError(f"{error}; {advice}", USAGE, error.code) from error


def _report(common: Common, paths: list[Path]) -> None:
    Output(common).listing("files", [{"path": str(path)} for path in paths], [Column("path", is_whole=True)])
