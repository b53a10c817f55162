"""The checks of `perdure doctor`: what may be wrong with an installation, and what to do about it."""

import asyncio
import platform
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import Any, Literal

from perdure.cli.exits import UNEXPECTED, problem_of
from perdure.cli.sqlite_file import fetch_rows
from perdure.copying.database import Database
from perdure.copying.guarding import read_marker
from perdure.database.dialects import new_driver
from perdure.database.secret import Secret
from perdure.engine.api import values
from perdure.engine.api.client import Client
from perdure.engine.worker.stuck import oldest_due
from perdure.inspection import list_events, list_workers
from perdure.inspection.reasons import duration
from perdure.model.records import OutboxStatus
from perdure.storage.migrations.files import up_statements
from perdure.storage.stores import SQLStorage, migration_status, open_read_only, sqlite_path

State = Literal["ok", "warning", "problem"]

SKEW_MAX = timedelta(seconds=1)
LAG_MAX = timedelta(seconds=30)
STUCK_SHOWN = 100
ROWS_MAX = 10_000
SQLITE_SAFE = (3, 51, 3)  # earlier versions can corrupt a database, very rarely (WAL-reset bug)
SOLVE_OTHERS = "solve the other problems first, then run doctor again"
PACKAGES = ("perdure", "msgspec", "asyncpg", "asyncmy", "cronsim", "uvloop")
DRIVERS = {"postgresql": "asyncpg", "mysql": "asyncmy"}
_CREATED = re.compile(r"CREATE (?:UNIQUE )?INDEX (?:CONCURRENTLY )?(?:IF NOT EXISTS )?(\w+)")
_DROPPED = re.compile(r"DROP INDEX (?:IF EXISTS )?(\w+)")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: `state` is `ok`, `warning` or `problem`; `advice` says what to do about it."""

    check: str
    state: State
    found: str
    advice: str | None = None


Named = tuple[str, Callable[[], Awaitable[Check]]]


async def diagnose(url: Secret) -> tuple[list[Check], bool]:
    """Return the results of all checks, and whether the database can be reached."""
    dialect = new_driver(url).name
    checks = [_python(), _packages(dialect)]
    try:
        pending = await migration_status(url)
    except Exception as error:
        advice = "check the URL, the network, the password, the rights of the user, and whether the server runs"
        if dialect == "sqlite":
            advice = "check the path, the rights on the file and its folder, and the free space of the disk"
        return [*checks, Check("database", "problem", _detail(error), advice)], False
    checks.append(_migrations(pending))
    if pending:
        return checks, True
    async with open_read_only(url) as storage, Client(storage) as client:
        checks += await _copies(storage, url)
        for name, check in [*_of_database(storage, url), *_of_work(client, storage)]:
            checks.append(await _checked(name, check))
    return checks, True


async def _checked(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
    """Return the result of a check; one that the database refuses is a problem and does not stop the others."""
    try:
        return await check()
    except Exception as error:
        return Check(name, "problem", _detail(error), SOLVE_OTHERS)


def _detail(error: Exception) -> str:
    """Return what the database says; raise an error that comes from elsewhere again."""
    found = problem_of(error)
    if found.code == UNEXPECTED:
        raise error
    return found.detail


# This installation.


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}")


def _packages(dialect: str) -> Check:
    found = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    driver = DRIVERS.get(dialect)
    if driver is not None and driver not in found:
        extra = "postgres" if dialect == "postgresql" else dialect
        return Check("packages", "problem", f"{shown}; {driver} is missing", f'pip install "perdure[{extra}]"')
    return Check("packages", "ok", shown)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _migrations(pending: list[str]) -> Check:
    if not pending:
        return Check("migrations", "ok", "all applied")
    return Check("migrations", "problem", f"{len(pending)} pending, the first is {pending[0]}", "perdure migrate up")


async def _copies(storage: SQLStorage, url: Secret) -> list[Check]:
    """Return what `perdure copy` does or did with the database, which then accepts no writes; empty if nothing."""
    try:
        marker = await read_marker(Database(url, storage))
    except Exception as error:
        return [Check("copy", "problem", _detail(error), SOLVE_OTHERS)]
    if marker is None:
        return []
    advice = "repeat the command if it was interrupted; `perdure copy --from URL --abort` undoes the copy"
    if marker.state == "moved":
        advice = "use the URL of the other database"
    return [Check("copy", "problem", marker.message, advice)]


# The database.


def _of_database(storage: SQLStorage, url: Secret) -> list[Named]:
    servers: dict[str, list[Named]] = {
        "sqlite": [("sqlite", _sqlite_version), ("pragmas", lambda: _journal(url))],
        "postgresql": [("server", lambda: _postgres(storage))],
        "mysql": [("server", lambda: _mysql(storage))],
    }
    return [
        *servers[storage.dialect],
        ("indexes", lambda: _indexes(storage, url)),
        ("clock", lambda: _clock(storage)),
    ]


async def _sqlite_version() -> Check:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < SQLITE_SAFE:
        advice = "use Python with SQLite 3.51.3 or later: earlier ones can corrupt a database, very rarely"
        return Check("sqlite", "warning", f"SQLite {version}", advice)
    return Check("sqlite", "ok", f"SQLite {version}")


async def _journal(url: Secret) -> Check:
    _, ((mode,),) = await asyncio.to_thread(fetch_rows, sqlite_path(url), "PRAGMA journal_mode", 1)
    if mode != "wal":
        return Check("pragmas", "problem", f"journal_mode {mode}", "perdure needs the journal mode wal: open it once")
    return Check("pragmas", "ok", f"journal_mode {mode}; each connection has synchronous FULL and foreign_keys on")


async def _postgres(storage: SQLStorage) -> Check:
    wanted = ("server_version", "default_transaction_isolation", "synchronous_commit", "fsync", "max_connections")
    rows = await storage.db().fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", list(wanted))
    found = {str(name): str(setting) for name, setting in rows}
    shown = f"PostgreSQL {found['server_version']}, schema {storage.schema}, {_shown(found, wanted[1:])}"
    if found["fsync"] != "on" or found["synchronous_commit"] == "off":
        return Check("server", "problem", shown, "turn on fsync and synchronous_commit: a crash would lose commits")
    return Check("server", "ok", shown)


async def _mysql(storage: SQLStorage) -> Check:
    isolation = ("transaction_isolation", "tx_isolation")  # of MySQL, and of MariaDB before 11.1
    wanted = ("version", *isolation, "innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "max_connections")
    names = ", ".join(f"'{name}'" for name in wanted)
    rows = await storage.db().fetch(f"SHOW VARIABLES WHERE Variable_name IN ({names})")
    found = {_decoded(name): _decoded(value) for name, value in rows}
    version = found.pop("version")
    server = f"{'MariaDB' if 'MariaDB' in version else 'MySQL'} {version}"
    shown = f"{server}, {_shown(found, sorted(found))}"
    if found.get("innodb_flush_log_at_trx_commit") != "1":
        return Check("server", "problem", shown, "set innodb_flush_log_at_trx_commit = 1: a crash would lose commits")
    if found.get("log_bin") == "ON" and found.get("sync_binlog") == "0":
        return Check("server", "warning", shown, "set sync_binlog = 1: a replica may lack commits after a crash")
    return Check("server", "ok", shown)


def _decoded(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _shown(found: Mapping[str, str], names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


_INDEXES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index'",
    "postgresql": "SELECT indexname FROM pg_indexes WHERE schemaname = $1",
    "mysql": "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()",
}


async def _indexes(storage: SQLStorage, url: Secret) -> Check:
    statement = _INDEXES[storage.dialect]
    if storage.dialect == "sqlite":
        _, rows = await asyncio.to_thread(fetch_rows, sqlite_path(url), statement, ROWS_MAX)
    else:
        rows = await storage.db().fetch(statement, *([storage.schema] if storage.dialect == "postgresql" else []))
    wanted = expected_indexes(storage.dialect)
    lacking = sorted(wanted - {_decoded(name) for (name,) in rows})
    if lacking:
        advice = "create them as in `perdure migrate dump-sql`: without them statements read whole tables"
        return Check("indexes", "problem", f"missing: {', '.join(lacking)}", advice)
    return Check("indexes", "ok", f"all {len(wanted)}")


def expected_indexes(dialect: str) -> set[str]:
    """Return the names of the indexes that the migrations create and no later one drops."""
    found: set[str] = set()
    for _, statements in up_statements(dialect):
        for statement in statements:
            if created := _CREATED.match(statement):
                found.add(created[1])
            elif dropped := _DROPPED.match(statement):
                found.discard(dropped[1])
    return found


async def _clock(storage: SQLStorage) -> Check:
    before = datetime.now(UTC)
    there = await storage.now()
    trip = datetime.now(UTC) - before
    skew = there - (before + trip / 2)
    error = max(abs(skew) - trip / 2, timedelta(0))
    shown = f"the clocks differ by {duration(abs(skew))}, measured within {1000 * trip.total_seconds():.0f} ms"
    if error > SKEW_MAX:
        return Check("clock", "warning", shown, "synchronise the clocks (NTP); perdure decides by that of the database")
    return Check("clock", "ok", shown)


# The work in the database.


def _of_work(client: Client, storage: SQLStorage) -> list[Named]:
    return [
        ("workers", lambda: _workers(client, storage)),
        ("lag", lambda: _lag(storage)),
        ("timers", lambda: _timers(storage)),
        ("stuck runs", lambda: _stuck(client)),
        ("outbox", lambda: _outbox(client)),
    ]


async def _workers(client: Client, storage: SQLStorage) -> Check:
    workers = await list_workers(client)
    live = sum(each.is_live for each in workers)
    shown = f"{live} live, {len(workers) - live} without a recent heartbeat"
    if not live:
        state: State = "problem" if (await oldest_due(storage) or timedelta(0)) > LAG_MAX else "warning"
        return Check("workers", state, shown, "start one: perdure worker module:app")
    if live < len(workers):
        return Check("workers", "warning", shown, "see `perdure workers`: they ended without notice, or are frozen")
    return Check("workers", "ok", shown)


async def _lag(storage: SQLStorage) -> Check:
    lag = await oldest_due(storage) or timedelta(0)
    if lag > LAG_MAX:
        advice = "start workers for these workflows, or more of them: `perdure runs --stuck` shows which"
        return Check("lag", "problem", f"the oldest due run has been waiting for {duration(lag)}", advice)
    return Check("lag", "ok", "no run is due for long")


async def _timers(storage: SQLStorage) -> Check:
    due, now = await storage.next_due_at(), await storage.now()
    if due is not None and now - due > LAG_MAX:
        advice = "start a worker: timers and timeouts end when one looks at them"
        return Check("timers", "problem", f"the oldest is overdue by {duration(now - due)}", advice)
    return Check("timers", "ok", "none is overdue")


async def _stuck(client: Client) -> Check:
    count = await client.runs(stuck=True).count(STUCK_SHOWN)
    if not count:
        return Check("stuck runs", "ok", "none")
    shown = f"{count} or more" if count >= STUCK_SHOWN else str(count)
    return Check("stuck runs", "problem", shown, "perdure runs --stuck, and perdure why ID")


async def _outbox(client: Client) -> Check:
    parked = await list_events(client, OutboxStatus.INVALID, STUCK_SHOWN)
    if parked:
        count = f"{len(parked)}{' or more' if len(parked) == STUCK_SHOWN else ''}"
        said = values.shown(parked[-1].last_error or "None")
        advice = "perdure outbox list --status invalid, then perdure outbox retry"
        return Check("outbox", "problem", f"{count} parked, the last error was: {said}", advice)
    pending = await list_events(client, OutboxStatus.PENDING, 1)
    now = datetime.now(UTC)
    if pending and pending[0].created_at is not None and now - pending[0].created_at > LAG_MAX:
        shown = f"the oldest event has been waiting for {duration(now - pending[0].created_at)}"
        return Check("outbox", "warning", shown, "start an App with publisher=, or look at its log")
    return Check("outbox", "ok", "nothing is parked or late")
