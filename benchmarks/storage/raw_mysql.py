"""Do the work by hand on asyncmy: one packet per call, `BEGIN; …; COMMIT` in it, on connections never reset."""

import json
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import asyncmy

from benchmarks.storage.sides import COLUMNS, LEASE_SEC, PAGE, WORKER, Connections, Place, Step, columns
from perdure.model.records import ChannelMessage

_NOW = "UTC_TIMESTAMP(6)"
_ISO = "DATE_FORMAT(m.published_at, '%%Y-%%m-%%dT%%H:%%i:%%s.%%f+00:00')"

_SESSION = "SET time_zone = '+00:00'; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

_STEP = f"""BEGIN;
UPDATE workflow_instances SET updated_at = {_NOW}, current_activity_id = %s
 WHERE instance_id = %s AND lock_token = %s AND locked_by = %s;
INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
SELECT instance_id, %s, %s, %s, %s, %s, {_NOW} FROM workflow_instances
 WHERE instance_id = %s AND lock_token = %s AND locked_by = %s;
COMMIT"""

_LOCK = """BEGIN;
SELECT instance_id, lock_token, locked_by FROM workflow_instances WHERE instance_id IN (%s)
 ORDER BY instance_id FOR UPDATE"""

_BATCH = f"""UPDATE workflow_instances
   SET updated_at = {_NOW}, current_activity_id = ELT(FIELD(instance_id, %s), %s) WHERE instance_id IN (%s);
INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
VALUES %s;
COMMIT"""

_ACQUIRE = f"""BEGIN;
UPDATE workflow_instances i
  JOIN (SELECT instance_id FROM workflow_instances
         WHERE instance_id = %s AND (locked_by IS NULL OR lock_expires_at <= {_NOW})
           AND status NOT IN ('completed', 'failed', 'cancelled', 'recurred')
         LIMIT 1 FOR UPDATE SKIP LOCKED) free ON free.instance_id = i.instance_id
   SET i.locked_by = %s, i.locked_at = {_NOW}, i.lock_token = i.lock_token + 1,
       i.lock_expires_at = {_NOW} + INTERVAL (COALESCE(i.lock_timeout_seconds, %s)) SECOND;
SELECT lock_token, lock_expires_at FROM workflow_instances WHERE instance_id = %s;
COMMIT"""

_DELIVER = f"""BEGIN;
SET @message = NULL;
SELECT i.workflow_name, s.activity_id, GREATEST(COALESCE(s.cursor_message_id, 0), COALESCE(
         (SELECT c.last_delivered_id FROM channel_delivery_cursors c
           WHERE c.channel = s.channel AND c.instance_id = s.instance_id), 0))
  INTO @workflow, @activity, @after
  FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = %(channel)s
 WHERE i.instance_id = %(instance)s AND s.activity_id IS NOT NULL AND s.mode = 'broadcast'
   AND i.status IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
   AND (i.locked_by IS NULL OR i.lock_expires_at <= {_NOW})
   FOR UPDATE SKIP LOCKED;
SELECT id INTO @message FROM channel_messages WHERE channel = %(channel)s AND id > @after ORDER BY id LIMIT 1;
INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
SELECT %(instance)s, @activity, 'ChannelMessageReceived', m.data_type,
       CONCAT('{{"id": ', m.id, ', "channel": ', %(name)s, ', "channel_name": ', %(name)s,
              ', "data": ', COALESCE(m.data, 'null'), ', "metadata": ', COALESCE(m.metadata, '{{}}'),
              ', "published_at": "', {_ISO}, '", "created_at": "', {_ISO}, '"}}'),
       m.data_binary, {_NOW}
  FROM channel_messages m WHERE m.id = @message;
UPDATE channel_subscriptions SET activity_id = NULL, timeout_at = NULL, cursor_message_id = @message
 WHERE instance_id = %(instance)s AND channel = %(channel)s AND @message IS NOT NULL;
INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
SELECT %(channel)s, %(instance)s, @message, {_NOW} FROM DUAL WHERE @message IS NOT NULL
ON DUPLICATE KEY UPDATE last_delivered_id = @message, updated_at = {_NOW};
UPDATE workflow_instances
   SET status = 'running', updated_at = {_NOW}, current_activity_id = @activity, lock_token = lock_token + 1,
       locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
 WHERE instance_id = %(instance)s AND @message IS NOT NULL;
SELECT @workflow, @activity, @message FROM DUAL WHERE @message IS NOT NULL;
COMMIT"""

_PAGE = f"""SELECT {COLUMNS} FROM workflow_instances FORCE INDEX (idx_instances_listing)
 WHERE framework = 'perdure' AND (started_at < %s OR started_at = %s AND instance_id < %s)
 ORDER BY started_at DESC, instance_id DESC LIMIT {PAGE + 1}"""


class RawMySQL:
    """Use as many connections as the library, at the same isolation level."""

    sequential = False

    def __init__(self) -> None:
        self._connections: Connections[Any] = Connections()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect."""
        side, parts = cls(), urlsplit(url)

        async def connect() -> Any:
            connection = await asyncmy.connect(
                host=parts.hostname,
                port=parts.port or 3306,
                user=unquote(parts.username or "root"),
                password=unquote(parts.password or ""),
                database=parts.path.lstrip("/"),
                charset="utf8mb4",
                autocommit=True,
                client_flag=2,  # found rows
            )
            await _packet(connection, _SESSION)
            return connection

        await side._connections.open(connect)
        return side

    async def step(self, step: Step) -> Any:
        event, lease = step
        connection = await self._connections.take()
        try:
            q = connection.literal
            instance_id, *rest = map(q, columns(event))
            fence = (instance_id, lease.token, q(lease.worker_id))
            _, fenced, inserted, _ = await _packet(connection, _STEP % (rest[0], *fence, *rest, *fence))
        finally:
            self._connections.give(connection)
        return fenced.affected_rows and inserted.insert_id

    async def batch(self, steps: Sequence[Step]) -> Any:
        connection = await self._connections.take()
        try:
            q = connection.literal
            rows = [[*map(q, columns(event))] for event, _ in steps]
            names = ",".join([row[0] for row in rows])
            _, locked = await _packet(connection, _LOCK % names)
            current = {row[0]: (row[1], row[2]) for row in locked.rows}
            if any(current.get(lease.instance_id) != (lease.token, lease.worker_id) for _, lease in steps):
                await _packet(connection, "ROLLBACK")
                return None
            activities = ",".join([row[1] for row in rows])
            values = ",".join([f"({','.join(row)},{_NOW})" for row in rows])
            _, inserted, _ = await _packet(connection, _BATCH % (names, activities, names, values))
        finally:
            self._connections.give(connection)
        return list(range(inserted.insert_id, inserted.insert_id + len(steps)))  # consecutive, because of one insert

    async def acquire(self, instance_id: str) -> Any:
        connection = await self._connections.take()
        try:
            q = connection.literal
            name = q(instance_id)
            _, update, found, _ = await _packet(connection, _ACQUIRE % (name, q(WORKER), LEASE_SEC, name))
        finally:
            self._connections.give(connection)
        return update.affected_rows and found.rows[0]

    async def deliver(self, message: ChannelMessage) -> Any:
        connection = await self._connections.take()
        try:
            channel, name = connection.literal(message.channel), connection.literal(json.dumps(message.channel))
            *_, found, _ = await _packet(connection, _DELIVER % {"channel": channel, "instance": channel, "name": name})
        finally:
            self._connections.give(connection)
        return found.rows and found.rows[0]

    async def page(self, after: Place) -> Any:
        connection = await self._connections.take()
        try:
            q = connection.literal
            at = q(after.started_at.replace(tzinfo=None))
            (found,) = await _packet(connection, _PAGE % (at, at, q(after.instance_id)))
        finally:
            self._connections.give(connection)
        page = found.rows[:PAGE]
        return len(found.rows) > PAGE and (page, Place(page[-1][15], page[-1][0]))

    async def close(self) -> None:
        for connection in self._connections.all:
            connection.close()


async def _packet(connection: Any, text: str) -> list[Any]:
    """Return the results of the statements of one packet."""
    await connection.query(text)
    results = [connection._result]
    while connection._result.has_next:
        await connection.next_result()
        results.append(connection._result)
    return results
