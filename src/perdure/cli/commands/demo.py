"""`perdure demo`: kill a worker, and watch another one resume its runs."""

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.child_processes import pipe_to_children
from perdure.cli.demonstration import LEDGER, NAME, URL, order
from perdure.cli.extras import dashboard_command
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Output
from perdure.cli.settings import plain_url
from perdure.database.secret import Secret
from perdure.engine.api.client import Client
from perdure.engine.api.handles import RunHandle
from perdure.engine.starting import new_id

ANSWER_SEC = 60.0


async def demo(
    *,
    orders: Annotated[int, Parameter(help="Number of orders.")] = 20,
    common: Common = COMMON,
) -> int:
    """Start orders, kill the worker in the middle, and let another one resume them: each is completed exactly once.

    It leaves its runs (perdure.demo.order) in a temporary SQLite file, or in the database of --database, and ends with
    the command that shows them in the dashboard.
    """
    if not 1 <= orders <= 1000:
        raise exits.UsageError(f"--orders must be 1 to 1000, not {orders}")
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))  # it is kept, so that the runs can be looked at
    url = plain_url(Secret(common.database or f"sqlite:///{folder}/demo.db"))
    ledger = folder / "ledger.txt"
    ledger.touch()
    environment = {**os.environ, LEDGER: str(ledger), URL: url}
    try:
        return await _show(url, orders, environment, ledger, Output(common))
    except TimeoutError:
        raise exits.CommandError(f"the demo has not ended after {ANSWER_SEC:.0f} s: is the machine busy?") from None


async def _show(url: str, orders: int, environment: Mapping[str, str], ledger: Path, output: Output) -> int:
    say = output.line if output.is_table else output.note
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Client(url))
        await stack.enter_async_context(asyncio.timeout(ANSWER_SEC))
        pipe = stack.enter_context(pipe_to_children())
        name = f"demo-{new_id()[-6:]}"
        first = await _worker(environment, pipe)
        try:
            runs = [await order.options(id=f"{name}-{number}").start(f"A-{number}") for number in range(orders)]
            say(f"started   {orders} orders ({name}-0 …), durable since start() returned")
            await _until(ledger, "charged", min(orders, max(1, orders // 2)))
        finally:
            first.kill()
            await first.wait()
        say(f"kill -9   the worker is dead, in the middle of its work: {_count(ledger, 'charged')} orders charged")
        second = await _worker(environment, pipe)
        try:
            say("resume    another worker takes over when the lease of one second has expired")
            await asyncio.gather(*(run.result() for run in runs))
        finally:
            second.terminate()
            await second.wait()
        return await _report(runs, ledger, output, dashboard_command(url, order.function.__module__))


async def _worker(environment: Mapping[str, str], pipe: int) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "perdure.cli.demonstration", str(pipe)]
    return await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=[pipe], start_new_session=True)


async def _until(ledger: Path, what: str, count: int) -> None:
    while _count(ledger, what) < count:  # noqa: ASYNC110 - the other process writes a file
        await asyncio.sleep(0.01)


def _count(ledger: Path, what: str) -> int:
    return sum(line.endswith(f" {what}") for line in _lines(ledger))


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text("utf-8").splitlines()


async def _report(runs: list[RunHandle[str]], ledger: Path, output: Output, look: str) -> int:
    executed = Counter(_lines(ledger))
    steps = [await run.steps() for run in runs]
    recorded = [sum(step.name == name for step in each) for each in steps for name in _STEPS]
    again = sum(times > 1 for times in executed.values())
    is_right = all(count == 1 for count in recorded) and len(executed) == 2 * len(runs)
    document = {
        "workflow": NAME,
        "orders": len(runs),
        "is_right": is_right,
        "executions": sum(executed.values()),
        "executed_again": again,
        "dashboard": look,
    }

    def text() -> str:
        verdict = "each step is recorded exactly once" if is_right else "steps are missing or recorded twice"
        return (
            f"result    {len(runs)} of {len(runs)} orders completed; {verdict}.\n"
            f"          {document['executions']} activities were executed, {again} of them again after the kill, with "
            "the same idempotency key.\n"
            f"look      {look}"
        )

    output.single(document, text)
    return exits.OK if is_right else exits.FAILED


_STEPS = ("perdure.demo.charge", "perdure.demo.ship")
