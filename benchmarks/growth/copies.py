"""Many finished or waiting runs in little time: the rows of one real run, copied by the database itself."""

from collections.abc import Iterator, Mapping

from benchmarks.engine.measures import one_step, steps_then_wait, until_waiting
from perdure import App
from perdure.storage.stores import SQLStorage, open_storage

CHUNK = 10_000  # copies per statement
KINDS = ("finished", "waiting")

_COLUMNS = {
    "workflow_instances": "instance_id workflow_name source_hash owner_service framework status current_activity_id "
    "started_at updated_at input_data output_data lock_token headers",
    "workflow_history": "instance_id activity_id event_type data_type event_data event_data_binary created_at",
    "workflow_timer_subscriptions": "instance_id timer_id expires_at activity_id created_at framework",
    "channel_subscriptions": "instance_id channel mode cursor_message_id subscribed_at framework",
    "channel_delivery_cursors": "instance_id channel last_delivered_id updated_at",
    "perdure_channels": "channel dirty_at swept_id",
    "perdure_waits": "instance_id activity_id channel match_key timeout_at",
}
_DIGITS = " UNION ALL ".join(f"SELECT {digit}{' AS d' if digit == 0 else ''}" for digit in range(10))
_NUMBERS = (
    "SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n "
    f"FROM ({_DIGITS}) a CROSS JOIN ({_DIGITS}) b CROSS JOIN ({_DIGITS}) c CROSS JOIN ({_DIGITS}) e"
)
_SETTLE = {
    "sqlite": ["ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"],
    "postgresql": ["VACUUM ANALYZE", "CHECKPOINT"],
    "mysql": [f"ANALYZE TABLE {', '.join(_COLUMNS)}"],
}


async def create_original(url: str, kind: str) -> None:
    """Execute the run that is copied: one with a step that finishes, or one that waits for an event."""
    async with App(url):
        if kind == "finished":
            await (await one_step.options(id=_original(kind)).start(1)).result()
        else:
            await until_waiting([await steps_then_wait.options(id=_original(kind)).start(0)])


async def add_copies(url: str, kind: str, start: int, end: int) -> None:
    """Copy the run, with numbers from start to end (exclusive), and let the database settle."""
    async with open_storage(url) as storage:
        # The channel that all runs share has a row already.
        await copy(storage, _original(kind), kind, start, end, channel=f"go:{_original(kind)}")
        await settle(storage)


async def copy(
    storage: SQLStorage,
    original: str,
    name: str,
    start: int,
    end: int,
    *,
    channel: str = "",
    changed: Mapping[str, str] | None = None,
) -> None:
    """Copy a run and its rows to `<name>-<number>`, with numbers from start to end (exclusive).

    `channel` is a channel of its own, which is copied as well. `changed` has SQL expressions for columns of instances,
    in which `numbers.n` counts from 0.
    """
    for first in range(start, end, CHUNK):
        async with storage._backend.exclusive() as script:
            count = min(CHUNK, end - first)
            for statement in _statements(original, name, first, count, channel, changed or {}):
                await script.execute(statement)


async def settle(storage: SQLStorage) -> None:
    """Let a database make its statistics, and write what it has in memory."""
    async with storage._backend.exclusive() as script:
        for statement in _SETTLE[storage.dialect]:
            await script.execute(statement)


def _statements(
    original: str, name: str, first: int, count: int, channel: str, changed: Mapping[str, str]
) -> Iterator[str]:
    copied = f"REPLACE('{name}-#', '#', CAST(numbers.n + {first} AS CHAR(10)))"
    for table, names in _COLUMNS.items():
        columns = names.split()
        of = f"t.instance_id = '{original}'" if "instance_id" in columns else f"t.channel = '{channel}'"
        new = changed if table == "workflow_instances" else {}
        values = [
            f"REPLACE(t.{each}, '{original}', {copied})" if _contains_id(each) else new.get(each, f"t.{each}")
            for each in columns
        ]
        yield (
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} "
            f"FROM {table} t CROSS JOIN ({_NUMBERS}) numbers WHERE {of} AND numbers.n < {count}"
        )


def _original(kind: str) -> str:
    return f"original-{kind}"


def _contains_id(column: str) -> bool:
    return column in ("instance_id", "channel")
