"""No index is redundant: none is a prefix of another, and none is changed by every step."""

from collections import defaultdict
from typing import NamedTuple

import pytest

from perdure.storage.stores import SQLStorage

GONE = {
    *("idx_history_instance", "idx_channel_messages_id", "idx_definitions_name", "idx_instances_status"),
    *("idx_timer_subscriptions_instance", "idx_group_memberships_instance", "idx_channel_subscriptions_instance"),
    *("idx_channel_delivery_cursors_channel", "idx_instances_owner", "idx_instances_hash"),
    *("idx_instances_lock_expires", "idx_instances_resumable", "idx_history_created", "idx_channel_messages_channel"),
}
STEP = {"updated_at", "current_activity_id"}  # what a step changes of its instance


class Index(NamedTuple):
    """An index as the database knows it; `key` if it also keeps rows apart."""

    table: str
    name: str
    columns: tuple[str, ...]
    key: bool


@pytest.mark.pitfall(35)
async def test_no_index_is_a_prefix_of_another(storage: SQLStorage) -> None:
    indexes = await of(storage)
    assert not {index.name for index in indexes} & GONE
    doubles = [
        f"{short.table}: {short.name} {short.columns} is the beginning of {long.name} {long.columns}"
        for short in indexes
        for long in indexes
        if short is not long and short.table == long.table and not short.key and begins(long, short)
    ]
    assert not doubles, "\n".join(doubles)


async def test_step_changes_no_indexed_column_of_its_instance(storage: SQLStorage) -> None:
    indexed = {column for index in await of(storage) if index.table == "workflow_instances" for column in index.columns}
    assert "claimable_at" in indexed
    assert not indexed & STEP
    if storage._backend.driver.name == "postgresql":  # and there is room for the new versions of a row in its page
        options = await storage.db().fetchval("SELECT reloptions FROM pg_class WHERE relname = 'workflow_instances'")
        assert options == ["fillfactor=50"]


def begins(long: Index, short: Index) -> bool:
    return long.columns[: len(short.columns)] == short.columns


async def of(storage: SQLStorage) -> list[Index]:
    """Every index on whole columns of whole tables: one on some of the rows serves no other's purpose."""
    columns = defaultdict[tuple[str, str, bool], list[str]](list)
    for table, name, key, column in await storage.db().fetch(_QUERIES[storage._backend.driver.name]):
        columns[table, name, bool(key)].append(column)
    return [Index(table, name, tuple(found), key) for (table, name, key), found in columns.items()]


_QUERIES = {
    "sqlite": """
        SELECT t.name, l.name, l."unique", i.name
          FROM sqlite_schema t, pragma_index_list(t.name) l, pragma_index_info(l.name) i
         WHERE t.type = 'table' AND NOT l.partial ORDER BY t.name, l.name, i.seqno""",
    "postgresql": """
        SELECT i.indrelid::regclass::text, i.indexrelid::regclass::text, i.indisunique, a.attname
          FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indexrelid
         WHERE i.indrelid::regclass::text ~ '^(workflow_|channel_|outbox_|system_|perdure_)' AND i.indpred IS NULL
         ORDER BY 1, 2, a.attnum""",
    "mysql": """
        SELECT table_name, index_name, non_unique = 0, column_name FROM information_schema.statistics
         WHERE table_schema = DATABASE() ORDER BY table_name, index_name, seq_in_index""",
}
