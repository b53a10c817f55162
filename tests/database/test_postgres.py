"""The PostgreSQL backend alone: sessions, plans, poolers, errors, cancellation, lost connections and wake-ups."""

import asyncio
import gc
import logging
import random
import socket
import traceback
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure.database.backends.postgres import PostgresBackend
from perdure.database.backends.postgres import backend as postgres
from perdure.database.backends.postgres import listener as listening
from perdure.database.backends.postgres.errors import classify
from perdure.database.backends.postgres.listener import CHANNELS
from perdure.database.backends.postgres.notifier import COALESCED, Notifier
from perdure.database.backends.server import retries
from perdure.database.backends.server.retries import Fault
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call, parse
from perdure.errors import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseUnavailableError,
    LimitError,
    SchemaError,
    StorageError,
    TransactionConflictError,
    TransactionError,
)
from perdure.model.records import WakeUp
from perdure.storage.transactions import Transactions
from perdure.testing.servers import PgBouncer, PostgresServer
from tests.support.databases import fresh_postgres

S = parse(
    "test",
    """
-- put
INSERT INTO counters (name, n) VALUES (:name, :n)

-- add
UPDATE counters SET n = n + :n WHERE name = :name

-- add_two
UPDATE counters SET n = n + :n WHERE name = :name;
INSERT INTO counters (name, n) VALUES (:other, :n);

-- add_all
UPDATE counters SET n = counters.n + 1 FROM unnest(:names::text[]) AS given (name) WHERE counters.name = given.name

-- numbers
SELECT unnest(:numbers::bigint[])

-- get
SELECT name, n FROM counters WHERE name = :name

-- count
SELECT count(*) FROM counters

-- lock
SELECT n FROM counters WHERE name = :name FOR UPDATE NOWAIT

-- meet
SELECT pg_advisory_xact_lock_shared(77)

-- pause
SELECT pg_sleep(:seconds)

-- lost
SELECT absent FROM counters

-- setting
SELECT current_setting(:name)

-- time
SELECT {now}

-- later
SELECT :at::timestamp
""",
)
TABLE = "CREATE TABLE counters (name text PRIMARY KEY, n bigint NOT NULL)"
SECRET = "Zuckerwatte#7"

Connect = Callable[..., Awaitable[PostgresBackend]]


def calls(*wanted: Call) -> Operation[list[Any]]:
    """Run these calls and return all answers."""
    answers = []
    for call in wanted:
        answers.append((yield call))
    return answers


async def write(backend: PostgresBackend, *wanted: Call, **how: Any) -> list[Any]:
    return await backend.write(Work(lambda: calls(*wanted), **how))


async def read(backend: PostgresBackend, call: Call) -> Any:
    return (await backend.read(Work(lambda: calls(call)), bounded=True))[0]


def failing(*wanted: Call) -> Operation[None]:
    """Write, then refuse."""
    yield from calls(*wanted)
    raise LimitError("refused")


@pytest.fixture
async def database(fresh_postgres_db: str) -> str:
    """A database with the table."""
    connection = await asyncpg.connect(fresh_postgres_db)
    await connection.execute(TABLE)
    await connection.close()
    return fresh_postgres_db


@asynccontextmanager
async def backends() -> AsyncIterator[Connect]:
    made: list[PostgresBackend] = []

    async def connect(url: str, **options: Any) -> PostgresBackend:
        backend = PostgresBackend(url, **options)
        made.append(backend)
        await backend.open()
        return backend

    try:
        yield connect
    finally:
        for backend in made:
            await backend.close()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with backends() as connect:
        yield connect


@pytest.fixture
async def backend(connect: Connect, database: str) -> PostgresBackend:
    return await connect(database)


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A look from outside."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that may be stopped, with a user `guarded` who has a password."""
    with PostgresServer() as server:
        rules = server.home / "data" / "pg_hba.conf"
        rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        server.restart()
        yield server


@pytest.fixture(scope="module")
def pooler(own_server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(own_server, settings={"default_pool_size": 2, "max_client_conn": 200}) as pooler:
        yield pooler


@pytest.fixture
async def pooled_database(own_server: PostgresServer, pooler: PgBouncer) -> AsyncIterator[str]:
    async with fresh_postgres(own_server.url) as url:
        connection = await asyncpg.connect(url)
        await connection.execute(TABLE)
        await connection.close()
        yield urlsplit(pooler.url)._replace(path=urlsplit(url).path).geturl()


OTHERS = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"


async def until(admin: asyncpg.Connection, condition: str) -> None:
    """Wait until a condition on the other sessions of this database holds."""
    async with asyncio.timeout(20):
        while True:
            await admin.execute("SELECT pg_sleep(0.002), pg_stat_clear_snapshot()")
            if await admin.fetchval(f"SELECT {condition} FROM pg_stat_activity WHERE {OTHERS}"):
                return


A_SESSION_WAITS = "count(*) FILTER (WHERE wait_event_type = 'Lock') > 0"


# Where the URL leads.


def sentence(error: StorageError) -> str:
    """The message; it and all that hangs on it keep the secret."""
    everything = "".join(traceback.format_exception(error)) + repr(error)
    chained = error.__cause__ or error.__context__
    assert SECRET not in everything + repr(chained) + str(chained)
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://u:{}@h/d?pool_szie=3", "unknown option 'pool_szie'"),
        ("postgresql://u:{}@h/d?pool_size=none", "pool_size"),
        ("postgresql://u:{}@h/d?pool_size=0", "pool_size"),
        ("postgresql://u:{}@h/d?pooler=session", "pooler"),
        ("postgresql://u:{}@h/d?sslmode=verify-full&sslrootcert=/nowhere", "sslrootcert"),
        ("postgresql://u:a/{}@h/d", "percent-encoded"),
        ("postgresql://u:a?{}@h/d", "percent-encoded"),
        ("postgresql://u:x@h:{}/d", "percent-encoded"),
        ("oracle://u:{}@h/d", "postgresql://"),
    ],
)
def test_error_for_an_invalid_url_is_one_sentence(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PostgresBackend(url.format(SECRET))
    assert words in sentence(refused.value)


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("postgresql://u:{0}@127.0.0.1:1/d", DatabaseUnavailableError, "cannot be reached"),
        ("postgresql://u:{0}@127.0.0.1:1,127.0.0.1:2/d", DatabaseUnavailableError, "at 127.0.0.1:2 cannot"),
        ("postgresql://u:{0}@nowhere.invalid/d", DatabaseUnavailableError, "cannot be reached"),
        ("postgresql://u:{0}@/d?host=/nowhere", DatabaseUnavailableError, "at /nowhere"),
        ("postgresql://guarded:{0}@{1}/postgres", ConfigurationError, "password authentication failed"),
        ("postgresql://perdure:{0}@{1}/missing", ConfigurationError, 'database "missing" does not exist'),
        ("postgresql://perdure:{0}@{1}/postgres?sslmode=never", ConfigurationError, "sslmode"),
        ("postgresql://perdure:{0}@{1}/postgres?target_session_attrs=standby", DatabaseUnavailableError, "attribute"),
        ("postgresql://perdure@{1}/postgres?password={0}&options=-c%20colour%3Dred", ConfigurationError, "colour"),
    ],
)
async def test_error_for_a_rejected_connection_is_one_sentence(
    own_server: PostgresServer, url: str, error: type[StorageError], words: str
) -> None:
    backend = PostgresBackend(url.format(SECRET.replace("#", "%23"), f"127.0.0.1:{own_server.port}"))
    with pytest.raises(error) as refused:
        await backend.open()
    assert words in sentence(refused.value)
    assert SECRET not in repr(backend) + repr(vars(backend))
    await backend.close()


async def test_correct_password_connects(own_server: PostgresServer, connect: Connect) -> None:
    root = await connect(own_server.url)
    await root.executor().execute(f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'")
    password = SECRET.replace("#", "%23")
    backend = await connect(f"postgresql://guarded:{password}@127.0.0.1:{own_server.port}/postgres")
    assert await read(backend, S["setting"](name="application_name")) == [("perdure",)]
    assert SECRET not in repr(backend) + repr(vars(backend))
    await root.executor().execute("DROP ROLE guarded")


async def test_several_hosts_are_tried_in_order(own_server: PostgresServer, connect: Connect) -> None:
    hosts = f"127.0.0.1:1,127.0.0.1:{own_server.port}"
    backend = await connect(f"postgresql://perdure@{hosts}/postgres?target_session_attrs=read-write")
    assert await read(backend, S["setting"](name="TimeZone")) == [("UTC",)]


async def test_unreachable_and_unsuitable_hosts_are_skipped(
    own_server: PostgresServer, connect: Connect, database: str
) -> None:
    parts = urlsplit(database)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{own_server.port},{parts.hostname}:{parts.port}"
        options = "target_session_attrs=read-write&connect_timeout=0.5"  # for each host: a silent one is not the last
        backend = await connect(f"postgresql://{parts.username}@{hosts}{parts.path}?{options}")
        assert await write(backend, S["put"](name="a", n=1), single=True) == [1], "own_server has no such database"
        _forget_connections(silent)
        backend.discard(await backend.connect())
        with pytest.raises(BlockingIOError):  # who led last is asked first
            silent.accept()


def _forget_connections(server: socket.socket) -> None:
    server.accept()[0].close()  # there is one
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()


async def test_error_of_all_hosts_is_raised_if_none_is_suitable(own_server: PostgresServer, connect: Connect) -> None:
    nowhere = f"127.0.0.1:{own_server.port}/nowhere"
    with pytest.raises(DatabaseUnavailableError, match=":1 cannot be reached"):  # that may pass: worth another try
        await connect(f"postgresql://perdure@127.0.0.1:1,{nowhere}?target_session_attrs=read-write")
    with pytest.raises(ConfigurationError, match="does not exist"):
        await connect(f"postgresql://perdure@127.0.0.1:{own_server.port},{nowhere}?target_session_attrs=read-write")


def test_missing_driver_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r"install perdure\[postgres\]"):
        PostgresBackend("postgresql://h/d")


async def test_url_options_are_applied(database: str, connect: Connect) -> None:
    backend = await connect(f"{database}?pool_size=1&pool_timeout=0.05&application_name=mine&search_path=public")
    assert await read(backend, S["setting"](name="application_name")) == [("mine",)]
    session = await backend.begin()
    with pytest.raises(DatabaseUnavailableError, match="all 1 are in use"):
        await backend._pool.acquire()
    await session.rollback()


async def test_too_many_connections_is_unavailable(own_server: PostgresServer, connect: Connect) -> None:
    root = await connect(own_server.url)
    await root.executor().execute("CREATE ROLE single LOGIN CONNECTION LIMIT 1")
    await connect(f"postgresql://single@127.0.0.1:{own_server.port}/postgres")
    with pytest.raises(DatabaseUnavailableError, match="too many connections"):
        await connect(f"postgresql://single@127.0.0.1:{own_server.port}/postgres")


# Statements.


async def test_statements_return_row_counts_or_rows(backend: PostgresBackend) -> None:
    assert await write(backend, S["put"](name="a", n=1), S["add"](name="a", n=2), S["get"](name="a")) == [
        1,
        1,
        [("a", 3)],
    ]
    assert await write(backend, S["add"](name="b", n=2), single=True) == [0]
    assert await write(backend, S["add_two"](name="a", other="b", n=2), single=True) == [(1, 1)]
    ((name, n),) = await read(backend, S["get"](name="b"))
    assert (name, n) == ("b", 2)


async def test_statement_of_several_parts_is_atomic(backend: PostgresBackend) -> None:
    await write(backend, S["put"](name="a", n=0), single=True)
    with pytest.raises(StorageError, match="duplicate key"):
        await write(backend, S["add_two"](name="a", other="a", n=5), single=True)
    assert await read(backend, S["get"](name="a")) == [("a", 0)]


async def test_failed_statement_of_several_parts_leaves_the_transaction_usable(backend: PostgresBackend) -> None:
    storage = Transactions(backend)
    async with storage.transaction() as conn:
        await conn.execute("INSERT INTO counters VALUES ('a', 0)")
        with pytest.raises(StorageError, match="duplicate key"):
            await storage._run(Work(lambda: calls(S["add_two"](name="a", other="a", n=5)), single=True))
        with pytest.raises(LimitError):
            await storage._run(Work(lambda: failing(S["add"](name="a", n=7))))
        with pytest.raises(StorageError, match="duplicate key"):
            await storage._run(Work(lambda: calls(S["add"](name="a", n=9), S["put"](name="a", n=1))))
        assert await storage._run(Work(lambda: calls(S["add_two"](name="a", other="b", n=1)), single=True)) == [(1, 1)]
    assert await read(backend, S["get"](name="a")) == [("a", 1)]


async def test_times_are_those_of_the_server_and_can_be_shifted(backend: PostgresBackend) -> None:
    from datetime import UTC, datetime, timedelta, timezone

    ((now,),) = await read(backend, S["time"]())
    backend.driver.shift_clock(timedelta(hours=3))
    ((later,),) = await read(backend, S["time"]())
    assert timedelta(hours=3) <= later - now < timedelta(hours=3, seconds=30)
    given = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert await read(backend, S["later"](at=given)) == [(given.astimezone(UTC).replace(tzinfo=None),)]


async def test_small_answer_needs_little_memory(backend: PostgresBackend) -> None:
    """A large buffer for each answer leaves holes in the heap, and a worker grows by megabytes."""
    assert await read(backend, S["get"](name="absent")) == []  # prepares the statement
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await read(backend, S["get"](name="absent"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 64 << 10


async def test_answer_larger_than_one_read_is_complete(backend: PostgresBackend) -> None:
    numbers = list(range(100_000))
    assert [n for (n,) in await read(backend, S["numbers"](numbers=numbers))] == numbers


async def test_connection_on_which_a_caller_left_a_transaction_open_is_not_used_again(backend: PostgresBackend) -> None:
    used = await backend.executor().fetchval("SELECT pg_backend_pid()")
    await backend.executor().execute("BEGIN")
    assert await backend.executor().fetchval("SELECT pg_backend_pid()") != used


async def test_caller_sql_runs_on_the_pool(backend: PostgresBackend) -> None:
    conn = backend.executor()
    assert await conn.execute("INSERT INTO counters SELECT 'c' || i, i FROM generate_series(1, 5) i") == 5
    assert await conn.fetchrow("SELECT n FROM counters WHERE name = $1", "c3") == (3,)
    assert await conn.fetchval("SELECT count(*) FROM counters") == 5
    assert await conn.execute("CREATE TABLE others (id int)") == 0
    await conn.execute("BEGIN")  # a transaction without its end is not passed on to the next user
    assert not await conn.execute("ROLLBACK")
    with pytest.raises(StorageError, match="syntax"):
        await conn.execute("SELEKT")


async def test_prepared_statements_survive_a_schema_change(backend: PostgresBackend, admin: asyncpg.Connection) -> None:
    await write(backend, S["put"](name="a", n=1), single=True)
    await admin.execute("ALTER TABLE counters ALTER COLUMN n TYPE int")
    assert await read(backend, S["get"](name="a")) == [("a", 1)]
    await admin.execute("ALTER TABLE counters ALTER COLUMN n TYPE numeric")
    assert await write(backend, S["add"](name="a", n=1), S["get"](name="a")) == [1, [("a", 2)]]


# Plans.


async def plan(backend: PostgresBackend, name: str, value: str) -> str:
    """The plan that the idle connection keeps for a statement."""
    (connection,) = backend._pool._idle
    prepared = backend._prepared[connection][backend.driver.parts(S[name])[0].text].get_name()
    return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {prepared}('{value}')"))


@pytest.mark.parametrize("first_in", ["a statement", "a caller's transaction"])
async def test_plans_made_on_an_empty_table_use_the_index(connect: Connect, database: str, first_in: str) -> None:
    backend = await connect(database, pool_size=1)
    storage, executor = Transactions(backend), backend.executor()
    await executor.execute("ALTER TABLE counters SET (autovacuum_enabled = off)")
    await executor.execute("VACUUM ANALYZE counters")  # known to be empty: a scan of nothing is the cheapest plan
    for _ in range(8):  # beyond the five that would decide for a generic plan
        if first_in == "a statement":
            await read(backend, S["get"](name="c7"))
        else:
            async with storage.transaction():
                await storage._run_read(Work(lambda: calls(S["get"](name="c7")), single=True), bounded=True)
    await executor.execute("INSERT INTO counters SELECT 'c' || i, i FROM generate_series(1, 20000) i")
    assert await read(backend, S["get"](name="c7")) == [("c7", 7)]
    kept = await plan(backend, "get", "c7")
    assert "Index Scan" in kept
    assert "Seq Scan" not in kept
    assert "$1" in kept, "the kept plan is the generic one"


async def test_plans_are_renewed_for_tables_that_grew(
    connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await connect(database, pool_size=1)
    executor, names = backend.executor(), ["c7", "c8"]
    await executor.execute("ALTER TABLE counters SET (autovacuum_enabled = off)")
    await executor.execute("VACUUM ANALYZE counters")
    monkeypatch.setattr(postgres, "monotonic", lambda: 1000.0)
    assert await write(backend, S["add_all"](names=names), single=True) == [0]
    session = await backend.begin()
    await session.execute("INSERT INTO counters SELECT 'c' || i, i FROM generate_series(1, 20000) i")
    await session.commit()
    assert await write(backend, S["add_all"](names=names), single=True) == [2]
    assert "Index Cond" not in await plan(backend, "add_all", "{c7,c8}"), "all rows are read"
    monkeypatch.setattr(postgres, "monotonic", lambda: 1000.0 + postgres.PLANS_MIN_SEC)
    assert await write(backend, S["add_all"](names=names), single=True) == [2]
    assert "Index Cond" in await plan(backend, "add_all", "{c7,c8}")


async def test_caller_sql_sees_the_settings_of_the_server(connect: Connect, database: str) -> None:
    backend = await connect(database, pool_size=1)
    storage = Transactions(backend)

    async def mine() -> list[str]:
        return [
            (await read(backend, S["setting"](name=name)))[0][0]
            for name in ("enable_seqscan", "plan_cache_mode", "jit")
        ]

    assert await mine() == ["off", "force_generic_plan", "off"]
    async with storage.transaction() as conn:
        assert await conn.fetchval("SHOW enable_seqscan") == "on"
        assert await conn.fetchval("SHOW enable_bitmapscan") == "on"
        assert await conn.fetchval("SHOW plan_cache_mode") == "force_custom_plan"
        assert await conn.fetchval("SHOW jit") == "on"
    assert await mine() == ["off", "force_generic_plan", "off"]
    assert await backend.executor().fetchval("SHOW enable_seqscan") == "on"
    assert await backend.executor().fetchval("SHOW enable_bitmapscan") == "on"
    assert await backend.executor().fetchval("SHOW plan_cache_mode") == "auto"
    assert await mine() == ["off", "force_generic_plan", "off"]


# Errors.


@pytest.mark.parametrize(
    "kind",
    [
        *(asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedObjectError),
        *(asyncpg.UndefinedFunctionError, asyncpg.InvalidColumnReferenceError, asyncpg.InvalidSchemaNameError),
    ],
)
def test_anything_that_is_missing_is_a_schema_error(kind: type[asyncpg.PostgresError]) -> None:
    assert type(PostgresBackend("postgresql://u@host/d").translate(kind("it does not exist"))) is SchemaError


async def test_driver_errors_are_translated_and_chained(backend: PostgresBackend) -> None:
    with pytest.raises(SchemaError, match=r"call initialize\(\)") as absent:
        await read(backend, S["lost"]())
    assert isinstance(absent.value.__cause__, asyncpg.UndefinedColumnError)
    with pytest.raises(LimitError):
        await write(backend, S["put"](name="\ud800", n=1), single=True)
    with pytest.raises(LimitError):
        await write(backend, S["put"](name="a\0b", n=1), single=True)
    with pytest.raises(StorageError, match="rejected a statement"):
        await write(backend, S["put"](name="a", n="one"), single=True)
    assert await read(backend, S["count"]()) == [(0,)]


def test_statement_that_was_never_sent_is_known_to_have_no_effect() -> None:
    """asyncpg raises this if the server has just ended the session and the connection is not closed yet."""
    unsent = asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
    assert classify(unsent, fails_over=False) is Fault.UNSENT
    assert classify(asyncpg.InternalClientError("got an unexpected message"), fails_over=False) is Fault.LOST


async def test_a_read_only_server_is_unavailable(connect: Connect, database: str) -> None:
    backend = await connect(f"{database}?options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(DatabaseUnavailableError, match="accepts no writes"):
        await write(backend, S["put"](name="a", n=1), single=True)


async def test_write_to_a_standby_is_retried_on_the_next_server(
    connect: Connect, database: str, admin: asyncpg.Connection
) -> None:
    backend = await connect(f"{database}?target_session_attrs=any")
    name = urlsplit(database).path[1:]
    await write(backend, S["count"]())
    await admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    stale = await connect(f"{database}?target_session_attrs=any", pool_size=1)
    await admin.execute(f"SET default_transaction_read_only = off; ALTER DATABASE {name} RESET ALL")
    assert await write(stale, S["put"](name="a", n=1), single=True) == [1]
    assert await write(backend, S["add"](name="a", n=1), S["get"](name="a")) == [1, [("a", 2)]]


async def test_statement_cancelled_by_the_server_is_unavailable(connect: Connect, database: str) -> None:
    backend = await connect(f"{database}?options=-c%20statement_timeout%3D20ms")
    with pytest.raises(DatabaseUnavailableError, match="cancelled the statement"):
        await write(backend, S["pause"](seconds=30.0), single=True)


async def test_operation_is_retried_after_a_deadlock(
    connect: Connect, database: str, admin: asyncpg.Connection
) -> None:
    backend = await connect(f"{database}?options=-c%20deadlock_timeout%3D20ms")
    await write(backend, S["put"](name="a", n=0), S["put"](name="b", n=0))
    runs: list[str] = []

    def crossing(first: str, second: str) -> Operation[None]:
        runs.append(first)
        yield S["add"](name=first, n=1)
        yield S["meet"]()
        yield S["add"](name=second, n=1)

    await admin.execute("SELECT pg_advisory_lock(77)")
    writes = [asyncio.create_task(backend.write(Work(partial(crossing, *names)))) for names in ("ab", "ba")]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with asyncio.timeout(20):
        while await admin.fetchval(waiting) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await admin.execute("SELECT pg_advisory_unlock(77)")
    await asyncio.gather(*writes)
    assert len(runs) > 2, "they met"
    assert await read(backend, S["get"](name="a")) == [("a", 2)]
    assert await read(backend, S["get"](name="b")) == [("b", 2)]


async def test_lock_conflict_in_a_transaction_is_raised(backend: PostgresBackend, admin: asyncpg.Connection) -> None:
    storage = Transactions(backend)
    await write(backend, S["put"](name="a", n=0), single=True)
    async with admin.transaction():
        await admin.execute("UPDATE counters SET n = 1")
        with pytest.raises(TransactionConflictError):
            async with storage.transaction():
                await storage._run(Work(lambda: calls(S["lock"](name="a")), single=True))
    assert not storage.in_transaction()
    assert await read(backend, S["get"](name="a")) == [("a", 1)]


async def test_commit_of_a_failed_transaction_raises(backend: PostgresBackend) -> None:
    storage = Transactions(backend)
    with pytest.raises(TransactionError, match="rolled it back"):
        async with storage.transaction() as conn:
            await conn.execute("INSERT INTO counters VALUES ('a', 1)")
            with suppress(StorageError):
                await conn.execute("SELECT 1 / 0")
            with pytest.raises(TransactionError, match="an earlier statement of this transaction failed"):
                await conn.execute("INSERT INTO counters VALUES ('b', 1)")
    assert await read(backend, S["count"]()) == [(0,)]
    assert await write(backend, S["put"](name="a", n=1), single=True) == [1]


# Lost connections.


async def end_waiting_sessions(admin: asyncpg.Connection) -> None:
    await until(admin, A_SESSION_WAITS)
    await admin.execute(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {OTHERS} AND wait_event_type = 'Lock'"
    )


@pytest.fixture
async def blocked(backend: PostgresBackend, admin: asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    """A row `a` that another session holds until its transaction ends."""
    await write(backend, S["put"](name="a", n=0), single=True)
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute("UPDATE counters SET n = n WHERE name = 'a'")
    yield admin
    if admin.is_in_transaction():
        await transaction.rollback()


async def test_uncommitted_write_is_retried_after_a_lost_connection(
    backend: PostgresBackend, blocked: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "perdure.storage")
    task = asyncio.create_task(write(backend, S["add"](name="a", n=1), S["get"](name="a")))
    parts = asyncio.create_task(write(backend, S["add_two"](name="a", other="b", n=1), single=True))
    await until(blocked, "count(*) FILTER (WHERE wait_event_type = 'Lock') = 2")
    await end_waiting_sessions(blocked)
    await blocked.execute("ROLLBACK")
    assert (await task)[0] == 1
    assert await parts == [(1, 1)]
    assert await read(backend, S["get"](name="a")) == [("a", 2)]
    assert sum(record.message.startswith("a write failed and is retried: ") for record in caplog.records) == 2


async def test_commit_with_a_lost_reply_is_unknown(backend: PostgresBackend, blocked: asyncpg.Connection) -> None:
    task = asyncio.create_task(write(backend, S["add"](name="a", n=1), single=True))
    await end_waiting_sessions(blocked)
    with pytest.raises(CommitUnknownError):
        await task


async def test_commit_with_a_lost_reply_is_confirmed_by_reading(
    backend: PostgresBackend, blocked: asyncpg.Connection
) -> None:
    def confirm() -> Operation[list[Any] | None]:
        rows = yield S["get"](name="a")
        return ["found"] if rows else None

    task = asyncio.create_task(write(backend, S["add"](name="a", n=1), single=True, confirm=confirm))
    await end_waiting_sessions(blocked)
    assert await task == ["found"]


async def test_repeatable_write_is_retried_after_a_lost_reply(
    backend: PostgresBackend, blocked: asyncpg.Connection
) -> None:
    task = asyncio.create_task(write(backend, S["add"](name="a", n=1), single=True, repeat=True))
    await end_waiting_sessions(blocked)
    await blocked.execute("ROLLBACK")
    assert await task == [1]


async def test_lost_connection_is_raised_in_a_transaction(
    backend: PostgresBackend, blocked: asyncpg.Connection
) -> None:
    storage = Transactions(backend)

    async def work() -> None:
        async with storage.transaction() as conn:
            await conn.execute("INSERT INTO counters VALUES ('b', 1)")
            await storage._run(Work(lambda: calls(S["add"](name="a", n=1)), single=True))

    task = asyncio.create_task(work())
    await end_waiting_sessions(blocked)
    with pytest.raises(DatabaseUnavailableError, match="rolled back"):
        await task
    assert await read(backend, S["get"](name="b")) == []


async def test_server_ends_statements_of_a_disconnected_client(
    backend: PostgresBackend, blocked: asyncpg.Connection
) -> None:
    """A killed worker cannot say so itself; its statement would wait for the lock, and then hold it."""
    task = asyncio.create_task(write(backend, S["add"](name="a", n=1), single=True))
    await until(blocked, A_SESSION_WAITS)
    for connection in list(backend._prepared):
        connection.terminate()
    await until(blocked, f"NOT ({A_SESSION_WAITS})")
    with pytest.raises(CommitUnknownError):
        await task


async def test_connections_that_ended_while_idle_are_replaced(
    backend: PostgresBackend, admin: asyncpg.Connection
) -> None:
    await asyncio.gather(*(write(backend, S["pause"](seconds=0.01), single=True) for _ in range(5)))
    await admin.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {OTHERS}")
    assert await asyncio.gather(*(write(backend, S["put"](name=f"{i}", n=i)) for i in range(5))) == [[1]] * 5


async def test_server_restart_under_load_loses_no_acknowledged_write(
    own_server: PostgresServer, connect: Connect
) -> None:
    async with fresh_postgres(own_server.url) as url:
        backend = await connect(url, pool_size=4)
        await backend.executor().execute(TABLE)
        known: set[str] = set()
        unknown: set[str] = set()
        progress, stop = asyncio.Event(), asyncio.Event()

        async def worker(name: str, **how: Any) -> None:
            n = 0
            while not stop.is_set():
                key, n = f"{name}:{n}", n + 1
                try:
                    await write(backend, S["put"](name=key, n=n), **how)
                except CommitUnknownError:
                    unknown.add(key)
                else:
                    known.add(key)
                    progress.set()

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for i in range(4):
                group.create_task(worker(f"alone{i}", single=True))
                group.create_task(worker(f"begun{i}"))
            async with aclosing(backend.wakeups()) as hints:
                for end in (own_server.kill, own_server.restart):
                    assert (await anext(hints)).kind == "scan"
                    progress.clear()
                    await progress.wait()
                    await asyncio.to_thread(end)
                    if own_server.pid is None:
                        await asyncio.to_thread(own_server.start)
                    progress.clear()
                    await progress.wait()
                assert (await anext(hints)).kind == "scan"
            stop.set()
        stored = {name for (name,) in await backend.executor().fetch("SELECT name FROM counters")}
        assert known <= stored <= known | unknown
        await backend.close()


# Cancellation.


async def test_cancelled_lock_wait_ends_on_the_server(backend: PostgresBackend, blocked: asyncpg.Connection) -> None:
    storage = Transactions(backend)
    session = await backend.executor().fetchval("SELECT pg_backend_pid()")

    async def in_transaction() -> None:
        async with storage.transaction() as conn:
            await conn.execute("UPDATE counters SET n = 5")

    for work in (
        write(backend, S["add"](name="a", n=1), single=True),
        write(backend, S["add"](name="a", n=1), S["get"](name="a")),
        write(backend, S["add_two"](name="a", other="b", n=1), single=True),
        backend.executor().execute("UPDATE counters SET n = 5"),
        in_transaction(),
    ):
        task = asyncio.ensure_future(work)
        await until(blocked, A_SESSION_WAITS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await blocked.execute("SELECT pg_stat_clear_snapshot()")
        assert await blocked.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS} AND state <> 'idle'") == 0
        assert await backend.executor().fetchval("SELECT pg_backend_pid()") == session, "the connection is used again"
    assert len(backend._pool._idle) == backend._pool._size


async def ramble(backend: PostgresBackend, name: str) -> None:
    """A bit of everything."""
    storage, n = Transactions(backend), 0
    while True:
        n += 1
        await write(backend, S["put"](name=f"{name}.{n}.a", n=n), single=True)
        await write(backend, S["put"](name=f"{name}.{n}.b", n=n), S["add"](name="a", n=1))
        await write(backend, S["add_two"](name="a", other=f"{name}.{n}.c", n=1), single=True)
        await backend.executor().fetch(f"SELECT {random.random()} FROM counters LIMIT $1", 1)
        async with storage.transaction() as conn, storage.transaction():
            await conn.execute("UPDATE counters SET n = n + 1 WHERE name = $1", "b")
            await storage._run(Work(lambda: calls(S["add"](name="a", n=1), S["get"](name="a"))))
        await read(backend, S["count"]())


@pytest.mark.parametrize("through", ["server", "pooler"])
async def test_cancellation_at_any_point_leaves_no_open_transaction(
    connect: Connect, database: str, pooled_database: str, own_server: PostgresServer, through: str
) -> None:
    url = database if through == "server" else pooled_database
    backend = await connect(url, pool_size=2)
    direct = database if through == "server" else own_server.url.replace("/postgres", urlsplit(url).path)
    admin = await asyncpg.connect(direct)
    await write(backend, S["put"](name="a", n=0), S["put"](name="b", n=0))
    chance = random.Random(7)
    for i in range(150):
        tasks = [asyncio.create_task(ramble(backend, f"{i}.{j}")) for j in range(3)]
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice([0, 0.001, 0.005]))
        for task in tasks:
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks), [task for task in tasks if not task.cancelled()]
        await until(admin, "count(*) FILTER (WHERE state <> 'idle') = 0")
    assert not await admin.fetchval(
        "SELECT count(*) FROM pg_locks JOIN pg_class ON relation = pg_class.oid WHERE relname = 'counters'"
    )
    sessions = [await backend.begin() for _ in range(2)]
    for session in sessions:
        assert await session.fetchval("SELECT 1") == 1
        await session.rollback()
    assert len(backend._pool._idle) == backend._pool._size <= 2
    assert not backend._pool._waiters
    assert set(backend._prepared) == set(backend._pool._idle)
    await admin.close()


async def test_cancelled_connection_attempt_leaves_nothing(database: str, admin: asyncpg.Connection) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    attempts = 0
    while True:
        backend = PostgresBackend(database)
        task = asyncio.create_task(backend.open())
        for _ in range(attempts):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await backend.close()
        if not task.cancelled():
            break
        attempts += 1
    gc.collect()
    assert attempts > 1
    assert reported == []
    await until(admin, "count(*) = 0")


async def test_each_connection_does_not_read_the_types_again(
    connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(await connect(database), S["add_all"](names=[]), S["numbers"](numbers=[1]))
    reads: list[object] = []
    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", lambda _, oids, timeout: reads.append(oids))
    assert await write(await connect(database), S["numbers"](numbers=[1, 2])) == [[(1,), (2,)]]
    assert reads == []


# Poolers.


async def test_transaction_pooler_is_detected(
    connect: Connect, pooled_database: str, pooler: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.storage")
    found = await connect(pooled_database)
    declared = await connect(f"{pooled_database}?pooler=transaction")
    assert found.pooled
    assert declared.pooled
    assert sum("is behind a connection pooler" in record.message for record in caplog.records) == 1
    assert not (await connect(pooler.target)).pooled


async def test_many_clients_work_behind_a_pooler_with_two_connections(connect: Connect, pooled_database: str) -> None:
    clients = [await connect(pooled_database, pool_size=5) for _ in range(4)]
    storages = [Transactions(client) for client in clients]

    async def work(i: int) -> None:
        backend, storage = clients[i % 4], storages[i % 4]
        await write(backend, S["put"](name=f"{i}", n=0), single=True)
        for _ in range(5):
            await write(backend, S["add"](name=f"{i}", n=1), S["get"](name=f"{i}"))
            await write(backend, S["add"](name=f"{i}", n=1), single=True)
            assert (await read(backend, S["get"](name=f"{i}")))[0][0] == f"{i}"
        async with storage.transaction() as conn:
            assert await conn.execute("UPDATE counters SET n = n + $1 WHERE name = $2", 1, f"{i}") == 1
            await storage._run(Work(lambda: calls(S["add"](name=f"{i}", n=1))))
            assert await conn.fetchval("SHOW TimeZone") == "UTC"
        await write(backend, S["add_two"](name=f"{i}", other=f"{i}+", n=1), single=True)

    await asyncio.gather(*(work(i) for i in range(40)))
    assert await clients[0].executor().fetch("SELECT DISTINCT n FROM counters WHERE name NOT LIKE '%+'") == [(13,)]
    kept = await clients[0].executor().fetch("SELECT * FROM pg_prepared_statements")
    assert kept == [], "no named statement is left on the pooler's connections"
    assert await clients[0].executor().fetchval("SHOW enable_seqscan") == "on"


async def test_prepared_statements_survive_a_schema_change_behind_a_pooler(
    connect: Connect, pooled_database: str
) -> None:
    backend = await connect(pooled_database, pool_size=1)
    await write(backend, S["put"](name="a", n=1), single=True)
    await read(backend, S["get"](name="a"))
    await backend.executor().execute("ALTER TABLE counters ALTER COLUMN n TYPE int")
    assert await read(backend, S["get"](name="a")) == [("a", 1)]
    for kind in ("bigint", "int"):
        await write(backend, S["add"](name="a", n=1), single=True)
        await backend.executor().execute(f"ALTER TABLE counters ALTER COLUMN n TYPE {kind}")
        assert await write(backend, S["add"](name="a", n=1), single=True) == [1]
    assert await read(backend, S["get"](name="a")) == [("a", 5)]


async def test_listener_behind_a_transaction_pooler_polls_and_warns_once(
    connect: Connect, pooled_database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "PROOF_SEC", 0.2)
    backend = await connect(pooled_database)
    for _ in range(2):
        async with aclosing(backend.wakeups()) as hints, asyncio.timeout(10):
            assert [(await anext(hints)).kind for _ in range(3)] == ["scan"] * 3
    assert sum("notifications do not arrive" in record.message for record in caplog.records) == 1


async def test_polling_listener_looks_often_while_the_database_is_written_to(backend: PostgresBackend) -> None:
    pauses: list[float] = []

    class Pausing(listening.Listener):
        async def _next(self, timeout: float) -> WakeUp | None:
            pauses.append(timeout)
            return None

    async with aclosing(Pausing(backend)._polled()) as hints:
        await anext(hints)
        for name in ("a", "b"):
            await write(backend, S["put"](name=name, n=1))
            await anext(hints)
    assert pauses == [listening.POLL_MIN_SEC] * 2


async def test_listener_works_behind_a_session_pooler(own_server: PostgresServer, connect: Connect) -> None:
    with PgBouncer(own_server, "session") as pooler:
        backend = await connect(pooler.url)
        assert backend.pooled
        async with aclosing(backend.wakeups()) as hints, asyncio.timeout(10):
            assert (await anext(hints)).kind == "scan"
            await backend.notify(CHANNELS[0], '{"instance_id": "i"}')
            assert await anext(hints) == WakeUp(CHANNELS[0], {"instance_id": "i"})
        assert not backend.must_poll
        await backend.close()


# Wake-ups.


async def test_notifications_arrive_as_hints(backend: PostgresBackend, admin: asyncpg.Connection) -> None:
    first, second = backend.wakeups(), backend.wakeups()
    async with aclosing(first), aclosing(second), asyncio.timeout(10):
        for hints in (first, second):
            assert await anext(hints) == WakeUp("scan")
        for channel in CHANNELS:
            await admin.execute(f"""NOTIFY {channel}, '{{"instance_id": "i", "message_id": 3}}'""")
        for payload in ("", "no json", "[1]"):
            await admin.execute("SELECT pg_notify($1, $2)", CHANNELS[0], payload)
        expected = [WakeUp(channel, {"instance_id": "i", "message_id": 3}) for channel in CHANNELS]
        for hints in (first, second):
            assert [await anext(hints) for _ in range(7)] == expected + [WakeUp(CHANNELS[0])] * 3
    assert backend.listeners == set()
    await until(admin, "count(*) FILTER (WHERE query LIKE 'LISTEN%') = 0")


async def test_lost_listener_reconnects_and_requests_a_scan(
    backend: PostgresBackend, admin: asyncpg.Connection
) -> None:
    async with aclosing(backend.wakeups()) as hints, asyncio.timeout(10):
        assert (await anext(hints)).kind == "scan"
        for _ in range(3):
            await admin.execute(
                f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {OTHERS} AND query LIKE 'LISTEN%'"
            )
            assert (await anext(hints)).kind == "scan"
            await admin.execute(f"NOTIFY {CHANNELS[2]}")
            assert (await anext(hints)).kind == CHANNELS[2]


async def test_overflow_of_a_slow_consumer_becomes_one_scan(
    backend: PostgresBackend, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HINTS_MAX", 5)
    async with aclosing(backend.wakeups()) as hints, asyncio.timeout(10):
        assert (await anext(hints)).kind == "scan"
        (listener,) = backend.listeners
        for i in range(20):
            await admin.execute("SELECT pg_notify($1, $2)", CHANNELS[0], str(i))
        while listener._hints.qsize() < 6:
            await admin.execute("SELECT pg_sleep(0.001)")
        assert [(await anext(hints)).kind for _ in range(6)] == [CHANNELS[0]] * 5 + ["scan"]


async def test_closing_the_backend_ends_the_wakeup_iterator(
    connect: Connect, database: str, admin: asyncpg.Connection
) -> None:
    backend = await connect(database)
    hints = backend.wakeups()
    assert (await anext(hints)).kind == "scan"
    waiting = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0)
    await backend.close()
    async with asyncio.timeout(10):
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert [hint async for hint in backend.wakeups()] == []
    await until(admin, "count(*) = 0")
    with pytest.raises(DatabaseUnavailableError, match="not open"):
        await write(backend, S["count"]())


class Wire:
    """A way to the server that can fall silent without closing."""

    def __init__(self, port: int) -> None:
        self._port, self._pairs = port, list[asyncio.StreamWriter]()
        self._silent: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._join, "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._pairs:
            writer.transport.abort()
        self.fall_silent()
        await asyncio.sleep(0)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._pairs += [writer, there_writer]
        for source, target in ((reader, there_writer), (there_reader, writer)):
            self._silent.add(asyncio.create_task(self._pass_on(source, target)))

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                target.write(data)

    def fall_silent(self) -> None:
        """Pass on nothing more on what is connected now."""
        for task in self._silent:
            task.cancel()
        self._silent.clear()


async def test_silent_connection_of_the_listener_is_detected(
    connect: Connect, own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "CHECK_SEC", 0.1)
    async with Wire(own_server.port) as wire, asyncio.timeout(20):
        backend = await connect(f"postgresql://perdure@127.0.0.1:{wire.port}/postgres?sslmode=disable")
        async with aclosing(backend.wakeups()) as hints:
            assert (await anext(hints)).kind == "scan"
            wire.fall_silent()
            assert (await anext(hints)).kind == "scan"
        await backend.close()


async def test_command_timeout_retries_a_read_on_a_new_connection(connect: Connect, own_server: PostgresServer) -> None:
    async with Wire(own_server.port) as wire, asyncio.timeout(20):
        url = f"postgresql://perdure@127.0.0.1:{wire.port}/postgres?sslmode=disable&command_timeout=0.2&pool_size=1"
        backend = await connect(url)
        assert await read(backend, S["setting"](name="TimeZone")) == [("UTC",)]
        wire.fall_silent()
        assert await read(backend, S["setting"](name="TimeZone")) == [("UTC",)]
        await backend.close()


@pytest.mark.parametrize("retry_sec", [15.0, 0.0], ids=["in time", "too late"])
async def test_connections_to_a_silent_server_are_not_reused(
    connect: Connect, own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, retry_sec: float
) -> None:
    """Each of them would cost a timeout of its own."""
    async with Wire(own_server.port) as wire, asyncio.timeout(30):
        url = f"postgresql://perdure@127.0.0.1:{wire.port}/postgres?sslmode=disable&command_timeout=0.2&pool_size=3"
        backend = await connect(url)
        await asyncio.gather(*(write(backend, S["pause"](seconds=0.05), single=True) for _ in range(3)))
        old = set(backend._pool._idle)
        assert len(old) == 3
        wire.fall_silent()
        monkeypatch.setattr(retries, "RETRY_SEC", retry_sec)
        with nullcontext() if retry_sec else pytest.raises(DatabaseUnavailableError):
            await read(backend, S["setting"](name="TimeZone"))
        assert not old & set(backend._pool._idle)
        await backend.close()


# Notifications.


class Sent:
    """A stand-in for the pool: what was sent."""

    def __init__(self) -> None:
        self.channels: list[str] = []
        self.more = asyncio.Event()

    async def __call__(self, channel: str, payload: str) -> None:
        assert payload == COALESCED
        self.channels.append(channel)
        self.more.set()


async def test_burst_sends_its_first_notification_and_one_trailing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.database.backends.postgres.notifier.WINDOW_SEC", 0.3)  # a busy machine is slow
    sent = Sent()
    notifier = Notifier(sent)
    assert notifier.due("a")
    assert not notifier.due("a")
    assert notifier.due("b"), "each channel separately"
    for _ in range(5):
        notifier.trail("a")
    await asyncio.wait_for(sent.more.wait(), 5)
    assert sent.channels == ["a"]
    assert not notifier.due("a"), "the trailing one opens a new window"
    notifier.trail("a")
    await notifier.close()
    assert sent.channels == ["a", "a"], "what is outstanding leaves at the end"


async def test_transaction_that_commits_late_sends_its_own_trailing_notification() -> None:
    sent = Sent()
    notifier = Notifier(sent)
    assert notifier.due("a")
    assert not notifier.due("a")  # this one takes long
    notifier.trail("a")  # a short one
    await asyncio.wait_for(sent.more.wait(), 5)
    sent.more.clear()
    notifier.trail("a")  # the long one has committed
    await asyncio.wait_for(sent.more.wait(), 5)
    assert sent.channels == ["a", "a"]


async def test_disabled_notifier_sends_nothing() -> None:
    sent = Sent()
    notifier = Notifier(sent)
    notifier.enabled = False
    assert not notifier.due("a")
    notifier.trail("a")
    await notifier.close()
    assert sent.channels == []


@pytest.mark.pitfall(25)
async def test_listener_is_woken_after_the_last_commit_of_a_burst(
    backend: PostgresBackend, connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "CHECK_SEC", 1000)
    other = await connect(database)
    channel, total = CHANNELS[0], 0
    heard = 0
    async with aclosing(other.wakeups()) as hints, asyncio.timeout(30):
        assert (await anext(hints)).kind == "scan"

        async def commit(name: str) -> None:
            carried = backend.notifier.due(channel)
            await write(backend, S["put"](name=name, n=0), single=True)
            if carried:
                await backend.notify(channel, "{}")
            else:
                backend.notifier.trail(channel)

        for burst in (1, 2, 50, 200):
            total += burst
            commits = asyncio.gather(*(commit(f"{burst}.{i}") for i in range(burst)))
            while (await read(other, S["count"]()))[0][0] < total:
                await anext(hints)
                heard += 1
            await commits
    assert heard < total / 2
