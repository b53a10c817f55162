"""Replaying recorded histories against the code of this process."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    NonDeterminismError,
    RunNotFoundError,
    SerializationError,
    WorkflowStatus,
    now,
    patched,
    wait_event,
)
from perdure.testing import History, export_history, history_of, replay
from tests.support.storages import Database
from tests.testing.orders import (
    CardError,
    Order,
    changed,
    charge,
    counter,
    executed,
    notify,
    order,
    reserve,
    ship,
)
from tests.testing.stories import STORIES, told, waiting

WORKFLOW: dict[str, Any] = {"kit.order": order, "kit.counter": counter}


@pytest.mark.parametrize("story", STORIES)
async def test_history_of_every_kind_of_run_is_replayed_from_a_file_without_executing_anything(
    everywhere: Database, story: str, tmp_path: Path
) -> None:
    history = await told(everywhere, story)
    assert history.status in (STORIES[story].status, WorkflowStatus.WAITING_FOR_MESSAGE)
    history.save(tmp_path / "one" / "history.json")
    executed.clear()
    again = History.load(tmp_path / "one" / "history.json")
    assert again == history
    replayed = replay(WORKFLOW[history.workflow], again)
    assert replayed.outcome == STORIES[story].outcome
    assert executed == []


async def test_replay_returns_what_the_run_came_to(reference: Database) -> None:
    completed = replay(order, await told(reference, "completed", "a"))
    assert completed.result == "parcel for ann@example.org"
    failed = replay(order, await told(reference, "failed", "b"))
    assert isinstance(failed.error, CardError)
    recurred = replay(counter, await told(reference, "recurred", "c"))
    assert recurred.recurs_with == {"left": 1}


async def test_replay_returns_what_an_open_run_does_next(reference: Database) -> None:
    async def packed_and_paid(given: Order) -> str:
        now()
        await reserve(given.id)
        await charge(given.email, given.amount, given.flaky, given.refused)
        await asyncio.gather(notify("soon"), wait_event("kit.packed"))
        return "done"

    history = await told(reference, "waiting")
    assert replay(order, history).next == ["wait_event kit.packed"]
    assert replay(changed(packed_and_paid), history).next == ["kit.notify", "wait_event kit.packed"]


async def _other_step(given: Order) -> str:
    now()
    await reserve(given.id)
    await notify("new")
    return ""


async def _other_arguments(given: Order) -> str:
    now()
    await reserve(given.id.upper())
    return ""


async def _fewer_steps(given: Order) -> str:
    now()
    await reserve(given.id)
    return ""


DIFFERENCES: dict[str, tuple[Any, str, str, str]] = {
    "another step": (_other_step, "3:kit.charge", "3:kit.charge (ActivityCompleted)", "waits for 3:kit.notify"),
    "other arguments": (
        _other_arguments,
        "2:kit.reserve",
        "2:kit.reserve with other arguments",
        'passes these arguments: {"item":"ORDER-1"}',
    ),
    "fewer steps": (_fewer_steps, "3:kit.charge", "3:kit.charge (ActivityCompleted)", "has ended by then"),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
async def test_changed_code_raises_with_the_step_and_both_sides(reference: Database, difference: str) -> None:
    function, step, recorded, called = DIFFERENCES[difference]
    history = await told(reference, "cancelled")
    with pytest.raises(NonDeterminismError) as caught:
        replay(changed(function), history)
    assert (caught.value.step, caught.value.recorded, caught.value.called) == (step, recorded, called)


async def _value_is_gone(given: Order) -> str:
    await reserve(given.id)
    return ""


async def test_missing_value_is_a_difference_with_both_sides(reference: Database) -> None:
    history = await told(reference, "cancelled")
    with pytest.raises(NonDeterminismError) as caught:
        replay(changed(_value_is_gone), history)
    assert (caught.value.recorded, caught.value.called) == ("values at 1", "takes no value there")
    data = history.to_json()
    data["rows"] = [row for row in data["rows"] if row["type"] != "State"]
    with pytest.raises(NonDeterminismError) as caught:
        replay(order, History.from_json(data))
    assert (caught.value.step, caught.value.recorded) == ("1", "no value there")


async def _one_more_step(given: Order) -> str:
    now()
    await reserve(given.id)
    receipt = await charge(given.email, given.amount, given.flaky, given.refused)
    await wait_event("kit.packed", where={"order": given.id})
    parcel = await ship(given, receipt)
    await notify(parcel)
    return parcel


async def test_code_that_goes_on_after_the_end_of_a_completed_run_is_no_difference(reference: Database) -> None:
    history = await told(reference, "completed")
    replayed = replay(changed(_one_more_step), history)
    assert (replayed.outcome, replayed.next) == ("open", ["kit.notify"])


async def _patched(given: Order) -> str:
    now()
    await reserve(given.id)
    if patched("notify first"):
        await notify("new")
    await charge(given.email, given.amount, given.flaky, given.refused)
    await wait_event("kit.packed", where={"order": given.id})
    return ""


async def test_patched_change_is_no_difference(reference: Database) -> None:
    history = await told(reference, "waiting")
    assert replay(changed(_patched), history).next == ["wait_event kit.packed"]


async def test_recorded_value_that_does_not_fit_the_code_is_reported(reference: Database) -> None:
    async def takes_a_number(given: int) -> None:
        await notify(str(given))

    with pytest.raises(SerializationError):
        replay(changed(takes_a_number), await told(reference, "waiting"))


async def test_history_of_another_workflow_is_refused(reference: Database) -> None:
    with pytest.raises(ValueError, match=r"is that of workflow 'kit.order', not of 'kit.counter'"):
        replay(counter, await told(reference, "waiting"))


async def test_history_is_read_by_handle_by_id_and_from_a_database(everywhere: Database, tmp_path: Path) -> None:
    async with App(everywhere.url) as app:
        run = await waiting(app, "order-1")
        by_handle = await history_of(run)
        by_id = await history_of("order-1")
    elsewhere = await export_history("order-1", tmp_path / "a.json", database=everywhere.url)
    assert by_handle == by_id == elsewhere == History.load(tmp_path / "a.json")
    with pytest.raises(RunNotFoundError, match="order-2"):
        await history_of("order-2", database=everywhere.url)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "lacks the format 'perdure-history'"),
        (
            '{"format": "perdure-history", "version": 2}',
            "has version 2 of the format, and this version of perdure knows 1",
        ),
        ('{"format": "perdure-history", "version": 1}', "a part of it is missing or damaged: KeyError"),
        ("{", "Expecting property name"),
    ],
)
def test_file_that_is_no_history_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    with pytest.raises(SerializationError, match=f"the file {path} cannot be read as a history: .*{why}"):
        History.load(path)


async def test_readers_ignore_keys_that_they_do_not_know(reference: Database) -> None:
    history = await told(reference, "waiting")
    data = json.loads(json.dumps(history.to_json()))
    data["tags"], data["rows"][0]["note"] = ["slow"], "later"
    assert History.from_json(data) == history
