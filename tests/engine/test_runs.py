"""Runs, from their start to their end, on every database."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest

from perdure import (
    App,
    Client,
    Retry,
    TerminalError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    now,
    publish,
    random,
    receive,
    send_to,
    set_state,
    sleep,
    subscribe,
    uuid4,
    wait_event,
    workflow,
)
from perdure.errors import RunExistsError
from tests.engine.waiting import stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=20)
QUICK = Retry(attempts=3, initial=timedelta(milliseconds=5))
calls: list[str] = []


@dataclass
class Receipt:
    order_id: str
    amount: float


class NoMoneyError(Exception):
    pass


@activity
async def charge(order_id: str, amount: float) -> Receipt:
    calls.append(f"charge {order_id}")
    return Receipt(order_id, amount)


@activity
def halve(amount: float) -> float:
    return amount / 2


@activity(retry=QUICK)
async def flaky(good_from: int) -> int:
    attempt = activity_info().attempt
    if attempt < good_from:
        raise ValueError(f"attempt {attempt}")
    return attempt


@activity(retry=QUICK)
async def broke() -> None:
    calls.append("broke")
    raise NoMoneyError("none left")


@activity(retry=QUICK)
async def hopeless() -> None:
    calls.append("hopeless")
    raise TerminalError("never again")


@workflow(name="runs.order")
async def order(order_id: str, amount: float) -> Receipt:
    receipt = await charge(order_id, amount)
    return Receipt(receipt.order_id, await halve(receipt.amount))


@workflow(name="runs.retrying")
async def retrying(good_from: int) -> int:
    return await flaky(good_from)


@workflow(name="runs.failing")
async def failing() -> None:
    await broke()


@workflow(name="runs.catching")
async def catching() -> str:
    try:
        await broke()
    except NoMoneyError as error:
        return str(error)
    return "paid"


@workflow(name="runs.terminal")
async def terminal() -> None:
    await hopeless()


@workflow(name="runs.parallel")
async def parallel(count: int) -> list[float]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_halved(number)) for number in range(count)]
    return [task.result() for task in tasks]


async def _halved(number: int) -> float:
    return await halve(float(number))


@workflow(name="runs.values")
async def values() -> list[str]:
    taken = [now().isoformat(), str(random()), str(uuid4())]
    set_state({"phase": "sleeping"})
    await sleep(timedelta(seconds=1.1))
    await charge("values", 1.0)
    return taken


@workflow(name="runs.approval")
async def approval(order_id: str) -> str:
    event = await wait_event("decided", where={"order.id": order_id}, timeout=timedelta(minutes=5))
    return str(event.data["verdict"])


@workflow(name="runs.impatient")
async def impatient() -> str:
    try:
        await wait_event("never", timeout=timedelta(seconds=1.2))
    except TimeoutError:
        return "gave up"
    return "came"


@workflow(name="runs.listener")
async def listener(count: int) -> list[int]:
    await subscribe("news")
    await set_ready()
    return [(await receive("news", type=int)).data for _ in range(count)]


@activity
async def set_ready() -> None:
    calls.append("ready")


@workflow(name="runs.job_worker")
async def job_worker(count: int) -> list[int]:
    await subscribe("jobs", "competing")
    done: list[int] = []
    while len(done) < count:
        done.append((await receive("jobs", type=int)).data)
    return done


@workflow(name="runs.direct")
async def direct() -> str:
    await subscribe("mail", "direct")
    return str((await receive("mail")).data)


@workflow(name="runs.sender")
async def sender(to: str) -> None:
    await send_to(to, "mail", "hello")
    await publish("nobody", {"a": 1})


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()


async def test_row_run_result_status_and_history(database: Database) -> None:
    async with App(database.url):
        handle = await order.options(id="order-A-1").start("A-1", 9.0)
        assert await handle.result(SOON) == Receipt("A-1", 4.5)
        assert (await handle.info()).status is WorkflowStatus.COMPLETED
        assert [event.step async for event in handle.history()] == ["1:charge", "2:halve"]


async def test_meaning_same_id_twice_is_the_same_run(database: Database) -> None:
    async with App(database.url):
        first = await order.options(id="same").start("A-1", 9.0)
        await first.result(SOON)
        again = await order.options(id="same").start("A-1", amount=9.0)
        assert await again.result(SOON) == Receipt("A-1", 4.5)
        assert calls == ["charge A-1"]
        with pytest.raises(RunExistsError):
            await order.options(id="same").start("A-2", 9.0)
        with pytest.raises(RunExistsError):
            await order.options(id="same", if_exists="error").start("A-1", 9.0)


async def test_p1_failures_are_retried_and_counted(database: Database) -> None:
    async with App(database.url):
        assert await (await retrying.start(3)).result(SOON) == 3


async def test_meaning_errors_come_back_as_the_same_class(database: Database) -> None:
    async with App(database.url):
        with pytest.raises(WorkflowFailedError) as caught:
            await (await failing.start()).result(SOON)
        assert isinstance(caught.value.__cause__, NoMoneyError)
        assert calls == ["broke"] * 3
        assert await (await catching.start()).result(SOON) == "none left"


async def test_p1_a_terminal_error_is_never_retried(database: Database) -> None:
    async with App(database.url):
        with pytest.raises(WorkflowFailedError):
            await (await terminal.start()).result(SOON)
        assert calls == ["hopeless"]


async def test_row_compose_task_group(database: Database) -> None:
    async with App(database.url):
        handle = await parallel.start(40)
        assert await handle.result(SOON) == [number / 2 for number in range(40)]


async def test_row_time_values_are_recorded_and_a_long_sleep_is_a_row(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        handle = await values.start()
        await waiting(app, handle.id)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert await handle.state() == {"phase": "sleeping"}
        taken = await handle.result(SOON)
        rows = [event async for event in handle.history()]
        assert [row.kind for row in rows] == ["State", "TimerExpired", "ActivityCompleted"]
        assert taken[2] in str(rows[0].data)
        assert not await stuck_runs(app)


async def test_row_events_wait_event_where(database: Database) -> None:
    async with App(database.url) as app:
        handle = await approval.start("A-1")
        await waiting(app, handle.id)
        await app.send_event("decided", {"order": {"id": "B-2"}, "verdict": "no"})
        await app.send_event("decided", {"order": {"id": "A-1"}, "verdict": "yes"})
        assert await handle.result(SOON) == "yes"


async def test_meaning_events_sent_to_one_run_are_kept_until_it_takes_them(database: Database) -> None:
    async with App(database.url) as app:
        handle = await approval.options(id="approval-1", after=timedelta(milliseconds=300)).start("A-1")
        await app.send_event("decided", {"order": {"id": "A-1"}, "verdict": "kept"}, to="approval-1")
        assert await handle.result(SOON) == "kept"


async def test_row_events_wait_event_timeout(database: Database) -> None:
    async with App(database.url):
        assert await (await impatient.start()).result(SOON) == "gave up"


async def test_row_channels_broadcast_reaches_all_in_order(database: Database) -> None:
    async with App(database.url) as app:
        handles = [await listener.start(5) for _ in range(3)]
        await until(lambda: calls.count("ready") == 3)
        for number in range(5):
            await app.publish("news", number)
        assert [await handle.result(SOON) for handle in handles] == [list(range(5))] * 3


async def test_row_channels_competing_runs_share_the_messages(database: Database) -> None:
    async with App(database.url) as app:
        handles = [await job_worker.start(5) for _ in range(3)]
        for number in range(15):
            await app.publish("jobs", number)
        done = [await handle.result(SOON) for handle in handles]
        assert sorted(number for some in done for number in some) == list(range(15))


async def test_row_channels_send_to_one_run(database: Database) -> None:
    async with App(database.url):
        one = await direct.options(id="one").start()
        await (await sender.start("one")).result(SOON)
        assert await one.result(SOON) == "hello"


async def test_a_client_starts_what_an_app_runs(database: Database) -> None:
    if database.backend == "memory":
        async with App(database.url) as app:
            handle = await order.start("A-1", 2.0)
            assert await app.get(handle.id).result(SOON) == {"order_id": "A-1", "amount": 1.0}
        return
    async with App(database.url, workflows=[order]), Client(database.url):
        handle = await order.start("A-1", 2.0)
        assert await handle.result(SOON) == Receipt("A-1", 1.0)


async def test_row_run_start_after(database: Database) -> None:
    async with App(database.url):
        handle = await order.options(after=timedelta(seconds=0.3)).start("A-1", 2.0)
        assert (await handle.info()).status is WorkflowStatus.WAITING_FOR_TIMER
        assert await handle.result(SOON) == Receipt("A-1", 1.0)


async def test_what_one_app_began_another_goes_on_with(database: Database) -> None:
    if database.backend == "memory":
        return
    async with App(database.url) as app:
        handle = await approval.options(id="moved").start("A-1")
        await waiting(app, handle.id)
    async with App(database.url) as app:
        await app.send_event("decided", {"order": {"id": "A-1"}, "verdict": "yes"})
        assert await app.get("moved").result(SOON) == "yes"
