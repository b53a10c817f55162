"""Runs of every kind for a database that is moved, and how they continue after it."""

from datetime import timedelta
from typing import Any

from perdure import (
    App,
    OutboxEvent,
    RunHandle,
    TerminalError,
    WaitKind,
    WorkflowStatus,
    activity,
    join_group,
    receive,
    recur,
    run_headers,
    send_to_group,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from tests.engine.waiting import move_clock, status_of, until

WORD = "Grüße 🚀 שלום \\ ' \" %s %(x)s ; 100% :id ?"  # nothing of it is special in a database


@activity(name="copying.charge")
async def charge(order_id: str) -> str:
    return f"{WORD} {order_id}"


@charge.compensation
async def refund(order_id: str) -> None:
    return None


@activity(name="copying.refuse")
async def refuse() -> None:
    raise TerminalError(WORD)


@workflow(name="copying.order")
async def order(order_id: str) -> list[object]:
    receipt = await charge(order_id)
    event = await wait_event("copying.paid", where={"order": order_id})
    return [receipt, event.data["amount"], dict(run_headers())]


@workflow(name="copying.sleeper")
async def sleeper() -> str:
    await sleep(3600)
    return "awake"


@workflow(name="copying.consumer")
async def consumer(jobs: int) -> list[int]:
    await subscribe("copying.jobs", "competing")
    return [int((await receive("copying.jobs")).data) for _ in range(jobs)]


@workflow(name="copying.member")
async def member() -> object:
    await subscribe("copying.moves", "direct")
    await join_group("copying.table")
    return (await receive("copying.moves")).data


@workflow(name="copying.dealer")
async def dealer(card: str) -> int:
    return await send_to_group("copying.table", "copying.moves", card)


@workflow(name="copying.counter")
async def counter(number: int) -> int:
    await charge(str(number))
    if number < 2:
        recur(number + 1)
    await wait_event("copying.counted")
    return number


@workflow(name="copying.failure")
async def failure() -> None:
    await charge("failed")
    await refuse()


async def publish(event: OutboxEvent) -> None:
    return None


async def begin(url: str) -> None:
    """Start runs of every kind, and stop the worker once they wait."""
    async with App(url, publisher=publish) as app:
        for run, kind in (
            (await order.options(id="order-1", headers={"tenant": WORD}).start("A-1"), WaitKind.EVENT),
            (await order.options(id="order-2").start("A-2"), WaitKind.EVENT),
            (await member.options(id="member").start(), WaitKind.CHANNEL),
            (await counter.options(id="counter").start(1), WaitKind.EVENT),
            (await consumer.options(id="consumer-1").start(2), WaitKind.CHANNEL),
            (await consumer.options(id="consumer-2").start(2), WaitKind.CHANNEL),
        ):
            await until_waiting(run, kind)
        await app.publish("copying.jobs", 0)
        await until(lambda: _has_taken(app))
        await status_of(await failure.options(id="failed").start(), WorkflowStatus.FAILED)
        await app.cancel("order-2", "no longer wanted")
        await status_of(app.get("order-2"), WorkflowStatus.CANCELLED)
        await app.send_event("copying.paid", {"order": "A-9", "amount": 0})
        await app.send_event("copying.unheard", {"text": WORD}, source="/copying", id="unheard-1")
        await until_waiting(await sleeper.options(id="sleeper").start(), WaitKind.TIMER)


async def finish(url: str) -> None:
    """Let all runs end that `begin` has started, by a worker on the moved database."""
    async with App(url, publisher=publish) as app:
        await app.send_event("copying.paid", {"order": "A-1", "amount": 12.5})
        await app.send_event("copying.counted", None)
        for job in (1, 2, 3):
            await app.publish("copying.jobs", job)
        assert await dealer(WORD) == 1
        assert await app.get("member").result() == WORD
        assert await app.get("order-1").result() == [f"{WORD} A-1", 12.5, {"tenant": WORD}]
        assert await app.get("counter").result() == 2
        jobs = [await app.get(f"consumer-{n}").result() for n in (1, 2)]
        assert sorted(job for each in jobs for job in each) == [0, 1, 2, 3], "each job is done once"
        assert (await app.get("failed").info()).status == "failed"
        assert (await app.get("order-2").info()).status == "cancelled"
        await move_clock(app, timedelta(hours=1, seconds=1))
        assert await app.get("sleeper").result() == "awake"


async def until_waiting(run: RunHandle[Any], kind: WaitKind) -> None:
    async def is_waiting() -> bool:
        return kind in [wait.kind for wait in (await run.info()).waiting_for]

    await until(is_waiting)


async def _has_taken(app: App) -> bool:
    """Whether one of the consumers has received the first job."""
    steps = [await app.get(f"consumer-{n}").steps() for n in (1, 2)]
    return any(step.kind == "channel" and step.finished_at is not None for each in steps for step in each)
