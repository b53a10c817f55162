"""Waiting for the ends of runs that other processes execute."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from perdure import App, Client, WorkflowFailedError, activity, workflow
from perdure.engine.worker import results as waiting_for_results
from perdure.engine.worker.results import Ended, Results
from perdure.engine.worker.supervision import Supervisor
from perdure.model.records import WakeUp, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import new
from tests.engine.gates import forget, gated, gates
from tests.engine.waiting import until
from tests.support.databases import DATABASES
from tests.support.storages import Database

Asked = list[list[str]]  # the ids of each query
COMPLETED = Ended(WorkflowStatus.COMPLETED, b"1", "wf")


@activity(name="results.add")
async def add(number: int) -> int:
    return number + 1


@workflow(name="results.one_step")
async def one_step(number: int) -> int:
    return await add(number)


@workflow(name="results.behind_a_gate")
async def behind_a_gate(gate: str) -> str:
    return await gated(gate)


@workflow(name="results.failing")
async def failing() -> None:
    raise ValueError("no")


@pytest.fixture(autouse=True)
def close_gates() -> None:
    forget()


@pytest.fixture
async def storage(memory: Database) -> SQLStorage:
    storage = await memory.storage()
    for name in ("a", "b"):
        await new(storage, name)
    return storage


@pytest.fixture
def asked(storage: SQLStorage, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return count_queries(storage, monkeypatch)


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_for_results, "ASK_SEC", 3600.0)


def count_queries(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return a list to which each query for runs adds their ids."""
    asked: Asked = []
    plain = storage.get_instances

    async def counted(ids: Sequence[str]) -> list[WorkflowInstance | None]:
        asked.append(list(ids))
        return await plain(ids)

    monkeypatch.setattr(storage, "get_instances", counted)
    return asked


async def waiting_for(results: Results, *ids: str) -> "list[asyncio.Task[Ended | None]]":
    """Wait for the ends of runs; return when their rows are read."""
    tasks = [asyncio.create_task(results.end_of(id)) for id in ids]
    await until(lambda: set(ids) <= results._waiting.keys() and not results._read.running)
    return tasks


def end_of(id: str, **more: object) -> WakeUp:
    return WakeUp("workflow_resumable", {"instance_id": id, "reason": "completed", **more})


@pytest.fixture
async def results(storage: SQLStorage) -> AsyncIterator[Results]:
    results = Results(storage, Supervisor(), alone=False)
    yield results
    await results.close()


async def test_watch_is_over_when_all_runs_have_ended(storage: SQLStorage, results: Results) -> None:
    over, left = await results.watch(["a", "b", "absent"])
    assert [row.instance_id for row in left] == ["a", "b"]
    await storage.update_instance_output("a", b"1")
    await results.ended("a")
    assert not over.done()
    await storage.update_instance_output("b", b"1")  # nobody tells it: it asks
    async with asyncio.timeout(20):
        await over


async def test_watch_that_is_cancelled_asks_no_more(asked: Asked, results: Results) -> None:
    over, _ = await results.watch(["a"])
    over.cancel()
    await asyncio.sleep(0)  # a future calls its callbacks later
    asked.clear()
    await results.watch(["b"])
    results.hint(WakeUp("scan"))
    await until(lambda: len(asked) == 2)
    assert asked == [["b"], ["b"]]


async def test_watch_may_be_cancelled_just_before_its_run_ends(results: Results) -> None:
    """A future calls its callbacks later, so the watch is still there when the run ends."""
    over, _ = await results.watch(["a"])
    over.cancel()
    await results.ended("a")
    assert over.cancelled()


@pytest.mark.usefixtures("never_polls")
async def test_notification_that_names_an_awaited_run_queries_that_run(
    storage: SQLStorage, asked: Asked, results: Results
) -> None:
    first, second = await waiting_for(results, "a", "b")
    asked.clear()
    await storage.update_instance_output("a", b"1")
    results.hint(end_of("a"))
    assert await asyncio.wait_for(first, 60) == COMPLETED
    assert asked == [["a"]]
    second.cancel()


@pytest.mark.usefixtures("never_polls")
async def test_notification_that_names_another_run_queries_nothing(
    storage: SQLStorage, asked: Asked, results: Results
) -> None:
    (first,) = await waiting_for(results, "a")
    asked.clear()
    results.hint(end_of("b"))
    results.hint(WakeUp("workflow_resumable", {"instance_id": "a"}))  # it can be resumed
    results.hint(WakeUp("workflow_channel_message", {"channel": "c"}))
    assert not results._named
    assert not results._hinted
    await storage.update_instance_output("a", b"1")
    results.hint(end_of("a"))
    await asyncio.wait_for(first, 60)
    assert asked == [["a"]]


@pytest.mark.parametrize(
    "hint",
    [
        WakeUp("scan"),
        end_of("b", count=2),
        WakeUp("workflow_resumable", {"reason": "coalesced"}),
    ],
)
@pytest.mark.usefixtures("never_polls")
async def test_notification_that_stands_for_several_queries_all_awaited_runs(
    storage: SQLStorage, results: Results, hint: WakeUp
) -> None:
    (first,) = await waiting_for(results, "a")
    await storage.update_instance_output("a", b"1")
    results.hint(hint)
    assert await asyncio.wait_for(first, 60) == COMPLETED


@pytest.mark.usefixtures("never_polls")
async def test_stream_of_notifications_about_other_runs_leads_to_fewer_and_fewer_queries(
    asked: Asked, results: Results
) -> None:
    (waiting,) = await waiting_for(results, "a")
    asked.clear()
    began, hints = time.monotonic(), 0
    while time.monotonic() < began + 0.5:
        results.hint(WakeUp("scan"))
        hints += 1
        await asyncio.sleep(0.001)
    assert 1 <= len(asked) <= 40 + (time.monotonic() - began) / waiting_for_results.HINTED_MAX_SEC, hints
    waiting.cancel()


@pytest.mark.usefixtures("never_polls")
async def test_run_that_this_process_executes_is_not_read(asked: Asked, results: Results) -> None:
    results.is_local = lambda instance_id: instance_id == "a"
    first, _ = await waiting_for(results, "a", "b")
    results.hint(WakeUp("scan"))
    results.hint(end_of("a"))
    await until(lambda: len(asked) == 2)  # the row of the other run, and the query after the notification
    await results.ended("a", b"2")
    assert await asyncio.wait_for(first, 60) == Ended(WorkflowStatus.COMPLETED, b"2")
    assert all(ids == ["b"] for ids in asked)


@pytest.mark.usefixtures("never_polls")
async def test_run_that_this_process_no_longer_executes_is_read(storage: SQLStorage, results: Results) -> None:
    """Its lease may be lost, and another worker may have ended it."""
    results.is_local = lambda instance_id: True
    (first,) = await waiting_for(results, "a")
    await storage.update_instance_output("a", b"1")
    results.released("a")
    assert await asyncio.wait_for(first, 60) == COMPLETED


@pytest.mark.usefixtures("never_polls")
async def test_end_between_reading_the_row_and_waiting_is_not_missed(
    storage: SQLStorage, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = storage.get_instances

    async def ends_meanwhile(ids: Sequence[str]) -> list[WorkflowInstance | None]:
        found = await plain(ids)
        await storage.update_instance_output("a", b"1")
        monkeypatch.setattr(storage, "get_instances", plain)
        results.hint(end_of("a"))
        return found

    results._read._write = ends_meanwhile
    assert await asyncio.wait_for(results.end_of("a"), 60) == COMPLETED


async def test_result_of_a_run_in_the_same_process_reads_no_row(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_for_results, "ASK_SEC", 3600.0)
    async with App(database.url) as app:
        asked = count_queries(app._storage, monkeypatch)
        app._results._read._write = app._storage.get_instances
        handle = await behind_a_gate.start("gate")
        result = asyncio.create_task(handle.result())
        await until(lambda: handle.id in app._results._waiting)
        gates["gate"].set()
        assert await asyncio.wait_for(result, 60) == "gate"
        assert asked == []


async def test_result_of_a_failed_run_in_the_same_process_is_read(database: Database) -> None:
    async with App(database.url):
        with pytest.raises(WorkflowFailedError) as failed:
            await asyncio.wait_for((await failing.start()).result(), 60)
        assert isinstance(failed.value.__cause__, ValueError)


@pytest.mark.parametrize("shared", [*DATABASES, "reference"], indirect=True)
async def test_client_is_notified_of_the_end_of_a_run_of_another_worker(
    shared: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_for_results, "ASK_SEC", 3600.0)
    async with App(shared.url), Client(shared.url):
        for number in range(5):
            assert await asyncio.wait_for((await one_step.start(number)).result(), 60) == number + 1


async def test_wait_that_begins_when_no_other_waits_is_polled(
    storage: SQLStorage, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_for_results, "ASK_SEC", 0.01)
    await storage.update_instance_output("a", b"1")
    assert await results.end_of("a") == COMPLETED
    await until(lambda: time.monotonic() > results._polled_at + 0.1)  # the poll that was due found no wait
    (second,) = await waiting_for(results, "b")
    await storage.update_instance_output("b", b"1")  # no notification
    assert await asyncio.wait_for(second, 20) == COMPLETED
