"""Any completion order: concurrent activities complete in an order that a seed determines."""

import asyncio
from pathlib import Path

import pytest

from perdure import Retry, activity, workflow
from perdure.testing import TestApp, any_order


@activity(name="order.note", retry=Retry(attempts=2, initial=0.1))
async def note(name: str) -> str:
    return name


@activity(name="order.plain")
def note_in_thread(name: str) -> str:
    return name


@workflow(name="order.race")
async def race() -> list[str]:
    done: list[str] = []

    async def add(name: str) -> None:
        done.append(await (note(name) if name in "abc" else note_in_thread(name)))

    async with asyncio.TaskGroup() as group:
        for name in "abcde":
            group.create_task(add(name))
    return done


async def _orders(runs: int, seed: int = 0, database: str | None = None) -> list[tuple[str, ...]]:
    seen: list[tuple[str, ...]] = []

    async def scenario() -> None:
        async with TestApp(database):
            seen.append(tuple(await race()))

    await any_order(scenario, runs=runs, seed=seed)
    return seen


async def test_each_seed_has_its_own_order() -> None:
    orders = await _orders(12)
    assert all(sorted(order) == list("abcde") for order in orders)
    assert len(set(orders)) >= 8
    assert {order[0] for order in orders} == set("abcde")


async def test_same_seed_repeats_the_order() -> None:
    first, again = await _orders(3, seed=5), await _orders(3, seed=5)
    assert first == again


async def test_orders_are_shuffled_on_a_database(tmp_path: Path) -> None:
    assert len(set(await _orders(5, database=f"sqlite:///{tmp_path / 'orders.db'}"))) >= 3


async def test_app_outside_any_order_is_not_shuffled() -> None:
    async with TestApp():
        assert set((await race())[:3]) == set("abc")  # the others are slower, because they are in threads


async def test_failure_names_the_seed_that_repeats_it() -> None:
    async def scenario() -> None:
        async with TestApp():
            assert (await race())[0] != "c"

    with pytest.raises(AssertionError) as failed:
        await any_order(scenario)
    (note,) = failed.value.__notes__
    seed = int(note.removeprefix("repeat this order of completions with any_order(…, runs=1, seed=").removesuffix(")"))
    with pytest.raises(AssertionError):
        await any_order(scenario, runs=1, seed=seed)


async def test_activity_that_waits_for_another_completion_is_not_blocked_for_ever() -> None:
    later = asyncio.Event()

    @activity(name="order.first")
    async def first() -> None: ...

    @activity(name="order.second")
    async def second() -> None:
        later.set()

    @activity(name="order.waits")
    async def waits() -> None:
        await later.wait()

    @workflow(name="order.dependent")
    async def dependent() -> str:
        async def one_after_the_other() -> None:
            await first()
            await second()

        async with asyncio.TaskGroup() as group:
            group.create_task(waits())
            group.create_task(one_after_the_other())
        return "done"

    async def scenario() -> None:
        later.clear()
        async with TestApp():
            assert await dependent() == "done"

    await any_order(scenario, runs=2)
