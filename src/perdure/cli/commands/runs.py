"""`perdure runs` and `perdure show`."""

from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.apps import import_workflows
from perdure.cli.exits import usage_errors
from perdure.cli.filtering import FILTERS, Filters, filter_of
from perdure.cli.opening import reading
from perdure.cli.options import COMMON, WATCHING, Common, Watching
from perdure.cli.output import Column, Output, times, values
from perdure.cli.watching import repeat
from perdure.engine.api.client import Client
from perdure.engine.api.queries import COUNT_MAX
from perdure.inspection import run_document, step_document
from perdure.inspection.documents import Document

LIMIT = 50


def status_text(output: Output, run: Document) -> str:
    """Return the status of a run, and whether it is stuck."""
    return "stuck" if run["stuck"] is not None else str(run["status"])


def short_status(output: Output, run: Document) -> str:
    """Return the status of a run in one word: what it waits for is left out."""
    return status_text(output, run).partition("_")[0]


def doing_text(output: Output, run: Document) -> str | None:
    """Return what a run does or how it ended, in a few words."""
    if run["stuck"] is not None:
        return str(run["stuck"]["reason"])
    if run["error"] is not None:
        return f"{run['error']['type'].rpartition('.')[2]}: {run['error']['message']}"
    if run["worker"] is not None:
        return f"worker {run['worker']}"
    return "; ".join(_wait_text(output, wait) for wait in run["waiting_for"]) or None


def _wait_text(output: Output, wait: Document) -> str:
    """Return what a run waits for: a time, or something that a time-out ends."""
    kind, until = wait["kind"], output.time(wait["until"])
    what = kind if kind in ("start", "timer") else f"{kind} {wait['name']}"
    if until is None:
        return what
    is_time, is_relative = kind in ("start", "timer", "retry"), not until[0].isdigit() or until.endswith("ago")
    link = " " if is_time and is_relative else " at " if is_time else ", timeout " if is_relative else " until "
    return f"{what}{link}{until}"


COLUMNS = (
    Column("id", is_whole=True),
    Column("workflow", rank=2),
    Column("status", status_text, is_whole=True, short=short_status),
    times("started_at"),
    times("updated_at", rank=4),
    Column("doing", doing_text, rank=3),
)


async def runs(
    *terms: Annotated[str, Parameter(help="Filters: state:failed workflow:order input.order_id:A-1 started:<1h.")],
    filters: Filters = FILTERS,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Maximum number of runs.")] = LIMIT,
    after: Annotated[
        str | None, Parameter(show_default=False, help="Continue after an earlier page: the token that it printed.")
    ] = None,
    count: Annotated[bool, Parameter(negative="", help="Print only the number, counted up to 10,000.")] = False,
    watching: Watching = WATCHING,
    common: Common = COMMON,
) -> None:
    """List runs, newest first; stuck runs, those that have been stuck longest first."""
    wanted = filter_of(terms, filters, datetime.now().astimezone())
    async with reading(common) as client:

        async def show(output: Output) -> bool:
            with usage_errors():
                query = wanted.query(client)
                if count:
                    found = await query.count(COUNT_MAX + 1)
                    number, is_exact = min(found, COUNT_MAX), found <= COUNT_MAX
                    text = str(number) if is_exact else f"more than {number}"
                    output.single({"count": number, "is_exact": is_exact}, lambda: text)
                    return True
                page = await query.page(limit, after)
            output.listing("runs", map(run_document, page.runs), COLUMNS, next=page.next_token, empty="no runs match")
            return True

        await repeat(watching, common, show)


async def show(
    id: Annotated[str, Parameter(help="Id of the run.")],
    /,
    *,
    watching: Watching = WATCHING,
    common: Common = COMMON,
) -> None:
    """Show everything that is known of a run."""
    import_workflows(common)
    async with reading(common) as client:

        async def shown(output: Output) -> bool:
            document = await _whole(client, id)
            output.single(document, lambda: _text(output, document))
            return document["finished_at"] is None

        await repeat(watching, common, shown, keep_end=True)


async def _whole(client: Client, id: str) -> Document:
    run, steps = await client.info(id), await client.steps(id)
    return {**run_document(run), "steps": [step_document(step) for step in steps]}


STEP_COLUMNS = (
    Column("step", lambda _, step: step["id"], is_whole=True),
    Column("kind"),
    Column("status"),
    Column("attempts"),
    times("finished_at"),
    Column("result", lambda _, step: values(step, "error", "message") if step["error"] else step["result"]),
)
_PLAIN = ("id", "workflow", "input", "result", "state", "parent", "children", "previous", "worker", "attempts")
_TIMES = ("started_at", "updated_at", "finished_at", "deadline", "lease_expires_at")


def _text(output: Output, run: Document) -> str:
    pairs = [("status", output.paint(status_text(output, run)))]
    pairs += [(name, output.cell(run[name])) for name in _PLAIN if run[name] not in (None, [], 0)]
    pairs += [(name, str(output.time(run[name]))) for name in _TIMES if run[name] is not None]
    if run["error"] is not None:
        pairs.append(
            ("error", output.cell(f"{run['error']['type'].removeprefix('builtins.')}: {run['error']['message']}"))
        )
    if run["stuck"] is not None or run["waiting_for"]:
        pairs.append(("doing", output.cell(doing_text(output, run))))
    text = output.pairs(sorted(pairs, key=lambda pair: pair[0] != "id"))
    if run["error"] is not None and run["error"]["traceback"]:
        text += "\n\n" + "\n".join(map(output.cell, run["error"]["traceback"].rstrip().splitlines()))
    return text + ("\n\n" + output.table(run["steps"], STEP_COLUMNS) if run["steps"] else "")
