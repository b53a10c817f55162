"""The reference: the storage contract in memory, over plain dicts, to read and to compare with.

It says what every operation means and nothing about how a database does it: no locks of rows, no indexes, no clock but
this machine's. One task writes at a time, and everything is gone with the process. What may be asked at all (names,
sizes, kinds of values) is checked by the same functions as in the real storages.

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
    """All rooms together."""

    @property
    def world(self) -> World:
        """The database: what storages on it share."""
        return self._world
