"""Values of users are stored and replayed with their types."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Retry, SerializationError, WorkflowFailedError, activity, wait_event, workflow
from tests.engine.parcels import PARCEL, Parcel, packed, packed_parcels
from tests.engine.waiting import waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
ONCE = Retry(attempts=1)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    packed_parcels.clear()


@activity(retry=ONCE)
async def note(what: object) -> None:
    seen.append(what)


async def test_values_keep_their_types_live_and_replayed(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        handle = await packed.start(PARCEL)
        await waiting(app, handle.id)
        await app.send_event("go", None)
        found, parts = await handle.result(SOON)
    assert found == Parcel(**{**vars(PARCEL), "parts": [PARCEL]})
    assert parts == 0  # the activity had a copy, as it would after a crash
    assert packed_parcels == [found]


@workflow(name="values.argument")
async def odd_argument() -> None:
    await note(object())


@activity(retry=ONCE)
async def odd() -> Any:
    return object()


@activity(retry=ONCE)
async def wrong() -> int:
    return "seven"  # type: ignore[return-value]


@workflow(name="values.result")
async def odd_result() -> None:
    await odd()


@workflow(name="values.wrong")
async def wrong_result() -> None:
    await wrong()


@workflow(name="values.own_result")
async def odd_own_result() -> Any:
    return object()


@pytest.mark.parametrize(
    "odd_one", [odd_argument, odd_result, wrong_result, odd_own_result], ids=lambda each: each.name
)
async def test_value_that_cannot_be_encoded_fails_the_run_with_a_clear_error(memory: Database, odd_one: Any) -> None:
    async with App(memory.url):
        with pytest.raises(WorkflowFailedError) as caught:
            await (await odd_one.start()).result(SOON)
    assert isinstance(caught.value.__cause__, SerializationError)
    assert "object" in str(caught.value) or "int" in str(caught.value)


@dataclass
class Receipt:
    number: int
    total: float


@activity
async def pay(number: int) -> Receipt:
    seen.append(number)
    return Receipt(number, number / 2)


@activity
async def count() -> int:
    return 3


@workflow(name="values.typed")
async def typed() -> list[Any]:
    receipt, number = await pay(5), await count()
    await wait_event("go")
    return [type(receipt).__name__, receipt.total + number, type(number).__name__]


@pytest.mark.pitfall(50)
async def test_results_have_their_types_after_a_wait(database: Database) -> None:
    async with App(database.url, max_cached_runs=0) as app:
        await typed.options(id="a").start()
        await waiting(app, "a")
        await app.send_event("go", None)
        assert await app.get("a").result(SOON) == ["Receipt", 5.5, "int"]
    assert seen == [5]
