"""Do the work by hand on asyncpg: one prepared, self-committing statement per call, on connections never reset."""

import json
from collections.abc import Sequence
from typing import Any, Self

import asyncpg

from benchmarks.storage.sides import COLUMNS, LEASE_SEC, PAGE, WORKER, Connections, Place, Step, columns
from perdure.model.records import ChannelMessage

_NOW = "timezone('utc', statement_timestamp())"
_ISO = "to_char(published_at, 'YYYY-MM-DD\"T\"HH24:MI:SS.US+00:00')"

_STEP = f"""WITH fence AS (
  UPDATE workflow_instances SET updated_at = {_NOW}, current_activity_id = $2
   WHERE instance_id = $1 AND lock_token = $7 AND locked_by = $8 RETURNING instance_id)
INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
SELECT instance_id, $2, $3, $4, $5, $6, {_NOW} FROM fence
RETURNING id"""

_BATCH = f"""WITH item AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[],
                       $8::text[])
      AS item (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, token, worker_id)),
fence AS (
  UPDATE workflow_instances i SET updated_at = {_NOW}, current_activity_id = item.activity_id FROM item
   WHERE i.instance_id = item.instance_id AND i.lock_token = item.token AND i.locked_by = item.worker_id
  RETURNING i.instance_id)
INSERT INTO workflow_history
       (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
SELECT instance_id, activity_id, event_type, data_type, event_data, event_data_binary, {_NOW}
  FROM item JOIN fence USING (instance_id)
RETURNING id, instance_id"""

_ACQUIRE = f"""WITH free AS (
  SELECT instance_id FROM workflow_instances
   WHERE instance_id = $1 AND (locked_by IS NULL OR lock_expires_at <= {_NOW})
     AND status NOT IN ('completed', 'failed', 'cancelled', 'recurred')
  FOR UPDATE SKIP LOCKED)
UPDATE workflow_instances i
   SET locked_by = $2, locked_at = {_NOW}, lock_token = i.lock_token + 1,
       lock_expires_at = {_NOW} + make_interval(secs => COALESCE(i.lock_timeout_seconds, $3::float8))
  FROM free WHERE i.instance_id = free.instance_id
RETURNING i.lock_token, i.lock_expires_at"""

_DELIVER = f"""WITH target AS (
  SELECT i.instance_id, i.workflow_name, s.id AS subscription_id, s.activity_id,
         GREATEST(COALESCE(s.cursor_message_id, 0), COALESCE(
           (SELECT c.last_delivered_id FROM channel_delivery_cursors c
             WHERE c.channel = s.channel AND c.instance_id = s.instance_id), 0)) AS after_id
    FROM workflow_instances i JOIN channel_subscriptions s ON s.instance_id = i.instance_id AND s.channel = $2
   WHERE i.instance_id = $1 AND s.activity_id IS NOT NULL AND s.mode = 'broadcast'
     AND i.status IN ('waiting_for_event', 'waiting_for_timer', 'waiting_for_message')
     AND (i.locked_by IS NULL OR i.lock_expires_at <= {_NOW})
  FOR UPDATE SKIP LOCKED),
message AS (
  SELECT t.*, m.* FROM target t CROSS JOIN LATERAL (
    SELECT id, data_type, data, data_binary, metadata, published_at FROM channel_messages
     WHERE channel = $2 AND id > t.after_id ORDER BY id LIMIT 1) m),
event AS (
  INSERT INTO workflow_history
         (instance_id, activity_id, event_type, data_type, event_data, event_data_binary, created_at)
  SELECT instance_id, activity_id, 'ChannelMessageReceived', data_type,
         concat('{{"id": ', id, ', "channel": ', $3::text, ', "channel_name": ', $3::text,
                ', "data": ', COALESCE(data, 'null'), ', "metadata": ', COALESCE(metadata, '{{}}'),
                ', "published_at": "', {_ISO}, '", "created_at": "', {_ISO}, '"}}'),
         data_binary, {_NOW}
    FROM message),
moved AS (
  UPDATE channel_subscriptions s SET activity_id = NULL, timeout_at = NULL, cursor_message_id = m.id
    FROM message m WHERE s.id = m.subscription_id),
cursors AS (
  INSERT INTO channel_delivery_cursors (channel, instance_id, last_delivered_id, updated_at)
  SELECT $2, instance_id, id, {_NOW} FROM message
  ON CONFLICT (channel, instance_id) DO UPDATE SET last_delivered_id = excluded.last_delivered_id, updated_at = {_NOW}),
woken AS (
  UPDATE workflow_instances i
     SET status = 'running', updated_at = {_NOW}, current_activity_id = m.activity_id, lock_token = i.lock_token + 1,
         locked_by = NULL, locked_at = NULL, lock_expires_at = NULL
    FROM message m WHERE i.instance_id = m.instance_id)
SELECT workflow_name, activity_id, id FROM message"""

_PAGE = f"""SELECT {COLUMNS} FROM workflow_instances
 WHERE framework = 'perdure' AND (started_at, instance_id COLLATE "C") < ($1, $2)
 ORDER BY started_at DESC, instance_id COLLATE "C" DESC LIMIT {PAGE + 1}"""


_STATEMENTS = {"step": _STEP, "batch": _BATCH, "acquire": _ACQUIRE, "deliver": _DELIVER, "page": _PAGE}


class _Session:
    """Hold a connection and its prepared statements."""

    def __init__(self, connection: Any, statements: dict[str, Any]) -> None:
        self.connection = connection
        self.step, self.batch, self.acquire = statements["step"], statements["batch"], statements["acquire"]
        self.deliver, self.page = statements["deliver"], statements["page"]


class RawPostgres:
    """Use as many connections as the library."""

    sequential = False

    def __init__(self) -> None:
        self._sessions: Connections[_Session] = Connections()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect and prepare."""
        side = cls()

        async def connect() -> _Session:
            connection = await asyncpg.connect(url)
            statements = {name: await connection.prepare(text) for name, text in _STATEMENTS.items()}
            await connection.execute("SELECT 1")  # ends the transaction that asyncpg leaves open after preparing
            return _Session(connection, statements)

        await side._sessions.open(connect)
        return side

    async def step(self, step: Step) -> Any:
        event, lease = step
        session = await self._sessions.take()
        try:
            return await session.step.fetchval(*columns(event), lease.token, lease.worker_id)
        finally:
            self._sessions.give(session)

    async def batch(self, steps: Sequence[Step]) -> Any:
        rows = [(*columns(event), lease.token, lease.worker_id) for event, lease in steps]
        session = await self._sessions.take()
        try:
            found = await session.batch.fetch(*zip(*rows, strict=True))
        finally:
            self._sessions.give(session)
        ids = {row[1]: row[0] for row in found}
        return len(ids) == len(steps) and [ids[event.instance_id] for event, _ in steps]

    async def acquire(self, instance_id: str) -> Any:
        session = await self._sessions.take()
        try:
            row = await session.acquire.fetchrow(instance_id, WORKER, LEASE_SEC)
        finally:
            self._sessions.give(session)
        return row and (row[0], row[1])

    async def deliver(self, message: ChannelMessage) -> Any:
        session = await self._sessions.take()
        try:
            row = await session.deliver.fetchrow(message.channel, message.channel, json.dumps(message.channel))
        finally:
            self._sessions.give(session)
        return row and tuple(row)

    async def page(self, after: Place) -> Any:
        session = await self._sessions.take()
        try:
            rows = await session.page.fetch(after.started_at.replace(tzinfo=None), after.instance_id)
        finally:
            self._sessions.give(session)
        page = [tuple(row) for row in rows[:PAGE]]
        return len(rows) > PAGE and (page, Place(page[-1][15], page[-1][0]))

    async def close(self) -> None:
        for session in self._sessions.all:
            await session.connection.close()
