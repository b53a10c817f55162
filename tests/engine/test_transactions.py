"""Transactional activities: a user's SQL, the result and what is sent are one commit, on every database."""

import asyncio
import time
from datetime import timedelta
from typing import Any

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
from perdure.storage.stores import Rooms
from tests.storages import Database

SOON = timedelta(seconds=20)
QUICK = Retry(attempts=3, first=timedelta(milliseconds=5))
TABLE = "CREATE TABLE IF NOT EXISTS accounts (name VARCHAR(50) PRIMARY KEY, balance INTEGER NOT NULL)"


async def run_sql(statement: str) -> None:
    """On whatever driver's connection this is."""
    native: Any = connection()
    if hasattr(native, "fetchval"):
        await native.execute(statement)
    elif hasattr(native, "cursor") and asyncio.iscoroutinefunction(native.ping if hasattr(native, "ping") else None):
        async with native.cursor() as cursor:
            await cursor.execute(statement)
    else:
        native.execute(statement)


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
    await asyncio.sleep(5)


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


@workflow(name="transactions.listening")
async def listening() -> int:
    await subscribe("moved")
    await sleep(timedelta(seconds=0.01))
    return int((await receive("moved")).data)


async def balances(storage: Rooms) -> dict[str, int]:
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


@everywhere
async def test_row_transactions_sql_result_and_messages_are_one_commit(accounts: Database) -> None:
    async with App(accounts.url) as app:
        listener = await listening.start()
        while (await listener.describe()).status.value == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await (await transfer.start(10, 2)).result(SOON) == 10
        assert await balances(app._storage) == {"ann": 90, "bob": 10}
        assert await listener.result(SOON) == 10
        messages = await app._storage.get_pending_channel_messages("moved")
        assert len(messages) == 1  # the attempts that failed sent nothing


@everywhere
async def test_row_transactions_what_fails_leaves_nothing(accounts: Database) -> None:
    async with App(accounts.url) as app:
        with pytest.raises(WorkflowFailedError):
            await (await transfer.start(10, 99)).result(SOON)
        assert await balances(app._storage) == {"ann": 100, "bob": 0}
        assert await app._storage.get_pending_channel_messages("moved") == []


@everywhere
async def test_meaning_connection_is_a_blocking_facade_in_a_plain_function(accounts: Database) -> None:
    async with App(accounts.url) as app:
        assert await (await plain_transfer.start(7)).result(SOON) == 7
        assert await balances(app._storage) == {"ann": 93, "bob": 7}


@everywhere
async def test_p7_transactions_of_one_run_side_by_side(accounts: Database) -> None:
    async with App(accounts.url) as app:
        handles = [await many.start() for _ in range(3)]
        for handle in handles:
            await handle.result(SOON)
        assert await balances(app._storage) == {"ann": 70, "bob": 30}


@pytest.mark.parametrize("accounts", ["sqlite"], indirect=True)
async def test_p7_on_sqlite_a_transaction_has_a_limit(accounts: Database) -> None:
    async with App(accounts.url, transaction_limit=timedelta(seconds=0.2)) as app:
        began = time.monotonic()
        with pytest.raises(WorkflowFailedError) as caught:
            await (await dawdling.start()).result(SOON)
        assert isinstance(caught.value.__cause__, TransactionTooLongError)
        assert time.monotonic() - began < 4
        assert await balances(app._storage) == {"ann": 100, "bob": 0}


def test_there_is_no_connection_elsewhere() -> None:
    with pytest.raises(OutsideWorkflowError):
        connection()
