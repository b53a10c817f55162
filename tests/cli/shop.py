"""The workflows of the tests of the command line."""

from typing import Any

from perdure import RunHandle, TerminalError, WaitKind, activity, receive, recur, subscribe, wait_event, workflow
from tests.engine.waiting import until


@activity(name="cli.charge")
async def charge(order_id: str, amount: float) -> str:
    if amount < 0:
        raise TerminalError(f"the amount of {order_id} is negative\x1b[31m")
    return f"receipt {order_id}"


@workflow(name="cli.pack")
async def pack(order_id: str) -> int:
    await charge(order_id, 1.0)
    return 3


@workflow(name="cli.order")
async def order(order_id: str, amount: float = 1.0) -> str:
    receipt = await charge(order_id, amount)
    await pack(order_id)
    await wait_event("cli.paid", where={"order_id": order_id})
    return receipt


@workflow(name="cli.listener")
async def listener() -> object:
    await subscribe("cli.news")
    return (await receive("cli.news")).data


@workflow(name="cli.counter")
async def counter(left: int) -> str:
    await charge(f"A-{left}", 1.0)
    if left:
        recur(left - 1)
    return "counted"


async def until_unpaid(run: RunHandle[Any]) -> None:
    """Wait until an order waits for its event; before that it waits for its child."""

    async def is_unpaid() -> bool:
        return WaitKind.EVENT in [wait.kind for wait in (await run.info()).waiting_for]

    await until(is_unpaid)
