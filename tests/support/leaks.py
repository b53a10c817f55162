"""A plugin of pytest that fails tests that leave something behind: asyncio tasks, threads, open files and sockets.

A workflow with a schedule must not stay registered, either: an App that names no workflows serves all of them, so the
tests that follow in this process would find runs that they did not start. Nor must a SyncClient stay open, which they
would use.

Shared things stay open from one test to the next: what a fixture of a wider scope than one test opens, and what is
opened in a `kept()` block. The leases of workers that stopped are in a database, so the fixture of that asks for them.
"""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from perdure.engine.api import current_sync
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.worker.owners import worker_of
from perdure.engine.worker.worker import Worker

ENDING_SEC = 5.0  # for threads and sockets that are about to end
TURNS = 10  # of the loop, for tasks that are about to end
DESCRIPTORS = "/proc/self/fd"
SERVERS_THREAD = "perdure-servers"  # which the first test that starts a server starts, for all others, too

Resource = tuple[int, int] | threading.Thread  # the number and inode of an open file, or a thread

_kept: set[Resource] = set()
_tasks: list[str] = []  # that were pending when their loop ended
_stopped: set[str] = set()  # ids of workers


@contextmanager
def kept() -> Iterator[None]:
    """Allow what the block opens to stay open after the test."""
    before = resources()
    try:
        yield
    finally:
        _kept.update(resources() - before)


@contextmanager
def watching() -> Iterator[None]:
    """Note the tasks that are pending at the end of a loop, and the workers that stop."""
    cancel_all: Any = asyncio.runners.__dict__["_cancel_all_tasks"]
    stop = Worker.stop

    def note_and_cancel_all(loop: asyncio.AbstractEventLoop) -> None:
        _tasks.extend(map(_described, _pending(loop)))
        cancel_all(loop)

    async def stop_and_note(worker: Worker, grace_sec: float) -> None:
        await stop(worker, grace_sec)
        _stopped.add(worker.host.worker_id)

    with patch("asyncio.runners._cancel_all_tasks", note_and_cancel_all), patch.object(Worker, "stop", stop_and_note):
        yield


def resources() -> set[Resource]:
    """Return the threads and open files of this process."""
    return {*threading.enumerate(), *_open_files()}


def _open_files() -> Iterator[tuple[int, int]]:
    with suppress(FileNotFoundError):  # there are none to see outside Linux
        for number in map(int, os.listdir(DESCRIPTORS)):
            with suppress(OSError):  # that of the listing itself is closed
                yield number, os.fstat(number).st_ino


def opened_since(before: set[Resource]) -> list[str]:
    """Return the threads and files that are there and were not before, as text, without those that may stay."""
    return [name for each in resources() - before - _kept if (name := _name(each))]


def _name(resource: Resource) -> str:
    if isinstance(resource, threading.Thread):
        return "" if resource.name.startswith(SERVERS_THREAD) else f"thread {resource.name}"
    with suppress(FileNotFoundError):
        return f"open file {resource[0]} -> {os.readlink(f'{DESCRIPTORS}/{resource[0]}')}"
    return ""  # closed meanwhile


def left_since(before: set[Resource]) -> list[str]:
    """Return what is there and was not before, and the tasks that were pending at the end of their loop."""
    left = opened_since(before)
    until = time.monotonic() + ENDING_SEC
    while left and time.monotonic() < until:
        gc.collect()  # what is unreachable warns when it is collected: pytest reports that for this test
        time.sleep(0.01)
        left = opened_since(before)
    found = sorted([*left, *_tasks])
    _tasks.clear()
    return found


def _pending(loop: asyncio.AbstractEventLoop) -> "Collection[asyncio.Task[Any]]":
    for _ in range(TURNS):
        if not asyncio.all_tasks(loop):
            break
        loop.run_until_complete(asyncio.sleep(0))
    return asyncio.all_tasks(loop)


def _described(task: "asyncio.Task[Any]") -> str:
    """Return the name of a task, where it waits, and where it was created if asyncio's debug mode recorded that."""
    code: Any = task.get_coro()
    waits = [f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" for frame in task.get_stack()]
    created: Any = getattr(task, "_source_traceback", None)
    origin = "; --asyncio-debug shows where it was created"
    if created:
        origin = f", created at {' > '.join(f'{Path(each.filename).name}:{each.lineno}' for each in created[-4:])}"
    return f"task {task.get_name()} ({getattr(code, '__qualname__', code)}) at {' > '.join(waits)}{origin}"


def scheduled() -> set[str]:
    """Return the names of the registered workflows that have a schedule."""
    return {name for name, each in WORKFLOWS.items() if each.schedule is not None}


def forget(names: Collection[str]) -> list[str]:
    """Remove workflows from the registry, so that only the test that left them fails; return them as text."""
    for name in names:
        del WORKFLOWS[name]
    return [f"scheduled workflow {name}" for name in sorted(names)]


def close_sync_clients() -> list[str]:
    """Close the SyncClients that are open, so that only the test that left them fails; return them as text."""
    if not list(current_sync.__dict__["_open"]):
        return []
    gc.collect()  # those that nothing refers to any more are not used
    left = list(current_sync.__dict__["_open"])
    for client in left:
        client.close()
    return sorted(map(repr, left))


def leases_of_stopped(owners: Callable[[], dict[str, str | None]]) -> list[str]:
    """Return the leases, by the ids of their runs, that workers hold although they have stopped."""
    found = owners() if _stopped else {}
    return [f"lease of {run} by {owner}" for run, owner in found.items() if owner and worker_of(owner) in _stopped]


def forget_workers() -> None:
    """Forget the workers that stopped: a later one may have the same id."""
    _stopped.clear()


@pytest.fixture(scope="session", autouse=True)
def watched() -> Iterator[None]:
    with watching():
        yield


@pytest.fixture(autouse=True)
def nothing_is_left(watched: None) -> Iterator[None]:
    """Fail a test that leaves a task, a thread, an open file, a scheduled workflow or a SyncClient behind."""
    before, scheduled_before = resources(), scheduled()
    yield
    if left := [*left_since(before), *forget(scheduled() - scheduled_before), *close_sync_clients()]:
        pytest.fail("the test left this behind:\n" + "\n".join(left), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Allow what fixtures of a wider scope than one test open to stay open."""
    if fixturedef.scope == "function":
        return (yield)
    with kept():
        return (yield)
