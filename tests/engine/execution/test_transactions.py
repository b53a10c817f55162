"""Transactional activities: the SQL of a user, the result and the messages are one commit, on every database."""

import asyncio
import sqlite3
import time
from datetime import timedelta
from typing import Any

import asyncmy.connection
import asyncpg.connection
import pytest

from perdure import (
    App,
    Retry,
    TransactionTooLongError,
    WorkflowFailedError,
    activity,
    activity_info,
    connection,
    publish,
    receive,
    sleep,
    subscribe,
    workflow,
)
from perdure.errors import OutsideWorkflowError
from perdure.storage.stores import SQLStorage
from tests.engine.crashes.rig.effect_table import run_sql
from tests.engine.waiting import row_of
from tests.support.storages import Database, storage_of

ONCE = Retry(attempts=1)

SOON = timedelta(seconds=60)
QUICK = Retry(attempts=3, initial=timedelta(milliseconds=5))
TABLE = "CREATE TABLE IF NOT EXISTS accounts (name VARCHAR(50) PRIMARY KEY, balance INTEGER NOT NULL)"


@activity(transactional=True, retry=QUICK)
async def move(amount: int, fails: int) -> int:
    await run_sql(f"UPDATE accounts SET balance = balance - {amount} WHERE name = 'ann'")
    await run_sql(f"UPDATE accounts SET balance = balance + {amount} WHERE name = 'bob'")
    await publish("moved", amount)
    if activity_info().attempt <= fails:
        raise ValueError("not this time")
    return amount


@activity(transactional=True, retry=QUICK)
def move_plainly(amount: int) -> int:
    db = connection()
    db.execute(f"UPDATE accounts SET balance = balance - {amount} WHERE name = 'ann'")
    db.execute(f"UPDATE accounts SET balance = balance + {amount} WHERE name = 'bob'")
    return int(db.fetchval("SELECT balance FROM accounts WHERE name = 'bob'"))


@activity(transactional=True, retry=Retry(attempts=1))
async def dawdle() -> None:
    await run_sql("UPDATE accounts SET balance = 0")
    await asyncio.Event().wait()


class Harm:
    """What befalls the database under the first execution of an activity, really; the next one is left in peace.

    On a server the session of its transaction is ended. SQLite has none: there its file may grow no more, as on a
    full disk, and the result that is to be recorded has no room.
    """

    def __init__(self, backend: str, storage: SQLStorage) -> None:
        self._backend, self._storage = backend, storage
        self._loop = asyncio.get_running_loop()
        self.attempts: list[int] = []

    @property
    def question(self) -> str:
        """To be asked in the transaction; whatever it says is the session that is ended."""
        self.attempts.append(activity_info().attempt)
        if self._backend == "sqlite":
            return f"PRAGMA max_page_count = {1 if len(self.attempts) == 1 else 1 << 30}"  # never under what is there
        return "SELECT pg_backend_pid()" if self._backend == "postgresql" else "SELECT connection_id()"

    async def strike(self, session: int) -> None:
        """Return when the server has ended the session."""
        if self._backend == "sqlite" or len(self.attempts) > 1:
            return
        end, there = ENDING[self._backend]
        await self._storage.db().fetch(end.format(session))
        while await self._storage.db().fetchval(there.format(session)):  # noqa: ASYNC110 - the server ends it
            await asyncio.sleep(0.005)

    def strike_from_a_thread(self, session: int) -> None:
        asyncio.run_coroutine_threadsafe(self.strike(session), self._loop).result()


HARMS: list[Harm] = []  # the last one counts
LONG = "x" * 200_000
ENDING = {
    "postgresql": ("SELECT pg_terminate_backend({})", "SELECT count(*) FROM pg_stat_activity WHERE pid = {}"),
    "mysql": ("KILL {}", "SELECT count(*) FROM information_schema.processlist WHERE id = {}"),
}


@activity(transactional=True, retry=Retry(attempts=1))
async def meet_harm() -> str:
    await run_sql("UPDATE accounts SET balance = balance + 1 WHERE name = 'bob'")
    native: Any = connection()
    if hasattr(native, "ping"):
        async with native.cursor() as cursor:
            await cursor.execute(HARMS[-1].question)
            (session,) = await cursor.fetchone()
    elif hasattr(native, "fetchval"):
        session = await native.fetchval(HARMS[-1].question)
    else:
        (session,) = native.execute(HARMS[-1].question).fetchone()
    await HARMS[-1].strike(session)
    return LONG


@activity(transactional=True, retry=Retry(attempts=1))
def meet_harm_plainly() -> str:
    """Get the error from its own statement, or not at all."""
    db = connection()
    db.execute("UPDATE accounts SET balance = balance + 1 WHERE name = 'bob'")
    HARMS[-1].strike_from_a_thread(db.fetchval(HARMS[-1].question))
    db.execute("UPDATE accounts SET balance = balance - 1 WHERE name = 'ann'")
    return LONG


@workflow(name="transactions.transfer")
async def transfer(amount: int, fails: int) -> int:
    return await move(amount, fails)


@workflow(name="transactions.plain")
async def plain_transfer(amount: int) -> int:
    return await move_plainly(amount)


@workflow(name="transactions.many")
async def many() -> int:
    return sum(await asyncio.gather(*(move(1, 0) for _ in range(10)), move_plainly(0)))


@workflow(name="transactions.dawdling")
async def dawdling() -> None:
    await dawdle()


@workflow(name="transactions.harmed")
async def harmed(plainly: bool) -> str:
    return await (meet_harm_plainly() if plainly else meet_harm())


@activity(transactional=True, retry=Retry(attempts=1))
async def end_it_early() -> None:
    await run_sql("UPDATE accounts SET balance = 0")
    await run_sql("ROLLBACK")


@workflow(name="transactions.ending")
async def ending() -> None:
    await end_it_early()


@workflow(name="transactions.listening")
async def listening() -> int:
    await subscribe("moved")
    await sleep(timedelta(seconds=0.01))
    return int((await receive("moved")).data)


async def balances(storage: SQLStorage) -> dict[str, int]:
    return dict(await storage.db().fetch("SELECT name, balance FROM accounts"))


@pytest.fixture
async def accounts(backend_database: Any, request: pytest.FixtureRequest) -> Any:
    async with backend_database(request.param) as database:
        storage = await database.storage()
        await storage.db().execute(TABLE)
        await storage.db().execute("DELETE FROM accounts")
        await storage.db().execute("INSERT INTO accounts VALUES ('ann', 100), ('bob', 0)")
        yield database
        await storage.db().execute("DROP TABLE accounts")


everywhere = pytest.mark.parametrize("accounts", ["sqlite", "postgresql", "mysql"], indirect=True)


@pytest.mark.guarantee(1)
@pytest.mark.call("transactions")
@everywhere
async def test_sql_result_and_messages_are_one_commit(accounts: Database) -> None:
    async with App(accounts.url) as app:
        listener = await listening.start()
        while (await row_of(listener)).status.value == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await (await transfer.start(10, 2)).result(SOON) == 10
        assert await balances(storage_of(app)) == {"ann": 90, "bob": 10}
        assert await listener.result(SOON) == 10
        messages = await app._storage.get_pending_channel_messages("moved")
        assert len(messages) == 1  # the attempts that failed sent nothing


@pytest.mark.call("transactions")
@pytest.mark.pitfall(29)
@everywhere
async def test_failed_transaction_leaves_nothing(accounts: Database) -> None:
    async with App(accounts.url) as app:
        with pytest.raises(WorkflowFailedError):
            await (await transfer.start(10, 99)).result(SOON)
        assert await balances(storage_of(app)) == {"ann": 100, "bob": 0}
        assert await app._storage.get_pending_channel_messages("moved") == []


@everywhere
@pytest.mark.parametrize("plainly", [False, True])
async def test_database_error_does_not_count_as_an_attempt(accounts: Database, plainly: bool) -> None:
    """The only attempt that is allowed meets it, and is made again."""
    harm = Harm(accounts.backend, await accounts.storage())
    HARMS.append(harm)
    async with App(accounts.url) as app:
        handle = await harmed.start(plainly)
        assert await handle.result(SOON) == LONG
        assert harm.attempts == [1, 1]
        history, _ = await app._storage.get_history_paginated(handle.id)
        steps = [event.event_type for event in history if ":meet_harm" in event.activity_id]
        assert steps == ["ActivityCompleted"]
        assert await balances(storage_of(app)) == {"ann": 100 - plainly, "bob": 1}


@everywhere
async def test_transaction_ended_by_its_code_records_nothing(accounts: Database) -> None:
    async with App(accounts.url) as app:
        handle = await ending.start()
        with pytest.raises(WorkflowFailedError, match="has ended"):
            await handle.result(SOON)
        history, _ = await app._storage.get_history_paginated(handle.id)
        assert "ActivityCompleted" not in {event.event_type for event in history}
        assert await (await transfer.start(10, 0)).result(SOON) == 10  # others continue
        assert await balances(storage_of(app)) == {"ann": 90, "bob": 10}


@pytest.mark.behaviour("connection")
@everywhere
async def test_connection_is_a_blocking_facade_in_a_plain_function(accounts: Database) -> None:
    async with App(accounts.url) as app:
        assert await (await plain_transfer.start(7)).result(SOON) == 7
        assert await balances(storage_of(app)) == {"ann": 93, "bob": 7}


@pytest.mark.guarantee(7)
@everywhere
async def test_transactions_of_concurrent_branches_all_commit(accounts: Database) -> None:
    async with App(accounts.url) as app:
        handles = [await many.start() for _ in range(3)]
        for handle in handles:
            await handle.result(SOON)
        assert await balances(storage_of(app)) == {"ann": 70, "bob": 30}


@pytest.mark.guarantee(7)
@pytest.mark.parametrize("accounts", ["sqlite"], indirect=True)
async def test_transaction_on_sqlite_has_a_time_limit(accounts: Database) -> None:
    async with App(accounts.url, transaction_timeout=timedelta(seconds=0.2)) as app:
        began = time.monotonic()
        with pytest.raises(WorkflowFailedError) as caught:
            await (await dawdling.start()).result(SOON)
        assert isinstance(caught.value.__cause__, TransactionTooLongError)
        assert time.monotonic() - began < 20  # the activity waits forever
        assert await balances(storage_of(app)) == {"ann": 100, "bob": 0}


def test_connection_outside_a_transactional_activity_is_refused() -> None:
    with pytest.raises(OutsideWorkflowError):
        connection()


@activity(transactional=True, retry=ONCE)
async def look_at_it() -> str:
    native = connection()
    kinds = (sqlite3.Connection, asyncpg.connection.Connection, asyncmy.connection.Connection)
    return type(native).__name__ if isinstance(native, kinds) else "something else"


@workflow(name="transactions.native")
async def native() -> str:
    return await look_at_it()


@pytest.mark.behaviour("connection")
async def test_connection_is_the_native_connection_of_the_driver(database: Database) -> None:
    async with App(database.url):
        assert await (await native.start()).result(SOON) != "something else"
