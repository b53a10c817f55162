"""What a history says about its run, in texts that a test compares."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Retry,
    RunHandle,
    TerminalError,
    WorkflowFailedError,
    activity,
    publish,
    receive,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.testing import History, assert_snapshot, history_of, replay
from perdure.testing.snapshots import SETTINGS
from tests.engine.waiting import until
from tests.support.storages import Database
from tests.testing.orders import Order, order
from tests.testing.stories import ANN, told, waiting


async def test_steps_are_texts_with_their_attempts(everywhere: Database) -> None:
    history = await told(everywhere, "completed")
    assert history.steps == ["kit.reserve", "kit.charge (3 attempts)", "wait_event kit.packed", "kit.ship"]
    assert history.waits == ["wait_event kit.packed"]
    assert history.compensations == []
    assert history.attempts("kit.charge") == 3
    assert history.attempts("kit.reserve") == 1
    assert history.attempts("kit.notify") == 0
    assert history.step("kit.charge").result == "ann@example.org paid 10"
    assert history.step("4:wait_event").result == {"order": "order-1", "by": "Ann"}
    assert history.error is None


async def test_failed_run_has_its_error_and_its_compensations(everywhere: Database) -> None:
    history = await told(everywhere, "failed")
    assert history.steps == ["kit.reserve", "kit.charge (3 attempts) failed: CardError", "kit.notify"]
    assert history.compensations == ["kit.reserve"]
    assert str(history.error) == "tests.testing.orders.CardError: the card of ann@example.org was refused"


async def test_cancelled_run_has_the_reason(reference: Database) -> None:
    history = await told(reference, "cancelled")
    assert history.error is not None
    assert history.error.message == f"{ANN} changed her mind"
    assert history.compensations == ["kit.reserve"]


async def test_waiting_run_has_what_it_waits_for(everywhere: Database) -> None:
    history = await told(everywhere, "waiting")
    assert history.steps[-1] == "wait_event kit.packed (waiting)"
    assert history.waits == ["wait_event kit.packed (waiting)"]


@workflow(name="kit.listener")
async def listener() -> None:
    await wait_event("kit:news")
    await subscribe("kit:jobs", "direct")
    await receive("kit:jobs")
    await broken("a chair")


async def test_waits_are_named_without_their_receiver(everywhere: Database) -> None:
    """Also if the receiver was another run, whose history a retried run has."""
    async with App(everywhere.url) as app:
        run = await listener.options(id="listener-1").start()
        await app.send_event("kit:news", None, to=run.id)
        await until(lambda: _waits(run))
        assert replay(listener, await history_of(run)).next == ["receive kit:jobs"]
        await app.send_to(run.id, "kit:jobs", None)
        with pytest.raises(WorkflowFailedError):
            await run.result(30)
        again = await app.retry(run.id, from_step="2:subscribe")
        await until(lambda: _waits(again))
        assert (await history_of(again)).waits == ["wait_event kit:news", "receive kit:jobs (waiting)"]
        assert (await history_of(run)).waits == ["wait_event kit:news", "receive kit:jobs"]


async def test_step_is_found_by_name_if_it_is_the_only_one(reference: Database) -> None:
    history = await told(reference, "recurred")
    assert history.step("timer").id == "2:timer"
    with pytest.raises(LookupError, match=r"run 'order-1' has no step 'pay'; its steps are kit.notify, timer"):
        history.step("pay")
    async with App(reference.url):
        run = await crowd.options(id="crowd-1").start()
        await run.result(30)
        found = await history_of(run)
    with pytest.raises(LookupError, match=r"has 2 steps 'kit.slow': use one of the ids 1:kit.slow, 2:kit.slow"):
        found.step("kit.slow")
    assert found.attempts("kit.slow") == 2


gates: list[asyncio.Event] = []


@activity(name="kit.slow")
async def slow(name: str) -> str:
    if name == "first":  # completes last
        await gates[-1].wait()
    elif gates:
        gates[-1].set()
    return name


@workflow(name="kit.crowd")
async def crowd() -> list[str]:
    return list(await asyncio.gather(slow("first"), slow("second")))


@activity(name="kit.broken", retry=Retry(attempts=1))
async def broken(name: str) -> None:
    raise ValueError(f"{name} is broken")


@activity(name="kit.lend")
async def lend(name: str) -> None: ...


@lend.compensation(retry=Retry(attempts=2, initial=0.001))
async def take_back(name: str) -> None:
    raise TerminalError("lost")


@workflow(name="kit.inner")
async def inner() -> None:
    await wait_event("kit.never", timeout=0.01)


@workflow(name="kit.outer")
async def outer() -> None:
    await lend("a book")
    await publish("kit.news", {"lent": "a book"})
    await sleep(0.001)
    try:
        await inner()
    except WorkflowFailedError:
        await broken("a chair")


@outer.on_failure
async def say_sorry() -> None: ...


@pytest.fixture(autouse=True)
def _gate() -> None:
    gates.append(asyncio.Event())


SNAPSHOT = """\
kit.outer: failed: ValueError
  kit.lend
  publish
  timer
  child kit.inner failed: TimeoutError
  kit.broken failed: ValueError
rollback:
  kit.lend failed: TerminalError
  on_failure
"""


async def test_snapshot_is_the_whole_story(everywhere: Database) -> None:
    async with App(everywhere.url):
        run = await outer.options(id="outer-1").start()
        with pytest.raises(WorkflowFailedError):
            await run.result(30)
        history = await history_of(run)
        child = await history_of((await run.info()).children[0])  # type: ignore[index]
    assert history.snapshot() == SNAPSHOT
    assert child.snapshot() == "kit.inner: failed: TimeoutError\n  wait_event kit.never timed out\n"


async def test_snapshot_with_values_is_the_same_for_every_run(everywhere: Database) -> None:
    texts = set()
    for id in ("a-long-id", "another-id"):
        async with App(everywhere.url) as app:
            run = await order.options(id=id).start(Order(id, ANN))
            await until(lambda run=run: _waits(run))  # type: ignore[misc]
            await app.send_event("kit.packed", {"order": id})
            await run.result(30)
            texts.add((await history_of(run)).snapshot(values=True))
    (text,) = texts
    assert text.splitlines() == [
        'kit.order(given={"amount": 10, "email": "ann@example.org", "flaky": false, "id": "<run id>", '
        '"refused": false}): completed -> "parcel for ann@example.org"',
        '  kit.reserve -> "<run id> is reserved"',
        '  kit.charge -> "ann@example.org paid 10"',
        '  wait_event kit.packed -> {"order": "<run id>"}',
        '  kit.ship -> "parcel for ann@example.org"',
    ]


async def test_error_is_in_the_head_of_a_snapshot(reference: Database) -> None:
    history = await told(reference, "failed", "a")
    assert history.snapshot().splitlines()[:2] == ["kit.order: failed: CardError", "  kit.reserve"]
    assert history.snapshot(values=True).splitlines()[2:4] == [
        "  kit.charge (3 attempts) failed: CardError: the card of ann@example.org was refused",
        "  kit.notify -> null",
    ]
    assert (
        history.snapshot(values=True)
        .splitlines()[0]
        .endswith("): failed: CardError: the card of ann@example.org was refused")
    )


async def _waits(run: RunHandle[Any]) -> bool:
    return any(wait.name != "kit:news" for wait in (await run.info()).waiting_for)


async def test_concurrent_steps_are_in_the_order_of_the_code(reference: Database) -> None:
    async with App(reference.url):
        run = await crowd.start()
        await run.result(30)
        history = await history_of(run)
        ended = [step.result for step in await run.steps()]
    assert ended == ["second", "first"]
    assert history.snapshot(values=True).splitlines()[1:] == ['  kit.slow -> "first"', '  kit.slow -> "second"']


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "folder", tmp_path)
    monkeypatch.delenv("PERDURE_UPDATE_SNAPSHOTS", raising=False)


@pytest.mark.usefixtures("_folder")
async def test_snapshot_file_is_compared_with_a_diff_and_written_on_request(
    reference: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await told(reference, "failed")
    with pytest.raises(AssertionError, match="does not exist: run pytest --perdure-update-snapshots to write it"):
        assert_snapshot(history, "snapshots/order.txt")
    monkeypatch.setenv("PERDURE_UPDATE_SNAPSHOTS", "1")
    assert_snapshot(history, "snapshots/order.txt")
    monkeypatch.delenv("PERDURE_UPDATE_SNAPSHOTS")
    assert_snapshot(history, "snapshots/order.txt")
    path = tmp_path / "snapshots" / "order.txt"
    path.write_text(path.read_text().replace("3 attempts", "2 attempts"))
    with pytest.raises(AssertionError) as caught:
        assert_snapshot(history, "snapshots/order.txt")
    assert "-  kit.charge (2 attempts) failed: CardError\n+  kit.charge (3 attempts) failed: CardError" in str(
        caught.value
    )
    with pytest.raises(AssertionError, match="did something else than its snapshot says"):
        assert_snapshot(history, path, values=True)


async def test_history_without_steps_has_an_empty_list(reference: Database) -> None:
    async with App(reference.url) as app:
        run = await waiting(app, "order-1")
        data = (await history_of(run)).to_json()
    history = History.from_json({**data, "rows": [], "waits": []})
    assert (history.steps, history.waits, history.compensations) == ([], [], [])
