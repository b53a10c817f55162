"""Rows of a busy database, written directly into the tables.

Every group of rows grows with the size of the database, but for those that a page is read from. Rows that a sweep must
pass by come before those it is after: older, of a lower id, of names that are not queried.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

import asyncpg

from perdure.database.dialects.mysql import literal
from perdure.model.matching import match_of
from tests.support.databases import connect_mysql, fetch_mysql

NOW = datetime.now(UTC).replace(tzinfo=None)
READ = 10**12  # a cursor beyond every message

_tags = count(1)

Row = tuple[Any, ...]


class Rows(NamedTuple):
    """Rows of one table; the names of their columns are separated by spaces."""

    table: str
    columns: str
    rows: Sequence[Row]


class Growth(NamedTuple):
    """From one size to the next."""

    before: int
    after: int

    def part(self, share: float) -> range:
        """The numbers of a group's new rows; its share is of the instances there are."""
        return range(int(self.before * share), int(self.after * share))


def ago(days: float, number: int = 0) -> datetime:
    """A time long past, a little later for a higher number."""
    return NOW - timedelta(days=days) + timedelta(milliseconds=number)


def ahead(days: float, number: int = 0) -> datetime:
    return ago(-days, number)


def everything(growth: Growth) -> Iterator[Rows]:
    """All that a database has more of at the next size; the number of rows due for removal stays the same."""
    if not growth.after:
        yield from _fixtures()
    yield from _instances(growth)
    yield from _histories(growth)
    yield from _waits(growth)
    yield from _messages(growth)
    yield from _outbox(growth)
    yield from _others(growth)
    yield from _old()


_INSTANCE = (
    "instance_id workflow_name source_hash owner_service framework status started_at updated_at input_data "
    "locked_by locked_at lock_expires_at lock_token"
)
_HISTORY = "instance_id activity_id event_type data_type event_data created_at"
_SUBSCRIPTION = "instance_id channel mode activity_id cursor_message_id timeout_at subscribed_at framework"
_WAIT = "instance_id activity_id channel match_key timeout_at"
_MESSAGE = "channel message_id data_type data published_at framework"
_KEY = "source message_id id created_at"
_MEMBER = "instance_id group_name joined_at"
_EVENT = (
    "event_id event_type event_source data_type event_data content_type created_at published_at status retry_count "
    "sequence claimed_by claim_expires_at next_attempt_at"
)


def _instance(
    instance_id: str,
    status: str,
    started_at: datetime,
    *,
    name: str = "known",
    framework: str = "perdure",
    owner: str | None = None,
    until: datetime | None = None,
) -> Row:
    locked_at = owner and started_at
    return (instance_id, name, "", "", framework, status, started_at, started_at, "{}", owner, locked_at, until, 1)


def _fixtures() -> Iterator[Rows]:
    """What there is one of."""
    names = ["known", "wf", *(f"unknown{n}" for n in range(5))]
    yield Rows(
        "workflow_definitions",
        "workflow_name source_hash source_code created_at",
        [(name, "", "", NOW) for name in names],
    )
    living = ["long", "reader", "worker", *(f"member-{n}" for n in range(20))]
    rows: list[Row] = [_instance(i, "running", ago(5), owner="w", until=ahead(9)) for i in living]
    yield Rows("workflow_instances", _INSTANCE, rows)
    rows = [("long", f"step:{n}", "ActivityCompleted", "json", "{}", ago(1, n)) for n in range(1500)]
    yield Rows("workflow_history", _HISTORY, rows)
    listening = [("reader", "needed", "broadcast"), ("worker", "stock", "competing"), ("worker", "done", "competing")]
    rows = [(*subscription, None, 0, None, ago(9), "perdure") for subscription in listening]
    yield Rows("channel_subscriptions", _SUBSCRIPTION, rows)
    rows = [("needed", f"needed-{n}", "json", "{}", ago(25, n), "perdure") for n in range(1500)]
    yield Rows("channel_messages", _MESSAGE, rows)
    yield Rows("perdure_channels", "channel dirty_at", [("needed", None), ("stock", None), ("news", None)])
    yield Rows("perdure_outbox_sequences", "event_source last_sequence", [("blocked", READ)])
    yield Rows("perdure_outbox_sources", "event_source ready_at", [("blocked", ahead(1))])
    yield Rows("workflow_group_memberships", _MEMBER, [(f"member-{n}", "few", ago(1, n)) for n in range(20)])
    locks = [(f"duty-{n}", "w", ago(1), ahead(1, n)) for n in range(20)]
    yield Rows("system_locks", "lock_name locked_by locked_at lock_expires_at", locks)
    workers = [(f"worker-{n}", ago(1, n), NOW, "{}") for n in range(50)]
    yield Rows("perdure_workers", "worker_id started_at beat_at info", workers)


def _instances(growth: Growth) -> Iterator[Rows]:
    over = ("completed", "failed", "cancelled", "recurred")
    rows = [_instance(f"unknown-{n}", "running", ago(30, n), name=f"unknown{n % 5}") for n in growth.part(0.5)]
    rows += [_instance(f"leased-{n}", "running", ago(20, n), owner="w", until=ahead(1, n)) for n in growth.part(0.3)]
    rows += [_instance(f"expired-{n}", "running", ago(10, n), owner="x", until=ago(0.1, n)) for n in growth.part(0.2)]
    rows += [_instance(f"asleep-{n}", "waiting_for_timer", ago(20, n)) for n in growth.part(0.2)]
    rows += [_instance(f"due-{n}", "waiting_for_timer", ago(10, n)) for n in growth.part(0.04)]
    rows += [_instance(f"idle-{n}", "waiting_for_message", ago(20, n)) for n in growth.part(0.4)]
    rows += [_instance(f"late-{n}", "waiting_for_message", ago(10, n)) for n in growth.part(0.04)]
    rows += [_instance(f"over-{n}", over[n % 4], ago(40, n)) for n in growth.part(0.1)]
    rows += [_instance(f"theirs-{n}", "waiting_for_timer", ago(50, n), framework="python") for n in growth.part(0.05)]
    rows += [
        _instance(f"go-{n}", "running", ago(50, n), framework="go", owner="x", until=ago(9, n) if n % 2 else None)
        for n in growth.part(0.1)
    ]
    yield Rows("workflow_instances", _INSTANCE, rows)


def _histories(growth: Growth) -> Iterator[Rows]:
    event = ("ActivityCompleted", "json", "{}", ago(9))
    over = [f"over-{n}" for n in growth.part(0.1)]
    busy = [f"leased-{n}" for n in growth.part(0.3)]
    yield Rows("workflow_history", _HISTORY, [(owner, "step:1", *event) for owner in busy + over])
    archived = [(owner, f"step:{step}", *event, ago(8)) for owner in over for step in range(2)]
    yield Rows("workflow_history_archive", f"{_HISTORY} archived_at", archived)
    undoing = [(owner, "step:1", "undo", "{}", ago(9)) for owner in busy + over]
    yield Rows("workflow_compensations", "instance_id activity_id activity_name args created_at", undoing)


def _waits(growth: Growth) -> Iterator[Rows]:
    timers: list[Row] = [(f"asleep-{n}", "t", ahead(1, n), "t", ago(1), "perdure") for n in growth.part(0.2)]
    timers += [(f"due-{n}", "t", ago(0.1, n), "t", ago(1), "perdure") for n in growth.part(0.04)]
    timers += [(f"theirs-{n}", "t", ago(9, n), "t", ago(9), None) for n in growth.part(0.05)]
    columns = "instance_id timer_id expires_at activity_id created_at framework"
    yield Rows("workflow_timer_subscriptions", columns, timers)
    yield Rows("channel_subscriptions", _SUBSCRIPTION, list(_subscriptions(growth)))
    yield Rows("perdure_waits", _WAIT, list(_channel_waits(growth)))
    taken = [(f"idle-{n}", f"inbox:idle-{n}", n) for n in growth.part(0.4) if n % 2]
    yield Rows("perdure_taken_messages", "instance_id channel message_id", taken)
    cursors = [("news", f"idle-{n}", READ, ago(9)) for n in growth.part(0.4) if n % 4 == 0]
    cursors += [("news", f"over-{n}", 0, ago(9)) for n in growth.part(0.1)]
    yield Rows("channel_delivery_cursors", "channel instance_id last_delivered_id updated_at", cursors)


def _subscriptions(growth: Growth) -> Iterator[Row]:
    for n in growth.part(0.4):  # half of them on two channels, half each on its own
        own = f"inbox:idle-{n}"
        channel, mode = (("news", "broadcast"), (own, "broadcast"), ("idle", "competing"), (own, "broadcast"))[n % 4]
        yield (f"idle-{n}", channel, mode, None, READ, None, ago(9), "perdure")
        if n % 4 == 1:
            yield (f"idle-{n}", "orders", "broadcast", None, 0, None, ago(9), "perdure")
    for n in growth.part(0.04):
        yield (f"late-{n}", f"inbox:late-{n}", "broadcast", None, READ, None, ago(9), "perdure")
    for n in growth.part(0.1):
        yield (f"over-{n}", "news", "broadcast", None, 0, None, ago(9), "perdure")
    for n in growth.part(0.05):
        yield (f"theirs-{n}", f"inbox:theirs-{n}", "broadcast", "r", 0, ago(9, n), ago(9), None)


def _channel_waits(growth: Growth) -> Iterator[Row]:
    """Of those subscribers; a quarter also waits on one channel, each for values of its own, with nothing there yet."""
    for n in growth.part(0.4):
        channel = ("news", f"inbox:idle-{n}", "idle", f"inbox:idle-{n}")[n % 4]
        yield (f"idle-{n}", "r", channel, None, ahead(1, n) if n % 3 else None)
        if n % 4 == 1:
            yield (f"idle-{n}", "o", "orders", match_of("orders", {"id": n}).key, ahead(1, n) if n % 3 else None)
    for n in growth.part(0.04):
        yield (f"late-{n}", "r", f"inbox:late-{n}", None, ago(0.1, n))


def _messages(growth: Growth) -> Iterator[Rows]:
    def message(channel: str, number: int, published_at: datetime, framework: str = "perdure") -> Row:
        return (channel, f"{channel}/{number}", "json", "{}", published_at, framework)

    rows = [message("stock", n, ago(1, n)) for n in growth.part(0.4)]
    rows += [message(f"inbox:leased-{n}", n, ago(1, n)) for n in growth.part(0.2)]
    rows += [message("taken", n, ago(1, n)) for n in growth.part(0.1)]
    rows += [message("theirs", n, ago(1, n), "family") for n in growth.part(0.1)]
    rows += [("orders", f"orders/{n}", "json", f'{{"id": "{n}"}}', ago(1, n), "perdure") for n in growth.part(0.1)]
    yield Rows("channel_messages", _MESSAGE, rows)
    keys = [(match_of("orders", {"id": f"old-{n}"}).key, -n, "orders") for n in growth.part(0.4)]
    yield Rows("perdure_message_matches", "match_key message_id channel", keys)
    sets = [(f"inbox:idle-{n}", "key", '["id"]', 0, READ) for n in growth.part(0.4) if n % 2]
    yield Rows("perdure_match_paths", "channel paths_key paths from_id to_id", sets)
    claims = [(f"taken/{n}", f"leased-{n}", ago(1)) for n in growth.part(0.1)]
    yield Rows("channel_message_claims", "message_id instance_id claimed_at", claims)
    channels = [(f"inbox:idle-{n}", None) for n in growth.part(0.4) if n % 2]
    channels += [(f"inbox:leased-{n}", None) for n in growth.part(0.2)]
    yield Rows("perdure_channels", "channel dirty_at", channels)
    yield Rows("perdure_message_keys", _KEY, [("web", f"key-{n}", n, ago(1, n)) for n in growth.part(0.4)])


def _outbox(growth: Growth) -> Iterator[Rows]:
    def event(source: str, number: int, status: str, published_at: datetime | None = None, *, own: bool = True) -> Row:
        sequence = number + 1 if own else None
        attempt_at = ahead(1) if (source, number) == ("blocked", 0) else None
        content = ("t", source, "json", "{}", "application/json", ago(50, number), published_at, status, 0)
        return (f"{source}/{number}", *content, sequence, None, None, attempt_at)

    rows = [event("blocked", n, "pending") for n in growth.part(0.8)]
    rows += [event(f"sent-{n % 40}", n, "published", ago(9, n)) for n in growth.part(0.8)]
    rows += [event("parked", n, "invalid") for n in growth.part(0.1)]
    rows += [event("theirs", n, "pending", own=False) for n in growth.part(0.1)]
    yield Rows("outbox_events", _EVENT, rows)
    sources = [f"quiet-{n}" for n in growth.part(0.2)]
    yield Rows("perdure_outbox_sequences", "event_source last_sequence", [(source, 1) for source in sources])
    yield Rows("perdure_outbox_sources", "event_source ready_at", [(source, None) for source in sources])


def _others(growth: Growth) -> Iterator[Rows]:
    members = [(f"unknown-{n}", "many", ago(9, n)) for n in growth.part(0.4)]
    yield Rows("workflow_group_memberships", _MEMBER, members)
    actions = [(ago(1, n), "Ada", "cancel", f"over-{n}", "", "x", "done") for n in growth.part(0.4)]
    yield Rows("perdure_audit", "acted_at actor action target query reason outcome", actions)


def _old() -> Iterator[Rows]:
    tag = next(_tags)
    rows = [(f"gone-{n % 5}:to-{n % 5}", f"gone-{tag}-{n}", "json", "{}", ago(20, n), "perdure") for n in range(300)]
    rows += [("done", f"done-{tag}-{n}", "json", "{}", ago(26, n), "perdure") for n in range(10)]
    yield Rows("channel_messages", _MESSAGE, rows)
    yield Rows("perdure_channels", "channel dirty_at", [(f"an-unused-{tag}-{n}", None) for n in range(150)])
    yield Rows("perdure_message_keys", _KEY, [("web", f"gone-{tag}-{n}", n, ago(20, n)) for n in range(300)])
    content = ("t", f"gone-{tag}", "json", "{}", "application/json", ago(50))
    events = [(f"gone-{tag}-{n}", *content, ago(45, n), "published", 0, n + 1, None, None, None) for n in range(1500)]
    yield Rows("outbox_events", _EVENT, events)
    yield Rows("perdure_outbox_sequences", "event_source last_sequence", [(f"gone-{tag}", 1500)])


def seed_sqlite(path: str, growth: Growth) -> None:
    """Into a SQLite file."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        for table, columns, rows in everything(growth):
            names = columns.split()
            values = f"({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            connection.executemany(f"INSERT INTO {table} {values}", (tuple(map(_text, row)) for row in rows))
    connection.close()


def _text(value: Any) -> Any:
    return value.isoformat(" ", "microseconds") if isinstance(value, datetime) else value


async def seed_postgres(url: str, growth: Growth) -> None:
    """Into PostgreSQL, without its checks of foreign keys."""
    connection = await asyncpg.connect(url)
    await connection.execute("SET session_replication_role = replica; SET synchronous_commit = off")
    for table, columns, rows in everything(growth):
        await connection.copy_records_to_table(table, records=rows, columns=columns.split())
    await connection.close()


async def seed_mysql(url: str, growth: Growth) -> None:
    """Into MySQL, without its checks of keys."""
    async with connect_mysql(url) as connection:
        await fetch_mysql(connection, "SET foreign_key_checks = 0, unique_checks = 0, time_zone = '+00:00'")
        await fetch_mysql(connection, "BEGIN")
        for table, columns, rows in everything(growth):
            texts = [literal(row) for row in rows]
            for start in range(0, len(texts), 2000):
                values = ",".join(texts[start : start + 2000])
                names = columns.replace(" ", ", ")
                await fetch_mysql(connection, f"INSERT INTO {table} ({names}) VALUES {values}")
        await fetch_mysql(connection, "COMMIT")
