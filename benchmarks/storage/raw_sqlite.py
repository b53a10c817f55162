"""Do the work by hand on sqlite3: plain synchronous calls on one connection, one commit per call."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from benchmarks.storage.sides import COLUMNS, LEASE_SEC, PAGE, WORKER, Place, Step, columns
from perdure.model.records import ChannelMessage

_NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"

_FENCE = f"""UPDATE workflow_instances SET updated_at = {_NOW}, current_activity_id = ?
 WHERE instance_id = ? AND lock_token = ? AND locked_by = ?"""

_INSERT = f"""INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
VALUES (?, ?, ?, ?, ?, ?, {_NOW})"""

_ACQUIRE = f"""UPDATE workflow_instances
   SET locked_by = ?, locked_at = {_NOW}, lock_token = lock_token + 1,
       lock_expires_at = strftime('%Y-%m-%d %H:%M:%f000', 'now', COALESCE(lock_timeout_seconds, ?) || ' seconds')
 WHERE instance_id = ? AND (locked_by IS NULL OR lock_expires_at <= {_NOW})
   AND status NOT IN ('completed', 'failed', 'cancelled', 'recurred')
RETURNING lock_token, lock_expires_at"""

_TARGET = f"""SELECT i.workflow_name, s.activity_id,
       m.id, m.data_type, m.data, m.data_binary, m.metadata, m.published_at
  FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = ?
       JOIN channel_messages m ON m.channel = s.channel AND m.id > MAX(COALESCE(s.cursor_message_id, 0), COALESCE(
         (SELECT c.last_delivered_id FROM channel_delivery_cursors c
           WHERE c.channel = s.channel AND c.instance_id = s.instance_id), 0))
 WHERE i.instance_id = ? AND s.activity_id IS NOT NULL AND s.mode = 'broadcast'
   AND i.status IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
   AND (i.locked_by IS NULL OR i.lock_expires_at <= {_NOW})
 ORDER BY m.id LIMIT 1"""

_MOVE = """UPDATE channel_subscriptions SET activity_id = NULL, timeout_at = NULL, cursor_message_id = ?
 WHERE instance_id = ? AND channel = ?"""

_CURSOR = f"""INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
VALUES (?, ?, ?, {_NOW})
ON CONFLICT (channel, instance_id) DO UPDATE SET last_delivered_id = excluded.last_delivered_id, updated_at = {_NOW}"""

_WAKE = f"""UPDATE workflow_instances
   SET status = 'running', updated_at = {_NOW}, current_activity_id = ?, lock_token = lock_token + 1,
       locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id = ?"""

_PAGE = f"""SELECT {COLUMNS} FROM workflow_instances WHERE framework = 'perdure' AND (started_at, instance_id) < (?, ?)
 ORDER BY started_at DESC, instance_id DESC LIMIT {PAGE + 1}"""


class RawSQLite:
    """Use one connection, synchronous = FULL, a write-ahead log, foreign keys on."""

    sequential = True

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, cached_statements=512)
        for pragma in ("journal_mode = wal", "synchronous = 2", "foreign_keys = 1"):
            self._connection.execute(f"PRAGMA {pragma}")

    async def step(self, step: Step) -> Any:
        event, lease = step
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        fence = execute(_FENCE, (event.activity_id, event.instance_id, lease.token, lease.worker_id))
        if fence.rowcount != 1:
            execute("ROLLBACK")
            return None
        row = execute(_INSERT, columns(event))
        execute("COMMIT")
        return row.lastrowid

    async def batch(self, steps: Sequence[Step]) -> Any:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        fences = connection.executemany(
            _FENCE, [(event.activity_id, event.instance_id, lease.token, lease.worker_id) for event, lease in steps]
        )
        if fences.rowcount != len(steps):
            connection.execute("ROLLBACK")
            return None
        connection.executemany(_INSERT, [columns(event) for event, _ in steps])
        last: int = connection.execute("SELECT last_insert_rowid()").fetchone()[0]
        connection.execute("COMMIT")
        return list(range(last - len(steps) + 1, last + 1))  # one writer: the ids are consecutive

    async def acquire(self, instance_id: str) -> Any:
        rows = self._connection.execute(_ACQUIRE, (WORKER, LEASE_SEC, instance_id)).fetchall()  # commits by itself
        return rows and (rows[0][0], _time(rows[0][1]))

    async def deliver(self, message: ChannelMessage) -> Any:
        execute, instance_id = self._connection.execute, message.channel
        execute("BEGIN IMMEDIATE")
        target = execute(_TARGET, (message.channel, instance_id)).fetchone()
        if target is None:
            execute("ROLLBACK")
            return None
        workflow_name, activity_id, message_id, data_type, data, binary, metadata, published_at = target
        event = _received(message_id, message.channel, data, metadata, published_at) if data_type == "json" else None
        execute(_INSERT, (instance_id, activity_id, "ChannelMessageReceived", data_type, event, binary))
        execute(_MOVE, (message_id, instance_id, message.channel))
        execute(_CURSOR, (message.channel, instance_id, message_id))
        execute(_WAKE, (activity_id, instance_id))
        execute("COMMIT")
        return instance_id, workflow_name, activity_id, message.channel, message_id

    async def page(self, after: Place) -> Any:
        last = after.started_at.replace(tzinfo=None).isoformat(" ", "microseconds")
        rows = self._connection.execute(_PAGE, (last, after.instance_id)).fetchall()
        page = [(*row[:15], _time(row[15]), _time(row[16])) for row in rows[:PAGE]]
        return len(rows) > PAGE and (page, Place(page[-1][15], page[-1][0]))

    async def close(self) -> None:
        self._connection.close()


def _received(message_id: int, channel: str, data: str | None, metadata: str | None, published_at: str) -> str:
    name, at = json.dumps(channel), json.dumps(_time(published_at).isoformat(timespec="microseconds"))
    return (
        f'{{"id": {message_id}, "channel": {name}, "channel_name": {name}, "data": {data or "null"}, '
        f'"metadata": {metadata or "{}"}, "published_at": {at}, "created_at": {at}}}'
    )


def _time(value: str) -> datetime:
    return datetime.fromisoformat(value + "+00:00")
