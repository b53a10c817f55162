"""Step ids are derived from the task tree, and do not depend on the interleaving of the tasks."""

import asyncio
from collections.abc import Mapping
from contextvars import Context, copy_context
from typing import Any

import pytest

from perdure.engine.replay.loop import BodyLoop, Timer
from perdure.engine.replay.scopes import PATH_MAX, Scope, current_scope, enter
from perdure.model import limits


class NoTimers:
    def start(self, timer: Timer) -> None:
        raise AssertionError("no timer is made here")

    def drop(self, timer: Timer) -> None:
        raise AssertionError("no timer is made here")

    def path_of(self, coro: object) -> None:
        """No coroutine has a path of its own."""

    def report(self, context: Mapping[str, Any]) -> None:
        pytest.fail(str(context))

    def closed(self) -> "NoTimers":
        return self


@pytest.fixture
def loop() -> BodyLoop:
    return BodyLoop(NoTimers())


def here() -> Scope:
    scope = current_scope()
    assert scope is not None
    return scope


def step() -> str:
    return here().next()


def test_root_counts_from_one_and_others_below_their_own_path() -> None:
    root, third = Scope(), Scope("3")
    assert [root.next(), root.next(), root.next()] == ["1", "2", "3"]
    assert [third.next(), third.next()] == ["3.1", "3.2"]


def test_there_is_no_scope_outside_a_body() -> None:
    assert current_scope() is None


def test_scope_is_entered_in_one_context_only() -> None:
    context = copy_context()
    enter(context, Scope("7"))
    assert context.run(here).path == "7"
    assert current_scope() is None


def test_path_of_a_deep_task_still_fits_an_id() -> None:
    scope, seen = Scope(), set()
    for _ in range(1000):
        path = scope.next()
        assert path not in seen
        assert len(path) <= PATH_MAX
        assert scope.next() != path
        seen.add(path)
        scope = Scope(path)
    assert limits.INSTANCE_ID_MAX + len("/") + PATH_MAX <= limits.NAME_MAX


def test_folded_path_is_the_same_in_every_process() -> None:
    scope = Scope("1." * 23 + "10")
    assert scope.next() == "x3caa2eaaa329dc949f04ac82474d7297"


def test_tasks_are_numbered_with_the_steps_of_their_creator(loop: BodyLoop) -> None:
    async def child() -> list[str]:
        grandchild = asyncio.create_task(leaf())
        return [step(), *await grandchild]

    async def leaf() -> list[str]:
        return [step(), step()]

    async def body() -> list[str]:
        first = step()
        task = asyncio.create_task(child())
        return [first, step(), *await task, step()]

    root = loop.spawn(body())
    loop.pump()
    assert root.result() == ["1", "3", "2.2", "2.1.1", "2.1.2", "4"]


@pytest.mark.behaviour("order")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_interleaving_does_not_change_step_ids(loop: BodyLoop, order: tuple[int, int]) -> None:
    gates: list[asyncio.Future[None]] = []

    async def child() -> list[str]:
        gate = loop.create_future()
        gates.append(gate)
        await gate
        return [step(), step()]

    async def body() -> list[list[str]]:
        return [*await asyncio.gather(child(), child())]

    root = loop.spawn(body())
    loop.pump()
    for which in order:
        gates[which].set_result(None)
        loop.pump()
    assert root.result() == [["1.1", "1.2"], ["2.1", "2.2"]]


def test_task_with_a_given_context_has_its_own_scope(loop: BodyLoop) -> None:
    async def child() -> str:
        return step()

    async def body() -> list[str]:
        shared = copy_context()
        one = asyncio.create_task(child(), context=shared)
        two = asyncio.create_task(child(), context=shared)
        bare = asyncio.create_task(child(), context=Context())
        return [await one, await two, await bare, step()]

    root = loop.spawn(body())
    loop.pump()
    assert root.result() == ["1.1", "2.1", "3.1", "4"]


def test_callbacks_are_numbered_with_their_scheduler(loop: BodyLoop) -> None:
    async def child() -> str:
        future = loop.create_future()
        loop.call_soon(lambda: future.set_result(step()))
        return str(await future)

    async def body() -> list[str]:
        return [step(), await asyncio.create_task(child()), step()]

    root = loop.spawn(body())
    loop.pump()
    assert root.result() == ["1", "2.1", "3"]
