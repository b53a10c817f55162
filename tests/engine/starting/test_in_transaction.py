"""Starting a run in the caller's transaction: with every driver, the run exists if and only if it commits."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar
from urllib.parse import urlsplit

import aiomysql
import aiosqlite
import asyncmy
import asyncpg
import psycopg
import psycopg.rows
import pymysql
import pymysql.cursors
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from perdure import (
    App,
    Client,
    ConfiguredWorkflow,
    EngineError,
    RunHandle,
    WorkflowCancelledError,
    activity,
    connection,
    recur,
    sleep,
    workflow,
)
from perdure.engine.api.handles import IN_OPEN_APP
from perdure.engine.api.sync_handles import decoder_of
from perdure.errors import ConfigurationError, NotDurableError, RunExistsError, TerminalError, TransactionError
from perdure.integrations.connections import recognised, settled
from perdure.storage.stores import SQLStorage
from tests.support.blocking import blocked
from tests.support.storages import Database

SOON = timedelta(seconds=60)
P = ParamSpec("P")
R = TypeVar("R")
TEXT = "Grüße, 世界 🎉 \\ ' \" % %s $1 ?"  # what a driver could take for something else


@workflow(name="in_transaction.greet")
async def greet(name: str) -> str:
    return f"hello {name}"


@workflow(name="in_transaction.other")
async def other(name: str) -> str:
    return name


@workflow(name="in_transaction.long")
async def long() -> None:
    await sleep(timedelta(hours=1))


async def start(configured: ConfiguredWorkflow[P, R], *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
    """Start with the method that is for this kind of connection."""
    if recognised(configured._options.in_transaction).blocking:
        started = configured.start_sync(*args, **kwargs)
        return RunHandle((IN_OPEN_APP, started.id), decoder_of(started))
    return await configured.start(*args, **kwargs)


Do = Callable[[str], Any]


class Caller:
    """A connection and how its owner uses it; every answer may be one to await."""

    def __init__(self, connection: Any, begin: Callable[[], Any], execute: Do, **ends: Callable[[], Any]) -> None:
        self.connection = connection
        self._begin, self._execute = begin, execute
        self._commit = ends.get("commit") or connection.commit
        self._rollback = ends.get("rollback") or connection.rollback

    async def begin(self) -> None:
        await settled(self._begin())

    async def execute(self, sql: str) -> None:
        await settled(self._execute(sql))

    async def commit(self) -> None:
        await settled(self._commit())

    async def rollback(self) -> None:
        await settled(self._rollback())


def server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "user": parts.username}


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


@asynccontextmanager
async def with_sqlite3(url: str) -> AsyncIterator[Caller]:
    db = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        yield Caller(db, lambda: db.execute("BEGIN"), db.execute)
    finally:
        db.close()


@asynccontextmanager
async def with_aiosqlite(url: str) -> AsyncIterator[Caller]:
    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as db:
        yield Caller(db, lambda: db.execute("BEGIN"), db.execute)


def of_asyncpg(db: Any) -> Caller:
    return Caller(
        db,
        lambda: db.execute("BEGIN"),
        db.execute,
        commit=lambda: db.execute("COMMIT"),
        rollback=lambda: db.execute("ROLLBACK"),
    )


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Caller]:
    db = await asyncpg.connect(url)
    try:
        yield of_asyncpg(db)
    finally:
        await db.close()


@asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as db:
        yield of_asyncpg(db)


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as db:
        yield Caller(db, lambda: db.execute("SELECT 1"), db.execute)
        db.rollback()


@asynccontextmanager
async def with_psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as db:
        yield Caller(db, lambda: db.execute("SELECT 1"), db.execute)
        await db.rollback()


@asynccontextmanager
async def with_pymysql(url: str) -> AsyncIterator[Caller]:
    db = pymysql.connect(**server(url), database=name_of(url), autocommit=True)
    try:
        yield Caller(db, db.begin, lambda sql: db.cursor().execute(sql))
    finally:
        db.close()


@asynccontextmanager
async def with_aiomysql(url: str) -> AsyncIterator[Caller]:
    db = await aiomysql.connect(**server(url), db=name_of(url), autocommit=True)

    async def execute(sql: str) -> None:
        async with db.cursor() as cursor:
            await cursor.execute(sql)

    try:
        yield Caller(db, db.begin, execute)
    finally:
        db.close()


@asynccontextmanager
async def with_asyncmy(url: str) -> AsyncIterator[Caller]:
    db = await asyncmy.connect(**server(url), db=name_of(url), autocommit=True)

    async def execute(sql: str) -> None:
        async with db.cursor() as cursor:
            await cursor.execute(sql)

    try:
        yield Caller(db, db.begin, execute)
    finally:
        db.close()


def of_sqlalchemy(url: str, driver: str) -> str:
    return url.replace("postgres://", "postgresql://").replace("://", f"+{driver}://", 1)


def with_sqlalchemy(driver: str, kind: type) -> Callable[[str], AbstractAsyncContextManager[Caller]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = sa.create_engine(of_sqlalchemy(url, driver))
        with kind(engine) as db:
            yield Caller(db, db.begin, lambda sql: db.execute(sa.text(sql)))
        engine.dispose()

    return opened


def with_async_sqlalchemy(driver: str, kind: type) -> Callable[[str], AbstractAsyncContextManager[Caller]]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Caller]:
        engine = create_async_engine(of_sqlalchemy(url, driver))
        async with kind(engine) if kind is AsyncSession else engine.connect() as db:
            yield Caller(db, lambda: db.begin().start(), lambda sql: db.execute(sa.text(sql)))
        await engine.dispose()

    return opened


KINDS: dict[str, tuple[str, Callable[[str], AbstractAsyncContextManager[Caller]]]] = {
    "sqlite3": ("sqlite", with_sqlite3),
    "aiosqlite": ("sqlite", with_aiosqlite),
    "asyncpg": ("postgresql", with_asyncpg),
    "asyncpg-pool": ("postgresql", with_asyncpg_pool),
    "psycopg": ("postgresql", with_psycopg),
    "psycopg-async": ("postgresql", with_psycopg_async),
    "pymysql": ("mysql", with_pymysql),
    "aiomysql": ("mysql", with_aiomysql),
    "asyncmy": ("mysql", with_asyncmy),
}
for backend, drivers in {"sqlite": ["pysqlite"], "postgresql": ["psycopg"], "mysql": ["pymysql"]}.items():
    for driver in drivers:
        KINDS[f"sqlalchemy-{driver}-connection"] = backend, with_sqlalchemy(driver, sa.Connection)
        KINDS[f"sqlalchemy-{driver}-session"] = backend, with_sqlalchemy(driver, Session)
for backend, drivers in {
    "sqlite": ["aiosqlite"],
    "postgresql": ["asyncpg", "psycopg"],
    "mysql": ["aiomysql", "asyncmy"],
}.items():
    for driver in drivers:
        KINDS[f"sqlalchemy-{driver}-async-connection"] = backend, with_async_sqlalchemy(driver, AsyncConnection)
        KINDS[f"sqlalchemy-{driver}-async-session"] = backend, with_async_sqlalchemy(driver, AsyncSession)

BLOCKING = ["sqlite3", "psycopg", "pymysql", *(name for name in KINDS if "sqlalchemy" in name and "async-" not in name)]


@pytest.fixture
async def database(request: pytest.FixtureRequest, backend_database: Any) -> AsyncIterator[Database]:
    """An empty database with a table of the caller's own."""
    async with backend_database(request.param) as database:
        storage = await database.storage()
        await storage.db().execute("DROP TABLE IF EXISTS orders")
        await storage.db().execute("CREATE TABLE orders (name VARCHAR(50) PRIMARY KEY)")
        yield database
        await storage.db().execute("DROP TABLE orders")


@pytest.fixture
async def caller(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Caller]:
    async with KINDS[request.param][1](database.url) as caller:
        yield caller


def each(names: Iterable[str] = KINDS) -> pytest.MarkDecorator:
    pairs = [pytest.param(KINDS[name][0], name, id=name) for name in names]
    return pytest.mark.parametrize(("database", "caller"), pairs, indirect=True)


ONE_EACH = ["sqlite3", "psycopg", "pymysql", "asyncpg", "sqlalchemy-aiosqlite-async-session"]


async def ids(storage: SQLStorage) -> list[str]:
    return [row[0] for row in await storage.db().fetch("SELECT instance_id FROM workflow_instances")]


async def orders(storage: SQLStorage) -> list[str]:
    return [row[0] for row in await storage.db().fetch("SELECT name FROM orders")]


@pytest.mark.call("run")
@pytest.mark.behaviour("in_transaction")
@each()
async def test_run_starts_after_the_commit(database: Database, caller: Caller) -> None:
    storage = await database.storage()
    await caller.begin()
    await caller.execute("INSERT INTO orders (name) VALUES ('a')")
    handle = await start(greet.options(id="run ü", in_transaction=caller.connection), TEXT)
    assert await storage.get_instance("run ü") is None
    await caller.commit()
    assert await orders(storage) == ["a"]
    async with App(database.url):
        assert await handle.result(SOON) == f"hello {TEXT}"


@pytest.mark.behaviour("in_transaction")
@each()
async def test_nothing_is_stored_after_a_rollback(database: Database, caller: Caller) -> None:
    storage = await database.storage()
    await caller.begin()
    await caller.execute("INSERT INTO orders (name) VALUES ('a')")
    handle = await start(greet.options(timeout=SOON, after=SOON, in_transaction=caller.connection), "a")
    await caller.rollback()
    assert await ids(storage) == await orders(storage) == []
    assert await storage.get_instance(handle.id) is None
    assert await storage.db().fetch("SELECT * FROM workflow_timer_subscriptions") == []


@pytest.mark.behaviour("in_transaction")
@each()
async def test_connection_without_an_open_transaction_is_refused(database: Database, caller: Caller) -> None:
    with pytest.raises(TransactionError, match="no open transaction"):
        await start(greet.options(in_transaction=caller.connection), "a")
    await caller.begin()
    await caller.execute("INSERT INTO orders (name) VALUES ('a')")
    await caller.commit()
    with pytest.raises(TransactionError, match="no open transaction"):
        await start(greet.options(in_transaction=caller.connection), "a")
    assert await ids(await database.storage()) == []


@each()
async def test_existing_id_in_a_transaction_returns_the_same_run_or_is_refused(
    database: Database, caller: Caller
) -> None:
    """In the same transaction or before it; the transaction continues either way."""
    storage = await database.storage()
    async with Client(database.url):
        await greet.options(id="early").start("a")
    await caller.begin()
    connection = caller.connection
    assert (await start(greet.options(id="early", in_transaction=connection), "a")).id == "early"
    for given in ("early", "late"):
        await start(greet.options(id=given, in_transaction=connection), "a")
        with pytest.raises(RunExistsError):
            await start(greet.options(id=given, in_transaction=connection), "b")
        with pytest.raises(RunExistsError):
            await start(other.options(id=given, in_transaction=connection), "a")
        with pytest.raises(RunExistsError):
            await start(greet.options(id=given, if_exists="error", in_transaction=connection), "a")
    await caller.execute("INSERT INTO orders (name) VALUES ('a')")
    await caller.commit()
    assert sorted(await ids(storage)) == ["early", "late"]
    assert await orders(storage) == ["a"]


@each()
async def test_start_in_a_transaction_with_a_delay_and_a_deadline(database: Database, caller: Caller) -> None:
    await caller.begin()
    past = datetime.now(UTC) - timedelta(seconds=1)
    first = await start(greet.options(at=past, in_transaction=caller.connection), "a")
    second = await start(greet.options(after=timedelta(hours=1), in_transaction=caller.connection), "b")
    third = await start(long.options(timeout=timedelta(milliseconds=1), in_transaction=caller.connection))
    await caller.commit()
    storage = await database.storage()
    ((due,),) = await storage.db().fetch(
        f"SELECT expires_at FROM workflow_timer_subscriptions WHERE instance_id = '{second.id}'"
    )
    due = (datetime.fromisoformat(due) if isinstance(due, str) else due).replace(tzinfo=UTC)
    assert abs(due - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    async with App(database.url):
        assert await first.result(SOON) == "hello a"
        assert (await second.info()).status == "waiting_for_timer"
        with pytest.raises(WorkflowCancelledError):
            await third.result(SOON)


@pytest.mark.behaviour("in_transaction")
@each(BLOCKING)
async def test_start_sync_writes_to_a_blocking_connection_at_the_call(database: Database, caller: Caller) -> None:
    await caller.begin()
    started = greet.options(in_transaction=caller.connection).start_sync("a")
    await caller.commit()
    async with App(database.url) as app:
        assert await app.get(started).result(SOON) == "hello a"


@pytest.mark.behaviour("in_transaction")
@each()
async def test_start_and_start_sync_refuse_the_wrong_kind_of_connection(database: Database, caller: Caller) -> None:
    configured = greet.options(in_transaction=caller.connection)
    await caller.begin()
    if recognised(caller.connection).blocking:
        with pytest.raises(TypeError, match=r"is a blocking connection: use start_sync\(…\) with it"):
            await configured.start("a")
    else:
        with pytest.raises(TypeError, match=r"is an async connection: use `await start\(…\)` with it"):
            configured.start_sync("a")
    await caller.commit()
    assert await ids(await database.storage()) == []


@workflow(name="in_transaction.starting")
async def starting() -> str:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("BEGIN")
        try:
            greet.options(in_transaction=connection).start_sync("a")
        except NotDurableError as error:
            return str(error)
    return "started"


async def test_start_sync_in_a_body_is_refused() -> None:
    async with App("sqlite:///:memory:"):
        assert "start the run in an activity" in await (await starting.start()).result(SOON)


class AwaitedCursor(sqlite3.Cursor):
    """A cursor whose statements have to be awaited, although it belongs to a blocking connection."""

    closed: ClassVar[list[bool]] = []

    async def execute(self, *_: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)

    def close(self) -> None:
        self.closed.append(True)
        super().close()


class AwaitedConnection(sqlite3.Connection):
    def cursor(self, *_: Any) -> Any:
        return super().cursor(AwaitedCursor)


def test_start_sync_on_a_connection_that_has_to_be_awaited_fails_and_closes_its_cursor() -> None:
    """At once, and not by the garbage collector: the caller may keep the error, and with it what the start used."""
    AwaitedCursor.closed.clear()
    with closing(AwaitedConnection(":memory:")) as db:
        sqlite3.Cursor(db).execute("BEGIN")
        with pytest.raises(AssertionError) as kept:
            greet.options(in_transaction=db).start_sync("a")
        assert len(AwaitedCursor.closed) == 1
        assert "a blocking connection suspended" in str(kept.value)


@each(["sqlite3", "psycopg", "pymysql"])
async def test_start_sync_needs_no_event_loop(database: Database, caller: Caller) -> None:
    """A blocking program has none; nor does it have an app."""

    def opened() -> Any:
        match database.backend:
            case "sqlite":
                return sqlite3.connect(database.url.removeprefix("sqlite:///"))
            case "postgresql":
                return psycopg.connect(database.url)
        return pymysql.connect(**server(database.url), database=name_of(database.url))

    def program() -> str:
        db = opened()
        db.cursor().execute("INSERT INTO orders (name) VALUES ('a')")
        started: str = greet.options(in_transaction=db).start_sync("a").id
        db.commit()
        db.close()
        return started

    started = await asyncio.to_thread(program)
    async with App(database.url) as app:
        assert await app.get(started).result(SOON) == "hello a"


@each(["aiosqlite", "asyncpg"])
async def test_handle_without_an_app_raises_with_an_explanation(database: Database, caller: Caller) -> None:
    await caller.begin()
    handle = await start(greet.options(in_transaction=caller.connection), "a")
    await caller.commit()
    with pytest.raises(EngineError, match="no App or Client is open"):
        await handle.result(SOON)


@each(["aiosqlite"])
async def test_handle_without_an_app_uses_the_next_one(database: Database, caller: Caller) -> None:
    await caller.begin()
    handle = await start(greet.options(in_transaction=caller.connection), "a")
    later = await start(greet.options(after=SOON, in_transaction=caller.connection), "b")
    await caller.commit()
    async with App(database.url) as app:
        assert await handle.result(SOON) == "hello a"
        same = app.get(handle.id)
        assert await handle.info() == await same.info()
        assert await handle.steps() == await same.steps() == []
        assert await handle.state() is None
        await later.cancel("no longer wanted")
        with pytest.raises(WorkflowCancelledError):
            await later.result(SOON)
        assert [entry.kind async for entry in later.history()] == ["WorkflowCancelled"]


@each(["sqlite3", "asyncpg", "aiomysql"])
async def test_open_app_executes_the_run(database: Database, caller: Caller) -> None:
    async with App(database.url):
        await caller.begin()
        handle = await start(greet.options(in_transaction=caller.connection), "a")
        await caller.commit()
        assert await handle.result(SOON) == "hello a"


@each(["asyncpg", "psycopg"])
async def test_postgresql_notifies_workers_at_the_commit(database: Database, caller: Caller) -> None:
    listener = await asyncpg.connect(database.url)
    heard: asyncio.Queue[str] = asyncio.Queue()
    await listener.add_listener("workflow_resumable", lambda *args: heard.put_nowait(args[3]))
    await caller.begin()
    handle = await start(greet.options(in_transaction=caller.connection), "a")
    await listener.fetchval("SELECT 1")
    assert heard.empty()
    await caller.commit()
    assert handle.id in await asyncio.wait_for(heard.get(), 10)
    await listener.close()


@each(["sqlite3"])
async def test_connection_to_another_database_is_refused(
    database: Database, caller: Caller, fresh_postgres_db: str
) -> None:
    async with Client(fresh_postgres_db):
        await caller.begin()
        with pytest.raises(EngineError, match=r"one of sqlite, but the app's database is postgresql"):
            await start(greet.options(in_transaction=caller.connection), "a")


async def test_object_that_is_not_a_connection_is_refused() -> None:
    engine = sa.create_engine("sqlite://")
    with sqlite3.connect(":memory:") as db:
        for thing in ("sqlite:///a.db", db.cursor(), engine):
            with pytest.raises(ConfigurationError, match="in_transaction= does not support connections of type"):
                await greet.options(in_transaction=thing).start("a")
    db.close()
    engine.dispose()


@workflow(name="in_transaction.body")
async def body() -> str:
    try:
        await greet.options(in_transaction=sqlite3).start("a")
    except NotDurableError:
        return "refused"
    return "taken"


async def test_in_transaction_in_a_body_is_refused() -> None:
    async with App("sqlite:///:memory:"):
        assert await (await body.start()).result(SOON) == "refused"


# What a session may be set to.

SETTINGS = {
    "sqlite": ["PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = ON"],
    "postgresql": [
        "SET TimeZone = 'Asia/Tokyo'",
        "SET DateStyle = 'German'",
        "SET standard_conforming_strings = off",
        "SET default_transaction_isolation = 'serializable'",
        "SET bytea_output = 'escape'",
    ],
    "mysql": [
        "SET time_zone = '+09:00'",
        "SET sql_mode = ''",
        "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL'",
        "SET NAMES latin1",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ],
}
SET = [
    pytest.param(KINDS[name][0], name, setting, id=f"{name}-{setting}")
    for name in ("sqlite3", "aiosqlite", "asyncpg", "psycopg", "pymysql", "aiomysql", "asyncmy")
    for setting in SETTINGS[KINDS[name][0]]
]


@pytest.mark.behaviour("in_transaction")
@pytest.mark.parametrize(("database", "caller", "setting"), SET, indirect=["database", "caller"])
async def test_session_settings_do_not_matter(database: Database, caller: Caller, setting: str) -> None:
    await caller.execute(setting)
    await caller.commit()
    await caller.begin()
    await start(greet.options(id="a", in_transaction=caller.connection), TEXT)
    await start(greet.options(id="a", in_transaction=caller.connection), TEXT)
    await start(
        greet.options(at=datetime(2020, 1, 1, tzinfo=UTC), timeout=SOON, id="b", in_transaction=caller.connection), TEXT
    )
    await caller.commit()
    storage = await database.storage()
    for name in "ab":
        found = await storage.get_instance(name)
        assert found is not None
        assert found.started_at is not None
        assert abs(found.started_at - datetime.now(UTC)) < timedelta(minutes=1)
    (timer,) = await storage.find_expired_timers()
    assert timer.expires_at == datetime(2020, 1, 1, tzinfo=UTC)
    async with App(database.url) as app:
        for name in "ab":
            assert await app.get(name).result(SOON) == f"hello {TEXT}"


ROWS: list[tuple[str, Callable[[Any], None]]] = [
    ("sqlite3", lambda db: setattr(db, "row_factory", sqlite3.Row)),
    ("sqlite3", lambda db: setattr(db, "row_factory", lambda cursor, row: {"row": row})),
    ("sqlite3", lambda db: setattr(db, "text_factory", bytes)),
    ("aiosqlite", lambda db: setattr(db, "row_factory", lambda cursor, row: {"row": row})),
    ("psycopg", lambda db: setattr(db, "row_factory", psycopg.rows.dict_row)),
    ("psycopg", lambda db: setattr(db, "cursor_factory", psycopg.ClientCursor)),
    ("psycopg-async", lambda db: setattr(db, "row_factory", psycopg.rows.dict_row)),
    ("pymysql", lambda db: setattr(db, "cursorclass", pymysql.cursors.DictCursor)),
]


@pytest.mark.parametrize(
    ("database", "caller", "change"),
    [(KINDS[name][0], name, change) for name, change in ROWS],
    indirect=["database", "caller"],
)
async def test_any_row_factory_is_accepted(database: Database, caller: Caller, change: Callable[[Any], None]) -> None:
    change(caller.connection)
    await caller.begin()
    for _ in range(2):
        await start(greet.options(id="a", timeout=SOON, in_transaction=caller.connection), "ü")
    with pytest.raises(RunExistsError):
        await start(greet.options(id="a", in_transaction=caller.connection), "b")
    await caller.commit()
    assert await ids(await database.storage()) == ["a"]


# Races.


@each(["asyncpg", "psycopg-async", "aiomysql", "asyncmy"])
async def test_two_transactions_with_one_id_create_one_run(database: Database, caller: Caller) -> None:
    """The second waits for the first, and finds its run, though its own snapshot is older."""
    opened = KINDS["asyncpg" if database.backend == "postgresql" else "aiomysql"][1]
    async with opened(database.url) as rival:
        await caller.begin()
        await caller.execute("SELECT * FROM orders")
        await rival.begin()
        await start(greet.options(id="one", in_transaction=rival.connection), "a")
        same = asyncio.create_task(start(greet.options(id="one", in_transaction=caller.connection), "a"))
        await blocked(await database.storage(), same)
        await rival.commit()
        assert (await same).id == "one"
        with pytest.raises(RunExistsError):
            await start(greet.options(id="one", in_transaction=caller.connection), "b")
        await caller.execute("INSERT INTO orders (name) VALUES ('a')")
        await caller.commit()
    storage = await database.storage()
    assert await ids(storage) == ["one"]
    assert await orders(storage) == ["a"]


@each(["asyncpg", "psycopg-async"])
async def test_cancelled_start_leaves_nothing(database: Database, caller: Caller) -> None:
    """It is cancelled while it waits for the definition that another transaction writes; its own continues."""
    async with with_asyncpg(database.url) as rival:
        await rival.begin()
        await start(greet.options(in_transaction=rival.connection), "a")
        await caller.begin()
        task = asyncio.create_task(start(greet.options(id="one", after=SOON, in_transaction=caller.connection), "a"))
        await blocked(await database.storage(), task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rival.rollback()
        await caller.execute("INSERT INTO orders (name) VALUES ('a')")
        await caller.commit()
    storage = await database.storage()
    assert await ids(storage) == []
    assert await orders(storage) == ["a"]


@each(["asyncpg", "aiomysql"])
async def test_first_start_in_an_open_transaction_blocks_no_other_start(
    database: Database, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start waits for a definition that it wrote: the app has written them all."""
    monkeypatch.setattr("perdure.engine.starting.DEFINE_SEC", 60)  # a busy machine may need longer than apps wait
    async with App(database.url):
        await caller.begin()
        first = await start(greet.options(in_transaction=caller.connection), "a")
        assert await (await greet.start("b")).result(SOON) == "hello b"
        assert await (await other.start("c")).result(SOON) == "c"
        await caller.commit()
        assert await first.result(SOON) == "hello a"


@each(["asyncpg", "aiomysql"])
async def test_app_opens_beside_a_transaction_with_a_first_start(database: Database, caller: Caller) -> None:
    await caller.begin()
    first = await start(greet.options(in_transaction=caller.connection), "a")
    async with asyncio.timeout(10), App(database.url):
        await caller.commit()
        assert await first.result(SOON) == "hello a"


@each(["pymysql", "aiomysql"])
async def test_first_starts_of_two_workflows_do_not_wait_for_each_other(database: Database, caller: Caller) -> None:
    """On MySQL in its own isolation level, where a look for a definition that is not there locks the gap."""
    async with with_aiomysql(database.url) as rival:
        await caller.begin()
        await start(greet.options(in_transaction=caller.connection), "a")
        await rival.begin()
        async with asyncio.timeout(10):
            await start(other.options(in_transaction=rival.connection), "a")
        await rival.commit()
        await caller.commit()
    assert len(await ids(await database.storage())) == 2


@each(["asyncpg", "psycopg-async", "sqlalchemy-asyncpg-async-session"])
async def test_failed_start_leaves_the_transaction_usable(database: Database, caller: Caller) -> None:
    """Even a table that is out of reach does not abort it."""
    await caller.begin()
    await caller.execute("ALTER TABLE workflow_instances RENAME TO elsewhere")
    with pytest.raises(Exception, match="workflow_instances"):
        await start(greet.options(id="a", in_transaction=caller.connection), "a")
    await caller.execute("ALTER TABLE elsewhere RENAME TO workflow_instances")
    await start(greet.options(id="a", in_transaction=caller.connection), "a")
    await caller.commit()
    assert await ids(await database.storage()) == ["a"]


@each(["sqlalchemy-psycopg-connection", "sqlalchemy-pymysql-connection", "sqlalchemy-pysqlite-connection"])
async def test_sqlalchemy_connection_in_autocommit_mode_is_refused(database: Database, caller: Caller) -> None:
    caller.connection.execution_options(isolation_level="AUTOCOMMIT")
    await caller.begin()
    with pytest.raises(TransactionError, match="AUTOCOMMIT"):
        await start(greet.options(in_transaction=caller.connection), "a")
    assert await ids(await database.storage()) == []


@each(["pymysql", "aiomysql", "asyncmy"])
async def test_mysql_connection_without_autocommit_is_always_in_a_transaction(
    database: Database, caller: Caller
) -> None:
    """It begins with whatever comes first, and be it the start."""
    await settled(caller.connection.autocommit(False))
    await start(greet.options(id="undone", in_transaction=caller.connection), "a")
    await caller.rollback()
    await start(greet.options(id="kept", in_transaction=caller.connection), "a")
    assert await ids(await database.storage()) == []
    await caller.commit()
    assert await ids(await database.storage()) == ["kept"]


@each(["sqlite3", "pymysql"])
async def test_start_inside_a_savepoint_of_the_caller(database: Database, caller: Caller) -> None:
    await caller.begin()
    await start(greet.options(id="kept", in_transaction=caller.connection), "a")
    await caller.execute("SAVEPOINT mine")
    await start(greet.options(id="undone", in_transaction=caller.connection), "a")
    await caller.execute("ROLLBACK TO SAVEPOINT mine")
    await caller.commit()
    assert await ids(await database.storage()) == ["kept"]


@activity(transactional=True)
async def start_within(kind: Literal["native", "sqlalchemy"], fails: bool) -> str:
    handle: RunHandle[str] = await start(greet.options(id="inner", timeout=SOON, in_transaction=connection(kind)), "a")
    if fails:
        raise TerminalError("no")
    return handle.id


@activity(transactional=True)
def start_plainly(kind: Literal["native", "sqlalchemy"], fails: bool) -> str:
    for _ in range(2):
        handle = greet.options(id="inner", timeout=SOON, in_transaction=connection(kind)).start_sync("a")
    if fails:
        raise TerminalError("no")
    return handle.id


@workflow(name="in_transaction.nested")
async def nested(plain: bool, kind: Literal["native", "sqlalchemy"], fails: bool) -> str:
    try:
        return await (start_plainly if plain else start_within)(kind, fails)
    except TerminalError:
        return "failed"


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", ["native", "sqlalchemy"])
@pytest.mark.parametrize("fails", [False, True])
async def test_start_in_a_transactional_activity(
    database: Database, plain: bool, kind: Literal["native", "sqlalchemy"], fails: bool
) -> None:
    """Its connection is one as any other, in all its forms."""
    async with App(database.url) as app:
        outer = await nested.start(plain, kind, fails)
        assert await outer.result(SOON) == ("failed" if fails else "inner")
        if not fails:
            assert await app.get("inner").result(SOON) == "hello a"
    assert ("inner" in await ids(await database.storage())) is not fails


@workflow(name="in_transaction.loop")
async def again(number: int) -> str:
    if number < 3:
        recur(number + 1)
    return "done"


@each(ONE_EACH)
async def test_same_start_of_a_recurred_run_returns_that_run(database: Database, caller: Caller) -> None:
    async with App(database.url):
        assert await (await again.options(id="loop").start(1)).result(SOON) == "done"
    await caller.begin()
    assert (await start(again.options(id="loop", in_transaction=caller.connection), 1)).id == "loop"
    assert (await start(again.options(id="loop", in_transaction=caller.connection), 3)).id == "loop"
    with pytest.raises(RunExistsError):
        await start(again.options(id="loop", in_transaction=caller.connection), 7)
    await caller.rollback()
