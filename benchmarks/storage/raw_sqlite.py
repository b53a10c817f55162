"""By hand on sqlite3: plain synchronous calls on one connection, as fast as the driver goes with one commit an act."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.storage.sides import LEASE_SEC, WORKER, Step

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


class RawSQLite:
    """One connection, synchronous = FULL, a write-ahead log, foreign keys on."""

    sequential = True

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, 30, isolation_level=None, cached_statements=512)
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
        row = execute(_INSERT, _columns(step))
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
        connection.executemany(_INSERT, map(_columns, steps))
        last: int = connection.execute("SELECT last_insert_rowid()").fetchone()[0]
        connection.execute("COMMIT")
        return list(range(last - len(steps) + 1, last + 1))  # one writer: the ids are consecutive

    async def acquire(self, instance_id: str) -> Any:
        row = self._connection.execute(_ACQUIRE, (WORKER, LEASE_SEC, instance_id)).fetchone()  # commits by itself
        return row and (row[0], _time(row[1]))

    async def close(self) -> None:
        self._connection.close()


def _columns(step: Step) -> tuple[object, ...]:
    event = step[0]
    data = event.event_data
    return (
        event.instance_id,
        event.activity_id,
        event.event_type,
        event.data_type,
        data and data.decode(),
        event.event_data_binary,
    )


def _time(value: str) -> datetime:
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
