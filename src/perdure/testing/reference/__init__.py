"""Implement the storage contract in memory, over plain dicts, as a reference to read and to compare with.

It shows what every operation means and nothing about how a database does it: no row locks, no indexes. One task writes
at a time, and everything is lost with the process. It shares records, states and limits with the other storages
(`perdure.model`) and nothing else, so that no mistake of theirs is also one of the reference.

`Reference()` is a database of its own; `Reference(other.world)` is another storage on the same one, as another process
has it. `Reference(World(clock))` takes the time from a function. `shift_clock()` moves the clock of one storage.
"""

from perdure.testing.reference.delivery import Delivery
from perdure.testing.reference.history import Compensations, Groups
from perdure.testing.reference.instances import Instances
from perdure.testing.reference.locks import Locks, SystemLocks
from perdure.testing.reference.outbox import Outbox
from perdure.testing.reference.stuck import Stuck
from perdure.testing.reference.tables import Tables, World
from perdure.testing.reference.waits import Timers

__all__ = ["Reference", "Tables", "World"]


class Reference(Instances, Locks, Stuck, Timers, Delivery, Compensations, Groups, Outbox, SystemLocks):
    """Combine all aggregates."""

    @property
    def world(self) -> World:
        """Return the database, which storages on it share."""
        return self._world
