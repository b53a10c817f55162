"""`perdure start`."""

from typing import Annotated

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.apps import import_workflows
from perdure.cli.inputs import duration, json_object, point_in_time
from perdure.cli.opening import writing
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Output
from perdure.errors import WorkflowCancelledError, WorkflowFailedError
from perdure.inspection import run_document, start_by_name
from perdure.inspection.documents import plain


async def start(
    workflow: Annotated[str, Parameter(help="Name of the workflow.")],
    /,
    *,
    given: Annotated[
        str, Parameter(name=("--input", "-i"), help="Arguments by name as a JSON object, @file, or - for stdin.")
    ] = "{}",
    id: Annotated[str | None, Parameter(show_default=False, help="Id of the run (default: a new one).")] = None,
    after: Annotated[str | None, Parameter(show_default=False, help="Start after a while, such as 10m.")] = None,
    at: Annotated[str | None, Parameter(show_default=False, help="Start at a time, such as 2026-11-01T09:00.")] = None,
    timeout: Annotated[
        str | None, Parameter(show_default=False, help="Cancel the run if it has not ended after a while, such as 1h.")
    ] = None,
    if_exists: Annotated[
        str, Parameter(help='If a run has the id: "return" it if it is the same, or "error".')
    ] = "return",
    wait: Annotated[bool, Parameter(negative="", help="Wait until the run has ended, and print its result.")] = False,
    common: Common = COMMON,
) -> int:
    """Start a run and print its id. Without --app, the worker that executes the run checks the arguments."""
    arguments = json_object(given, "--input")
    import_workflows(common)
    if if_exists not in ("return", "error"):
        raise exits.UsageError(f'--if-exists must be "return" or "error", not {if_exists!r}')
    if at is not None and after is not None:
        raise exits.UsageError("--at and --after exclude each other: the run starts at a time, or after a while")
    async with writing(common) as client:
        with exits.usage_errors():
            run = await start_by_name(
                client,
                workflow,
                arguments,
                id=id,
                at=point_in_time(at, "--at"),
                after=duration(after, "--after", may_be_zero=True),
                timeout=duration(timeout, "--timeout"),
                if_exists="error" if if_exists == "error" else "return",
            )
        output, code = Output(common), exits.OK
        if not wait:
            output.single({"id": run.id, "workflow": workflow}, lambda: run.id)
            return code
        try:
            await run.result()
        except (WorkflowFailedError, WorkflowCancelledError) as error:
            output.note(exits.error_line(exits.problem_of(error), as_json=not output.is_table))
            code = exits.FAILED
        document = run_document(await run.info())
        output.single(document, lambda: None if code else output.cell(plain(document["result"])))
        return code
