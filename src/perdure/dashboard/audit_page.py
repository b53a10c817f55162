"""The page of the audit: what people did in the dashboard, and the same for one run."""

from typing import Any

from perdure.dashboard.pages import Dashboard, Page, Visit
from perdure.model.administration import REQUESTED, AuditRecord
from perdure.model.envelopes import unreadable
from perdure.model.limits import NAME_MAX, NUMBER_MAX

PAGE = 50
ON_RUN_PAGE = 10


async def audit(dashboard: Dashboard, visit: Visit) -> Page:
    """Return actions, the last one first; those of one run if the URL names it."""
    records = dashboard.administered("audit").audit
    run, before = visit.value("run")[:NAME_MAX].strip(), visit.number("before", NUMBER_MAX) or None
    if run:
        found = await records.of_run(run, PAGE + 1, before=before)
    else:
        found = await records.latest(PAGE + 1, before=before)
    document = {
        "run": run,
        "actions": [entry_of(dashboard, each) for each in found[:PAGE]],
        "next_before": found[PAGE - 1].id if len(found) > PAGE else None,
    }
    return Page("audit.html", f"Audit of {run}" if run else "Audit", document)


async def actions_on(dashboard: Dashboard, run_id: str) -> list[dict[str, Any]]:
    """Return the last actions on a run, for its page."""
    administration = dashboard.administration
    if administration is None:
        return []
    return [entry_of(dashboard, each) for each in await administration.audit.of_run(run_id, ON_RUN_PAGE)]


def entry_of(dashboard: Dashboard, record: AuditRecord) -> dict[str, Any]:
    """Return an action as JSON has it."""
    return {
        "id": record.id,
        "at": record.at,
        "actor": record.actor,
        "action": record.action,
        "target": record.target,
        "query": dashboard.redact(_shown(record.query), "search"),
        "reason": dashboard.redact(_shown(record.reason), "reason"),
        "outcome": dashboard.redact(_shown(record.outcome), "error"),
        "is_open": record.outcome == REQUESTED,
    }


def _shown(text: str) -> str:
    """Return a text; what says how it is stored if this process cannot decode it."""
    hidden = unreadable(text.encode("utf-8", "surrogatepass"))
    return text if hidden is None else str(hidden)
