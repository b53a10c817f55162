"""The list of runs: a search, page by page."""

from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import Response

from perdure.bulk.selection import STATUSES
from perdure.dashboard.bulk import VERBS
from perdure.dashboard.pages import Dashboard, Page, Visit, redirect
from perdure.dashboard.saved_views import views_of
from perdure.dashboard.workers import holder_of
from perdure.engine.api.queries import COUNT_MAX
from perdure.engine.api.run_info import RunInfo
from perdure.inspection import list_workers
from perdure.views.search import HELP, FilterError, parse
from perdure.views.why import explain

LIMIT = 50
NOTES = {
    "deleted": "The run is deleted.",
    "saved": "The view is saved.",
    "unsaved": "The view is deleted.",
}


async def runs(dashboard: Dashboard, visit: Visit) -> Page | Response:
    """Return a page of the runs that a search finds."""
    text = visit.value("q").strip()
    views = await views_of(dashboard)
    try:
        search = parse(text, visit.now)
        query = search.query(dashboard.client)
    except FilterError as error:
        shown = _nothing(str(error))
        return Page("runs.html", "Runs", _document(text, [], None, None, views), shown, status=422)
    if search.id is not None:
        return await _one(dashboard, visit, search.id, views)
    page = await query.page(LIMIT, visit.value("after") or None, payloads=False)
    count = None if search.filter.where or search.filter.stuck else await query.count()
    names = await dashboard.storage.list_workflow_names()
    held = any(run.worker is not None for run in page.runs)
    workers = await list_workers(dashboard.client) if held else ()
    following = {"q": text, "after": page.next_token} if page.next_token else None
    shown = {
        "search_error": "",
        "help": HELP,
        "why": {
            run.id: dashboard.redact(explain(run, visit.now, holder_of(run, workers)).sentence, "error")
            for run in page.runs
        },
        "names": names,
        "next_url": f"/runs?{urlencode(following)}" if following else None,
        "bulk": {name: verb for name, verb in VERBS.items() if any(run.status in STATUSES[name] for run in page.runs)},
        "note": NOTES.get(visit.value("note"), ""),
    }
    return Page(
        "runs.html",
        "Runs",
        _document(text, [_entry(dashboard, each) for each in page.runs], count, page.next_token, views),
        shown,
    )


async def _one(dashboard: Dashboard, visit: Visit, id: str, views: list[dict[str, Any]]) -> Page | Response:
    (row,) = await dashboard.storage.get_instances([id])
    if row is None:
        message = f"no run has the id {id!r}: write key:value to search by something else"
        shown = _nothing(message)
        return Page("runs.html", "Runs", _document(id, [], 0, None, views), shown, status=404)
    return redirect(visit, run_path(id))


def _nothing(error: str) -> dict[str, Any]:
    return {"search_error": error, "help": HELP, "why": {}, "names": [], "next_url": None, "bulk": VERBS, "note": ""}


def run_path(id: str) -> str:
    """Return the path of the page of a run."""
    return f"/runs/{quote(id, safe='')}"


def _document(
    text: str, found: list[dict[str, Any]], count: int | None, token: str | None, views: list[dict[str, Any]]
) -> dict[str, Any]:
    return {"q": text, "runs": found, "count": count, "count_max": COUNT_MAX, "next_token": token, "views": views}


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
