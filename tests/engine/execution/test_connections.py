"""connection() in a transactional activity: SQLAlchemy shares its transaction, on every database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from perdure import App, Retry, WorkflowFailedError, activity, activity_info, connection, workflow
from perdure.errors import ConfigurationError, TransactionError
from perdure.storage.stores import SQLStorage
from perdure.testing import TestApp
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
ONCE = Retry(attempts=1)
TWICE = Retry(attempts=2, initial=timedelta(milliseconds=5))


class Base(DeclarativeBase):
    """The user's tables."""


class Account(Base):
    __tablename__ = "accounts"
    name: Mapped[str] = mapped_column(sa.String(50), primary_key=True)
    balance: Mapped[int]
    rate: Mapped[Decimal | None] = mapped_column(sa.Numeric(10, 4))
    since: Mapped[date | None]
    seen: Mapped[datetime | None]
    details: Mapped[Any | None] = mapped_column(sa.JSON)


class Entry(Base):
    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(sa.String(200))


CREATED = datetime(2026, 1, 31, 12, 0, 1)


@activity(transactional=True, retry=TWICE)
async def move(amount: int, fails: int) -> int:
    db = connection("sqlalchemy")
    assert isinstance(db, AsyncConnection)
    assert connection("sqlalchemy") is db
    change = sa.update(Account).values(balance=Account.balance - amount).where(Account.name == "ann")
    assert (await db.execute(change)).rowcount == 1
    await db.execute(sa.insert(Account).values(name="bob", balance=amount))
    if activity_info().attempt <= fails:
        raise ValueError("not this time")
    found = await db.scalar(sa.select(Account.balance).where(Account.name == "bob"))
    assert found == amount
    return amount


@activity(transactional=True, retry=TWICE)
def move_plainly(amount: int, fails: int) -> int:
    db = connection("sqlalchemy")
    assert isinstance(db, sa.Connection)
    change = sa.update(Account).values(balance=Account.balance - amount).where(Account.name == "ann")
    assert db.execute(change).rowcount == 1
    connection().execute(f"INSERT INTO accounts (name, balance) VALUES ('bob', {amount})")
    if activity_info().attempt <= fails:
        raise ValueError("not this time")
    with db as same:
        return int(same.execute(sa.select(Account.balance).where(Account.name == "bob")).scalar_one())


@activity(transactional=True, retry=ONCE)
async def map_objects() -> list[str]:
    """The ORM, with types that drivers treat each in their own way."""
    async with AsyncSession(connection("sqlalchemy")) as session:
        eve = Account(name="eve", balance=1, rate=Decimal("1.5"), since=date(2026, 1, 31), seen=CREATED)
        eve.details = {"a": [1, None, "ü"]}
        session.add_all([eve, *(Entry(note=f"{n} %s ? $1 :x") for n in range(3))])
        await session.commit()
        session.expire_all()
        found = (await session.scalars(sa.select(Account).where(Account.name == "eve"))).one()
        assert (found.rate, found.since, found.seen) == (Decimal("1.5"), date(2026, 1, 31), CREATED)
        assert found.details == {"a": [1, None, "ü"]}
        entries = (await session.scalars(sa.select(Entry).order_by(Entry.id))).all()
        assert len({entry.id for entry in entries}) == 3
        return [row.note async for row in await session.stream(sa.select(Entry.note).order_by(Entry.id))]


@activity(transactional=True, retry=ONCE)
def map_objects_plainly() -> int:
    with Session(connection("sqlalchemy")) as session:
        session.add_all([Entry(note="a"), Entry(note="b")])
        session.commit()
        return len(session.scalars(sa.select(Entry)).all())


@activity(transactional=True, retry=ONCE)
async def end_it(how: str) -> str:
    """None of these ends the engine's transaction."""
    db = connection("sqlalchemy")
    await db.execute(sa.insert(Entry).values(note="first"))
    if how == "commit":
        with pytest.raises(TransactionError, match="the engine commits"):
            await db.commit()
    elif how == "transaction.commit":
        with pytest.raises(TransactionError, match="the engine commits"):
            await db.get_transaction().commit()
    elif how == "begin":
        with pytest.raises(TransactionError, match="the engine commits"):
            async with db.begin():
                pass
    elif how == "raw":
        with pytest.raises(TransactionError, match="the engine commits"):
            (await db.get_raw_connection()).dbapi_connection.commit()
    elif how == "close":
        async with db:
            pass
        await db.close()
        await db.execute(sa.insert(Entry).values(note="second"))
    elif how == "rollback":
        await db.rollback()
        await db.execute(sa.insert(Entry).values(note="second"))
    elif how == "session.rollback":
        async with AsyncSession(db) as session:
            session.add(Entry(note="third"))
            await session.flush()
            await session.rollback()
    elif how == "nested":
        nested = await db.begin_nested()
        await db.execute(sa.insert(Entry).values(note="second"))
        await nested.rollback()
        async with db.begin_nested():
            await db.execute(sa.insert(Entry).values(note="third"))
    elif how == "fail":
        await db.commit()
    return how


@activity(transactional=True, retry=ONCE)
async def stumble() -> str:
    """The driver's errors come as SQLAlchemy's, and the transaction can continue."""
    db = connection("sqlalchemy")
    with pytest.raises(IntegrityError):
        async with db.begin_nested():
            await db.execute(sa.insert(Account).values(name="ann", balance=1))
    with pytest.raises((ProgrammingError, OperationalError)):
        async with db.begin_nested():
            await db.execute(sa.text("SELECT * FROM nowhere"))
    await db.execute(sa.insert(Entry).values(note="still here"))
    return "done"


MEETING: list[asyncio.Event] = []


@activity(transactional=True, retry=ONCE)
async def cross(first: str, second: str, mine: int) -> str:
    """Two of these deadlock; an activity that ignores the error must not commit what came after."""
    db = connection("sqlalchemy")
    for number, name in enumerate((first, second)):
        try:
            await db.execute(sa.update(Account).values(balance=Account.balance + 1).where(Account.name == name))
        except sa.exc.DBAPIError:
            return "overlooked"
        if number == 0:
            MEETING[mine].set()
            await MEETING[1 - mine].wait()
    return "done"


KEPT: list[Any] = []


@activity(transactional=True, retry=ONCE)
async def keep() -> None:
    KEPT.append(connection("sqlalchemy"))
    await KEPT[0].execute(sa.insert(Entry).values(note="in time"))


@activity(transactional=True, retry=ONCE)
async def make_tables() -> int:
    db = connection("sqlalchemy")
    await db.run_sync(Base.metadata.create_all)
    names = await db.run_sync(lambda inner: sa.inspect(inner).get_table_names())
    return len({"accounts", "entries"} & set(names))


ACTIVITIES: dict[str, Any] = {
    each.name: each
    for each in (move, move_plainly, map_objects, map_objects_plainly, end_it, stumble, cross, keep, make_tables)
}


@workflow(name="connections.one")
async def one(name: str, args: list[Any]) -> Any:
    return await ACTIVITIES[name](*args)


@workflow(name="connections.many")
async def many() -> int:
    found = await asyncio.gather(*(end_it("close") for _ in range(8)), *(map_objects_plainly() for _ in range(4)))
    return len(found)


@pytest.fixture
async def database(request: pytest.FixtureRequest, backend_database: Any) -> AsyncIterator[Database]:
    """An empty database with the user's tables."""
    async with backend_database(request.param) as database:
        storage = await database.storage()
        kind = sa.dialects.registry.load(database.backend)()
        for table in Base.metadata.sorted_tables:
            await storage.db().execute(f"DROP TABLE IF EXISTS {table.name}")
            await storage.db().execute(str(sa.schema.CreateTable(table).compile(dialect=kind)))
        await storage.db().execute("INSERT INTO accounts (name, balance) VALUES ('ann', 100)")
        yield database
        for table in Base.metadata.sorted_tables:
            await storage.db().execute(f"DROP TABLE {table.name}")


everywhere = pytest.mark.parametrize("database", ["sqlite", "postgresql", "mysql"], indirect=True)


async def balances(storage: SQLStorage) -> dict[str, int]:
    return dict(await storage.db().fetch("SELECT name, balance FROM accounts"))


async def notes(storage: SQLStorage) -> list[str]:
    return [row[0] for row in await storage.db().fetch("SELECT note FROM entries ORDER BY id")]


@pytest.mark.behaviour("connection")
@everywhere
@pytest.mark.parametrize("name", ["move", "move_plainly"])
async def test_sqlalchemy_connection_shares_the_transaction(database: Database, name: str) -> None:
    async with App(database.url) as app:
        assert await (await one.start(name, [10, 1])).result(SOON) == 10
        assert await balances(storage_of(app)) == {"ann": 90, "bob": 10}


@everywhere
@pytest.mark.parametrize("name", ["move", "move_plainly"])
async def test_failed_activity_leaves_nothing_written_with_sqlalchemy(database: Database, name: str) -> None:
    async with App(database.url) as app:
        with pytest.raises(WorkflowFailedError):
            await (await one.start(name, [10, 9])).result(SOON)
        assert await balances(storage_of(app)) == {"ann": 100}


@everywhere
async def test_orm_session_works_on_the_connection(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await one.start("map_objects", [])).result(SOON) == [f"{n} %s ? $1 :x" for n in range(3)]
        assert await (await one.start("map_objects_plainly", [])).result(SOON) == 5
        assert len(await notes(storage_of(app))) == 5


ENDINGS = {
    "commit": ["first"],
    "transaction.commit": ["first"],
    "begin": ["first"],
    "raw": ["first"],
    "close": ["first", "second"],
    "rollback": ["second"],
    "session.rollback": [],
    "nested": ["first", "third"],
}


@everywhere
@pytest.mark.parametrize("how", ENDINGS)
async def test_sqlalchemy_cannot_end_the_transaction(database: Database, how: str) -> None:
    async with App(database.url) as app:
        assert await (await one.start("end_it", [how])).result(SOON) == how
        assert await notes(storage_of(app)) == ENDINGS[how]


@pytest.mark.behaviour("connection")
@everywhere
async def test_commit_on_the_sqlalchemy_connection_is_refused(database: Database) -> None:
    async with App(database.url) as app:
        with pytest.raises(WorkflowFailedError, match="the engine commits"):
            await (await one.start("end_it", ["fail"])).result(SOON)
        assert await notes(storage_of(app)) == []


@everywhere
async def test_errors_are_those_of_sqlalchemy(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await one.start("stumble", [])).result(SOON) == "done"
        assert await notes(storage_of(app)) == ["still here"]


@everywhere
async def test_sqlalchemy_connection_is_unusable_after_the_activity(database: Database) -> None:
    KEPT.clear()
    async with App(database.url) as app:
        await (await one.start("keep", [])).result(SOON)
        with pytest.raises(sa.exc.InvalidRequestError):
            await KEPT[0].execute(sa.insert(Entry).values(note="late"))
        assert await notes(storage_of(app)) == ["in time"]


@everywhere
async def test_tables_can_be_inspected(database: Database) -> None:
    async with App(database.url):
        assert await (await one.start("make_tables", [])).result(SOON) == 2


@everywhere
async def test_many_sqlalchemy_transactions_run_concurrently(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await many.start()).result(SOON) == 12
        assert len(await notes(storage_of(app))) == 24


@pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)
async def test_deadlocked_transaction_is_retried_within_its_attempt(database: Database) -> None:
    MEETING[:] = [asyncio.Event(), asyncio.Event()]
    async with App(database.url) as app:
        await app._storage.db().execute("INSERT INTO accounts (name, balance) VALUES ('bob', 100)")
        handles = [await one.start("cross", ["ann", "bob", 0]), await one.start("cross", ["bob", "ann", 1])]
        ends = await asyncio.gather(*(handle.result(SOON) for handle in handles))
        assert ends == ["done", "done"]  # the transaction that was given up ran again, within its only attempt
        assert await balances(storage_of(app)) == {"ann": 102, "bob": 102}


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_connection_is_reset_for_its_next_user(database: Database) -> None:
    """SQLAlchemy would set codecs on it."""
    async with App(database.url) as app:
        await (await one.start("map_objects", [])).result(SOON)
        for _ in range(12):
            assert await app._storage.db().fetchval("SELECT '[1]'::jsonb") == "[1]"


@activity(transactional=True, retry=ONCE)
async def record_without_sql() -> str:
    return "recorded"


@activity(transactional=True, retry=ONCE)
async def ask_for_sqlalchemy() -> None:
    connection("sqlalchemy")


@workflow
async def without_sql() -> str:
    with pytest.raises(ConfigurationError, match="needs a storage on SQLite"):
        await ask_for_sqlalchemy()
    return await record_without_sql()


async def test_transactional_activities_need_no_sql_although_the_program_uses_sqlalchemy() -> None:
    async with TestApp():  # in memory
        assert await (await without_sql.start()).result() == "recorded"
