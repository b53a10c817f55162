"""Actions on one run: each needs a permission and a reason, and is recorded before it is carried out."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import quote

from starlette.responses import Response

from perdure.dashboard.access import ACTIONS
from perdure.dashboard.audit import AuditEntry, actor_of, announce
from perdure.dashboard.pages import Dashboard, Visit, redirect
from perdure.http.api import run_id_of
from perdure.http.problems import Problem
from perdure.inspection.retries import tries_of
from perdure.model.administration import REQUESTED

REASON_MAX = 1_000
KINDS = ("event", "direct", "channel")  # of what a person sends


@dataclass(slots=True)
class Outcome:
    """What an action came to, for the audit; `audit_id` is its row, if the database has one."""

    audit_id: int | None
    text: str = "done"


@asynccontextmanager
async def acted(
    dashboard: Dashboard, visit: Visit, action: str, target: str, reason: str, *, query: str = ""
) -> AsyncIterator[Outcome]:
    """Check that a person may act, record that they do, and afterwards what came of it.

    `query` is what selected the runs, if `target` is the run of an action on many.
    """
    assert action in ACTIONS, "one of the actions that access() may grant"
    if action not in visit.may:
        raise Problem(403, f"you may not {action}: the access function of the dashboard does not grant it")
    entry = AuditEntry(visit.now, actor_of(visit.request), action, target, reason, REQUESTED, query)
    audit_id = await _store(dashboard, entry)
    outcome = Outcome(audit_id)
    try:
        await announce(dashboard.audit, entry)
        yield outcome
    except BaseException as error:
        await _finish(dashboard, audit_id, replace(entry, outcome=f"{type(error).__name__}: {error}"))
        raise
    await _finish(dashboard, audit_id, replace(entry, outcome=outcome.text))


async def _store(dashboard: Dashboard, entry: AuditEntry) -> int | None:
    """Store an action that is about to begin, and return its id; None if only the function of the user stores it."""
    administration = dashboard.administration
    if administration is None:
        if dashboard.audit is None:
            raise Problem(
                501,
                "the storage of this dashboard has no audit, and no action is carried out without a record: pass "
                "dashboard_app(audit=) on the server",
            )
        return None
    about_runs = () if entry.query or entry.action in ("requeue", "views") else (entry.target,)
    keep = dashboard.audit_retention
    return await administration.audit.add(
        entry.actor, entry.action, entry.reason, target=entry.target, query=entry.query, runs=about_runs, keep=keep
    )


async def _finish(dashboard: Dashboard, audit_id: int | None, entry: AuditEntry) -> None:
    administration = dashboard.administration
    if administration is not None and audit_id is not None:
        await administration.audit.finish(audit_id, entry.outcome)
    await announce(dashboard.audit, entry)


def reason_of(form: Mapping[str, str]) -> str:
    """Return the reason that a person entered; raise `Problem` if there is none."""
    reason = form.get("reason", "").strip()
    if not reason:
        raise Problem(422, "enter a reason: it is recorded with the action", parameter="reason")
    if len(reason) > REASON_MAX:
        raise Problem(422, f"the reason has more than {REASON_MAX} characters", parameter="reason")
    return reason


def to_run(visit: Visit, id: str, note: str) -> Response:
    """Return the response that leads to the page of a run, with a note about what was done."""
    return redirect(visit, f"/runs/{quote(id, safe='')}", note=note)


async def cancel_run(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Cancel a run."""
    id, reason = run_id_of(visit.request), reason_of(form)
    async with acted(dashboard, visit, "cancel", id, reason):
        await dashboard.client.cancel(id, f"{reason} (by {actor_of(visit.request)})")
    return to_run(visit, id, "cancelled")


async def retry_run(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Start a failed or cancelled run again, as a new run, and show that one.

    The form names the last retry that its page showed: two people who look at the same failure start one retry.
    """
    id, reason = run_id_of(visit.request), reason_of(form)
    async with acted(dashboard, visit, "retry", id, reason) as outcome, dashboard.retrying:
        last = (await tries_of(dashboard.storage, id))[-1:]
        if "last" in form and last and last[0].instance_id not in (id, form["last"]):
            raise Problem(
                409,
                f"run {id!r} has been retried in the meantime, as {last[0].instance_id!r}: see that run first, then "
                "repeat the action from the page of this run if it is still needed",
            )
        handle = await dashboard.client.retry(id, from_step=form.get("step") or None)
        outcome.text = f"started {handle.id}"
    return to_run(visit, handle.id, "retried")


async def delete_run(dashboard: Dashboard, visit: Visit, form: Mapping[str, str]) -> Response:
    """Delete a run that has ended."""
    id, reason = run_id_of(visit.request), reason_of(form)
    async with acted(dashboard, visit, "delete", id, reason):
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
    if kind not in KINDS:
        raise Problem(422, f"{kind!r} is not a kind of message: use {', '.join(KINDS)}", parameter="kind")
    async with acted(dashboard, visit, "send", id, reason) as outcome:
        if kind != "channel" and (await dashboard.client.get(id).info()).finished_at is not None:
            raise Problem(409, f"run {id!r} has ended: it takes no events and messages any more")
        if kind == "channel":
            await dashboard.client.publish(name, data)
        elif kind == "direct":
            await dashboard.client.send_to(id, name, data)
        else:
            await dashboard.client.send_event(name, data, to=id)
        outcome.text = f"sent {name}"
    return to_run(visit, id, "published" if kind == "channel" else "sent")
