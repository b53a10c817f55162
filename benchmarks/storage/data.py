"""Create the data that every round starts from: 5,000 instances, reset to the same state outside the timed part."""

import json
from datetime import UTC, datetime, timedelta
from typing import Literal

from benchmarks.storage.sides import WORKER, Place, Step
from perdure.model.records import ChannelMessage, HistoryEvent, Lease, WorkflowInstance
from perdure.storage.stores import SQLStorage

INSTANCES = 5000
PAYLOAD = json.dumps({"order": 4711, "note": "x" * 173}).encode()  # 200 bytes

_FAR = datetime(2100, 1, 1, tzinfo=UTC)
_START = datetime(2026, 1, 1, tzinfo=UTC)
_EMPTY = {
    "sqlite": "DELETE FROM workflow_history",
    "postgresql": "TRUNCATE workflow_history",
    "mysql": "TRUNCATE TABLE workflow_history",
}
_SETTLE = {
    "sqlite": "PRAGMA wal_checkpoint(RESTART)",
    "postgresql": "VACUUM ANALYZE workflow_instances, channel_subscriptions, channel_delivery_cursors",
    "mysql": "DO 0",
}
State = Literal["leased", "free", "waiting"]

# Every instance has an inbox, a channel with its id as the name, which contains a message.
_INBOXES = (
    """INSERT INTO channel_subscriptions (instance_id, channel, mode, cursor_message_id, subscribed_at, framework)
       SELECT instance_id, instance_id, 'broadcast', 0, started_at, 'perdure' FROM workflow_instances""",
    """INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
       SELECT instance_id, instance_id, 0, started_at FROM workflow_instances""",
    """INSERT INTO channel_messages (channel, message_id, data_type, data, published_at, framework)
       SELECT instance_id, instance_id, 'json', input_data, started_at, 'perdure' FROM workflow_instances
        ORDER BY instance_id""",
    "INSERT INTO perdure_channels (channel) SELECT instance_id FROM workflow_instances",
)
_LEASED = f"""UPDATE workflow_instances
   SET status = 'running', lock_token = 1, locked_by = '{WORKER}', lock_expires_at = '2100-01-01 00:00:00.000000'
 WHERE lock_token <> 1 OR locked_by IS NULL OR status <> 'running'"""
_FREE = """UPDATE workflow_instances
   SET status = 'running', lock_token = 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE locked_by IS NOT NULL OR status <> 'running'"""

_WAITING = (
    """UPDATE workflow_instances
   SET status = 'waiting_for_message', lock_token = 1, locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE status <> 'waiting_for_message'""",
    "UPDATE channel_subscriptions SET activity_id = 'receive:1', cursor_message_id = 0 WHERE activity_id IS NULL",
    "UPDATE channel_delivery_cursors SET last_delivered_id = 0 WHERE last_delivered_id <> 0",
)
_STATES: dict[State, tuple[str, ...]] = {"leased": (_LEASED,), "free": (_FREE,), "waiting": _WAITING}


def instance_id(n: int) -> str:
    """Return the id of the nth instance."""
    return f"order-{n:06d}"


def place(n: int) -> Place:
    """Return the position of the nth instance in the list: newest first, so those before it follow."""
    return Place(_START + timedelta(seconds=n), instance_id(n))


async def fill(storage: SQLStorage, count: int | None = None) -> None:
    """Create so many instances (default: all) and their inboxes."""
    count = INSTANCES if count is None else count
    for start in range(0, count, 500):
        await storage.create_instances(
            [
                WorkflowInstance(instance_id(n), "bench", PAYLOAD, started_at=place(n).started_at)
                for n in range(start, min(start + 500, count))
            ]
        )
    async with storage._backend.exclusive() as script:
        for statement in _INBOXES:
            await script.execute(statement)


async def reset(storage: SQLStorage, state: State) -> None:
    """Remove the history and set every instance to the state."""
    dialect = storage._backend.driver.name
    async with storage._backend.exclusive() as script:
        for statement in (_EMPTY[dialect], *_STATES[state], _SETTLE[dialect]):
            await script.execute(statement)


def message(n: int) -> ChannelMessage:
    """Return the message in the inbox of the nth instance."""
    return ChannelMessage(n + 1, instance_id(n), instance_id(n), data=PAYLOAD, published_at=place(n).started_at)


def lease(n: int) -> Lease:
    """Return the lease on the nth instance after a reset."""
    return Lease(instance_id(n), WORKER, 1, _FAR)


def step(n: int, activity: int) -> Step:
    """Return a step of the nth instance."""
    return HistoryEvent(instance_id(n), f"charge:{activity}", "ActivityCompleted", PAYLOAD), lease(n)
