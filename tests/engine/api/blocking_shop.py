"""A blocking shop for tests in processes of their own: its workflows, its worker, its web application and a script.

python -m tests.engine.api.blocking_shop serve|forks|interrupt|exits <url>
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from perdure import App, SyncClient, SyncRunHandle, WorkflowCancelledError, activity, wait_event, workflow

SOON = 30


@activity
async def double(number: int) -> int:
    return 2 * number


@workflow(name="blocking_shop.order")
async def order(number: int) -> int:
    return await double(number)


@workflow(name="blocking_shop.patient")
async def patient() -> int:
    return int((await wait_event("go")).data)


# The worker.


async def serve(url: str) -> None:
    async with App(url, workflows=[order, patient]):
        print("ready", flush=True)
        await asyncio.Event().wait()


# The web application, for gunicorn. With a URL the client is made when the module is imported, and so before a fork.

if "PERDURE_TEST_URL" in os.environ:
    client = SyncClient(os.environ["PERDURE_TEST_URL"])
    if "PERDURE_TEST_USED" in os.environ:
        assert order.start_sync(1).result(SOON) == 2


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Execute an order and return its result and the id of this process."""
    result = order.start_sync(21).result(SOON)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{result} {os.getpid()}".encode()]


# Scripts.


def waiting(client: SyncClient) -> bool:
    """Return whether a call of result() waits."""
    thread = client._background._thread
    return thread is not None and bool(thread._waits)


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not check():
        assert time.monotonic() < end
        time.sleep(0.005)


def forks(url: str) -> None:
    """Fork while a thread waits for a result; both processes continue, and the child ends as programs do."""
    client = SyncClient(url)
    assert order.start_sync(1).result(SOON) == 2
    run, errors = patient.start_sync(), list[object]()
    waiter = threading.Thread(target=lambda: errors.append(error_of(run)))
    waiter.start()
    until(lambda: waiting(client))
    for number in range(2):
        child = os.fork()
        if child == 0:
            assert not [each for each in open_files() if each.startswith(url.removeprefix("sqlite:///"))]
            assert order.start_sync(number).result(SOON) == 2 * number
            sys.exit(7)
        assert order.start_sync(number).result(SOON) == 2 * number
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert order.start_sync(number).result(SOON) == 2 * number
        assert not errors
    run.cancel("enough")
    waiter.join(SOON)
    assert [type(each) for each in errors] == [WorkflowCancelledError]
    client.close()
    print("forked")


def open_files() -> list[str]:
    """Return the paths of the open files of this process, on Linux."""
    return [os.path.realpath(each) for each in Path("/proc/self/fd").glob("*")]


def error_of(run: SyncRunHandle[int]) -> object:
    try:
        return run.result(SOON)
    except Exception as error:
        return error


def interrupt(url: str) -> None:
    """Get Ctrl-C while the main thread waits for a result, and continue."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs in the background ignore it
    with SyncClient(url) as client:

        def press() -> None:
            until(lambda: waiting(client))
            os.kill(os.getpid(), signal.SIGINT)

        run = patient.start_sync()
        threading.Thread(target=press).start()
        try:
            run.result(SOON)
        except KeyboardInterrupt:
            print("interrupted")
        until(lambda: not waiting(client))
        client.send_event("go", 5, to=run.id)
        assert run.result(SOON) == 5
        assert order.start_sync(4).result(SOON) == 8


def exits(url: str) -> None:
    """End without closing, while a thread still waits."""
    client = SyncClient(url)
    assert order.start_sync(4).result(SOON) == 8
    run = patient.start_sync()
    threading.Thread(target=error_of, args=[run], daemon=True).start()
    until(lambda: waiting(client))
    print("exits")


if __name__ == "__main__":
    what, url = sys.argv[1:]
    if what == "serve":
        asyncio.run(serve(url))
    else:
        {"forks": forks, "interrupt": interrupt, "exits": exits}[what](url)
