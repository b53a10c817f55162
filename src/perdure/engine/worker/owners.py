"""The owner of a lease, as the storage has it: `<worker>#<tries>`, or a mark that keeps a run in back-off.

The number counts the tries in a row that ended without progress before this lease. So the next worker knows it even if
the owner died.
"""

from perdure.storage.stuck import BACKED_OFF


def owner_of(worker_id: str, tries: int) -> str:
    """Return the owner of a lease of this worker, after so many tries without progress."""
    return f"{worker_id}#{tries}"


def worker_of(owner: str) -> str:
    """Return the id of the worker that a lease belongs to."""
    worker_id, mark, _ = owner.rpartition("#")
    return worker_id if mark else owner


def tries_of(owner: str | None) -> int:
    """Return the number of tries in a row without progress before this lease."""
    _, mark, tries = (owner or "").rpartition("#")
    return int(tries) if mark and tries.isdecimal() else 0


def is_backed_off(owner: str | None) -> bool:
    """Return whether a lease belongs to no worker but keeps a run in back-off."""
    return owner is not None and owner.startswith(BACKED_OFF)


def is_dead(owner: str | None) -> bool:
    """Return whether the owner of an expired lease is a worker, which died or lost its database."""
    return owner is not None and not is_backed_off(owner)
