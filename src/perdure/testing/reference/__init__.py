"""Implement the storage contract in memory, over plain dicts, as a reference to read and to compare with.

It shows what every operation means and nothing about how a database does it: no row locks, no indexes, no clock but
this machine's. One task writes at a time, and everything is lost with the process. Arguments (names, sizes, types of
values) are checked by the same functions as in the real storages.

`Reference()` is a database of its own; `Reference(other.world)` is another storage on the same one.
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
