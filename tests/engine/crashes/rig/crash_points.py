"""Workers that die at a commit, and the runs they die of.

A worker counts the commits of its own storage and kills itself at a given commit: before it is sent, or right
after it was answered. Another worker then finds whatever was left.
"""

import asyncio
import ctypes
import importlib
import json
import os
import re
import signal
import sys
import traceback
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from perdure import (
    App,
    Retry,
    Workflow,
    WorkflowStatus,
    activity,
    activity_info,
    publish,
    recur,
    sleep,
    timeout,
    wait_event,
    workflow,
)
from perdure.database.backends.base import Session
from perdure.database.operation import Work
from perdure.engine.api import database as databases
from perdure.model.records import HistoryEvent
from perdure.storage.stores import SQLStorage, open_storage
from tests.engine.crashes.rig import fork_server
from tests.engine.crashes.rig.checker import Rows, read_rows
from tests.engine.crashes.rig.effect_log import EFFECTS, Line
from tests.engine.crashes.rig.effect_table import run_sql
from tests.engine.crashes.rig.workflows import GATES, Executed, Mark

QUICK = Retry(attempts=3, initial=timedelta(milliseconds=5))
DROP_SEC = 0.3
LEDGER = "crash_ledger"
MOVED = "crash.moved"


# Runs.


@activity(name="crash.book")
async def book(what: str) -> Mark:
    return Executed().mark(len(what))


@book.compensation(retry=QUICK)
async def unbook(what: str, *, result: Mark) -> None:
    executed = Executed()
    EFFECTS.activity("undone", result.token)
    if what == "hotel" and activity_info().attempt == 1:
        raise executed.fail("not the first time")
    executed.mark(0)


@activity(name="crash.dawdle")
async def dawdle() -> Mark:
    executed = Executed()
    await asyncio.Event().wait()
    return executed.mark(0)


@dawdle.compensation(retry=QUICK)
async def undawdle(*, result: Mark | None) -> None:
    Executed().mark(0)


@activity(name="crash.hold")
async def hold(gate: str) -> Mark:
    executed = Executed()
    while not GATES.is_open(gate):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)
    return executed.mark(0)


@hold.compensation(retry=QUICK)
async def unhold(*, result: Mark) -> None:
    executed = Executed()
    EFFECTS.activity("undone", result.token)
    executed.mark(0)


@activity(name="crash.refuse", retry=Retry(attempts=1))
async def refuse() -> None:
    executed = Executed()
    raise executed.fail("full")


@activity(name="crash.enter", transactional=True)
async def enter(run: str) -> Mark:
    executed = Executed()
    await run_sql(f"INSERT INTO {LEDGER} VALUES ('{run}')")
    await publish(MOVED, run)
    return executed.mark(0)


@workflow(name="crash.saga")
async def saga(run: str) -> str:
    await book("flight")
    await asyncio.gather(_booked("hotel"), _booked("car"))
    await refuse()
    return "booked"


async def _booked(what: str) -> Mark:
    return await book(what)  # in a task of its own, as the checker of steps wants it


@saga.on_failure
async def apologise(*, error: str) -> None:
    Executed().mark(0)


@workflow(name="crash.working")
async def working(run: str) -> str:
    await book("flight")
    await dawdle()
    return "done"


@workflow(name="crash.holding")
async def holding(run: str) -> str:
    await book("flight")
    await hold(run)
    return "done"


@workflow(name="crash.waiting")
async def waiting(run: str) -> str:
    await book("flight")
    await wait_event("crash.never", timeout=timedelta(days=1))
    return "done"


@workflow(name="crash.chain")
async def chain(run: str, seen: list[str] | None = None) -> str:
    seen = [*(seen or []), (await book(f"at {len(seen or [])}")).token]
    if len(seen) < 3:
        recur(run, seen)
    return " ".join(seen)


@workflow(name="crash.child")
async def child(ends: bool) -> str:
    mark = await book("theirs")
    if not ends:
        await sleep(timedelta(days=1))
    return mark.token


@workflow(name="crash.parent")
async def parent(run: str) -> str:
    await book("mine")
    token = await child(True)
    await book("after")
    return token


@workflow(name="crash.dropping")
async def dropping(run: str) -> str:
    await book("mine")
    try:
        async with timeout(DROP_SEC):
            return await child(False)
    except TimeoutError:
        await book("after")
        return "gave up"


@workflow(name="crash.regretting")
async def regretting(run: str) -> str:
    await book("mine")
    await child(True)
    await refuse()
    return "done"


@child.compensation
async def unchild(*, result: str) -> None:
    executed = Executed()
    EFFECTS.activity("undone", result)
    executed.mark(0)


@workflow(name="crash.entering")
async def entering(run: str) -> str:
    await book("before")
    await enter(run)
    await book("after")
    return "entered"


CAST: Sequence[Workflow[..., str]] = [
    saga, working, holding, waiting, chain, child, parent, dropping, regretting, entering
]  # fmt: skip


# Workers.


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Which runs a worker serves, and at which of its commits it dies, if at any."""

    url: str
    folder: str
    cast: str = __name__
    dies_at: int = 0
    after: bool = False
    resident: int = 0


class SharedForkServer(fork_server.ForkServer):
    """A fork server that many callers use at once."""

    def __init__(self, cast: str = __name__) -> None:
        super().__init__()
        self._cast = cast
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        command = [sys.executable, "-c", f"import {__name__} as crashes; crashes.main({self._cast!r})"]
        self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=fork_server.ROOT)
        return self

    async def start_worker(self, worker_plan: WorkerPlan) -> int:
        """Start a worker and return its process id."""
        return int(await self._order("fork", asdict(worker_plan)))

    async def has_died(self, pid: int) -> bool:
        """Whether a worker has killed itself; fails if it ended in another way."""
        return bool(await self._order("has_died", pid))

    async def end(self, pid: int) -> bool:
        """Kill a worker, unless it has done so itself; whether it had."""
        return bool(await self._order("end", pid))

    async def _order(self, name: str, about: object) -> Any:
        async with self._turn:
            return await super()._order(name, about)


class Orders(fork_server.Orders):
    """The commands of the shared fork server."""

    def fork(self, spec: dict[str, Any]) -> int:
        pid = os.fork()
        if not pid:
            _live(WorkerPlan(**spec))
        self.pids.add(pid)
        return pid

    def has_died(self, pid: int) -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return False
        self.pids.discard(pid)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise RuntimeError(f"worker {pid} ended by itself: {status}")
        return True

    def end(self, pid: int) -> bool:
        died = self.has_died(pid)
        if not died:
            self.kill(pid)
        return died


def _live(worker_plan: WorkerPlan) -> None:
    """Execute a worker in a forked process; never return."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        folder = Path(worker_plan.folder)
        fork_server._redirect(folder / "workers.log")
        GATES.folder = folder
        EFFECTS.open(folder / "effects")
        asyncio.run(_serve(worker_plan))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


async def _serve(worker_plan: WorkerPlan) -> None:
    if worker_plan.dies_at:
        databases.__dict__["open_storage"] = CommitCrash(worker_plan.dies_at, worker_plan.after).open
    served = importlib.import_module(worker_plan.cast).CAST
    lease = timedelta(seconds=fork_server.LEASE_SEC)
    await App(
        worker_plan.url, workflows=served, lease=lease, max_cached_runs=worker_plan.resident, hooks=[EFFECTS.hook]
    ).serve()


class CommitCrash:
    """Kills the process at a commit of the first storage that is opened.

    The heartbeat opens its own storage later, whose commits are not counted.
    """

    def __init__(self, dies_at: int, after: bool) -> None:
        self._left, self._after = dies_at, after
        self._opened = False

    def open(self, url: str) -> Any:
        storage: Any = open_storage(url)
        if not self._opened:
            self._opened = True
            backend = storage._backend
            backend.write, backend.begin = self._writing(backend.write), self._beginning(backend.begin)
        return storage

    def _writing(self, write: Any) -> Any:
        async def counted(work: Work[Any]) -> Any:
            self._come(after=False)
            answer = await write(work)
            self._come(after=True)
            return answer

        return counted

    def _beginning(self, begin: Any) -> Any:
        async def begun() -> Session:
            session: Any = await begin()
            commit = session.commit

            async def counted() -> None:
                self._come(after=False)
                await commit()
                self._come(after=True)

            session.commit = counted
            return session  # type: ignore[no-any-return]

        return begun

    def _come(self, *, after: bool) -> None:
        if after == self._after:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main(cast: str) -> None:
    """Follow orders until there are no more."""
    importlib.import_module(cast)
    orders = Orders()
    for line in sys.stdin:
        name, about = json.loads(line)
        try:
            answer = {"done": getattr(orders, name)(about)}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)
    for pid in orders.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# What is left of them.


async def all_rows(storage: SQLStorage) -> Rows:
    """All there is, with the histories of finished generations."""
    rows = await read_rows(storage)
    for run, row in rows.instances.items():
        if row.status is WorkflowStatus.RECURRED:
            events = await storage.get_archived_history(run, limit=1000)
            rows.history[run] = [
                HistoryEvent(run, event.activity_id, event.event_type, event.event_data) for event in events
            ]
    return rows


def of_generation(line: Line, rows: Rows) -> Line:
    """A line with the name that its generation has by now in place of the run's."""
    before = line.key.split(":")[1]
    found = (id for id, row in rows.instances.items() if (row.continued_from or "") == before)
    return replace(line, run=next(id for id in found if re.sub(r"~\d+$", "", id) == line.run))


def is_undo(line: Line) -> bool:
    """Whether it is about an undo, or about what is done last when a run has failed."""
    return line.step.startswith(("undo:", "on_failure"))
