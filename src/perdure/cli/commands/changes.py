"""`perdure cancel` and `perdure retry`, by id or by filter."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.filtering import FILTERS, filter_of
from perdure.cli.opening import writing
from perdure.cli.options import BULK, COMMON, Bulk, Common
from perdure.cli.output import Column, Output, escaped
from perdure.engine.api.client import Client
from perdure.engine.api.queries import BulkResult, RunQuery
from perdure.errors import PerdureError

Ids = Annotated[str, Parameter(help="Ids of runs.")]
Change = Callable[[RunQuery, bool], Awaitable[BulkResult]]


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
            return await _change_all(
                client, bulk, common, "cancel", lambda query, dry_run: query.cancel(reason, dry_run=dry_run)
            )

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
            return await _change_all(client, bulk, common, "retry", lambda query, dry: query.retry(dry_run=dry))

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


async def _change_all(client: Client, bulk: Bulk, common: Common, verb: str, change: Change) -> int:
    """Change all runs of a filter, after a count of them has been confirmed."""
    output = Output(common)
    wanted = filter_of([bulk.filter or ""], FILTERS, datetime.now().astimezone())
    if wanted.is_empty:
        raise exits.UsageError(
            "--filter is empty, which would be all runs: name at least one filter, such as state:failed"
        )
    with exits.usage_errors():
        query = wanted.query(client)
        found = await change(query, True)
        if not bulk.dry_run and found.done:
            _confirm(f"{verb} {found.done:,} runs?", bulk)
            found = await change(query, False)
    document = {
        "action": verb,
        "done": found.done,
        "skipped": found.skipped,
        "failed": dict(found.failed),
        "dry_run": bulk.dry_run,
    }
    output.single(document, lambda: _bulk_text(output, verb, found, bulk.dry_run))
    return exits.FAILED if found.failed else exits.OK


def _bulk_text(output: Output, verb: str, found: BulkResult, dry_run: bool) -> str:
    what = f"would {verb}" if dry_run else verb
    text = f"{what}: {found.done:,}, skipped: {found.skipped:,}, failed: {len(found.failed):,}"
    return "\n".join([text, *(f"  {escaped(id)}: {escaped(why)}" for id, why in found.failed.items())])


def _confirm(question: str, bulk: Bulk) -> None:
    if bulk.yes:
        return
    if not sys.stdin.isatty():
        raise exits.UsageError(f"{question.rstrip('?')}: add --yes to confirm, or --dry-run to only count")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise exits.CommandError("nothing was changed", exits.FAILED, "cli.declined")
