"""The states of an instance, and the table along which they move."""

from enum import StrEnum


class WorkflowStatus(StrEnum):
    """Where an instance stands."""

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

# From each state to those it may move to. A state to itself is no move and always allowed while not terminal;
# `recurred` is only ever inserted.
_MOVES: dict[WorkflowStatus, frozenset[WorkflowStatus]] = {
    _S.RUNNING: WAITING | {_S.COMPENSATING, _S.COMPLETED, _S.FAILED, _S.CANCELLED},
    **{waiting: frozenset({_S.RUNNING, _S.COMPENSATING, _S.FAILED, _S.CANCELLED}) for waiting in WAITING},
    _S.COMPENSATING: frozenset({_S.FAILED, _S.CANCELLED}),
}


def sources_of(target: WorkflowStatus) -> frozenset[WorkflowStatus]:
    """The states from which an instance may come to `target`."""
    stay = frozenset() if target in TERMINAL else frozenset({target})
    return stay | {source for source, targets in _MOVES.items() if target in targets}
