"""Orders that survive a crash: one worker is killed, another resumes, and each order is completed exactly once.

Then an order that cannot be shipped: its completed steps are compensated in reverse order.

Run it with `make demo`, or on another database: `python -m examples.order_demo postgresql://localhost/test`.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from perdure import (
    App,
    Client,
    RunHandle,
    TerminalError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    activity_info,
    sleep,
    workflow,
)
from perdure.cli.extras import dashboard_command

ORDERS = 30
LEASE_SEC = 1
LEDGER = "PERDURE_DEMO_LEDGER"
NOWHERE = "A-nowhere"


def note(what: str) -> None:
    """Record an effect outside the database: one line for each execution of an activity."""
    with Path(os.environ[LEDGER]).open("a") as ledger:
        ledger.write(f"{activity_info().idempotency_key} {what}\n")


@activity
async def charge(order_id: str, amount: float) -> str:
    """Charge the customer."""
    await asyncio.sleep(0.05)
    note("charged")
    return f"receipt of {amount:.2f} for {order_id}"


@charge.compensation
async def refund(order_id: str, amount: float, *, result: str | None) -> None:
    """Refund the customer."""
    note(f"refunded {amount:.2f}")


@activity
def pack(order_id: str) -> int:
    """Pack the order. A plain function runs in a thread."""
    note("packed")
    return 1 + len(order_id) % 3


@pack.compensation
def unpack(order_id: str, *, result: int | None) -> None:
    """Put the goods back."""
    note("unpacked")


@activity
async def ship(order_id: str, parcels: int) -> str:
    """Ship the order."""
    await asyncio.sleep(0.05)
    if order_id == NOWHERE:
        note("refused")
        raise TerminalError("unknown address")
    note("shipped")
    return f"{order_id} in {parcels} parcels"


@workflow(name="demo.order")
async def order(order_id: str, amount: float) -> str:
    """Process an order."""
    receipt, parcels = await asyncio.gather(charge(order_id, amount), pack(order_id))
    await sleep(1.5)  # time to cancel the order; the run holds no worker meanwhile
    return f"{await ship(order_id, parcels)}, {receipt}"


async def work(url: str) -> None:
    """Run a worker process."""
    await App(url, workflows=[order], lease=LEASE_SEC).serve()


async def start_worker(url: str) -> asyncio.subprocess.Process:
    """Start a worker process."""
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "examples.order_demo", url, "--worker")


async def show(handles: Iterable[RunHandle[str]], client: Client, stop_at: int, title: str) -> int:
    """Show a progress bar until `stop_at` orders are completed."""
    handles = list(handles)
    while True:
        states = Counter([run.status async for run in client.runs(workflow="demo.order")])
        done = states[WorkflowStatus.COMPLETED]
        steps = "".join("#" if n < done else "." for n in range(len(handles)))
        end = "\r" if sys.stdout.isatty() and done < stop_at else "\n"
        if done >= stop_at or sys.stdout.isatty():
            print(f"{title:>24} [{steps}] {done}/{len(handles)} finished", end=end, flush=True)
        if done >= stop_at:
            return done
        await asyncio.sleep(0.1)


async def main(url: str) -> None:
    """Start orders, kill the worker, start another one, and check the results."""
    worker = await start_worker(url)
    async with Client(url) as client:
        handles = [await order.options(id=f"order-A-{n}").start(f"A-{n}", 9.5 + n) for n in range(ORDERS // 2)]
        print(f"{'orders':>24} {len(handles)} started, each durable once start() returned")
        await show(handles, client, len(handles) // 2, "first worker")
        handles += [
            await order.options(id=f"order-A-{n}").start(f"A-{n}", 9.5 + n) for n in range(len(handles), ORDERS)
        ]
        print(f"{'orders':>24} {ORDERS - ORDERS // 2} more started")
        while ledger().count("\n") < 3 * (ORDERS // 2) + 5:  # noqa: ASYNC110 - until some of the second half are charged
            await asyncio.sleep(0.005)
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
        print(f"{'kill -9':>24} the worker is dead, in the middle of its work")
        worker = await start_worker(url)
        await show(handles, client, ORDERS, "second worker")
        results = [await handle.result(30) for handle in handles]
        await watch(await order.options(id=f"order-{NOWHERE}").start(NOWHERE, 99.0))
        worker.terminate()
        await worker.wait()
        steps = [await steps_of(handle) for handle in handles]
    report(results, steps)


async def watch(handle: RunHandle[str]) -> None:
    """Show the effects of one order as they happen, until the run has ended."""
    print(f"{'one more order':>24} {handle.id}, to an unknown address")
    ended = asyncio.create_task(handle.result(30))
    shown = 0
    while True:
        over = ended.done()
        lines = [line for line in ledger().splitlines() if line.startswith(f"{handle.id}:")]
        for line in lines[shown:]:
            print(f"{'':>24} {line.partition(' ')[2]}", flush=True)
        shown = len(lines)
        if over:
            break
        await asyncio.wait([ended], timeout=0.02)
    try:
        await ended
    except WorkflowFailedError as error:
        print(f"{(await handle.info()).status:>24} {error.__cause__}; all steps are compensated")


async def steps_of(handle: RunHandle[str]) -> list[str]:
    """Return the completed steps in a run's history; rows with `…!` only say that a step has started."""
    return [event.step async for event in handle.history() if not event.step.endswith("!")]


def ledger() -> str:
    """Return all recorded effects."""
    path = Path(os.environ[LEDGER])
    return path.read_text() if path.exists() else ""


def report(results: list[str], steps: list[list[str]]) -> None:
    """Compare the results and the histories with the effects."""
    once = sum(sorted(each) == ["1:charge", "2:pack", "3:timer", "4:ship"] for each in steps)
    lines = Counter(line for line in ledger().splitlines() if NOWHERE not in line)
    again = sum(times > 1 for times in lines.values())
    print(f"{'results':>24} {len(set(results))} of {ORDERS} orders, each completed exactly once")
    print(f"{'history':>24} {once} of {ORDERS} orders have every step recorded exactly once")
    print(f"{'executed again':>24} {again} of {len(lines)} steps: those interrupted by the kill, with the same key")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        asyncio.run(work(sys.argv[1]))
    else:
        folder = tempfile.mkdtemp(prefix="perdure-demo-")  # it is kept, so that the runs can be looked at
        os.environ[LEDGER] = f"{folder}/ledger"
        database = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/orders.db"
        asyncio.run(main(database))
        print(f"{'look at the runs':>24} {dashboard_command(database, 'examples.order_demo')}")
