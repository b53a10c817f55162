"""The list of runs: a search, page by page, and actions on all runs that it finds."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import Response

from perdure.dashboard.actions import acted, reason_of
from perdure.dashboard.failures import failed_runs
from perdure.dashboard.pages import Dashboard, Page, Visit, redirect
from perdure.engine.api.queries import COUNT_MAX, BulkResult, RunQuery
from perdure.engine.api.run_info import RunInfo
from perdure.errors import PerdureError
from perdure.http.problems import Problem
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.views.search import HELP, FilterError, Search, parse
from perdure.views.why import explain

LIMIT = 50
BULK_MAX = 500
BULK = {"cancel": "Cancel", "retry": "Retry", "delete": "Delete"}
DONE = {"cancel": "Cancelled", "retry": "Retried", "delete": "Deleted"}
NOTES = {"deleted": "The run is deleted."}


async def runs(dashboard: Dashboard, visit: Visit) -> Page | Response:
    """Return a page of the runs that a search finds."""
    text = visit.value("q").strip()
    try:
        search = parse(text, visit.now)
        query = search.query(dashboard.client)
    except FilterError as error:
        shown = _nothing(str(error))
        return Page("runs.html", "Runs", _document(text, [], None, None), shown, status=422)
    if search.id is not None:
        return await _one(dashboard, visit, search.id)
    page = await query.page(LIMIT, visit.value("after") or None, payloads=False)
    count = None if search.filter.where or search.filter.stuck else await query.count()
    names = await dashboard.storage.list_workflow_names()
    following = {"q": text, "after": page.next_token} if page.next_token else None
    shown = {
        "search_error": "",
        "help": HELP,
        "why": {run.id: explain(run, visit.now) for run in page.runs},
        "names": names,
        "next_url": f"/runs?{urlencode(following)}" if following else None,
        "bulk": {name: verb for name, verb in BULK.items() if any(_fits(run, name) for run in page.runs)},
        "note": _note(visit),
    }
    return Page(
        "runs.html",
        "Runs",
        _document(text, [_entry(dashboard, each) for each in page.runs], count, page.next_token),
        shown,
    )


async def _one(dashboard: Dashboard, visit: Visit, id: str) -> Page | Response:
    (row,) = await dashboard.storage.get_instances([id])
    if row is None:
        message = f"no run has the id {id!r}: write key:value to search by something else"
        shown = _nothing(message)
        return Page("runs.html", "Runs", _document(id, [], 0, None), shown, status=404)
    return redirect(visit, run_path(id))


def _nothing(error: str) -> dict[str, Any]:
    return {"search_error": error, "help": HELP, "why": {}, "names": [], "next_url": None, "bulk": BULK, "note": ""}


def run_path(id: str) -> str:
    """Return the path of the page of a run."""
    return f"/runs/{quote(id, safe='')}"


def _document(text: str, found: list[dict[str, Any]], count: int | None, token: str | None) -> dict[str, Any]:
    return {"q": text, "runs": found, "count": count, "count_max": COUNT_MAX, "next_token": token}


def _entry(dashboard: Dashboard, run: RunInfo) -> dict[str, Any]:
    return {
        "id": run.id,
        "workflow": run.workflow,
        "status": run.status.value,
        "started_at": run.started_at,
        "updated_at": run.updated_at,
        "finished_at": run.finished_at,
        "parent": run.parent,
        "worker": run.worker,
        "attempts": run.attempts,
        "stuck": run.stuck is not None,
        "error": None if run.error is None else dashboard.redact(str(run.error), "error"),
        "waiting_for": [{"kind": each.kind.value, "name": each.name, "until": each.until} for each in run.waiting_for],
    }


def _note(visit: Visit) -> str:
    """Return what an action came to that has led here."""
    action, note = visit.value("note").removesuffix("_many"), NOTES.get(visit.value("note"), "")
    if action not in BULK or not visit.value("note").endswith("_many"):
        return note
    done, skipped, failed = (visit.number(each) for each in ("n", "skipped", "failed"))
    text = f"{DONE[action]} {done} runs, skipped {skipped}"
    return f"{text}, and {failed} could not be changed, for example: {visit.value('why')[:500]}" if failed else text


# Many runs at once.


async def bulk(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the page that says how many runs an action would change, and asks for a reason."""
    action, text, cause = visit.value("action"), visit.value("q").strip(), visit.value("failure")
    if action not in BULK:
        raise Problem(422, f"{action!r} is not an action on many runs: use {', '.join(BULK)}", parameter="action")
    ids, more = await _targets(dashboard, visit, action, text, cause)
    document = {"action": action, "q": text, "failure": cause, "ids": ids, "more": more}
    return Page("bulk.html", f"{BULK[action]} {len(ids)} runs", document, {"verb": BULK[action], "most": BULK_MAX})


async def _targets(dashboard: Dashboard, visit: Visit, action: str, text: str, cause: str) -> tuple[list[str], bool]:
    """Return the runs that an action would change, at most so many, and whether there are more."""
    if cause:
        found, more = await failed_runs(dashboard.storage, visit.now)
        return [each.id for each in found if each.fingerprint == cause], more
    query, token, ids = _query(dashboard, text, visit), None, list[str]()
    for _ in range(20):
        page = await query.page(100, token, payloads=False)
        ids += [run.id for run in page.runs if _fits(run, action)]
        token = page.next_token
        if token is None or len(ids) > BULK_MAX:
            break
    return ids[:BULK_MAX], token is not None or len(ids) > BULK_MAX


def _query(dashboard: Dashboard, text: str, visit: Visit) -> RunQuery:
    try:
        search = parse(text, visit.now)
        query = search.query(dashboard.client)
    except FilterError as error:
        raise Problem(422, str(error), parameter="q") from None
    if search == Search(search.id):
        raise Problem(422, "an action on many runs needs a search, such as state:failed workflow:order", parameter="q")
    return query


def _fits(run: RunInfo, action: str) -> bool:
    if action == "cancel":
        return run.status not in TERMINAL
    if action == "retry":
        return run.status in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)
    return run.status in TERMINAL


async def change_many(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Cancel, retry or delete the runs that were shown before, those that an action still applies to."""
    action, reason = form.get("action", ""), reason_of(form)
    if action not in BULK:
        raise Problem(422, f"{action!r} is not an action on many runs: use {', '.join(BULK)}", parameter="action")
    ids, _ = await _targets(dashboard, visit, action, form.get("q", ""), form.get("failure", ""))
    expected = form.get("count", "")
    if expected.isdecimal() and len(ids) > int(expected):
        ids = ids[: int(expected)]  # no more than the person saw
    async with acted(dashboard, visit, action, ids, reason) as outcome:
        result = await _change(dashboard, action, ids, reason)
        outcome.text = f"{result.done} done, {result.skipped} skipped, {len(result.failed)} failed"
    query: dict[str, str | int] = {
        "q": form.get("q", ""),
        "note": f"{action}_many",
        "n": result.done,
        "skipped": result.skipped,
    }
    return redirect(visit, "/runs", **query, failed=len(result.failed), why=next(iter(result.failed.values()), ""))


async def _change(dashboard: Dashboard, action: str, ids: list[str], reason: str) -> BulkResult:
    done, failed = 0, dict[str, str]()
    client, storage = dashboard.client, dashboard.storage
    if action == "delete":
        gone = await storage.delete_ended(ids) if ids else []
        return BulkResult(sum(gone), len(ids) - sum(gone))
    for id in ids:
        try:
            if action == "cancel":
                await client.cancel(id, reason)
            else:
                await client.retry(id)
            done += 1
        except PerdureError as error:
            failed[id] = f"{type(error).__name__}: {error}"
    return BulkResult(done, len(ids) - done - len(failed), failed)
