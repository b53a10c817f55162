"""Calling workflows and activities: which calls are steps, which start a run, and which are refused."""

import asyncio
import inspect
import warnings
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    EngineError,
    OutsideWorkflowError,
    Retry,
    RunExistsError,
    WorkflowFailedError,
    activity,
    activity_info,
    now,
    sleep,
    wait_event,
    workflow,
)
from tests.support.storages import Database

ONCE = Retry(attempts=1)
seen: list[Any] = []

SOON = timedelta(seconds=60)

attempts: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    attempts.clear()


@activity(name="calling.double")
async def double(number: int) -> int:
    return 2 * number


@activity(name="calling.plain")
def plainly(number: int) -> int:
    return -number


@workflow(name="calling.ways")
async def ways() -> list[int]:
    """Each way of awaiting a call."""
    found = [await double(1)]
    found += await asyncio.gather(double(2), plainly(3))
    task = asyncio.create_task(double(4))
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(double(5)), group.create_task(plainly(6))
    found += [await task, first.result(), second.result()]
    found.append(await asyncio.wait_for(double(7), 60))
    async with asyncio.timeout(60):
        found.append(await double(8))
    return found


async def test_calls_of_activities_are_coroutines(database: Database) -> None:
    async with App(database.url) as app:
        handle = await ways.options(id="a").start()
        assert await handle.result(SOON) == [2, 4, -3, 8, 10, -6, 14, 16]
        steps = [event.step async for event in app.history("a") if "calling" in event.step]
    order = sorted(steps, key=lambda step: int(step.partition(":")[0]))
    assert [step.partition(":")[2] for step in order] == [
        f"calling.{name}" for name in "double double plain double double plain double double".split()
    ]


@workflow(name="calling.either_way")
async def either_way(gathered: bool) -> str:
    if gathered:
        await asyncio.gather(double(1), double(2))
    else:
        await double(1)
        await double(2)
    return (await where()).partition(":")[0]


@activity(name="calling.where")
async def where() -> str:
    return activity_info().step


async def test_task_of_a_call_does_not_change_the_steps_after_it(memory: Database) -> None:
    """Versions of Python differ in where they make tasks; the history must not."""
    async with App(memory.url):
        assert await either_way(True) == await either_way(False) == "3"


@workflow(name="calling.forgetful")
async def forgetful() -> int:
    double(1)  # type: ignore[unused-coroutine]
    return await double(2)


async def test_call_that_is_never_awaited_warns_with_the_name_of_the_function(memory: Database) -> None:
    async with App(memory.url):
        with pytest.warns(RuntimeWarning, match="coroutine 'double' was never awaited"):
            assert await (await forgetful.start()).result(SOON) == 4
    with pytest.warns(RuntimeWarning, match="coroutine 'double' was never awaited"):
        double(1)  # type: ignore[unused-coroutine]
    with pytest.warns(RuntimeWarning, match="coroutine 'ways' was never awaited"):
        ways()  # type: ignore[unused-coroutine]


async def test_frameworks_recognise_calls_as_coroutine_functions() -> None:
    for each in (double, plainly, ways, ways.options(id="a"), ways.start):
        assert asyncio.iscoroutinefunction(each) or inspect.iscoroutinefunction(each)


async def test_activity_called_outside_a_workflow_runs_its_function() -> None:
    assert await double(2) == 4
    assert await plainly(2) == -2
    assert await double.options(retry=Retry(attempts=1))(3) == 6


# Options of a call.


@activity(name="calling.flaky", retry=Retry(attempts=3, initial=0.001))
async def flaky(label: str) -> int:
    attempts.append(label)
    if activity_info().attempt < 3:
        raise ValueError(label)
    return activity_info().attempt


@activity(name="calling.slow", retry=Retry(attempts=1))
async def slow() -> None:
    await asyncio.Event().wait()


@workflow(name="calling.optional")
async def optional() -> list[object]:
    found: list[object] = [await flaky("three")]
    try:
        await flaky.options(retry=Retry(attempts=1))("one")
    except ValueError as error:
        found.append(str(error))
    found.append((await where.options(name="calling.elsewhere")()).partition(":")[2])
    try:
        await slow.options(timeout=0.01)()
    except TimeoutError:
        found.append("late")
    return found


async def test_options_apply_to_one_call(memory: Database) -> None:
    async with App(memory.url):
        assert await optional() == [3, "one", "calling.elsewhere", "late"]
    assert attempts == ["three"] * 3 + ["one"]


@activity(name="calling.reserve")
async def reserve() -> None:
    attempts.append("reserved")


@reserve.compensation
async def release() -> None:
    attempts.append("released")


@workflow(name="calling.saga")
async def saga(renamed: bool) -> None:
    await reserve.options(retry=Retry(attempts=1), name="calling.other" if renamed else None)()
    raise ValueError("over")


async def test_activity_with_options_is_compensated(memory: Database) -> None:
    async with App(memory.url):
        with pytest.raises(WorkflowFailedError, match="over"):
            await saga(False)
        assert attempts == ["reserved", "released"]
        with pytest.raises(WorkflowFailedError, match=r"cannot be used with activity .* it has a compensation"):
            await saga(True)


# Direct calls of workflows.


@workflow(name="calling.adds")
async def adds(left: int, right: int = 1) -> int:
    return left + await double(right)


@workflow(name="calling.parent")
async def parent() -> int:
    return await adds(1) + await adds(2, right=3)


@activity(name="calling.misled", retry=Retry(attempts=1))
async def misled() -> int:
    return await adds(1)


@activity(name="calling.led", retry=Retry(attempts=1))
async def led() -> int:
    return await adds.function(1)


@workflow(name="calling.through")
async def through(well: bool) -> int:
    return await (led() if well else misled())


@pytest.mark.call("run")
async def test_workflow_called_from_a_program_is_a_durable_run(database: Database) -> None:
    async with App(database.url) as app:
        assert await adds.options(id="a")(3, right=4) == 11
        steps = [event.step async for event in app.history("a")]
        assert "1:calling.double" in steps
        assert await adds.options(id="a")(3, right=4) == 11, "the same run again"
        assert await parent() == 3 + 8


async def test_workflow_called_with_a_client_runs_in_another_app(shared: Database) -> None:
    async with App(shared.url), Client(shared.url):
        assert await adds(3) == 5


@pytest.mark.call("run")
async def test_workflow_is_never_run_without_durability(memory: Database) -> None:
    with pytest.raises(
        OutsideWorkflowError, match=r"where no App or Client is open.*adds\.start\(…\).*\.function\(…\)"
    ):
        await adds(1)
    assert await adds.function(1) == 3
    async with App(memory.url):
        with pytest.raises(WorkflowFailedError, match=r"was called in an activity.*adds\.start\(…\)") as failed:
            await through(False)
        assert isinstance(failed.value.__cause__, OutsideWorkflowError)
        assert await through(True) == 3


@workflow(name="calling.particular")
async def particular() -> int:
    return await adds.options(id="mine")(1)


async def test_options_are_refused_for_a_child(memory: Database) -> None:
    async with App(memory.url):
        with pytest.raises(WorkflowFailedError, match=r"a child takes no options, and calling\.adds was given id"):
            await particular()


# Arguments.


@dataclass
class Item:
    name: str
    price: float


@workflow(name="calling.takes")
async def takes(id: str, at: Item, after: int | None = None, *, timeout: list[int] | None = None) -> str:
    return f"{id} {at.name} {after} {timeout}"


async def test_no_parameter_name_is_reserved(memory: Database) -> None:
    async with App(memory.url):
        handle = await takes.options(id="the run", timeout=60).start("x", Item("y", 1), after=2, timeout=[3])
        assert handle.id == "the run"
        assert await handle.result(SOON) == "x y 2 [3]"
        with pytest.raises(TypeError, match="argument 'timeout' must be") as wrong:
            await takes.start("x", Item("y", 1), timeout=["z"])  # type: ignore[list-item]
        assert "for the option use" not in str(wrong.value)  # it is the workflow's own parameter


@pytest.mark.call("run")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: adds.start("abc"), r"adds\(\): argument 'left' must be int, not 'abc'"),  # type: ignore[arg-type]
        (lambda: adds.start(1, right=1.5), r"adds\(\): argument 'right' must be int, not 1.5"),  # type: ignore[arg-type]
        (lambda: takes.start("x", {"name": "y"}), r"'at' must be .*Item, not {'name': 'y'}"),  # type: ignore[arg-type]
        (lambda: takes.start("x", Item("y", 1), timeout=["z"]), r"argument 'timeout' must be"),  # type: ignore[list-item]
        (lambda: adds.start(), r"adds\(\) missing a required argument: 'left'"),  # type: ignore[call-arg]
        (lambda: adds.start(1, wrong=2), r"adds\(\) got an unexpected keyword argument 'wrong'"),  # type: ignore[call-arg]
        (lambda: adds("abc"), r"adds\(\): argument 'left' must be int, not 'abc'"),  # type: ignore[arg-type]
    ],
)
async def test_arguments_are_checked_before_anything_is_stored(memory: Database, call: Any, message: str) -> None:
    async with App(memory.url) as app:
        with pytest.raises(TypeError, match=message):
            await call()
        assert await app.runs().count() == 0


@workflow(name="calling.wrong_child")
async def wrong_child() -> str:
    try:
        await adds("abc")  # type: ignore[arg-type]
    except TypeError as error:
        return str(error)
    return "nothing"


async def test_arguments_of_a_child_are_checked_where_it_is_called(memory: Database) -> None:
    async with App(memory.url):
        assert "argument 'left' must be int, not 'abc'" in await wrong_child()


async def test_error_for_an_existing_id_says_what_differs(database: Database) -> None:
    async with App(database.url):
        await adds.options(id="a").start(1)
        assert (await adds.options(id="a").start(1)).id == "a"
        with pytest.raises(RunExistsError, match=r"""run 'a' \(calling.adds\) already exists with different input: """):
            await adds.options(id="a").start(2)
        with pytest.raises(RunExistsError, match=r"as a run of workflow 'calling\.adds' and not of 'calling\.parent'"):
            await parent.options(id="a").start()
        with pytest.raises(RunExistsError, match='if_exists="error" was given'):
            await adds.options(id="a", if_exists="error").start(1)


@workflow(name="calling.starts_taken")
async def starts_taken() -> str:
    try:
        await adds.options(id="a").start(2)
    except RunExistsError as error:
        return str(error)
    return "nothing"


async def test_existing_id_raises_in_a_body(database: Database) -> None:
    async with App(database.url):
        await adds.options(id="a").start(1)
        assert "run 'a' (calling.adds) already exists with different input" in await starts_taken()


def test_wrong_options_are_refused_at_the_call() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"timeout": "3"}, TypeError, r"options\(timeout=\) must be a number of seconds or a timedelta, not '3'"),
        ({"timeout": 0}, ValueError, r"options\(timeout=\) must be above 0 seconds"),
        ({"after": -1}, ValueError, r"options\(after=\) must be 0 or more seconds, not -1"),
        ({"at": "tomorrow"}, TypeError, r"options\(at=\) must be a datetime with a time zone, not 'tomorrow'"),
        ({"if_exists": "same"}, ValueError, r"""options\(if_exists=\) must be "return" or "error", not 'same'"""),
        ({"unknown": 1}, TypeError, "unknown"),
    ]
    for given, kind, message in wrong:
        with pytest.raises(kind, match=message):
            adds.options(**given)


# Definitions.


def _generator() -> Any:
    yield 1


class Shop:
    async def sell(self) -> None: ...


async def _function() -> None: ...


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda: activity(3), "an activity must be a function, not 3"),  # type: ignore[call-overload]
        (lambda: activity(retry=3)(_function), r"retry= of activity '_function' must be a Retry, .*not 3"),  # type: ignore[call-overload]
        (lambda: activity(timeout="3")(_function), r"timeout= of activity '_function' must be a number of seconds"),  # type: ignore[call-overload]
        (lambda: activity(_generator), "is a generator"),
        (lambda: activity(Shop.sell), "is a method"),
        (lambda: activity(Shop().sell), "must be a function"),
        (lambda: activity(lambda: 1), "a lambda has none"),
        (lambda: activity(double), "is already decorated"),
        (lambda: workflow(double), "is already decorated"),
        (lambda: workflow(plainly.function), "is a plain function"),
        (lambda: adds.on_failure(3), "a failure handler must be a function, not 3"),  # type: ignore[arg-type]
        (lambda: adds.on_failure(double), "is already decorated"),
        (
            lambda: adds.on_failure(_generator),
            "a failure handler must return its result, and _generator is a generator",
        ),
        (lambda: workflow(_function, 3), "positional"),  # type: ignore[call-overload]
        (lambda: Retry(initial="soon"), r"Retry\(initial=\) must be a number of seconds"),  # type: ignore[arg-type]
        (lambda: Retry(attempts=1.5), r"Retry\(attempts=\) must be a whole number, not 1.5"),  # type: ignore[arg-type]
        (lambda: Retry(give_up_on=ValueError), "must be a tuple of exception classes"),  # type: ignore[arg-type]
    ],
)
def test_wrong_definitions_are_refused_when_the_decorator_runs(define: Any, message: str) -> None:
    with warnings.catch_warnings(), pytest.raises(TypeError, match=message):
        warnings.simplefilter("error")
        define()


def test_bounds_of_settings_are_checked_when_the_decorator_runs() -> None:
    for make, message in [
        (lambda: Retry(initial=-1), r"Retry\(initial=\) must be 0 or more seconds, not -1"),
        (lambda: Retry(attempts=0), r"Retry\(attempts=\) must be at least 1, not 0"),
        (lambda: Retry(jitter=2), r"Retry\(jitter=\) must be between 0 and 1, not 2"),
        (lambda: workflow(max_tries=0), r"workflow\(max_tries=\) must be a whole number of at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()  # type: ignore[no-untyped-call]


def _defined_at_the_top() -> None: ...


def test_two_activities_with_one_name_are_refused() -> None:
    activity(name="calling.twice")(_function)
    activity(name="calling.twice")(_function)  # a module that is imported again
    with pytest.raises(ValueError, match=r"two activities are named 'calling\.twice', in"):
        activity(name="calling.twice")(_defined_at_the_top)


def test_types_of_calls() -> None:
    """Nothing to run: mypy knows them."""

    def check() -> tuple[Coroutine[Any, Any, int], Coroutine[Any, Any, int]]:
        return double(1), plainly(1)

    assert callable(check)


@activity(retry=ONCE)
async def note(what: object) -> None:
    seen.append(what)


@workflow(name="calling.timers")
async def timers() -> list[str]:
    found: list[str] = []
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    await asyncio.sleep(0.01)
    found.append("slept")
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        found.append("timeout")
    try:
        await asyncio.wait_for(wait_event("never"), 0.01)
    except TimeoutError:
        found.append("wait_for")
    loop.call_later(0.01, called.set)
    await called.wait()
    found.append("call_later")
    return found


async def test_activity_called_outside_a_workflow_is_an_ordinary_call() -> None:
    await note("plainly")
    assert seen == ["plainly"]

    @activity
    def sum_of(*numbers: int) -> int:
        return sum(numbers)

    assert await sum_of(1, 2, 3) == 6


async def test_durable_calls_outside_a_workflow_raise() -> None:
    for call in (lambda: sleep(1), lambda: wait_event("x")):
        with pytest.raises(OutsideWorkflowError, match="outside a workflow"):
            await call()
    with pytest.raises(OutsideWorkflowError):
        now()
    with pytest.raises(OutsideWorkflowError):
        activity_info()
    with pytest.raises(EngineError, match="no App or Client is open"):
        await timers.start()


def test_workflow_that_is_not_async_is_refused() -> None:
    with pytest.raises(TypeError, match="async def"):

        @workflow(name="calling.not_async")  # type: ignore[arg-type]
        def not_async() -> None:
            pass
