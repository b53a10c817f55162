"""Rows that the runs of `work.py` leave out: those of other frameworks, binary values, and rare states."""

from datetime import UTC, datetime

from perdure.copying.catalog import Kind, Table, read_counters, read_tables
from perdure.copying.database import Database
from perdure.storage.stores import open_migrated
from tests.copying.work import WORD

AT = datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
BYTES = bytes(range(256))
LARGE = bytes(range(256)) * 20_000  # exceeds a batch


def _instance(id: str, **more: object) -> dict[str, object]:
    return {
        "instance_id": id,
        "workflow_name": "old",
        "source_hash": "0f",
        "owner_service": "edda",
        "framework": "python",
        "status": "completed",
        "started_at": AT,
        "updated_at": AT,
        "input_data": "{}",
        "lock_token": 7,
        **more,
    }


# In the order of their references. The first instance refers to the last one, which is inserted after it by its id.
ROWS: tuple[tuple[str, dict[str, object]], ...] = (
    ("schema_version", {"version": 3, "applied_at": LAST, "description": WORD}),
    ("workflow_definitions", {"workflow_name": "old", "source_hash": "0f", "source_code": "", "created_at": AT}),
    ("workflow_instances", _instance("z", output_data='[NaN, -0.0, 1e400, "\\u0000"]', status="recurred")),
    ("workflow_instances", _instance("a", continued_from="z", locked_by="x", locked_at=AT, lock_expires_at=AT)),
    (
        "workflow_history",
        {
            "instance_id": "a",
            "activity_id": "step:1",
            "event_type": "ActivityCompleted",
            "data_type": "binary",
            "event_data_binary": BYTES,
            "created_at": AT,
        },
    ),
    (
        "channel_messages",
        {
            "channel": "old",
            "message_id": "m",
            "data_type": "binary",
            "data_binary": LARGE,
            "metadata": WORD,
            "published_at": AT,
        },
    ),
    ("channel_message_claims", {"message_id": "m", "instance_id": "a", "claimed_at": AT}),
    (
        "channel_delivery_cursors",
        {"channel": "old", "instance_id": "a", "last_delivered_id": 1 << 40, "updated_at": AT},
    ),
    ("system_locks", {"lock_name": "sweep", "locked_by": None, "locked_at": None, "lock_expires_at": None}),
    ("perdure_lock_tokens", {"lock_name": "sweep", "token": (1 << 62) + 1}),
    ("perdure_workers", {"worker_id": "dead", "started_at": AT, "beat_at": AT, "info": "{}"}),
    ("perdure_taken_messages", {"instance_id": "a", "channel": "old", "message_id": 5, "match_key": None}),
    ("perdure_match_paths", {"channel": "old", "paths_key": "k", "paths": "[]", "from_id": 0, "to_id": 1 << 33}),
    (
        "perdure_stuck",
        {"instance_id": "a", "reason": WORD, "tries": 3, "since": FIRST, "next_retry_at": AT, "progressed_at": AT},
    ),
    (
        "perdure_audit",
        {
            "id": 41,
            "acted_at": AT,
            "actor": WORD,
            "action": "cancel",
            "target": "a",
            "query": "",
            "reason": WORD,
            "outcome": "done",
        },
    ),
    ("perdure_audit_runs", {"instance_id": "a", "audit_id": 41}),
    ("perdure_views", {"name": WORD, "query": "status=failed", "created_by": "ann", "created_at": AT}),
)


async def add_rows(url: str, *, large: bool = True) -> None:
    """Add a row to each table that runs leave empty, and use ids that are free again afterwards.

    Unless `large`, none exceeds a batch: that row takes most of the time of a copy.
    """
    async with open_migrated(url) as storage:
        database = Database(url, storage)
        for table, row in ROWS:
            shorter = {} if large or "data_binary" not in row else {"data_binary": BYTES}
            await _insert(database, table, row | shorter)
        await storage.publish_to_channel("forgotten", b"1")
        await storage.db().execute(f"DELETE FROM {database.table('channel_messages')} WHERE channel = 'forgotten'")


async def fill_empty_tables(url: str) -> None:
    """Add a row to each table that still has none: one that nothing here knows."""
    async with open_migrated(url) as storage:
        database = Database(url, storage)
        ((message,),) = await storage.db().fetch(f"SELECT MAX(id) FROM {database.table('channel_messages')}")
        for name, table in (await read_tables(database)).items():
            if not await database.fetch("any_row", table=database.table(name)):
                await _insert(database, name, _made_up(table, message))


async def _insert(database: Database, table: str, row: dict[str, object]) -> None:
    marks = ", ".join(database.driver.placeholder(n + 1) for n in range(len(row)))
    await database.execute(
        "insert", [*row.values()], table=database.table(table), columns=", ".join(row), values=f"({marks})"
    )


def _made_up(table: Table, message_id: int) -> dict[str, object]:
    """Return a row whose columns can refer to the instance `a`, to a message, and to the ids of other such rows."""
    values = {Kind.TEXT: "a", Kind.INTEGER: 7, Kind.BINARY: BYTES, Kind.TIME: AT}
    row: dict[str, object] = {
        column: AT if column.endswith("_at") else values[kind]  # SQLite does not distinguish times from texts
        for column, kind in table.columns.items()
    }
    return row | {"message_id": message_id} if "message_id" in row else row


async def assert_counters_continue(source: str, target: str) -> None:
    """Assert that new rows of the target get no id that a row of the source has or had."""
    last, reached = await _counters(source), await _counters(target)
    assert last["channel_messages"] > 0
    assert {name: number for name, number in last.items() if number > reached.get(name, 0)} == {}


async def _counters(url: str) -> dict[str, int]:
    async with open_migrated(url) as storage:
        database = Database(url, storage)
        return await read_counters(database, (await read_tables(database)).values())


async def empty_tables(url: str) -> list[str]:
    """Return the tables without rows."""
    async with open_migrated(url) as storage:
        database = Database(url, storage)
        found = await read_tables(database)
        return [name for name in found if not await database.fetch("any_row", table=database.table(name))]
