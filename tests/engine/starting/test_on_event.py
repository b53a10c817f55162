"""Events that start runs: `@workflow(on_event=…)`."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from perdure import (
    App,
    Client,
    Event,
    EventDataError,
    RunInfo,
    Workflow,
    WorkflowFailedError,
    activity,
    send_event,
    wait_event,
)
from perdure import workflow as define
from perdure.engine.api import messages
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.errors import LimitError
from perdure.testing import crash_everywhere
from tests.engine.waiting import waiting
from tests.support.programs import no_other_program
from tests.support.storages import Database

SOON = timedelta(seconds=60)


@dataclass
class Order:
    id: str
    amount: Decimal = Decimal(0)


@define(name="on_event.ship", on_event="on_event.ordered")
async def ship(order: Order) -> str:
    return f"{order.id}: {order.amount}"


@define(name="on_event.audit", on_event="on_event.ordered")
async def audit(event: Event[Order], *, loud: bool = False) -> list[Any]:
    return [event.type, event.id, event.source, event.subject, event.data.id, loud]


@activity(name="on_event.announce")
async def announce(data: object, id: str | None) -> None:
    await send_event("on_event.ordered", data, id=id, source="activity")


@define(name="on_event.sender")
async def sender(data: Any, id: str | None = None) -> None:
    await send_event("on_event.ordered", data, id=id, source="body")


@define(name="on_event.activity_sender")
async def activity_sender(data: Any, id: str | None = None) -> None:
    await announce(data, id)


@define(name="on_event.careful_sender")
async def careful_sender(data: Any) -> str:
    try:
        await send_event("on_event.ordered", data)
    except TypeError as error:
        return str(error)
    return "sent"


async def started(app: Client, workflow: Workflow[..., Any]) -> list[RunInfo]:
    return [run async for run in app.runs(workflow=workflow)]


@pytest.mark.guarantee(4)
async def test_event_starts_a_run_of_each_workflow_with_its_type_once(database: Database) -> None:
    async with App(database.url) as app:
        for _ in range(3):
            await app.send_event("on_event.ordered", Order("A", Decimal("1.50")), id="1", source="shop", subject="s")
        (run,) = await started(app, ship)
        assert await app.get(run.id).result(SOON) == "A: 1.50"
        (run,) = await started(app, audit)
        assert await app.get(run.id).result(SOON) == ["on_event.ordered", "1", "shop", "s", "A", False]
        await app.send_event("on_event.ordered", {"id": "A"}, id="1", source="another shop")
        await app.send_event("on_event.ordered", {"id": "B"}, id="2", source="shop")
        await app.send_event("on_event.ordered", {"id": "C"})
        await app.send_event("on_event.ordered", {"id": "C"})
        assert len(await started(app, ship)) == 5
        for run in await started(app, ship):
            await app.get(run.id).result(SOON)


async def test_client_starts_runs_which_a_worker_executes(shared: Database) -> None:
    async with App(shared.url) as app, Client(shared.url) as client:
        await client.send_event("on_event.ordered", {"id": "A", "amount": "2"}, id="1")
        (run,) = await started(client, ship)
        assert await app.get(run.id).result(SOON) == "A: 2"


async def test_event_to_one_run_or_of_another_type_starts_nothing(database: Database) -> None:
    async with App(database.url) as app:
        run = await waiter.start()
        await waiting(app, run.id)
        await app.send_event("on_event.ordered", {"id": "A"}, to=run.id)
        assert await run.result(SOON) == "A"
        await app.send_event("on_event.other", {"id": "A"})
        assert await started(app, ship) == []


@define(name="on_event.waiter")
async def waiter() -> str:
    return str((await wait_event("on_event.ordered")).data["id"])


@pytest.mark.parametrize("workflow", [sender, activity_sender], ids=["body", "activity"])
async def test_event_of_a_run_starts_runs_in_the_commit_of_its_step(
    database: Database, workflow: Workflow[[Any, str], None]
) -> None:
    async with App(database.url) as app:
        await (await workflow.start({"id": "A"}, "1")).result(SOON)
        await (await workflow.start({"id": "A"}, "1")).result(SOON)
        (run,) = await started(app, ship)
        assert await app.get(run.id).result(SOON) == "A: 0"


async def test_data_that_does_not_fit_is_refused_and_nothing_is_stored(database: Database) -> None:
    async with App(database.url) as app:
        with pytest.raises(TypeError, match=r"event 'on_event.ordered' starts workflow 'on_event.(ship|audit)', and"):
            await app.send_event("on_event.ordered", {"amount": 1})
        assert "'order'" in await (await careful_sender.start({"amount": 1})).result(SOON)
        with pytest.raises(WorkflowFailedError) as failed:
            await (await activity_sender.start({"amount": 1})).result(SOON)
        assert isinstance(failed.value.__cause__, EventDataError)
        assert await started(app, ship) == []
        assert await app._storage.get_pending_channel_messages("on_event.ordered") == []


async def test_all_events_of_a_batch_are_stored_or_none(database: Database) -> None:
    async with App(database.url) as app:
        good = [messages.event("on_event.ordered", {"id": name}, id=name) for name in "BA"]
        bad = messages.event("on_event.plain", 1, to="nobody")
        with pytest.raises(Exception, match="nobody"):
            await app.send(*good, bad)
        assert await started(app, ship) == []
        await app.send(*good, messages.event("on_event.plain", 1, id="A"))
        await app.send(*good)
        assert {run.input["order"].id for run in await started(app, ship)} == {"A", "B"}
        assert len(await app._storage.get_pending_channel_messages("on_event.ordered")) == 2
        for run in [*await started(app, ship), *await started(app, audit)]:
            await app.get(run.id).result(SOON)


async def test_ids_of_runs_are_valid_for_long_names_and_cannot_be_chosen(database: Database) -> None:
    async with App(database.url) as app:
        await app.send_event("on_event.ordered", {"id": "A"}, id="x" * 255, source="y" * 255)
        (run,) = await started(app, ship)
        # Another version must find the run that this one has started, so the id does not change.
        assert run.id == f"on_event.ship@{'x' * 164}~e15382820989830253476"
        assert await app.get(run.id).result(SOON) == "A: 0"
        with pytest.raises(LimitError, match="reserved"):
            await ship.options(id=run.id).start(Order("B"))


@pytest.fixture
def _defined() -> Iterator[None]:
    """Forget the workflows that a test defines."""
    before = dict(WORKFLOWS)
    yield
    WORKFLOWS.clear()
    WORKFLOWS.update(before)


@pytest.mark.usefixtures("_defined")
async def test_replay_does_not_check_sent_events_against_new_workflows(memory: Database) -> None:
    async with App(memory.url, max_cached_runs=0) as app:  # so that the run is replayed
        run = await sends_then_waits.start()
        await waiting(app, run.id)

        @define(name=f"on_event.new.{uuid4()}", on_event="on_event.later")
        async def later(number: int) -> None: ...

        await app.send_event("on_event.go", None, to=run.id)
        assert await run.result(SOON) == "done"


@define(name="on_event.sends_then_waits")
async def sends_then_waits() -> str:
    await send_event("on_event.later", "no number")
    await wait_event("on_event.go")
    return "done"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("async def made() -> None: ...", "exactly one parameter without a default, and it has none"),
        ("async def made(a=1, *args, **kwargs) -> None: ...", "and it has none"),
        ("async def made(a, b) -> None: ...", "and it has 'a', 'b'"),
    ],
)
def test_workflow_must_have_one_required_parameter(function: str, message: str) -> None:
    names: dict[str, Any] = {}
    exec(function, names)
    with pytest.raises(TypeError, match=message):
        define(on_event="x")(names["made"])


def test_invalid_options_are_refused() -> None:
    async def made(data: object) -> None: ...

    with pytest.raises(TypeError, match="a tick has no event"):
        define(on_event="x", cron="* * * * *")(made)
    with pytest.raises(TypeError, match="must be an event type"):
        define(on_event=1)(made)  # type: ignore[call-overload]
    with pytest.raises(LimitError, match="reserved"):
        define(on_event="~x")(made)


@pytest.mark.guarantee(4)
async def test_no_crash_loses_or_doubles_a_run_that_an_event_starts() -> None:
    with no_other_program():

        @define(name="on_event.child", on_event="on_event.crash")
        async def child(number: int) -> int:
            return number

        @activity(name="on_event.tell")
        async def tell(number: int) -> None:
            await send_event("on_event.crash", number, id=str(number), source="activity")

        @define(name="on_event.crashing")
        async def crashing() -> None:
            await send_event("on_event.crash", 1, id="1", source="body")
            await send_event("on_event.crash", 1, id="1", source="body")
            await tell(2)

        async def scenario(app: App) -> object:
            await (await crashing.options(id="crashing").start()).result()
            await app.send_event("on_event.crash", 3, id="3", source="program")
            runs = [run async for run in app.runs(workflow="on_event.child")]
            return sorted([await app.get(run.id).result() for run in runs])

        report = await crash_everywhere(scenario)
        assert report.restarts
        assert len(report.points) > 20
