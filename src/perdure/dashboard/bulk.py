"""Actions on many runs: a page that says how many runs are meant, and a form that starts a durable action.

The form has the time of the page, and the action changes the runs that matched at that time: those that the person saw.
It also has the id of the action, so a form that is sent twice starts one action.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from starlette.responses import Response

from perdure.bulk import NAME, RUNS_MAX, Action, Selection, count, new_action_id, sample, start
from perdure.dashboard.actions import acted, reason_of, to_run
from perdure.dashboard.audit import actor_of
from perdure.dashboard.failures import failed_runs
from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.errors import RunExistsError
from perdure.http.problems import Problem
from perdure.views.search import FilterError, Search, parse

VERBS: dict[Action, str] = {"cancel": "Cancel", "retry": "Retry", "delete": "Delete"}
SHOWN = 20  # runs that the page names
STUCK_MAX = 1_000  # stuck runs that one action changes: there is no way to count them without reading them
CAUSE = "failure:"  # precedes the cause of failures in the audit, where others have a search


async def bulk(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the page that says how many runs an action would change, and asks for a reason."""
    action = _action_of(visit.value("action"))
    text, cause = visit.value("q").strip(), visit.value("failure")
    selection = await _selection(dashboard, visit.now, text, cause)
    most = STUCK_MAX if selection.stuck else RUNS_MAX
    selection = replace(selection, most=most)
    found = await count(dashboard.client, action, selection)
    ids = await sample(dashboard.client, action, selection, SHOWN)
    document = {
        "action": action,
        "q": text,
        "failure": cause,
        "count": found,
        "count_max": most,
        "ids": ids,
        "at": visit.now,
    }
    shown = {"verb": VERBS[action], "id": new_action_id()}
    title = f"{VERBS[action]} {found:,} run{'' if found == 1 else 's'}"
    return Page("bulk.html", title, document, shown, [found, ids])


async def change_many(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Start the action, and show its run, which has the progress."""
    action, reason = _action_of(form.get("action", "")), reason_of(form)
    confirmed = form.get("count", "")
    most = int(confirmed) if confirmed.isascii() and confirmed.isdigit() and len(confirmed) < 12 else RUNS_MAX
    at = min(_moment(form.get("at", "")) or visit.now, visit.now)
    text, cause = form.get("q", "").strip(), form.get("failure", "")
    selection = await _selection(dashboard, at, text, cause)
    selection = replace(selection, most=max(1, min(most, RUNS_MAX)))  # never more than the person saw
    id = form.get("id") or new_action_id()
    async with acted(dashboard, visit, action, id, reason, query=text or f"{CAUSE}{cause}") as outcome:
        told = f"{reason} (by {actor_of(visit.request)})"
        try:
            await start(dashboard.client, action, selection, told, id=id, audit_id=outcome.audit_id)
            outcome.text = f"started {id}"
        except ValueError as error:
            raise Problem(422, str(error), parameter="id") from None
        except RunExistsError:  # its input has the row of the first form
            if (await dashboard.client.get(id).info()).workflow != NAME:
                raise
            outcome.text = f"{id} was started before"
    dashboard.actions.execute(dashboard.client, id)
    return to_run(visit, id, "bulk")


def _action_of(name: str) -> Action:
    if name not in VERBS:
        raise Problem(422, f"{name!r} is not an action on many runs: use {', '.join(VERBS)}", parameter="action")
    return name


async def _selection(dashboard: Dashboard, at: datetime, text: str, cause: str) -> Selection:
    """Return the runs that a search, or a cause of failures, meant at a time."""
    if cause:
        found, _ = await failed_runs(dashboard.storage, at)
        return Selection(at, ids=[each.id for each in found if each.fingerprint == cause and each.at <= at])
    try:
        search = parse(text, at)
        search.query(dashboard.client)  # which rejects terms that cannot be combined
    except FilterError as error:
        raise Problem(422, str(error), parameter="q") from None
    if search == Search(search.id):
        raise Problem(422, "an action on many runs needs a search, such as state:failed workflow:order", parameter="q")
    return Selection.of(search.filter, at)


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
