"""A worker finds the runs that it serves, and no others."""

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Retry, WorkflowStatus, activity, set_state, sleep, wait_event, workflow
from perdure.engine.execution.slots import Slot
from perdure.engine.worker.work_loop import LOOK_SEC, OVERDUE_SEC
from perdure.model.records import ResumableWorkflow, WorkflowInstance
from tests.engine.gates import approved, gated, gates, note, open_gates, seen, two_gates
from tests.engine.gates import forget as forget_gates
from tests.engine.waiting import row_of, stuck_runs, until, waiting
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)
done: list[str] = []
together = [0, 0]


@pytest.fixture(autouse=True)
def forget() -> None:
    forget_gates()
    done.clear()


@workflow(name="finding_runs.simple")
async def simple(what: str) -> str:
    return await note(what)


@workflow(name="finding_runs.gated")
async def behind_a_gate(gate: str) -> str:
    return await gated(gate)


@workflow(name="finding_runs.sleeping")
async def sleeping(seconds: float) -> str:
    await sleep(seconds)
    return await note("awake")


@pytest.mark.pitfall(32)
async def test_slow_run_does_not_delay_other_runs(shared: Database) -> None:
    async with App(shared.url, max_runs=50) as app:
        handles = [await behind_a_gate.start("slow"), *[await sleeping.start(1.1) for _ in range(10)]]
        for handle in handles[1:]:
            assert await handle.result(SOON) == "awake"
        assert (await app.get(handles[0].id).info()).status is WorkflowStatus.RUNNING
        gates["slow"].set()
        assert await handles[0].result(SOON) == "slow"


async def test_worker_that_cannot_take_due_work_looks_for_it_less_and_less_often(database: Database) -> None:
    async with App(database.url, workflows=[simple]) as app:
        await app._storage.create_instance(WorkflowInstance("a", "of another worker", owner_service="perdure"))

        async def is_due() -> bool:  # by the worker's clock, which is a little behind that of the database
            return await app._worker.work_loop.look() >= OVERDUE_SEC

        await until(is_due)
        for _ in range(5):  # the worker itself may look in between
            pauses = [await app._worker.work_loop.look() for _ in range(4)]
            assert pauses[0] > 0
            if all(longer >= min(2 * pause, LOOK_SEC) for pause, longer in itertools.pairwise(pauses)):
                break
        else:
            pytest.fail(f"the pauses do not grow: {pauses}")


async def test_workers_that_find_the_same_runs_at_once_share_them(shared: Database) -> None:
    """No search is wasted: each worker leases as many runs as it has slots."""
    storage = await shared.storage()
    run = WorkflowInstance("", behind_a_gate.name, b'{"gate":"g"}', owner_service="perdure")
    await storage.create_instances([replace(run, instance_id=f"a{n:02}") for n in range(40)])
    both_have_found, claimed = asyncio.Barrier(2), dict[str, int]()

    def meet(app: App) -> None:
        claiming = app._worker.work_loop._claiming
        take = claiming._take

        async def take_after_both_have_found(found: Sequence[ResumableWorkflow], slots: list[Slot]) -> int:
            if app.worker_id not in claimed:
                assert len(found) == 40
                await both_have_found.wait()
            count = await take(found, slots)
            claimed.setdefault(app.worker_id, count)
            return count

        claiming._take = take_after_both_have_found  # type: ignore[method-assign]

    apps = [App(shared.url, workflows=[simple], max_runs=20) for _ in range(2)]
    async with apps[0], apps[1]:
        for app in apps:
            app._served[behind_a_gate.name] = behind_a_gate
            meet(app)
            app._worker.wake()
        await until(lambda: len(claimed) == 2)
        gates["g"].set()
        for n in range(40):
            assert await apps[0].get(f"a{n:02}").result(SOON) == "g"
    assert list(claimed.values()) == [20, 20]


async def test_notification_about_a_run_that_is_executed_here_changes_nothing(database: Database) -> None:
    async with App(database.url) as app:
        handle = await behind_a_gate.options(id="a").start("late")
        await until(lambda: bool(seen))
        app._worker.host.heard_run("a", behind_a_gate.name)
        app._worker.host.heard_run("nobody", behind_a_gate.name)
        app._worker.host.heard_run("b", "finding_runs.nobody's")
        assert await app._worker.work_loop.look() > 0
        gates["late"].set()
        assert await handle.result(SOON) == "late"
    assert len(seen) == 1  # it was neither cancelled nor executed again


@pytest.mark.pitfall(31)
async def test_runs_of_unknown_workflows_do_not_block_known_ones(shared: Database) -> None:
    storage = await shared.storage()
    known = WorkflowInstance("known", simple.name, b'{"what":"mine"}', owner_service="perdure")
    strangers = [replace(known, instance_id=f"s{n:03}", workflow_name="finding_runs.nobody's") for n in range(150)]
    family = [replace(known, instance_id=f"f{n:03}") for n in range(150)]
    await storage.create_instances([*strangers, *family])
    await storage.db().execute("UPDATE workflow_instances SET framework = 'python' WHERE instance_id LIKE 'f%'")
    await storage.create_instance(known)
    async with App(shared.url, workflows=[simple]) as app:
        assert await app.get("known").result(timedelta(seconds=5)) == "mine"
        assert await stuck_runs(app) == []
        for id in ("s000", "s149", "f000", "f149"):
            row = await app._storage.get_instance(id)
            assert row is not None
            assert (row.status, row.lock_token) == (WorkflowStatus.RUNNING, 0)
    assert seen == ["mine"]


@pytest.mark.pitfall(14)
async def test_finished_run_is_never_executed_again(database: Database) -> None:
    async with App(database.url) as app:
        assert await (await simple.options(id="a").start("once")).result(SOON) == "once"
        assert await app._storage.acquire_locks(["a"], "anybody", 5) == [None]
        app._worker.wake()
        assert await (await simple.options(id="b").start("twice")).result(SOON) == "twice"
        assert await (await simple.options(id="a").start("once")).result(SOON) == "once"
    assert seen == ["once", "twice"]


async def _stuck(app: App) -> list[str]:
    return [each.id for each in await stuck_runs(app)]


@pytest.mark.guarantee(9)
async def test_runs_of_unknown_workflows_are_not_claimed(shared: Database) -> None:
    async with App(shared.url, workflows=[two_gates], lease=SHORT) as app:
        await approved.options(id="a").start("elsewhere")
        open_gates("one", "two")
        assert await (await two_gates.start("one", "two")).result(SOON) == ["one", "two"]
        row = await row_of(app, "a")
        assert (row.status, row.locked_by, row.lock_token) == (WorkflowStatus.RUNNING, None, 0)
        assert await _stuck(app) == []


@activity(retry=Retry(attempts=1))
async def shout(what: str) -> str:
    done.append(what)
    if what == "bad":
        raise ValueError(what)
    return what.upper()


@workflow(name="finding_runs.shouter")
async def shouter(what: str) -> str:
    set_state({"about to shout": what})
    return await shout(what)


@activity(retry=Retry(attempts=1))
def in_a_thread() -> str:
    together[0] += 1
    together[1] = max(together)
    time.sleep(0.02)
    together[0] -= 1
    return threading.current_thread().name


@workflow(name="finding_runs.threads")
async def in_threads(count: int) -> list[str]:
    return list(await asyncio.gather(*(in_a_thread() for _ in range(count))))


@pytest.mark.call("limits")
async def test_app_executes_only_the_workflows_it_is_given(shared: Database) -> None:
    async with App(shared.url, workflows=[in_threads]):
        other = await shouter.start("other")
        await (await in_threads.start(1)).result(SOON)
        assert done == []
        async with App(shared.url, workflows=[shouter]):
            assert await other.result(SOON) == "OTHER"


@workflow(name="finding_runs.approval")
async def approval(order_id: str) -> str:
    event = await wait_event("decided", where={"order.id": order_id}, timeout=timedelta(minutes=5))
    return str(event.data["verdict"])


async def test_another_app_resumes_a_run(database: Database) -> None:
    if database.backend == "memory":
        return
    async with App(database.url) as app:
        handle = await approval.options(id="moved").start("A-1")
        await waiting(app, handle.id)
    async with App(database.url) as app:
        await app.send_event("decided", {"order": {"id": "A-1"}, "verdict": "yes"})
        assert await app.get("moved").result(SOON) == "yes"


async def test_only_a_run_that_may_have_a_history_reads_it(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(database.url) as app:
        storage, read = storage_of(app), list[str]()
        plain = storage.get_history_paginated

        async def counted(instance_id: str, *args: Any, **options: Any) -> Any:
            read.append(instance_id)
            return await plain(instance_id, *args, **options)

        monkeypatch.setattr(storage, "get_history_paginated", counted)
        created = await simple.options(id="created here").start("a")
        assert await created.result(SOON) == "a"
        limited = await simple.options(id="with a timeout", timeout=SOON).start("b")
        assert await limited.result(SOON) == "b"
    assert read == ["with a timeout"]
