"""Saved views: searches for runs that have a name, for all people who see the dashboard."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from perdure.dashboard.actions import acted
from perdure.dashboard.audit import actor_of
from perdure.dashboard.pages import Dashboard, Visit, redirect
from perdure.http.problems import Problem
from perdure.views.search import FilterError, parse

SAVED = "saved in the list of runs"


async def views_of(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return the saved views, by name."""
    administration = dashboard.administration
    if administration is None:
        return []
    return [
        {"name": each.name, "q": each.query, "created_by": each.created_by, "created_at": each.created_at}
        for each in await administration.views.list()
    ]


async def save_view(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Save a search under a name."""
    name, text = form.get("name", "").strip(), form.get("q", "").strip()
    if not name:
        raise Problem(422, "enter a name for the view", parameter="name")
    if not text:
        raise Problem(422, "a view needs a search, such as state:failed workflow:order", parameter="q")
    try:
        parse(text, visit.now).query(dashboard.client)
    except FilterError as error:
        raise Problem(422, f"the search cannot be saved: {error}", parameter="q") from None
    views = dashboard.administered("saved views").views
    async with acted(dashboard, visit, "views", name, SAVED) as outcome:
        if not await views.add(name, text, actor_of(visit.request)):
            raise Problem(409, f"there is a view named {name!r} already: choose another name, or delete it first")
        outcome.text = f"saved {text}"
    return redirect(visit, "/runs", q=text, note="saved")


async def delete_view(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Delete a saved view."""
    name = form.get("name", "")
    views = dashboard.administered("saved views").views
    async with acted(dashboard, visit, "views", name, "deleted in the list of runs") as outcome:
        if not await views.remove(name):
            raise Problem(404, f"there is no view named {name!r}: somebody may have deleted it")
        outcome.text = "deleted"
    return redirect(visit, "/runs", note="unsaved")
