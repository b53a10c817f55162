"""Who did what, when and why: each action is recorded before it is carried out, and its outcome afterwards.

The record is a row of the database, and a line of the logger `perdure.audit`; a function of the user gets it as well.
An action that cannot be recorded is not carried out.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request

from perdure.model.limits import NAME_MAX

log = logging.getLogger("perdure.audit")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action in the dashboard.

    - `at`: when, by the clock of the database.
    - `actor`: who, as far as the server knows: `request.user.display_name`, `request.state.identity`, or the address.
    - `action`: `cancel`, `retry`, `delete`, `send`, `requeue` or `views`.
    - `target`: the id of the run or event, or the name of the saved view; of an action on many runs, the id of the run
      that carries it out.
    - `reason`: what the person entered.
    - `outcome`: `requested` before the action, then `done` or what went wrong.
    - `query`: the search that selected the runs of an action on many; else empty.
    """

    at: datetime
    actor: str
    action: str
    target: str
    reason: str
    outcome: str
    query: str = ""


Audit = Callable[[AuditEntry], Awaitable[None] | None]
"""A function of `dashboard_app(audit=)`, async or not, that records an action before it is carried out."""


async def announce(audit: Audit | None, entry: AuditEntry) -> None:
    """Log an entry, and pass it to the function of the user. If that raises an error, nothing is carried out."""
    log.info(
        "%s of %s by %s: %s (reason: %s)",
        entry.action,
        entry.target if not entry.query else f"{entry.query} as {entry.target}",
        entry.actor,
        entry.outcome,
        entry.reason,
        extra={
            "action": entry.action,
            "target": entry.target,
            "actor": entry.actor,
            "reason": entry.reason,
            "outcome": entry.outcome,
            "query": entry.query,
        },
    )
    if audit is not None:
        answer: Any = audit(entry)
        if inspect.isawaitable(answer):
            await answer


def actor_of(request: Request) -> str:
    """Return who sent a request, as far as the server knows."""
    user = request.scope.get("user")
    name = getattr(user, "display_name", "") or getattr(request.state, "identity", "")
    address = request.client.host if request.client is not None else "unknown"
    text = f"{name} ({address})" if name else address
    return "".join(each if each.isprintable() else " " for each in text).strip()[:NAME_MAX].strip() or "unknown"
