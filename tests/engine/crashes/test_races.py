"""Races with real connections: two apps on one database, and clients that interfere at the worst moment."""

import asyncio
import os
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    RunHandle,
    Workflow,
    WorkflowCancelledError,
    WorkflowStatus,
    activity,
    receive,
    recur,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.errors import WorkflowNotCancellableError
from tests.conftest import BackendDatabase
from tests.engine.waiting import row_of

SEED = int(os.environ.get("PERDURE_SEED", "0")) or secrets.randbelow(1 << 32)
SOON = timedelta(seconds=60)
BRIEFLY = timedelta(seconds=0.25)
MAIL, NEWS, END = "race.mail", "race.news", -1

everywhere = pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])


@activity(name="race.book")
async def book(what: int) -> int:
    await asyncio.sleep(random.uniform(0, 0.02))
    return what


@book.compensation
async def unbook(what: int, *, result: int | None) -> None:
    assert result in (None, what)


@workflow(name="race.brief")
async def brief(pause_sec: float) -> int:
    await book(1)
    await sleep(pause_sec)
    return await book(2) + 40


@workflow(name="race.resumed")
async def resumed() -> int:
    await book(1)
    event = await wait_event(NEWS)
    return int(event.data) + await book(2)


@workflow(name="race.impatient")
async def impatient(directly: bool) -> list[int]:
    """Takes what comes, a little too impatiently each time."""
    seen: list[int] = []
    if not directly:
        await subscribe(MAIL)
    while END not in seen:
        try:
            if directly:
                seen.append((await wait_event(NEWS, timeout=BRIEFLY)).data)
            else:
                seen.append((await receive(MAIL, timeout=BRIEFLY)).data)
        except TimeoutError:
            await book(0)
    return seen


@workflow(name="race.collector")
async def collector(seen: list[int], events: bool) -> list[int]:
    """A generation for every few messages."""
    if not events:
        await subscribe(MAIL, "direct")
    for _ in range(2):
        seen.append((await wait_event(NEWS)).data if events else (await receive(MAIL)).data)
        if seen[-1] == END:
            break
    else:
        recur(seen, events)
    return seen


SERVED: list[Workflow[..., Any]] = [brief, resumed, impatient, collector]


@asynccontextmanager
async def rivals(backend: str, opened: BackendDatabase) -> AsyncIterator[tuple[Client, Client]]:
    """Two clients on a database where two apps are at work; either app may execute what is started."""
    print(f"to repeat: PERDURE_SEED={SEED}")
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(opened(backend))
        for resident in (0, 100):
            app = App(database.url, workflows=SERVED, lease=timedelta(seconds=5), max_cached_runs=resident)
            await stack.enter_async_context(app)
        one = await stack.enter_async_context(Client(database.url))
        yield one, await stack.enter_async_context(Client(database.url))


async def cancelled(client: Client, run: str) -> bool:
    """Cancel a run; whether that was still possible."""
    try:
        await client.cancel(run, "a race")
    except WorkflowNotCancellableError:
        return False
    return True


async def check_end(handle: RunHandle[int], was_cancelled: bool, result: int) -> None:
    """Either it is completed, or it is cancelled and all undone; never both, never neither."""
    events = [event async for event in handle.history()]
    undone = [e.data["activity_id"] for e in events if e.kind == "CompensationExecuted"]
    kinds = Counter(event.kind for event in events)
    if was_cancelled:
        with pytest.raises(WorkflowCancelledError):
            await handle.result(SOON)
        begun = [event.step.removesuffix("!") for event in events if event.step.endswith("!")]
        assert undone == begun[::-1], events
        assert kinds["WorkflowCancelled"] == 1
    else:
        assert await handle.result(SOON) == result
        assert not undone
        assert not kinds["WorkflowCancelled"]
        assert kinds["ActivityCompleted"] == 2
    assert kinds["CompensationFailed"] == 0
    assert len({event.step for event in events}) == len(events)


async def ended(handle: RunHandle[int]) -> None:
    with suppress(WorkflowCancelledError):
        await handle.result(SOON)


@everywhere
async def test_race_of_cancel_and_completion(backend: str, backend_database: BackendDatabase) -> None:
    chance = random.Random(SEED)
    async with rivals(backend, backend_database) as (one, other):
        handles = [await brief.start(chance.uniform(0, 0.3)) for _ in range(58)]
        long, over = await brief.start(SOON.total_seconds()), await brief.start(0)  # each verdict at least once
        await over.result(SOON)
        handles += [long, over]

        async def cancel(handle: RunHandle[int], client: Client, delay: float) -> bool:
            while not (await row_of(handle)).lock_token:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(delay)
            return await cancelled(client, handle.id)

        races = [cancel(handle, chance.choice((one, other)), chance.uniform(0, 0.6)) for handle in handles]
        verdicts = await asyncio.gather(*races)
        for handle, verdict in zip(handles, verdicts, strict=True):
            await ended(handle)
            await check_end(handle, verdict, 42)
    print(f"{backend}: {sum(verdicts)} of {len(handles)} were cancelled")
    assert 0 < sum(verdicts) < len(handles)


@everywhere
async def test_race_of_two_cancellations_and_a_resume(backend: str, backend_database: BackendDatabase) -> None:
    chance = random.Random(SEED)
    async with rivals(backend, backend_database) as (one, other):
        handles = [await resumed.start() for _ in range(30)]
        for handle in handles:
            while (await handle.info()).status is not WorkflowStatus.WAITING_FOR_MESSAGE:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        async def later(delay: float, act: Awaitable[None] | Awaitable[bool]) -> bool:
            await asyncio.sleep(delay)
            return bool(await act)

        async def race(handle: RunHandle[int]) -> bool:
            verdicts = await asyncio.gather(
                later(chance.uniform(0, 0.2), cancelled(one, handle.id)),
                later(chance.uniform(0, 0.2), cancelled(other, handle.id)),
                later(chance.uniform(0, 0.1), other.send_event(NEWS, 40, to=handle.id)),
            )
            return any(verdicts)

        verdicts = await asyncio.gather(*map(race, handles))
        for handle, verdict in zip(handles, verdicts, strict=True):
            await ended(handle)
            await check_end(handle, verdict, 42)
    print(f"{backend}: {sum(verdicts)} of {len(handles)} were cancelled")
    assert any(verdicts)


@everywhere
async def test_race_of_delivery_and_timeout(backend: str, backend_database: BackendDatabase) -> None:
    """What comes as the time runs out is received, once, or stays for the next wait."""
    chance = random.Random(SEED)
    async with rivals(backend, backend_database) as (one, other):
        direct = [await impatient.start(True) for _ in range(8)]
        public = [await impatient.start(False) for _ in range(4)]
        for handle in (*direct, *public):
            while (await handle.info()).status is not WorkflowStatus.WAITING_FOR_MESSAGE:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        sent = [*range(8), END]

        async def send(handle: RunHandle[list[int]], delays: list[float]) -> None:
            for number, delay in zip(sent, delays, strict=True):
                await asyncio.sleep(delay)
                await one.send_event(NEWS, number, to=handle.id)

        async def publish(delays: list[float]) -> None:
            for number, delay in zip(sent, delays, strict=True):
                await asyncio.sleep(delay)
                await other.publish(MAIL, number)

        def delays() -> list[float]:
            return [chance.gauss(BRIEFLY.total_seconds(), 0.03) for _ in sent]

        await asyncio.gather(publish(delays()), *(send(handle, delays()) for handle in direct))
        late = 0
        for handle in (*direct, *public):
            assert await handle.result(SOON) == sent
            late += Counter([event.kind async for event in handle.history()])["MessageTimeout"]
    print(f"{backend}: {late} waits timed out")
    assert late


@everywhere
async def test_race_of_recur_and_messages(backend: str, backend_database: BackendDatabase) -> None:
    """Messages to a run that recurs all the time: none is lost, none comes twice, all come in order."""
    chance = random.Random(SEED)
    async with rivals(backend, backend_database) as clients:
        handles = {events: [await collector.start([], events) for _ in range(4)] for events in (False, True)}
        sent = [*range(15), END]

        async def send(handle: RunHandle[list[int]], events: bool) -> None:
            for number in sent:
                client = chance.choice(clients)
                await asyncio.sleep(chance.choice((0, 0, 0.01, 0.05)))
                if events:
                    await client.send_event(NEWS, number, to=handle.id)
                else:
                    await client.send_to(handle.id, MAIL, number)

        await asyncio.gather(*(send(handle, events) for events, some in handles.items() for handle in some))
        for handle in (*handles[False], *handles[True]):
            assert await handle.result(SOON) == sent
