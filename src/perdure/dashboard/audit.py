"""Who did what, when and why: each action is recorded before it is carried out, and its outcome afterwards.

By default a line is logged by the logger `perdure.audit`; a function of the user may store it elsewhere.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request

log = logging.getLogger("perdure.audit")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An action in the dashboard.

    - `at`: when, by the clock of the database.
    - `actor`: who, as far as the server knows: `request.user.display_name`, `request.state.identity`, or the address.
    - `action`: `cancel`, `retry`, `delete`, `send` or `requeue`.
    - `targets`: the ids of the runs or events.
    - `reason`: what the person entered.
    - `outcome`: `requested` before the action, then `done` or what went wrong.
    """

    at: datetime
    actor: str
    action: str
    targets: Sequence[str]
    reason: str
    outcome: str


Audit = Callable[[AuditEntry], Awaitable[None] | None]


async def record(audit: Audit | None, entry: AuditEntry) -> None:
    """Record an action. If that raises an error, the action is not carried out."""
    named = ", ".join(entry.targets[:3]) + (f" and {len(entry.targets) - 3} more" if len(entry.targets) > 3 else "")
    log.info(
        "%s of %s by %s: %s (reason: %s)",
        entry.action,
        named,
        entry.actor,
        entry.outcome,
        entry.reason,
        extra={
            "action": entry.action,
            "targets": list(entry.targets),
            "actor": entry.actor,
            "reason": entry.reason,
            "outcome": entry.outcome,
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
    return f"{name} ({address})" if name else address
