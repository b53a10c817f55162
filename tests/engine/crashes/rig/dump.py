"""The rows of a database that belong to runs."""

from collections.abc import Collection
from typing import Any

from perdure.storage.stores import SQLStorage

OF_RUNS = (
    "workflow_instances",
    "workflow_history",
    "workflow_compensations",
    "workflow_timer_subscriptions",
    "channel_subscriptions",
    "channel_delivery_cursors",
    "channel_message_claims",
    "perdure_waits",
    "perdure_taken_messages",
)
OF_ALL = ("channel_messages", "outbox_events", "perdure_message_keys")
RENEWED = {"lock_expires_at", "claimable_at"}  # what keeping a lease changes
_COLUMNS = {
    "sqlite": "SELECT name FROM pragma_table_xinfo('{table}')",
    "postgresql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND table_name = '{table}'",
    "mysql": "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = DATABASE() AND table_name = '{table}'",
}

Dump = dict[str, list[tuple[Any, ...]]]


async def dump(storage: SQLStorage, runs: Collection[str]) -> Dump:
    """All rows of these runs, and all messages and events, but for the times that the holder of a lease renews."""
    found: Dump = {}
    chosen = ", ".join(f"'{run}'" for run in runs)
    for table in (*OF_RUNS, *OF_ALL):
        columns = sorted(set(await _columns(storage, table)) - RENEWED)
        where = f" WHERE instance_id IN ({chosen})" if table in OF_RUNS else ""
        rows = await storage.db().fetch(f"SELECT {', '.join(columns)} FROM {table}{where}")
        found[table] = sorted((tuple(row) for row in rows), key=repr)
    return found


async def _columns(storage: SQLStorage, table: str) -> list[str]:
    rows = await storage.db().fetch(_COLUMNS[storage._backend.driver.name].format(table=table))
    return [row[0] for row in rows]


def without(found: Dump, runs: Collection[str]) -> Dump:
    """All rows but those of these runs."""
    return {table: [row for row in rows if not any(run in row for run in runs)] for table, rows in found.items()}


def changes(before: Dump, after: Dump) -> list[str]:
    """The rows that came, went or changed."""
    wrong = []
    for table in before:
        wrong += [f"{table} lost {row}" for row in before[table] if row not in after[table]]
        wrong += [f"{table} got {row}" for row in after[table] if row not in before[table]]
    return wrong
