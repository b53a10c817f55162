"""Calls as users write them. A type checker has to report the lines that say so, and no other."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, assert_type

from perdure import (
    App,
    BulkResult,
    Client,
    Event,
    Health,
    Message,
    Retention,
    Retry,
    RunHandle,
    RunInfo,
    StepInfo,
    SyncClient,
    SyncRunHandle,
    SyncRunQuery,
    activity,
    now,
    random,
    receive,
    sleep,
    timeout,
    uuid4,
    wait_event,
    workflow,
)
from perdure.testing import Call


@dataclass
class Receipt:
    number: str
    amount: float


@activity(retry=Retry(attempts=5, initial=0.2, maximum=timedelta(minutes=1)), timeout=10)
async def charge(order_id: str, amount: float) -> Receipt:
    return Receipt(order_id, amount)


@activity
def pack(order_id: str, *, gift: bool = False) -> int:
    return len(order_id)


@activity(name="shop.ship")
def ship(order_id: str) -> str:
    return order_id


@workflow
async def order(order_id: str, amount: float, *, gift: bool = False) -> Receipt:
    async with asyncio.TaskGroup() as group:
        paid = group.create_task(charge(order_id, amount))
        packed = group.create_task(pack.options(timeout=60)(order_id, gift=gift))
    assert_type(paid.result(), Receipt)
    assert_type(packed.result(), int)
    first, second = await asyncio.gather(charge(order_id, 1), ship(order_id))
    assert_type(first, Receipt)
    assert_type(second, str)
    assert_type(await asyncio.wait_for(pack(order_id), 5), int)
    assert_type(now(), datetime)
    assert_type(random(), Random)
    assert_type(uuid4().hex, str)
    await sleep(1)
    await sleep(timedelta(days=30))
    async with timeout(5):
        event = await wait_event("paid", where={"order": order_id}, timeout=60, data=Receipt)
    assert_type(event, Event[Receipt])
    assert_type(await receive("mail", type=str), Message[str])
    await charge(order_id)  # wrong: an argument is missing
    await charge(order_id, "9.5")  # wrong: text for a number
    await charge(order_id, amount=9.5, when=now())  # wrong: no such parameter
    await pack(order_id, True)  # wrong: by name only
    await pack.options(timeout="60")(order_id)  # wrong: a text is no duration
    await pack.options(retries=3)(order_id)  # wrong: no such option
    await sleep("1")  # wrong: a text is no duration
    number: int = await charge(order_id, amount)  # wrong: a receipt is no number
    return number  # wrong: not a receipt


@workflow(name="shop.nightly", cron="0 3 * * *", zone="Europe/Berlin", max_tries=3)
async def nightly(days: int = 1) -> None:
    receipt = await order("A-1", 1.0)
    assert_type(receipt, Receipt)
    await order("A-1")  # wrong: an argument is missing
    await order("A-1", 1.0, True)  # wrong: by name only


@activity(retry=3)  # wrong: not a Retry
async def three() -> None: ...


@activity(timeout="3")  # wrong: a text is no duration
async def late() -> None: ...


@workflow  # wrong: not an `async def`
def plain() -> None: ...


@workflow(nmae="plain")  # wrong: no such setting
async def misspelt() -> None: ...


Retry(attempts="3")  # wrong: text for a number
Retry(first=1)  # wrong: no such parameter
Retention(finished="30 days")  # wrong: a text is no duration


async def program() -> None:
    async with App("sqlite:///orders.db", lease=5, drain_timeout=timedelta(seconds=1), max_runs=10) as app:
        run = await order.start("A-1", 9.5)
        assert_type(run, RunHandle[Receipt])
        assert_type(await run.result(timeout=5), Receipt)
        assert_type(await order.options(id="order-A-1", after=60).start("A-1", 9.5, gift=True), RunHandle[Receipt])
        assert_type(await order("A-1", 9.5), Receipt)
        assert_type(await order.options(id="order-A-1")("A-1", amount=9.5), Receipt)
        assert_type(await order.function("A-1", 9.5), Receipt)
        assert_type(await nightly.options(at=datetime(2030, 1, 1, tzinfo=UTC)).start(), RunHandle[None])
        written = order.options(in_transaction=object()).start_sync("A-1", 9.5)
        assert_type(written, SyncRunHandle[Receipt])
        assert_type(app.get(written), RunHandle[Receipt])
        assert_type(await app.get("order-A-1").result(), Any)
        await order.start("A-1")  # wrong: an argument is missing
        await order.start(1, 9.5)  # wrong: a number for a text
        await order.start("A-1", 9.5, id="order-A-1")  # wrong: options are for options()
        await order.options(ident="a").start("A-1", 9.5)  # wrong: no such option
        await order.options(after="60").start("A-1", 9.5)  # wrong: a text is no duration
        await order.options(if_exists="same").start("A-1", 9.5)  # wrong: neither "return" nor "error"
        await order.options(id="a").start("A-1", amount="9.5")  # wrong: text for a number
        await order("A-1")  # wrong: an argument is missing
        order.start_sync("A-1")  # wrong: an argument is missing
        text: str = await order("A-1", 9.5)  # wrong: a receipt is no text
        await run.result(timeout="5")  # wrong: a text is no duration
        await app.cancel(run)  # wrong: a handle is no id
        print(run.resutl)  # wrong: misspelt
        print(text)
    with App("sqlite:///orders.db"):  # wrong: not `async with`
        pass
    async with Client("sqlite:///orders.db", outbox=True):
        pass
    App(3)  # wrong: neither a URL nor a storage
    App("sqlite:///orders.db", lease="5")  # wrong: a text is no duration
    App("sqlite:///orders.db", workflows=[charge])  # wrong: an activity
    App("sqlite:///orders.db", thread=3)  # wrong: no such setting


def blocking_program() -> None:
    with SyncClient("sqlite:///orders.db", outbox=True) as client:
        run = order.start_sync("A-1", 9.5)
        assert_type(run, SyncRunHandle[Receipt])
        assert_type(run.result(timeout=timedelta(seconds=5)), Receipt)
        assert_type(order.options(id="order-A-1", after=60).start_sync("A-1", 9.5, gift=True), SyncRunHandle[Receipt])
        assert_type(client.start(order, "A-1", amount=9.5), SyncRunHandle[Receipt])
        assert_type(client.start(order.options(id="order-A-1"), "A-1", 9.5).result(), Receipt)
        assert_type(client.start(nightly), SyncRunHandle[None])
        assert_type(run.info(), RunInfo)
        assert_type(run.steps(), list[StepInfo])
        assert_type([entry.kind for entry in run.history()], list[str])
        assert_type(client.runs(workflow=order, status="failed"), SyncRunQuery)
        assert_type([found.id for found in client.runs()], list[str])
        assert_type(client.runs().first(), RunInfo | None)
        assert_type(client.runs().cancel(dry_run=True), BulkResult)
        assert_type(client.health(), Health)
        order.start_sync("A-1", "9.5")  # wrong: text for a number
        client.start(order, "A-1")  # wrong: an argument is missing
        client.start(order, 1, 9.5)  # wrong: a number for a text
        client.start(order.options(id="a"), "A-1", 9.5, id="a")  # wrong: options are for options()
        client.start(charge, "A-1", 9.5)  # wrong: an activity
        number: int = run.result()  # wrong: a receipt is no number
        run.result(timeout="5")  # wrong: a text is no duration
        client.cancel(run)  # wrong: a handle is no id
        client.send_event("paid")  # wrong: the data is missing
        print(number)
    SyncClient(3)  # wrong: not a URL


async def blocking_in_a_coroutine() -> None:
    async with SyncClient("sqlite:///orders.db"):  # wrong: not `with`
        pass


@activity
async def mail(address: str) -> None: ...


@charge.compensation
async def refund(order_id: str, result: Receipt) -> None: ...


async def charge_less(order_id: str, amount: float) -> Receipt:
    return Receipt(order_id, amount / 2)


def count(order_id: str, *, gift: bool = False) -> int:
    return 1


def test_stubs() -> None:
    receipt = Receipt("r-1", 9.5)
    with charge.stub(returns=receipt, delay=timedelta(seconds=1), run="order-1") as stub, mail.stub() as mailed:
        assert_type(stub.calls, list[Call])
        assert stub.called_with("A-1", amount=9.5)
        stub.called_with("A-1")  # wrong: an argument is missing
        stub.called_with(1, 9.5)  # wrong: a number for a text
        assert_type(mailed.calls, list[Call])
    charge.stub(each=[receipt, ValueError("no money"), TimeoutError])
    charge.stub(raises=ValueError)
    charge.stub(raises=[ValueError("busy"), TimeoutError], returns=receipt)
    charge.stub(using=charge_less, run=lambda info: info.attempt == 1)
    charge.stub(using=lambda order_id, amount: Receipt(order_id, amount))
    charge.stub(using=charge.function)
    charge.options(timeout=1).stub(returns=receipt)
    pack.stub(using=count, raises=[ValueError()])
    refund.stub()
    mail.stub(raises=[ValueError("busy")])
    charge.stub()  # wrong: no result
    charge.stub(raises=[ValueError("busy")])  # wrong: no result
    charge.stub(returns=3)  # wrong: a number is no receipt
    charge.stub(returns=None)  # wrong: None is no receipt
    charge.stub(each=[receipt, 3])  # wrong: a number is no receipt
    charge.stub(using=count)  # wrong: another signature
    charge.stub(using=lambda order_id: receipt)  # wrong: a parameter is missing
    charge.stub(raises="no money")  # wrong: not an exception
    charge.stub(raises=ValueError(), returns=receipt)  # wrong: two outcomes
    charge.stub(returns=receipt, using=charge_less)  # wrong: two outcomes
    charge.stub(returns=receipt, delay="1")  # wrong: a text is no duration
    charge.stub(returns=receipt, run=1)  # wrong: a number is no run
    charge.stub(return_value=receipt)  # wrong: no such parameter
    pack.stub(using=charge_less)  # wrong: another signature
    mail.stub(returns="sent")  # wrong: it returns None


def names() -> Sequence[str]:
    return [order.name, charge.name]
