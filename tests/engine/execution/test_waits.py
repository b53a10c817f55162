"""Waits are independent: each has its own `where`, its own timeout and its own events."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from perdure import App, activity, receive, sleep, subscribe, wait_event, workflow
from perdure.engine.replay import body
from perdure.errors import LimitError
from perdure.hooks import HookEvent, RunResumed
from tests.engine.waiting import move_clock, stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=100)
gates: dict[str, asyncio.Event] = {}
done: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    gates.clear()
    done.clear()


@activity
async def busy(name: str) -> None:
    done.append(name)
    await gates.setdefault(name, asyncio.Event()).wait()


async def rows_of(app: App, id: str) -> list[str]:
    """The ids of a run's history rows, without those that are the engine's own."""
    return [event.step async for event in app.history(id) if not event.step.startswith("~")]


@workflow(name="waits.approvals")
async def approvals(names: list[str]) -> list[Any]:
    events = await asyncio.gather(*(wait_event("waits.approved", where={"by": name}) for name in names))
    return [event.data["n"] for event in events]


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_branches_wait_for_one_type_with_different_where(database: Database, order: str) -> None:
    async with App(database.url) as app:
        handle = await approvals.start(["ann", "bob"])
        await waiting(app, handle.id)
        for n, letter in enumerate(order):
            await app.send_event("waits.approved", {"by": {"a": "ann", "b": "bob"}[letter], "n": n})
        assert await handle.result(SOON) == [order.index("a"), order.index("b")]
        assert len(await rows_of(app, handle.id)) == 2


@workflow(name="waits.equals")
async def equals(where: dict[str, Any]) -> list[int]:
    events = await asyncio.gather(*(wait_event("waits.same", where=where or None) for _ in range(3)))
    return [event.data["n"] for event in events]


@pytest.mark.parametrize("where", [{}, {"kind": "x"}])
async def test_equal_waits_get_events_in_the_order_of_their_creation(database: Database, where: dict[str, Any]) -> None:
    async with App(database.url) as app:
        handle = await equals.start(where)
        await waiting(app, handle.id)
        for n in range(3):
            await app.send_event("waits.same", {"kind": "x", "n": n})
        assert await handle.result(SOON) == [0, 1, 2]


@workflow(name="waits.overlapping")
async def overlapping() -> list[int]:
    team = asyncio.create_task(wait_of({"team": "red"}))
    anyone = asyncio.create_task(wait_of(None))
    person = asyncio.create_task(wait_of({"by": "ann"}))
    return [await team, await anyone, await person]


async def wait_of(where: dict[str, Any] | None) -> int:
    return int((await wait_event("waits.mixed", where=where)).data["n"])


async def test_event_goes_to_the_first_wait_that_it_matches(database: Database) -> None:
    async with App(database.url) as app:
        handle = await overlapping.start()
        await waiting(app, handle.id)
        await app.send_event("waits.mixed", {"n": 1, "by": "ann"})  # the second wait is the first that takes it
        await app.send_event("waits.mixed", {"n": 2, "by": "ann", "team": "red"})  # the first wait
        await app.send_event("waits.mixed", {"n": 3, "by": "bob", "team": "blue"})  # no wait
        await app.send_event("waits.mixed", {"n": 4, "by": "ann", "team": "red"})  # only the third wait is left
        assert await handle.result(SOON) == [2, 1, 4]


@workflow(name="waits.late")
async def late() -> list[str]:
    async def second() -> str:
        await busy("late")
        return str((await wait_event("waits.late", where={"for": "second"})).data["name"])

    async def first() -> str:
        return str((await wait_event("waits.late", where={"for": "first"})).data["name"])

    return list(await asyncio.gather(first(), second()))


async def test_event_that_matches_no_wait_is_kept_for_a_later_wait(database: Database) -> None:
    async with App(database.url) as app:
        handle = await late.start()
        await until(lambda: "late" in done)

        async def listens() -> bool:
            return await app._storage.get_channel_subscription(handle.id, "waits.late") is not None

        await until(listens)
        await app.send_event("waits.late", {"for": "second", "name": "early bird"})
        await app.send_event("waits.late", {"for": "first", "name": "worm"})
        await until(lambda: _has_rows(app, handle.id, 1))
        gates["late"].set()
        assert await handle.result(SOON) == ["worm", "early bird"]


async def _has_rows(app: App, id: str, count: int) -> bool:
    return len(await rows_of(app, id)) >= count


@workflow(name="waits.unmoved")
async def unmoved() -> int:
    return int((await wait_event("waits.noise", where={"mine": True})).data["n"])


async def test_events_that_do_not_match_are_not_recorded_and_wake_no_run(database: Database) -> None:
    """The history of a run that waited through many events of others has one row."""
    resumed: list[HookEvent] = []
    async with App(database.url, hooks=[resumed.append]) as app:
        handle = await unmoved.start()
        await waiting(app, handle.id)
        resumed.clear()
        for n in range(50):
            await app.send_event("waits.noise", {"mine": False, "n": n})
        await app.send_event("waits.noise", {"mine": True, "n": 50})
        assert await handle.result(SOON) == 50
        assert len(await rows_of(app, handle.id)) == 1
        assert [type(event) for event in resumed].count(RunResumed) == 1


async def _timed(wait: Awaitable[Any]) -> str:
    try:
        await wait
    except TimeoutError:
        return "timeout"
    return "came"


@workflow(name="waits.timeouts")
async def timeouts(kind: str, spans: list[float | None]) -> list[str]:
    """Waits on one type or channel, each with its own time; return the order in which they ended."""
    ended: list[str] = []
    if kind == "receive":
        await subscribe("waits.channel")

    async def one(name: str, span: float | None) -> None:
        if kind == "receive":
            how = await _timed(receive("waits.channel", timeout=span))
        else:
            where = {"n": name} if kind == "where" else None
            how = await _timed(wait_event("waits.timed", where=where, timeout=span))
        ended.append(f"{name}:{how}")

    await asyncio.gather(*(one(str(n), span) for n, span in enumerate(spans)))
    return ended


@pytest.mark.parametrize("kind", ["receive", "event", "where"])
@pytest.mark.parametrize("parked", [True, False])
async def test_timeout_does_not_depend_on_other_waits(database: Database, kind: str, parked: bool) -> None:
    """A wait without a timeout, or with a longer one, does not delay the timeout of another branch."""
    async with App(database.url, max_cached_runs=1000 if parked else 0) as app:
        handle = await timeouts.start(kind, [None, 8000, 2000, 5000])
        await waiting(app, handle.id)
        for seconds, count in ((1990, 0), (2010, 1), (5010, 2), (8010, 3)):
            await move_clock(app, timedelta(seconds=seconds))
            if count:
                await until(partial(_has_rows, app, handle.id, count + (kind == "receive")))
            await waiting(app, handle.id)
        await (app.publish("waits.channel", {}) if kind == "receive" else app.send_event("waits.timed", {"n": "0"}))
        assert await handle.result(SOON) == ["2:timeout", "3:timeout", "1:timeout", "0:came"]


@workflow(name="waits.child")
async def child(n: int) -> int:
    return n


@workflow(name="waits.many")
async def many(kind: str, count: int) -> int:
    async def one(n: int) -> int:
        if kind == "children":
            return await child(n)
        if kind == "sleeps":
            await sleep(timedelta(hours=1))
        else:
            await wait_event("waits.go", where={"n": n} if kind == "matches" else None)
        return n

    return sum(await asyncio.gather(*(one(n) for n in range(count))))


@pytest.mark.parametrize(
    ("shared", "kind"),
    [
        *[("sqlite", kind) for kind in ("children", "sleeps", "events", "matches")],
        ("postgresql", "matches"),
        ("mysql", "sleeps"),
    ],
    indirect=["shared"],
)
async def test_run_has_more_than_a_thousand_waits_at_once(shared: Database, kind: str) -> None:
    count = 1_001
    async with App(shared.url) as app:
        handle = await many.start(kind, count)
        if kind != "children":
            await waiting(app, handle.id)
        if kind == "sleeps":
            await move_clock(app, timedelta(hours=2))
        elif kind != "children":
            await asyncio.gather(*(app.send_event("waits.go", {"n": n}) for n in range(count)))
        assert await handle.result(timedelta(seconds=110)) == sum(range(count))


async def test_too_many_unfinished_steps_are_refused_in_the_body(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "STEPS_MAX", 20)
    async with App(database.url) as app:
        handle = await many.start("sleeps", 21)
        with pytest.raises(Exception, match="at most 20 unfinished steps") as failed:
            await handle.result(SOON)
        assert isinstance(failed.value.__cause__, LimitError)
        assert await stuck_runs(app) == []


COUNT = int(os.environ.get("PERDURE_TEST_MATCHES", "80"))


@workflow(name="waits.one_of_many")
async def one_of_many(n: int, matched: bool) -> int:
    return int((await wait_event("waits.crowd", where={"n": n} if matched else None)).data["n"])


async def _seconds(app: App, start: Callable[[int], Awaitable[Any]], send: Callable[[int], Awaitable[None]]) -> float:
    handles = [await start(n) for n in range(COUNT)]
    await waiting(app, *(handle.id for handle in handles))
    began = time.monotonic()
    await asyncio.gather(*(send(n) for n in range(COUNT)))
    assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == list(range(COUNT))
    taken = time.monotonic() - began
    for handle in handles[:: max(1, COUNT // 20)]:
        assert len(await rows_of(app, handle.id)) == 1
    return taken


async def test_many_runs_with_their_own_where_cost_little_more_than_events_to_single_runs(shared: Database) -> None:
    """The cost is linear in events plus matches. PERDURE_TEST_MATCHES=10000 is the long form."""
    async with App(shared.url, max_cached_runs=COUNT, max_runs=1000) as app:
        plain = await _seconds(
            app,
            lambda n: one_of_many.options(id=f"to-{n}").start(n, False),
            lambda n: app.send_event("waits.crowd", {"n": n}, to=f"to-{n}"),
        )
        matched = await _seconds(
            app, lambda n: one_of_many.start(n, True), lambda n: app.send_event("waits.crowd", {"n": n})
        )
        print(f"{COUNT} events: {plain:.2f} s with to=, {matched:.2f} s with where=, ratio {matched / plain:.2f}")
        assert matched < 4 * plain + 2  # in the suite the machine may be busy; the long form shows twice


@workflow(name="waits.changed")
async def changed(where: dict[str, Any] | None) -> str:
    event = await wait_event("waits.changed", where=CHANGED.get("where", where))
    await busy(str(event.data["n"]))
    return str(event.data["n"])


CHANGED: dict[str, Any] = {}


@pytest.mark.parametrize("now", [None, {"n": 2}, {"m": 1}])
async def test_recorded_event_matched_by_other_values_is_a_mismatch(shared: Database, now: Any) -> None:
    """A changed `where` is detected on replay."""
    CHANGED.clear()
    async with App(shared.url, max_cached_runs=0, drain_timeout=0.1) as app:
        handle = await changed.options(id="changed").start({"n": 1})
        await waiting(app, handle.id)
        await app.send_event("waits.changed", {"n": 1, "m": 2})
        await until(lambda: "1" in done)
    CHANGED["where"] = now
    async with App(shared.url) as app:

        async def is_stuck() -> bool:
            return [run.id for run in await stuck_runs(app)] == ["changed"]

        await until(is_stuck)
        CHANGED.clear()
    CHANGED.clear()


@workflow(name="waits.again")
async def waits_again(count: int) -> int:
    total = 0
    for _ in range(count):
        total += int((await wait_event("waits.again", where={"mine": True})).data["n"])
    return total


async def test_run_that_waits_repeatedly_for_the_same_values_gets_each_event_once(database: Database) -> None:
    async with App(database.url) as app:
        handle = await waits_again.start(30)
        await waiting(app, handle.id)
        for n in range(30):
            await app.send_event("waits.again", {"mine": False, "n": 1000})
            await app.send_event("waits.again", {"mine": True, "n": n})
        assert await handle.result(SOON) == sum(range(30))
        assert len(await rows_of(app, handle.id)) == 30
