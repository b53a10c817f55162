"""The workflows of the tests of actions on many runs."""

from perdure import TerminalError, wait_event, workflow


@workflow(name="bulk.order")
async def order(number: int) -> int:
    await wait_event("bulk.paid", where={"number": number})
    return number


@workflow(name="bulk.broken")
async def broken(number: int) -> int:
    raise TerminalError(f"order {number} is broken")
