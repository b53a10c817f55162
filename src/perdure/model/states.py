"""Define the states of an instance and the transitions between them."""

from enum import StrEnum
from functools import cache


class WorkflowStatus(StrEnum):
    """List the states of an instance."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING_FOR_EVENT = "waiting_for_event"
    WAITING_FOR_TIMER = "waiting_for_timer"
    WAITING_FOR_MESSAGE = "waiting_for_message"
    RECURRED = "recurred"
    COMPENSATING = "compensating"


_S = WorkflowStatus

WAITING = frozenset({_S.WAITING_FOR_EVENT, _S.WAITING_FOR_TIMER, _S.WAITING_FOR_MESSAGE})
TERMINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED, _S.RECURRED})
RESUMABLE = frozenset({_S.RUNNING, _S.COMPENSATING})

# The states that each state may change to. Staying in a state is always allowed unless it is final; `recurred` is only
# ever inserted.
_MOVES: dict[WorkflowStatus, frozenset[WorkflowStatus]] = {
    _S.RUNNING: WAITING | {_S.COMPENSATING, _S.COMPLETED, _S.FAILED, _S.CANCELLED},
    **{waiting: frozenset({_S.RUNNING, _S.COMPENSATING, _S.FAILED, _S.CANCELLED}) for waiting in WAITING},
    _S.COMPENSATING: frozenset({_S.FAILED, _S.CANCELLED}),
}


@cache
def sources_of(target: WorkflowStatus) -> frozenset[WorkflowStatus]:
    """Return the states from which an instance may change to `target`."""
    stay = frozenset() if target in TERMINAL else frozenset({target})
    return stay | {source for source, targets in _MOVES.items() if target in targets}
