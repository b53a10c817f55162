"""Closing an App takes at most the drain timeout, whatever runs in it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest

from perdure import App, Client, WorkflowStatus, activity, workflow
from perdure.engine.worker import work_loop, worker
from perdure.hooks import HookEvent
from tests.engine.waiting import row_of, until
from tests.support.storages import Database

ROOT = Path(__file__).parents[3]
SOON = timedelta(seconds=60)
BRIEF = timedelta(seconds=0.3)

seen: list[str] = []
gates: dict[str, threading.Event] = defaultdict(threading.Event)


@pytest.fixture(autouse=True)
def forget() -> Any:
    seen.clear()
    gates.clear()
    yield
    for gate in list(gates.values()):
        gate.set()  # no thread is left waiting


@activity
def block(gate: str) -> str:
    """A plain function, which nothing can interrupt."""
    seen.append(gate)
    gates[gate].wait(60)
    return f"{gate} {seen.count(gate)}"


@activity(transactional=True)
def block_in_transaction(gate: str) -> str:
    seen.append(gate)
    gates[gate].wait(60)
    return gate


@activity
async def stubborn(gate: str) -> str:
    """A coroutine that does not heed its cancellation."""
    seen.append(gate)
    while not gates[gate].is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            seen.append("cancelled")
    return gate


@workflow(name="shutdown.blocked")
async def blocked(gate: str) -> str:
    return await block(gate)


@workflow(name="shutdown.stubborn")
async def stubborn_run(gate: str) -> str:
    return await stubborn(gate)


@activity(name="shutdown.book")
async def book() -> str:
    return "booked"


@book.compensation
def unbook() -> None:
    block.function("undo")


@workflow(name="shutdown.undone")
async def undone() -> None:
    await book()
    raise ValueError("undo it")


async def _closed_in(url: str, run: Any, gate: str, *args: str, **options: Any) -> float:
    """Start a run, close the app while it is at work; how long closing took."""
    async with App(url, **options):
        await run.options(id="a").start(*args)
        await until(lambda: gate in seen)
        began = time.monotonic()
    return time.monotonic() - began


@pytest.mark.guarantee(10)
async def test_plain_function_does_not_delay_shutdown_beyond_the_drain_timeout(shared: Database) -> None:
    assert await _closed_in(shared.url, blocked, "g", "g", drain_timeout=BRIEF) < 4
    async with Client(shared.url) as client:
        row = await row_of(client, "a")
        assert (row.status, row.locked_by) == (WorkflowStatus.RUNNING, None)  # handed over at once
    gates["g"].set()
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == "g 2"


@pytest.mark.guarantee(10)
async def test_plain_function_that_ends_within_the_drain_timeout_is_not_executed_again(shared: Database) -> None:
    threading.Timer(0.5, lambda: gates["g"].set()).start()
    assert await _closed_in(shared.url, blocked, "g", "g", drain_timeout=SOON) < 10
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == "g 1"
    assert seen == ["g"]


async def test_coroutine_that_ignores_cancellation_does_not_delay_shutdown(shared: Database) -> None:
    assert await _closed_in(shared.url, stubborn_run, "g", "g", drain_timeout=BRIEF) < 6
    async with Client(shared.url) as client:
        assert (await row_of(client, "a")).locked_by is None
    gates["g"].set()
    await until(lambda: not [task for task in asyncio.all_tasks() if "stubborn" in task.get_name()])


async def test_compensation_in_a_thread_does_not_delay_shutdown(shared: Database) -> None:
    assert await _closed_in(shared.url, undone, "undo", drain_timeout=BRIEF) < 4
    async with Client(shared.url) as client:
        row = await row_of(client, "a")
        assert (row.status, row.locked_by) == (WorkflowStatus.COMPENSATING, None)
    gates["undo"].set()
    async with App(shared.url) as app:

        async def is_over() -> bool:
            return (await app.get("a").info()).status is WorkflowStatus.FAILED

        await until(is_over)
    assert seen == ["undo", "undo"]


@workflow(name="shutdown.blocked_in_transaction")
async def blocked_in_transaction(gate: str) -> str:
    return await block_in_transaction(gate)


async def test_transaction_in_a_thread_does_not_delay_shutdown(shared: Database) -> None:
    options = {"drain_timeout": BRIEF, "transaction_timeout": timedelta(seconds=20)}
    assert await _closed_in(shared.url, blocked_in_transaction, "g", "g", **options) < 5
    gates["g"].set()
    async with App(shared.url) as app:
        assert await app.get("a").result(SOON) == "g"


async def test_hanging_hook_does_not_delay_shutdown_beyond_the_drain_timeout(
    shared: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(event: HookEvent) -> None:
        seen.append(type(event).__name__)
        await asyncio.Event().wait()

    async with App(shared.url, hooks=[hang], drain_timeout=BRIEF):
        await blocked.options(id="a").start("g")
        await until(lambda: "g" in seen)
        gates["g"].set()
        await until(lambda: "RunCompleted" in seen)
        began = time.monotonic()
    assert time.monotonic() - began < 20  # the hook hangs forever
    assert any("hook(s) that had not ended" in record.getMessage() for record in caplog.records)


PROGRAM = """
import asyncio, logging, sys, threading
from datetime import timedelta
from perdure import App, activity, workflow

logging.basicConfig(level=logging.INFO, stream=sys.stdout)

@activity
def block() -> None:
    print("blocking", flush=True)
    threading.Event().wait()

@workflow(name="shutdown.program")
async def blocked() -> None:
    await block()

async def main() -> None:
    app = App(sys.argv[1], drain_timeout=timedelta(seconds=float(sys.argv[2])), workflows=[blocked])
    await app.serve()

asyncio.run(main())
"""


async def program_blocked() -> None:
    raise AssertionError("runs elsewhere")


def _said(output: IO[bytes], words: bytes) -> None:
    """Wait until a program has written these words."""
    assert any(words in line for line in output), f"the program ended without {words!r}"


async def _program(url: str, grace_sec: float, signals: int) -> float:
    """Signals to a program that is at work; how long it took to end after the last."""
    from tests.engine.versions import version

    async with Client(url) as client:
        await version(program_blocked, "shutdown.program").options(id="a").start()
        environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src"))}
        command = [sys.executable, "-c", PROGRAM, url, str(grace_sec)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as program:
            assert program.stdout is not None
            said = program.stdout
            await asyncio.to_thread(_said, said, b"blocking")
            for number in range(signals):
                if number:
                    await asyncio.to_thread(_said, said, b"is draining")
                program.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert await asyncio.to_thread(program.wait, 50) == 0
            spent = time.monotonic() - began
        row = await row_of(client, "a")
        assert (row.status, row.locked_by) == (WorkflowStatus.RUNNING, None)
    return spent


@pytest.mark.guarantee(10)
async def test_process_exits_although_a_thread_still_runs(shared: Database) -> None:
    assert await _program(shared.url, 0.5, 1) < 15


@pytest.mark.guarantee(10)
async def test_second_signal_ends_the_draining_at_once(shared: Database) -> None:
    assert await _program(shared.url, 40, 2) < 15


async def test_serve_restores_the_signal_handlers(shared: Database) -> None:
    before = signal.getsignal(signal.SIGTERM)
    serving = asyncio.create_task(App(shared.url).serve())
    await until(lambda: signal.getsignal(signal.SIGTERM) is not before)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        await serving
    assert signal.getsignal(signal.SIGTERM) in (before, signal.SIG_DFL)


def test_idle_threads_end() -> None:
    from perdure.engine.worker.threads import Threads

    async def main() -> None:
        threads = Threads(2)
        futures = [threads.submit(lambda: threading.current_thread()) for _ in range(10)]
        found = {outcome[0] for outcome in await asyncio.gather(*futures)}
        assert 1 <= len(found) <= 2
        assert all(each.daemon for each in found)
        slow = [threads.submit(lambda: gates["t"].wait(10)) for _ in range(2)]
        queued = threads.submit(lambda: seen.append("never"))
        assert threads.withdraw(queued)
        assert not threads.withdraw(queued)
        gates["t"].set()
        await asyncio.gather(*slow)
        value, error = await threads.submit(lambda: next(iter(())))
        assert (value, type(error)) == (None, StopIteration)
        threads.close()
        for each in found:
            each.join(10)
            assert not each.is_alive()
        with pytest.raises(RuntimeError, match="has stopped"):
            threads.submit(print)

    asyncio.run(main())
    assert not seen


@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)  # where nothing else wakes it
async def test_idle_worker_stops_without_waiting_for_its_next_look(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_loop, "LOOK_SEC", 60.0)
    monkeypatch.setattr(worker, "LEASING_SEC", 60.0)
    minute = timedelta(minutes=1)
    async with asyncio.timeout(30), App(shared.url, lease=minute, drain_timeout=minute) as app:
        await until(lambda: bool(app._worker.host.work._waiters))
