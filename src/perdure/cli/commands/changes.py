"""`perdure cancel` and `perdure retry`, by id or by filter."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from perdure.bulk import RUNS_MAX, Action, Progress, Selection, count, progress_of, serving, start
from perdure.cli import exits
from perdure.cli.filtering import FILTERS, filter_of
from perdure.cli.inputs import interruptible
from perdure.cli.opening import writing
from perdure.cli.options import BULK, COMMON, Bulk, Common
from perdure.cli.output import Column, Output, escaped
from perdure.engine.api.client import Client, storage_of
from perdure.errors import PerdureError

Ids = Annotated[str, Parameter(help="Ids of runs.")]
FOLLOW_SEC = 0.5  # between two looks at the progress of a bulk change


async def cancel(
    *ids: Ids,
    reason: Annotated[str, Parameter(show_default=False, help="Why; it is part of the error of the run.")] = "",
    bulk: Bulk = BULK,
    common: Common = COMMON,
) -> int:
    """Cancel runs: no new step starts, completed steps are compensated, then the run is cancelled."""
    _check(ids, bulk)
    async with writing(common) as client:
        if bulk.filter is not None:
            return await _change_all(client, bulk, common, "cancel", reason)

        async def one(id: str) -> str:
            await client.cancel(id, reason)
            return id

        return await _change_each(ids, one, Output(common), "cancelled")


async def retry(
    *ids: Ids,
    from_step: Annotated[
        str | None, Parameter(show_default=False, help="Keep the recorded results of the steps before this one.")
    ] = None,
    bulk: Bulk = BULK,
    common: Common = COMMON,
) -> int:
    """Start failed or cancelled runs again, each as a new run, and print the ids of these."""
    _check(ids, bulk)
    if from_step is not None and (len(ids) != 1 or bulk.filter is not None):
        raise exits.UsageError("--from-step names a step of one run: give one id")
    async with writing(common) as client:
        if bulk.filter is not None:
            return await _change_all(client, bulk, common, "retry")

        async def one(id: str) -> str:
            return (await client.retry(id, from_step=from_step)).id

        return await _change_each(ids, one, Output(common), "retried as")


def _check(ids: Sequence[str], bulk: Bulk) -> None:
    if bool(ids) == (bulk.filter is not None):
        raise exits.UsageError("give the ids of runs, or --filter for all that match, such as --filter state:failed")
    if ids and (bulk.dry_run or bulk.yes):
        raise exits.UsageError("--dry-run and --yes are for --filter: a run that is named by its id is changed at once")


async def _change_each(ids: Sequence[str], change: Callable[[str], Awaitable[str]], output: Output, done: str) -> int:
    """Change runs one by one; one that fails does not stop the others. The exit code is that of the first failure."""
    documents: list[dict[str, object]] = []
    code = exits.OK
    for id in ids:
        try:
            documents.append({"id": id, "run": await change(id), "error": None})
        except PerdureError as error:
            problem = exits.problem_of(error)
            if len(ids) == 1:
                raise
            code = code or problem.exit_code
            documents.append({"id": id, "run": None, "error": problem.detail})
    columns = [
        Column("id", is_whole=True),
        Column(done, lambda _, each: each["run"], is_whole=True),
        Column("error"),
    ]
    if output.is_table and len(ids) == 1:
        output.line(escaped(str(documents[0]["run"])))
    else:
        output.listing("runs", documents, columns)
    return code


async def _change_all(client: Client, options: Bulk, common: Common, action: Action, reason: str = "") -> int:
    """Change all runs of a filter, after a count of them has been confirmed; a durable run carries it out."""
    output = Output(common)
    wanted = filter_of([options.filter or ""], FILTERS, datetime.now().astimezone())
    if wanted.is_empty:
        raise exits.UsageError(
            "--filter is empty, which would be all runs: name at least one filter, such as state:failed"
        )
    selection = Selection.of(wanted, await storage_of(client).now())
    with exits.usage_errors():
        wanted.query(client)  # which rejects filters that cannot be combined
        found = await count(client, action, selection, exact_max=RUNS_MAX)
    progress, run = Progress(action, found, done=found if options.dry_run else 0), None
    if found and not options.dry_run:
        _confirm(
            f"{action} {found:,}{' or more' if found == RUNS_MAX else ''} {'run' if found == 1 else 'runs'}?", options
        )
        run = await start(client, action, selection, reason)
        output.note(f"run {run.id} carries this out, also if this command is ended: see `perdure show {run.id}`")
        async with serving(client):
            progress = await _followed(client, run.id)
    document = {
        "action": action,
        "run": None if run is None else run.id,
        "done": progress.done,
        "skipped": progress.skipped,
        "failed": dict(progress.reasons),
        "failed_count": progress.failed,
        "dry_run": options.dry_run,
    }
    output.single(document, lambda: _bulk_text(progress, options.dry_run))
    return exits.FAILED if progress.failed else exits.OK


async def _followed(client: Client, id: str) -> Progress:
    """Wait for the end of an action, and show on a terminal how far it is."""
    handle = client.get(id)
    end = asyncio.ensure_future(handle.result())
    try:
        while not (await asyncio.wait([end], timeout=FOLLOW_SEC))[0]:
            if sys.stderr.isatty() and (progress := progress_of(await handle.state())) is not None:
                print(f"\r{progress}  ", end="", file=sys.stderr, flush=True)
    finally:
        end.cancel()
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    result = progress_of(await end)
    assert result is not None, "the workflow returns its progress"
    return result


def _bulk_text(found: Progress, dry_run: bool) -> str:
    if not found.found:
        return f"no runs to {found.action} match the filter"
    what = f"would {found.action}" if dry_run else found.action
    text = f"{what}: {found.done:,}, skipped: {found.skipped:,}, failed: {found.failed:,}"
    more = [f"  and {found.failed - len(found.reasons):,} more"] if found.failed > len(found.reasons) else []
    return "\n".join([text, *(f"  {escaped(id)}: {escaped(why)}" for id, why in found.reasons.items()), *more])


def _confirm(question: str, bulk: Bulk) -> None:
    if bulk.yes:
        return
    if not sys.stdin.isatty():
        raise exits.UsageError(f"{question.rstrip('?')}: add --yes to confirm, or --dry-run to only count")
    with interruptible():
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise exits.CommandError("nothing was changed", exits.FAILED, "cli.declined")
