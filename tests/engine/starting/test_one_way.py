"""All ways in which a run comes to be use one operation, and store everything that it begins with in one commit."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from perdure import App, Client, RunExistsError, RunHandle, Workflow, WorkflowFailedError, WorkflowStatus, activity
from perdure import workflow as define
from perdure.engine import starting
from perdure.engine.history import ids, records
from perdure.engine.history.codec import Signature
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.starting import NewRun, RunStore
from perdure.model.records import WorkflowInstance
from tests.support.storages import Database

DAY = timedelta(days=1)


@define(name="one_way.leaf")
async def leaf(n: int = 0) -> int:
    return n


@define(name="one_way.parent")
async def parent() -> int:
    handle = await leaf.options(id="a-step", after=DAY).start(1)
    assert handle.id == "a-step"
    return await leaf(2)


@activity(name="one_way.first")
async def first() -> int:
    return 1


@activity(name="one_way.broken")
async def broken() -> None:
    raise ZeroDivisionError


@define(name="one_way.failing")
async def failing() -> None:
    await first()
    await broken()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The workflow and id of every run that was stored, except for group commits."""
    found: list[tuple[str, str]] = []
    store = starting.store

    async def noted(storage: RunStore, run: NewRun, id: str) -> None:
        found.append((run.workflow_name, id))
        await store(storage, run, id)

    monkeypatch.setattr(starting, "store", noted)
    return found


async def test_a_start_with_times_stores_its_rows_with_the_run(
    database: Database, stored: list[tuple[str, str]]
) -> None:
    async with App(database.url, workflows=[leaf]) as app:
        await leaf.options(id="later", after=DAY, timeout=2 * DAY).start(1)
        assert (await app.info("later")).status is WorkflowStatus.WAITING_FOR_TIMER
        events, _ = await app._storage.get_history_paginated("later")
        assert [(event.activity_id, event.event_type) for event in events] == [(ids.DEADLINE, records.DEADLINE)]
        (wait,) = await app._storage.get_waits(["later"])
        assert wait.activity_id == ids.BEGIN
    assert stored == [("one_way.leaf", "later")]


async def test_a_step_and_a_child_use_it(database: Database, stored: list[tuple[str, str]]) -> None:
    async with App(database.url, workflows=[leaf, parent]) as app:
        assert await (await parent.options(id="p").start()).result(30) == 2
        found = [id for _, id in stored]
        assert found[0] == "a-step"
        assert len(found) == 2
        events, _ = await app._storage.get_history_paginated(found[1])
        assert (events[0].activity_id, events[0].event_type) == (ids.PARENT, records.PARENT)


@pytest.fixture
def daily() -> Iterator[Workflow[[], None]]:
    @define(name="one_way.daily", cron="0 0 * * *")
    async def tick() -> None:
        return None

    yield tick
    del WORKFLOWS["one_way.daily"]


async def test_a_tick_uses_it_and_makes_way_for_a_run_of_another_workflow(
    database: Database, stored: list[tuple[str, str]], daily: Workflow[[], None]
) -> None:
    storage = await database.storage()
    await storage.create_instance(WorkflowInstance("tick", leaf.name))
    for _ in range(2):
        assert await starting.start_tick(storage, daily, "tick") == "tick~c1"
    assert {id for _, id in stored} == {"tick", "tick~c1"}


async def test_a_retry_uses_it_and_keeps_the_history(database: Database, stored: list[tuple[str, str]]) -> None:
    async with App(database.url, workflows=[failing]) as app:
        with pytest.raises(WorkflowFailedError):
            await (await failing.options(id="f").start()).result(30)
        last = (await app.steps("f"))[-1].id
        again: RunHandle[None] = await app.retry("f", from_step=last)
        assert [step.name for step in await app.steps(again.id)][:1] == ["one_way.first"]
        with pytest.raises(WorkflowFailedError):
            await again.result(30)
    assert stored == [("one_way.failing", "f~r1")]


async def test_plain_starts_are_group_commits(shared: Database, stored: list[tuple[str, str]]) -> None:
    async with Client(shared.url):
        await leaf.options(id="plain").start(1)
        assert (await leaf.options(id="plain").start(1)).id == "plain"
        with pytest.raises(RunExistsError, match="different input"):
            await leaf.options(id="plain").start(2)
    assert stored == []


async def test_a_direct_call_encodes_its_arguments_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []
    bind = Signature.bind

    def counted(self: Signature, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        encoded.append(args)
        return bind(self, args, kwargs)

    monkeypatch.setattr(Signature, "bind", counted)
    async with App(database.url, workflows=[leaf]):
        assert await leaf(7) == 7
    assert encoded == [(7,)]
