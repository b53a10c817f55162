"""Actions on one run: each needs a permission and a reason, and is recorded before it happens."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response

from perdure.dashboard.access import ACTIONS
from perdure.dashboard.audit import AuditEntry, actor_of, record
from perdure.dashboard.pages import Dashboard, Visit, redirect
from perdure.http.api import run_id_of
from perdure.http.problems import Problem

REASON_MAX = 1_000


@dataclass(slots=True)
class Outcome:
    """What an action came to, for the audit."""

    text: str = "done"


@asynccontextmanager
async def acted(
    dashboard: Dashboard, visit: Visit, action: str, targets: Sequence[str], reason: str
) -> AsyncIterator[Outcome]:
    """Check that a person may act, record that they do, and afterwards what came of it."""
    assert action in ACTIONS, "one of the actions that access() may grant"
    if action not in visit.may:
        raise Problem(403, f"you may not {action}: the access function of the dashboard does not grant it")
    outcome, actor = Outcome(), actor_of(visit.request)

    def entry(text: str) -> AuditEntry:
        return AuditEntry(visit.now, actor, action, tuple(targets), reason, text)

    await record(dashboard.audit, entry("requested"))
    try:
        yield outcome
    except BaseException as error:
        await record(dashboard.audit, entry(f"{type(error).__name__}: {error}"))
        raise
    await record(dashboard.audit, entry(outcome.text))


def reason_of(form: Mapping[str, str]) -> str:
    """Return the reason that a person entered; raise `Problem` if there is none."""
    reason = form.get("reason", "").strip()
    if not reason:
        raise Problem(422, "enter a reason: it is recorded with the action", parameter="reason")
    if len(reason) > REASON_MAX:
        raise Problem(422, f"the reason has more than {REASON_MAX} characters", parameter="reason")
    return reason


def _to_run(visit: Visit, id: str, note: str) -> Response:
    return redirect(visit, f"/runs/{quote(id, safe='')}", note=note)


async def cancel_run(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Cancel a run."""
    id, reason = run_id_of(visit.request), reason_of(form)
    async with acted(dashboard, visit, "cancel", [id], reason):
        await dashboard.client.cancel(id, f"{reason} (by {actor_of(visit.request)})")
    return _to_run(visit, id, "cancelled")


async def retry_run(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Start a failed or cancelled run again, as a new run, and show that one."""
    id, reason = run_id_of(visit.request), reason_of(form)
    async with acted(dashboard, visit, "retry", [id], reason) as outcome:
        handle = await dashboard.client.retry(id, from_step=form.get("step") or None)
        outcome.text = f"started {handle.id}"
    return _to_run(visit, handle.id, "retried")


async def delete_run(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Delete a run that has ended."""
    id, reason = run_id_of(visit.request), reason_of(form)
    async with acted(dashboard, visit, "delete", [id], reason):
        await dashboard.client.check_run(id)
        if not (await dashboard.storage.delete_ended([id]))[0]:
            raise Problem(
                409,
                f"run {id!r} cannot be deleted: it has not ended, a run that has not ended continues from it, or "
                "another process is changing it",
            )
    return redirect(visit, "/runs", note="deleted")


async def send_event(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Send an event or a message to a run, or a message to all subscribers of a channel."""
    id, reason = run_id_of(visit.request), reason_of(form)
    name, kind, text = form.get("type", "").strip(), form.get("kind", "event"), form.get("data", "").strip()
    if not name:
        raise Problem(422, "enter the type of the event, or the channel of the message", parameter="type")
    try:
        data = json.loads(text or "null")
    except (ValueError, RecursionError) as error:
        raise Problem(422, f"the data is not JSON: {error}", parameter="data") from None
    async with acted(dashboard, visit, "send", [id], reason) as outcome:
        if kind == "channel":
            await dashboard.client.publish(name, data)
        elif kind == "direct":
            await dashboard.client.send_to(id, name, data)
        else:
            await dashboard.client.send_event(name, data, to=id)
        outcome.text = f"sent {name}"
    return _to_run(visit, id, "sent")


async def requeue_event(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Publish a parked event of the outbox after all."""
    id, reason = form.get("event", ""), reason_of(form)
    async with acted(dashboard, visit, "requeue", [id], reason):
        if not await dashboard.storage.requeue_outbox_event(id):
            raise Problem(409, f"event {id!r} is not parked: it was published or requeued in the meantime")
    return redirect(visit, "/outbox", note="requeued")
