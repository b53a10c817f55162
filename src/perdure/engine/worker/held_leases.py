"""The leases that a worker holds, and the local deadline of each.

The worker's loop adds and removes leases; the thread of the heartbeat renews them. So no method iterates over a
dictionary that the other thread may change.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from perdure.engine.execution.clock import steady
from perdure.model.records import Lease


class Held(Protocol):
    """A run whose lease is renewed."""

    deadline: float

    @property
    def at_work(self) -> bool:
        """Return whether code may execute now or very soon, which has to stop soon after the lease is lost."""


class HeldLeases:
    """The leases of one worker."""

    def __init__(self, now: Callable[[], float] = steady) -> None:
        self._now = now
        self._held: dict[str, tuple[Lease, Held]] = {}
        self._expiries: dict[Lease, datetime] = {}  # as last renewed

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[tuple[Lease, Held]]:
        """Return all leases with their runs."""
        return list(self._held.values())

    def hold(self, lease: Lease, held: Held) -> None:
        """Add a lease, in place of an earlier one of the same run."""
        self._held[lease.instance_id] = (lease, held)

    def drop(self, lease: Lease) -> None:
        """Remove a lease, if it is held."""
        found = self._held.get(lease.instance_id)
        if found is not None and found[0] is lease:
            del self._held[lease.instance_id]
        if self._expiries:  # most runs end before their first renewal
            self._expiries.pop(lease, None)

    def renewed(
        self, leases: Sequence[tuple[Lease, Held]], renewed: Sequence[Lease | None], deadline: float
    ) -> list[Lease]:
        """Set the new deadline of the runs whose lease was renewed; return the leases that are lost."""
        lost: list[Lease] = []
        for (lease, held), found in zip(leases, renewed, strict=True):
            if self._held.get(lease.instance_id, (None,))[0] is not lease:
                continue  # released in the meantime
            if found is None:
                lost.append(lease)
            elif found.expires_at > self._expiries.get(lease, lease.expires_at):
                held.deadline = deadline
                self._expiries[lease] = found.expires_at
            # Otherwise the run's own commit locks the row: the lease is still held, but was not extended.
        return lost

    def overdue(self) -> list[Lease]:
        """Return the leases whose deadline has passed without a renewal."""
        return [lease for lease, held in self.all() if self._now() >= held.deadline]
