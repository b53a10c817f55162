"""Wake-ups: hints that there may be work, in the family's four notification channels."""

import json
from collections.abc import AsyncIterator

from perdure.database.operation import Operation
from perdure.model.records import WakeUp
from perdure.storage.sql import room
from perdure.storage.transactions import Transactions

S = room("wakeups")

RESUMABLE = "workflow_resumable"
MESSAGE = "workflow_channel_message"
OUTBOX = "workflow_outbox_pending"
TIMER = "workflow_timer_expired"


class Wakeups(Transactions):
    """Listening for work."""

    def wakeups(self) -> AsyncIterator[WakeUp]:
        """Hints from this and other processes. Each may be lost or false: look, and look now and then anyway."""
        return self._backend.wakeups()


def notify(kind: str, **payload: object) -> Operation[None]:
    """Notify with the running transaction; the payload has the keys that both of the family's readers want."""
    yield S.notify(kind=kind, payload=json.dumps({key: value for key, value in payload.items() if value is not None}))
