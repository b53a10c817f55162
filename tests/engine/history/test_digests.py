"""Replay detects a step that is called with different arguments than recorded."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any

import pytest

from perdure import (
    App,
    NonDeterminismError,
    Retry,
    activity,
    join_group,
    publish,
    receive,
    send_event,
    send_to,
    send_to_group,
    sleep,
    subscribe,
    unsubscribe,
    wait_event,
    workflow,
)
from perdure.engine.history.codec import encode
from perdure.engine.history.digests import WALK_MAX, Call
from perdure.engine.history.records import record_of
from perdure.engine.replay.replayer import Replayer
from perdure.errors import LimitError
from perdure.model.records import HistoryEvent, WorkflowInstance
from perdure.storage.history import HistoryIterator
from tests.engine.waiting import waiting
from tests.support.storages import Database

CODE: dict[str, Any] = {"new": False}  # which version of the code is deployed
failures: list[str] = []


@pytest.fixture(autouse=True)
def first_version() -> None:
    CODE["new"] = False
    failures.clear()


def either(old: Any, new: Any) -> Any:
    return new if CODE["new"] else old


@activity
async def greet(name: str) -> str:
    return f"hello {name}"


@activity(retry=Retry(attempts=3))
async def fails_once(name: str) -> str:
    if not failures:
        failures.append(name)
        raise ValueError(name)
    return name


@activity
async def breaks(name: str) -> str:
    raise LimitError(name)


@activity
async def reserve(name: str) -> str:
    return name


@reserve.compensation
async def cancel(name: str) -> None: ...


@activity(transactional=True)
async def transacts(name: str) -> str:
    return name


@activity
async def announces(name: str) -> str:
    await publish("digests.news", name)
    return name


@workflow(name="digests.child")
async def child(name: str) -> str:
    return name


@workflow(name="digests.other_child")
async def other_child(name: str) -> str:
    return name


async def _unknown() -> None:
    with suppress(LimitError):
        await breaks(either("a", "b"))


async def _receive() -> None:
    await subscribe("digests.one", "direct")
    await subscribe("digests.two", "direct")
    await send_to("digests.run", "digests.one", 1)
    await send_to("digests.run", "digests.two", 1)
    await receive(either("digests.one", "digests.two"))


async def _event() -> None:
    for kind in ("digests.paid", "digests.shipped"):
        await send_event(kind, {"by": "ann"}, to="digests.run")
    await wait_event(either("digests.paid", "digests.shipped"))


async def _unsubscribe() -> None:
    await subscribe("digests.one")
    await subscribe("digests.two")
    await unsubscribe(either("digests.one", "digests.two"))


async def _swapped() -> None:
    await asyncio.gather(*(child(name) for name in either(["a", "b"], ["b", "a"])))


STEPS: dict[str, Callable[[], Awaitable[Any]]] = {
    "activity": lambda: greet(either("ann", "bob")),
    "failed attempt": lambda: fails_once(either("ann", "bob")),
    "failed activity": _unknown,
    "begun activity": lambda: reserve(either("ann", "bob")),
    "transactional activity": lambda: transacts(either("ann", "bob")),
    "activity that sends": lambda: announces(either("ann", "bob")),
    "child's input": lambda: child(either("ann", "bob")),
    "child's workflow": lambda: either(child, other_child)("ann"),
    "swapped children": _swapped,
    "start": lambda: child.start(either("ann", "bob")),
    "id of a start": lambda: child.options(id=either("digests.a", "digests.b")).start("ann"),
    "publish": lambda: publish("digests.news", either(1, 2)),
    "channel": lambda: publish(either("digests.news", "digests.olds"), 1),
    "send_to": lambda: send_to(either("someone", "anyone"), "digests.news", 1),
    "send_event": lambda: send_event(either("digests.paid", "digests.shipped"), 1),
    "receiver": lambda: send_event("digests.paid", 1, to=either("someone", "anyone")),
    "join_group": lambda: join_group(either("digests.one", "digests.two")),
    "send_to_group": lambda: send_to_group("digests.one", "digests.news", either(1, 2)),
    "subscribe": lambda: subscribe(either("digests.one", "digests.two")),
    "mode": lambda: subscribe("digests.one", either("broadcast", "competing")),
    "unsubscribe": _unsubscribe,
    "receive": _receive,
    "event type": _event,
}


@workflow(name="digests.steps")
async def steps(kind: str) -> None:
    await STEPS[kind]()


def replay(history: list[HistoryEvent], input_data: bytes, id: str = "digests.run") -> Replayer:
    """Feed a body all rows of a history that are a body's."""
    rows = [row for row in history if not row.activity_id.startswith("~") or row.event_type in ("Values", "State")]
    body = Replayer(steps, id, input_data)
    try:
        for row in rows:
            body.feed(record_of(row))
        body.catch_up()
    finally:
        body.evict()
    return body


async def recorded(database: Database, kind: str) -> list[HistoryEvent]:
    async with App(database.url) as app:
        await app._storage.create_instance(WorkflowInstance("someone", "digests.someone"))
        await (await steps.options(id="digests.run").start(kind)).result(20)
        return [row async for row in HistoryIterator(app._storage, "digests.run")]


@pytest.mark.parametrize("kind", STEPS)
async def test_replay_with_different_arguments_is_a_mismatch(memory: Database, kind: str) -> None:
    history = await recorded(memory, kind)
    assert replay(history, encode({"kind": kind})).done
    CODE["new"] = True
    with pytest.raises(NonDeterminismError, match=r"run 'digests\.run' \(digests\.steps\): the history "):
        replay(history, encode({"kind": kind}))


async def test_mismatch_names_the_step_and_the_arguments(database: Database) -> None:
    """Every database returns the digests as they were stored, alone and in batches."""
    history = await recorded(database, "activity")
    assert [len(row.event_data_binary or b"") >= 9 for row in history if row.activity_id == "1:greet"] == [True]
    CODE["new"] = True
    expected = r"the history has 1:greet with different arguments than the code passes now.*bob"
    with pytest.raises(NonDeterminismError, match=expected):
        replay(history, encode({"kind": "activity"}))


async def test_rows_without_a_digest_replay(memory: Database) -> None:
    """Histories of earlier versions have none."""
    history = [replace(row, event_data_binary=None) for row in await recorded(memory, "failed attempt")]
    CODE["new"] = True
    assert replay(history, encode({"kind": "failed attempt"})).done


@workflow(name="digests.timers")
async def timers() -> str:
    await asyncio.gather(*(sleep(seconds) for seconds in either([0.01, 0.02], [0.02, 0.01])))
    await wait_event("digests.go")
    return "woken"


async def test_changed_delay_is_no_mismatch(memory: Database) -> None:
    async with App(memory.url, max_cached_runs=0) as app:
        handle = await timers.start()
        await waiting(app, handle.id)
        CODE["new"] = True
        await app.send_event("digests.go", None, to=handle.id)
        assert await handle.result(20) == "woken"


PROGRAM = """
import asyncio, sys
from perdure import App, activity, wait_event, workflow

@activity
async def greet(name: str) -> str:
    return "hello " + name

@workflow
async def greetings(names: list[str]) -> dict[str, str]:
    found = {}
    for name in set(names):
        found[name] = await greet(name)
    await wait_event("go")
    return found

async def main() -> None:
    names = ["ann", "bob", "cem", "dan", "eve"]
    print(list(set(names)))
    async with App(sys.argv[1]) as app:
        handle = await greetings.options(id="greetings").start(names)
        async with asyncio.timeout(30):
            if sys.argv[2] == "first":
                while not (await handle.info()).status.startswith("waiting"):
                    await asyncio.sleep(0.01)
            else:
                await app.send_event("go", None, to="greetings")
                while (found := await app.runs(stuck=True).first()) is None:
                    assert (await handle.info()).status != "completed", await handle.result()
                    await asyncio.sleep(0.01)
                print(found.stuck.reason)

asyncio.run(main())
"""


async def test_order_of_a_set_under_another_hash_seed_is_a_mismatch(shared: Database) -> None:
    """Otherwise a step would return the recorded result of another: `{"ann": "hello bob"}`."""

    async def run(seed: str, part: str) -> list[str]:
        program = [sys.executable, "-c", PROGRAM, str(shared.url), part]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = await asyncio.to_thread(subprocess.run, program, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = await run("1", "first")
    second = await run("2", "second")
    assert first[0] != second[0]
    assert "NonDeterminismError" in second[1]


# What does not count.


@dataclass
class Order:
    id: str
    tags: set[str] = field(default_factory=set)


def test_order_of_dicts_and_sets_does_not_change_the_digest() -> None:
    assert Call({"a": 1, "b": [1, 2]}).digest == Call({"b": [1, 2], "a": 1}).digest
    assert Call({1, "a", None}).digest == Call({"a", None, 1}).digest
    assert Call(Order("1", {"x", "y"})).digest == Call(Order("1", {"y", "x"})).digest
    assert Call({1: "a", 2: "b"}).digest == Call({2: "b", 1: "a"}).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [([1, 2], [2, 1]), (1, True), (1, "1"), ("a", None), ([[1], [2]], [[1, 2]]), ({"a": 1}, {"a": 2}), ({1}, {2})],
)
def test_differences_that_change_the_digest(one: object, other: object) -> None:
    assert Call(one).digest != Call(other).digest
    assert Call(Order("1")).digest != Call(Order("2")).digest
    assert Call("ab", "c").digest != Call("a", "bc").digest


def test_field_with_a_default_can_be_added() -> None:
    pydantic = pytest.importorskip("pydantic")
    msgspec = pytest.importorskip("msgspec")
    more: list[Any] = [
        ("note", str, field(default="none")),
        ("lines", list, field(default_factory=list)),
    ]
    first, second = make_dataclass("Item", [("id", str)]), make_dataclass("Item", [("id", str), *more])
    assert Call(first("1")).digest == Call(second("1")).digest != Call(second("1", note="some")).digest
    one = pydantic.create_model("Item", id=(str, ...))
    two = pydantic.create_model("Item", id=(str, ...), note=(str, "none"), lines=(list, pydantic.Field([])))
    assert Call(one(id="1")).digest == Call(two(id="1")).digest != Call(two(id="1", note="some")).digest
    struct = msgspec.defstruct("Item", [("id", str)])
    longer = msgspec.defstruct("Item", [("id", str), ("note", str, "none")])
    assert Call(struct("1")).digest == Call(longer("1")).digest != Call(longer("1", "some")).digest


def _digest(function: Any, *args: Any, **kwargs: Any) -> bytes:
    signature = activity(function).signature
    encoded, values = signature.bind_values(args, kwargs)
    return Call(*values, encoded=encoded).digest


def test_parameters_can_be_renamed_and_added_with_a_default() -> None:
    def first(amount: int, currency: str) -> None: ...

    def second(total: int, currency: str, note: str = "") -> None: ...

    assert _digest(first, 1, "EUR") == _digest(second, 1, "EUR") == _digest(second, 1, currency="EUR")
    assert _digest(first, 1, "EUR") != _digest(first, 2, "EUR")


def test_digest_of_a_call_is_the_same_in_every_release() -> None:
    """Histories have it: another one would be a mismatch in every run that was started before."""
    assert Call("charge", 1, [2.5, None], {"a": {"b": True}}).digest.hex() == "011ed9afbc97649223"
    large = "x" * WALK_MAX
    assert Call(large, encoded=encode(large)).digest.hex() == "02c0baeba003c30ca4"


def test_large_call_is_compared_by_its_json() -> None:
    large = list(range(WALK_MAX))
    one, other = Call(large, encoded=encode(large)), Call(large, encoded=encode([*large, 1]))
    assert one.differs(other.digest)
    assert not one.differs(Call(large, encoded=encode(large)).digest)
    assert not one.differs(Call("small").digest)  # made in another way: it says nothing
    assert not one.differs(None)
