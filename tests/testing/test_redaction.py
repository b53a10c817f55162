"""Histories with other values: still replayed, and still compared as far as possible."""

from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    NonDeterminismError,
    Retry,
    SerializationError,
    WorkflowFailedError,
    activity,
    now,
    receive,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.history.digests import REDACTED, Call, stamp, stamped
from perdure.testing import History, export_history, history_of, replay
from perdure.testing.redaction import redacted
from tests.engine.waiting import until
from tests.support.storages import Database, storage_of
from tests.testing.orders import CardError, Order, changed, charge, hide, notify, order, reserve, ship
from tests.testing.stories import ANN, STORIES, told

Scalar = str | int | float | bool | None


def hide_results(place: str, value: Scalar) -> Scalar:
    """Leave the input as it is."""
    return value if place.startswith("input") else hide(place, value)


def hide_all(place: str, value: Scalar) -> Scalar:
    """Keep nothing but types, and what the code decides on."""
    return "hidden" if isinstance(value, str) else value


@pytest.mark.parametrize("defined", [True, False], ids=["defined", "undefined"])
@pytest.mark.parametrize("story", ["completed", "failed", "cancelled", "waiting"])
async def test_redacted_history_has_no_redacted_value_and_is_replayed(
    reference: Database, story: str, defined: bool, tmp_path: Path
) -> None:
    history = redacted(await told(reference, story), hide, order if defined else None)
    history.save(tmp_path / "history.json")
    assert ANN not in (tmp_path / "history.json").read_text()
    replayed = replay(order, History.load(tmp_path / "history.json"))
    assert replayed.outcome == STORIES[story].outcome
    if story == "failed":
        assert isinstance(replayed.error, CardError), "the error keeps its class, which the code catches"
        assert str(replayed.error) == "the card of somebody was refused"


async def _pays_more(given: Order) -> str:
    now()
    await reserve(given.id)
    await charge(given.email, given.amount + 1, given.flaky, given.refused)
    return ""


async def _reserves_another(given: Order) -> str:
    now()
    await reserve(given.id + "!")
    return ""


async def test_arguments_are_still_compared_if_the_workflow_is_defined(reference: Database) -> None:
    history = redacted(await told(reference, "waiting"), hide, order)
    assert not any(row.redacted for row in history.rows)
    with pytest.raises(NonDeterminismError, match=r"3:kit.charge with different arguments"):
        replay(changed(_pays_more), history)


async def test_arguments_of_calls_that_depend_on_redacted_values_are_not_compared_otherwise(
    reference: Database,
) -> None:
    history = redacted(await told(reference, "waiting"), hide, None)
    assert replay(changed(_pays_more), history).outcome == "completed"
    with pytest.raises(NonDeterminismError, match=r"continues with 3:kit.charge .* but the code has ended by then"):
        replay(changed(_reserves_another), history)


async def test_arguments_of_calls_before_the_first_redacted_value_are_always_compared(reference: Database) -> None:
    history = redacted(await told(reference, "waiting"), hide_results, None)
    assert history.input["given"]["email"] == ANN
    with pytest.raises(NonDeterminismError, match=r"2:kit.reserve with different arguments"):
        replay(changed(_reserves_another), history)


async def test_history_is_unchanged_if_nothing_is_redacted(reference: Database) -> None:
    history = await told(reference, "cancelled")
    assert redacted(history, lambda place, value: value, order) == history
    assert redacted(history, lambda place, value: value, None) == history


@pytest.mark.parametrize("defined", [True, False], ids=["defined", "undefined"])
async def test_event_still_matches_its_wait(reference: Database, defined: bool) -> None:
    """Also if the values that it was selected by are redacted, in the same way or not."""
    history = await told(reference, "completed")
    assert replay(order, redacted(history, hide_all, order if defined else None)).outcome == "completed"

    def hide_events(place: str, value: Scalar) -> Scalar:
        return "hidden" if place.startswith("4:wait_event") else value

    other = redacted(history, hide_events, order if defined else None)
    assert replay(order, other).result == "parcel for ann@example.org"

    async def waits_for_another(given: Order) -> str:
        now()
        await reserve(given.id)
        receipt = await charge(given.email, given.amount, given.flaky, given.refused)
        await wait_event("kit.packed", where={"order": f"{given.id}!"})
        return await ship(given, receipt)

    with pytest.raises(NonDeterminismError, match="a different where="):
        replay(changed(waits_for_another), other)


@workflow(name="kit.choice")
async def choice(gift: bool, amount: int) -> None:
    await (notify(f"{amount}") if gift else reserve("a card"))


async def test_redacted_value_that_leads_the_code_elsewhere_is_refused_when_it_is_written(
    reference: Database, tmp_path: Path
) -> None:
    async with App(reference.url):
        id = "choice-1"
        await (await choice.options(id=id).start(True, 10)).result(30)
        with pytest.raises(SerializationError, match=r"redact= changed a value that the code of workflow 'kit.choice'"):
            await export_history(
                id, tmp_path / "a.json", redact=lambda place, value: False if place == "input.gift" else value
            )
        with pytest.raises(SerializationError, match="decides on or decodes"):
            await export_history(
                id, tmp_path / "a.json", redact=lambda place, value: "much" if place.endswith("amount") else value
            )
        assert not (tmp_path / "a.json").exists()
        with pytest.raises(TypeError, match=r"redact\('input.gift', …\) must return a string"):
            await history_of(id, redact=lambda place, value: [])  # type: ignore[arg-type, return-value]


async def test_code_that_has_changed_since_does_not_make_the_digests(reference: Database) -> None:
    history = redacted(await told(reference, "waiting"), hide, changed(_pays_more))
    assert replay(order, history).next == ["wait_event kit.packed"]


@activity(name="kit.refuse", retry=Retry(attempts=1))
async def refuse(name: str) -> None:
    raise CardError(name, 7)


@workflow(name="kit.child")
async def child(name: str) -> str:
    await refuse(name)
    return name


@workflow(name="kit.parent")
async def parent(name: str) -> list[Any]:
    await subscribe("kit.news")
    try:
        await child(name)
    except WorkflowFailedError as error:
        await notify(type(error.__cause__).__name__)
    message = await receive("kit.news")
    return [len(message.data)]


async def test_children_and_binary_messages_are_redacted(reference: Database) -> None:
    async with App(reference.url) as app:
        run = await parent.options(id="parent-1").start("Ann")
        await _noticed(run)
        await storage_of(app).publish_to_channel("kit.news", b"\xff\xfe", binary=True)
        assert await run.result(30) == [2]
        history = await history_of(run)
    for defined in (parent, None):
        found = redacted(history, hide_all, defined)
        assert "Ann" not in str(found.to_json())
        assert replay(parent, found).result == [0]
        assert found.steps == history.steps
    assert found.steps[1:3] == ["child kit.child failed: CardError", "kit.notify"]


async def _noticed(run: Any) -> None:
    async def is_there() -> bool:
        return any(step.name == "kit.notify" for step in await run.steps())

    await until(is_there)


@workflow(name="kit.greeting")
async def greeting(name: str) -> str:
    return f"Hello {name}"


@workflow(name="kit.starter")
async def starter(name: str) -> str:
    return (await greeting.options(id="greeting-1").start(name)).id


async def test_ids_of_runs_that_the_code_started_are_kept(reference: Database) -> None:
    async with App(reference.url):
        run = await starter.start("Ann")
        assert await run.result(30) == "greeting-1"
        history = await history_of(run)
    for defined in (starter, None):
        found = redacted(history, hide_all, defined)
        assert "Ann" not in str(found.to_json())
        assert replay(starter, found).result == "greeting-1"


def test_redacted_digest_is_compared_with_nothing_and_keeps_its_time() -> None:
    recorded = REDACTED + stamp(3.5)
    assert not Call("a").differs(recorded)
    assert not Call(encoded=b'"a"').differs(recorded)
    assert stamped(recorded) == 3.5
