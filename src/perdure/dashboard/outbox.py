"""The outbox: pending, published and parked events, why they are parked, and how a parked one is retried."""

from collections.abc import Mapping

from starlette.responses import Response

from perdure.dashboard.actions import acted, reason_of
from perdure.dashboard.pages import Dashboard, Page, Visit, place_of, redirect, token_of
from perdure.dashboard.run import NOTES
from perdure.engine.api.queries import COUNT_MAX
from perdure.engine.api.values import shown
from perdure.http.problems import Problem
from perdure.model.records import OutboxEvent, OutboxStatus

PAGE = 50
STATES = {
    OutboxStatus.PENDING: "pending",
    OutboxStatus.PUBLISHED: "published",
    OutboxStatus.INVALID: "parked",
}


async def outbox(dashboard: Dashboard, visit: Visit) -> Page:
    """Return the events of the outbox in one state, oldest first, without their data."""
    given = visit.value("state") or OutboxStatus.PENDING.value
    if given not in [each.value for each in OutboxStatus]:
        raise Problem(422, f"{given!r} is not a state of an event", parameter="state")
    state = OutboxStatus(given)
    surveys = dashboard.administered("list of events").surveys
    events = await surveys.list_outbox(state, PAGE + 1, after=place_of(visit))
    document = {
        "state": state.value,
        "states": {each.value: name for each, name in STATES.items()},
        "counts": {each.value: await surveys.count_outbox(each, COUNT_MAX) for each in STATES},
        "count_max": COUNT_MAX,
        "events": [_entry(dashboard, each) for each in events[:PAGE]],
        "next_after": token_of(events[PAGE - 1].created_at, events[PAGE - 1].event_id) if len(events) > PAGE else None,
    }
    return Page("outbox.html", "Outbox", document, {"note": NOTES.get(visit.value("note"), "")})


def _entry(dashboard: Dashboard, event: OutboxEvent) -> dict[str, object]:
    return {
        "id": event.event_id,
        "type": event.event_type,
        "source": event.event_source,
        "created_at": event.created_at,
        "published_at": event.published_at,
        "retries": event.retry_count,
        "error": dashboard.redact(shown(event.last_error or ""), "error"),
    }


async def requeue_event(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Publish a parked event of the outbox after all."""
    id, reason = form.get("event", ""), reason_of(form)
    async with acted(dashboard, visit, "requeue", id, reason):
        if not await dashboard.storage.requeue_outbox_event(id):
            raise Problem(409, f"event {id!r} is not parked: it was published or requeued in the meantime")
    return redirect(visit, "/outbox", note="requeued")
