"""No statement of the hot paths or of the background reads more in a larger database.

The operations run on 5,000 instances and on 20,000, with all that belongs to them, and the costs are compared statement
by statement: with plans made before the database knew anything about its tables, with fresh statistics, and within a
caller's transaction. Substring and JSON filters read what there is; they are not here.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure.storage.sql import load_statements
from perdure.storage.stores import SQLStorage, open_storage
from tests.storage.plans.operations import CONTROL, run_all, run_writes
from tests.storage.plans.sample_data import Growth, seed_mysql, seed_postgres, seed_sqlite
from tests.storage.plans.statement_costs import Costs, Meter, MySQLMeter, PostgresMeter, SQLiteMeter
from tests.support.databases import fresh_mysql, fresh_postgres

SMALL, LARGE = 5_000, 20_000

# An index gets a level deeper, and PostgreSQL comes upon the pages of rows just removed. What reads all rows of a kind
# reads four times as many.
TOLERANCE = {"pages": (2.0, 250), "rows": (1.5, 100), "reads": (1.5, 100), "steps": (1.5, 250)}

GROWING = {  # with one channel, not with the database
    "channels.mode": "reads past the subscribers of this channel that are over, until they are deleted",
    "delivery.waiting": "all who wait on one channel, in order; nothing sweeps with it",
}
PLANS = {  # that look at all of something, or sort it
    ("archive.list", "USE TEMP B-TREE FOR ORDER BY"): "the archive of one instance",
    ("archive.claimed", "USE TEMP B-TREE FOR DISTINCT"): "the claims of one instance",
    ("channels.subscriptions", "SCAN p VIRTUAL TABLE INDEX 1:"): "the subscriptions that are asked for",
    ("history.fence_many", "SCAN item VIRTUAL TABLE INDEX 1:"): "the items of the batch",
    ("instances.complete_many", "SCAN item VIRTUAL TABLE INDEX 1:"): "the items of the batch",
    ("delivery.due", "USE TEMP B-TREE FOR ORDER BY"): "the waits of one instance on one channel",
    ("delivery.marked", "SCAN channel_messages USING INDEX idx_channel_messages_family"): "an index of them only",
    ("delivery.marked", "SCAN dirty"): "a subquery of one page",
    ("delivery.marked", "SCAN unseen"): "a subquery of one row",
    ("delivery.target", "SCAN f"): "the waits of one instance on one channel",
    ("delivery.target", "USE TEMP B-TREE FOR ORDER BY"): "the waits of one instance on one channel",
    ("matching.found", "SCAN w"): "a subquery of one row",
    ("matching.may_find", "SCAN w"): "a subquery of one row",
    ("delivery.unseen", "SCAN channel_messages USING INDEX idx_channel_messages_family"): "an index of them only",
    ("waits.next_due", "SCAN channel_messages USING INDEX idx_channel_messages_family"): "an index of them only",
    ("delivery.waiting", "USE TEMP B-TREE FOR ORDER BY"): "the subscribers of one channel",
    ("listing.counted", "SCAN found"): "a subquery of as many as are counted",
    ("listing.counted", "SCAN branch"): "a subquery of as many as are counted",
    ("listing.union", "SCAN branch"): "a subquery of one page",
    ("locks.sweep", "SCAN stale"): "a subquery of one page",
    ("outbox.ahead", "SCAN claimed"): "a subquery of one row",
    ("outbox.ahead", "SCAN waiting"): "a subquery of one row",
    ("outbox.list_status", "USE TEMP B-TREE FOR RIGHT PART OF ORDER BY"): "events of the same microsecond",
    ("instances.resumable_named_2", "SCAN branch"): "a subquery of one page",
    ("instances.resumable_named_20", "SCAN branch"): "a subquery of one page",
    ("system_locks.cleanup", "SCAN system_locks"): "a row a duty",
    ("system_locks.cleanup", "Seq Scan on system_locks"): "a row a duty",
    ("saved_views.list", "SCAN perdure_views USING INDEX sqlite_autoindex_perdure_views_1"): "a hundred rows",
    ("saved_views.list", "Seq Scan on perdure_views"): "a hundred rows",
    ("surveys.channel_use", "SCAN m"): "a subquery of as many as are counted",
    ("surveys.channel_use", "SCAN s"): "a subquery of as many as are counted",
    ("surveys.count_events", "SCAN found"): "a subquery of as many as are counted",
    ("surveys.events", "USE TEMP B-TREE FOR RIGHT PART OF ORDER BY"): "events of the same microsecond",
    ("surveys.group_use", "SCAN m"): "a subquery of as many as are counted",
    ("surveys.held", "SCAN system_locks USING INDEX sqlite_autoindex_system_locks_1"): "a row a duty",
    ("surveys.held", "Seq Scan on system_locks"): "a row a duty",
    ("surveys.leases", "USE TEMP B-TREE FOR RIGHT PART OF ORDER BY"): "leases that end in the same microsecond",
    ("workers.list", "SCAN perdure_workers"): "a row a worker",
    ("workers.list", "USE TEMP B-TREE FOR ORDER BY"): "a row a worker",
    ("workers.list", "Seq Scan on perdure_workers"): "a row a worker",
}
FRAGMENTS = {  # put together to statements that are measured
    "instances.resumable_named",
    *(f"listing.{name}" for name in ("select", "in_any_state", "in_one_state", "started_after", "started_before")),
    *(f"listing.{name}" for name in ("after", "workflow_name", "instance_id", "input", "order")),
    *(f"listing.{name}" for name in ("of_one_workflow", "branch", "one", "up_to", "count", "select_bare")),
}
RARE = {"channels.claimant", "channels.key", "channels.named"}  # after a race or a lost answer; each by a unique key
ONLY_ON = {  # where the others need more statements, or fewer
    "channels.subscribe_many": ("postgresql", "mysql"),
    "delivery.deliver": ("postgresql", "mysql"),
    "delivery.deliver_set": ("postgresql",),
    "delivery.survey": ("postgresql",),
    "delivery.take": ("sqlite",),
    "delivery.target": ("sqlite",),
    "history.append_each": ("sqlite",),
    "history.append_locked": ("mysql",),
    "history.append_set": ("postgresql",),
    "history.fence_many": ("sqlite",),
    "history.lock_many": ("mysql",),
    "instances.complete_many": ("sqlite",),
    "instances.complete_locked": ("mysql",),
    "instances.complete_set": ("postgresql",),
    "instances.create_many": ("sqlite",),
    "instances.create_rows": ("mysql",),
    "instances.create_set": ("postgresql",),
    "instances.lease_times": ("sqlite",),
    "instances.clear_many": ("sqlite", "mysql"),
    "instances.lock_many": ("mysql",),
    "journals.append_and_complete": ("postgresql",),
    "locks.take": ("sqlite", "mysql"),
    "timers.fire": ("postgresql",),
    "timers.fire_set": ("postgresql",),
    "timers.register_many": ("postgresql", "mysql"),
    "waits.listen": ("postgresql",),
    "waits.sleep": ("postgresql",),
    "waits.wait_many": ("postgresql", "mysql"),
    "wakeups.notify": ("postgresql",),
}

CALLERS = {  # on a caller's connection: savepoints read nothing, and `schemas` reads the catalog
    *(f"caller_transactions.{name}" for name in ("savepoint", "release", "undo", "schemas")),
}

# They read nothing of ours; pieces are measured with what they are in; and a search through all values reads them all.
UNRUN = {"transactions", "migrations", "pieces", "encoded_rows"}

FILES = [
    path.name.removesuffix(".sql") for path in files("perdure.storage.sql").iterdir() if path.name.endswith(".sql")
]


class Busy(NamedTuple):
    """An empty database that can be filled, and the instrument for it."""

    kind: str
    url: str
    meter: Meter
    grow: Callable[[Growth], Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
async def busy(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Busy]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "sqlite":
                path = str(tmp_path / "perdure.db")

                async def into_sqlite(growth: Growth) -> None:
                    seed_sqlite(path, growth)

                yield Busy("sqlite", f"sqlite:///{path}", SQLiteMeter(), into_sqlite)
            case "postgresql":
                url = await stack.enter_async_context(fresh_postgres(request.getfixturevalue("postgres_url")))
                yield Busy("postgresql", f"{url}?pool_size=1", PostgresMeter(), lambda g: seed_postgres(url, g))
            case _:
                url = await stack.enter_async_context(fresh_mysql(request.getfixturevalue("mysql_url")))
                yield Busy("mysql", f"{url}?pool_size=1", MySQLMeter(), lambda g: seed_mysql(url, g))


@pytest.mark.timeout(600)
@pytest.mark.pitfall(34)
@pytest.mark.pitfall(35)
@pytest.mark.pitfall(52)
async def test_no_statement_reads_more_in_a_larger_database(busy: Busy) -> None:
    readings = await measure(busy)
    grown = list(growing(busy.kind, readings))
    assert any(CONTROL in line for line in grown), "the instrument is blind"
    found = [line for line in grown if CONTROL not in line]
    found += [f"{busy.kind}: {name}: {plan}" for name, plan in busy.meter.plans if (name, plan) not in PLANS]
    found += [f"{busy.kind}: {name} is not measured" for name in sorted(unmeasured(busy.kind, readings))]
    assert not found, "\n".join(["", *found])


async def measure(busy: Busy) -> dict[str, Costs]:
    """What the statements cost at each size, in that order, and by which plans."""
    meter, readings = busy.meter, dict[str, Costs]()
    async with open_storage(busy.url) as storage:
        meter.attach(storage)
        await leave_unanalyzed(storage)
        for before, after in ((0, 0), (0, SMALL), (SMALL, LARGE)):
            await busy.grow(Growth(before, after))
            await run_all(storage, meter)
            readings[f"{after:,}"] = meter.take()
        await analyze(storage)
    del readings["0"]  # it made the plans
    async with open_storage(busy.url) as storage:
        meter.attach(storage)
        await busy.grow(Growth(LARGE, LARGE))
        await run_all(storage, meter)
        readings[f"{LARGE:,} with statistics"] = meter.take()
        plans = dict(meter.plans)
        await run_writes(storage, meter)
        readings[f"{LARGE:,} in a transaction"] = meter.take()
        meter.plans = plans  # a caller's transaction has the server's settings, and all versions of its own rows
        for counts in readings[f"{LARGE:,} in a transaction"].values():
            del counts["pages"]
    return readings


async def leave_unanalyzed(storage: SQLStorage) -> None:
    """Disable PostgreSQL's automatic analysis of the tables."""
    if storage._backend.driver.name == "postgresql":
        for (table,) in await storage.db().fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'perdure'"):
            await storage.db().execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")


async def analyze(storage: SQLStorage) -> None:
    if storage._backend.driver.name == "mysql":
        tables = [name for (name,) in await storage.db().fetch("SHOW TABLES")]
        await storage.db().fetch(f"ANALYZE TABLE {', '.join(tables)}")
    else:
        await storage.db().execute("ANALYZE")


def growing(kind: str, readings: dict[str, Costs]) -> Iterator[str]:
    """The statements that cost more than at the smallest size, each with its operation and both counts."""
    for key in {key: None for costs in readings.values() for key in costs}:
        operation, statement = key
        for unit, (factor, extra) in TOLERANCE.items():
            counts = [(costs[key][unit], at) for at, costs in readings.items() if unit in costs.get(key, ())]
            if counts and max(counts)[0] > factor * counts[0][0] + extra and statement not in GROWING:
                both = " and ".join(f"{count:,} {unit} at {at}" for count, at in (counts[0], max(counts)))
                yield f"{kind}: {operation}: {statement} costs {both}"


def unmeasured(kind: str, readings: dict[str, Costs]) -> set[str]:
    """Statements that no operation has run."""
    every = {statement.name for name in FILES for statement in load_statements(name) if name not in UNRUN}
    measured = {statement for costs in readings.values() for _, statement in costs}
    elsewhere = {name for name, kinds in ONLY_ON.items() if kind not in kinds}
    return every - measured - FRAGMENTS - RARE - CALLERS - elsewhere
