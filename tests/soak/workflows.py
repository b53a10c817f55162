"""The workflows of the soak test: together they use every feature of the engine."""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure import (
    Retry,
    TerminalError,
    Workflow,
    WorkflowFailedError,
    activity,
    activity_info,
    join_group,
    now,
    patched,
    publish,
    receive,
    recur,
    send_event,
    send_to_group,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.replay.definitions import WORKFLOWS
from tests.engine.crashes.rig import effect_table
from tests.engine.crashes.rig.effect_log import new_token

NAP_SEC = 2.0  # over a second: stored in the database
JOBS, MOVES, APPROVED, SHIPPED = "soak.jobs", "soak.moves", "soak.approved", "soak.shipped"
STOP = 0
JOBS_PER_EXECUTION = 20


class Deployed:
    """The version of the code in this process."""

    version = 0


@dataclass(slots=True)
class Evolved:
    """What a run of changed code returns."""

    value: int
    changes: list[int]


@activity
async def add(one: int, other: int) -> int:
    return one + other


@activity
def add_in_thread(one: int, other: int) -> int:
    return one + other


@activity(retry=Retry(attempts=3, initial=timedelta(milliseconds=20)))
async def fail_once(number: int) -> int:
    return _second_time(number)


@activity(retry=Retry(attempts=3, initial=timedelta(seconds=1.2), jitter=0))
async def fail_once_slowly(number: int) -> int:
    return _second_time(number)


def _second_time(number: int) -> int:
    if activity_info().attempt == 1:
        raise ValueError("the first attempt fails")
    return number


@activity(transactional=True)
async def enter(number: int) -> int:
    await effect_table.enter(new_token())
    return number


@activity(name="soak.book")
async def book(number: int) -> int:
    return number


@book.compensation
async def cancel_booking(number: int, *, result: int | None) -> None:
    assert result in (None, number)


@activity
async def refuse() -> None:
    raise TerminalError("refused")


@activity
async def refuse_first_run() -> None:
    if "~r" not in activity_info().workflow_id:
        raise TerminalError("only a retry succeeds")


@activity
async def wall_clock() -> float:
    return time.time()


@activity
async def ship(id: str) -> None:
    await send_event(SHIPPED, {"parcel": id}, id=id, source=f"/depot/{id[-1]}")


@workflow(name="soak.probe")
async def probe() -> float:
    return await wall_clock()


@workflow(name="soak.steps")
async def steps(count: int) -> int:
    total = 0
    for number in range(count):
        total = await add(total, number)
    return await add_in_thread(total, count)


@workflow(name="soak.fan")
async def fan(count: int) -> int:
    return sum(await asyncio.gather(*(add(number, 1) for number in range(count))))


@workflow(name="soak.retrying")
async def retrying(number: int) -> int:
    return await fail_once(number) + await fail_once_slowly(number)


@workflow(name="soak.entries")
async def entries(count: int) -> int:
    return sum([await enter(number) for number in range(count)])


@workflow(name="soak.saga")
async def saga() -> None:
    await book(1)
    await book(2)
    await refuse()


@workflow(name="soak.reservation")
async def reservation() -> None:
    await book(1)
    await sleep(timedelta(days=1))


@workflow(name="soak.second_chance")
async def second_chance() -> int:
    await refuse_first_run()
    return await add(1, 1)


@workflow(name="soak.parent")
async def parent(count: int) -> int:
    total = sum(await asyncio.gather(*(steps(number) for number in range(count))))
    try:
        await saga()
    except WorkflowFailedError:
        return total
    raise AssertionError("the child did not fail")


@workflow(name="soak.approval")
async def approval(key: str) -> str:
    await add(1, 1)
    event = await wait_event(APPROVED, where={"key": key}, timeout=timedelta(minutes=5))
    return str(event.data["by"])


@workflow(name="soak.nap")
async def nap() -> float:
    """Return by how much the code after the sleep is late."""
    due = now() + timedelta(seconds=NAP_SEC)
    await sleep(NAP_SEC)
    return await wall_clock() - due.timestamp()


@workflow(name="soak.parcel")
async def parcel(id: str) -> None:
    await ship(id)


@workflow(name="soak.player")
async def player(table: str) -> str:
    await subscribe(MOVES, "direct")
    await join_group(table)
    return str((await receive(MOVES)).data)


@workflow(name="soak.dealer")
async def dealer(table: str, card: str) -> int:
    return await send_to_group(table, MOVES, card)


@workflow(name="soak.foreman")
async def foreman(job: int) -> None:
    await publish(JOBS, job)


@workflow(name="soak.job_worker")
async def job_worker(total: int) -> int:
    """Sum up the jobs that this run takes from a channel; it lives as long as the test."""
    await subscribe(JOBS, "competing")
    for _ in range(JOBS_PER_EXECUTION):
        job = (await receive(JOBS, type=int)).data
        if job == STOP:
            break
        total = await add(total, job)
    else:
        recur(total)
    return total


@workflow(name="soak.evolving")
async def evolving(value: int) -> Evolved:
    """Each deployment adds a step before the sleep; runs that are already asleep must not execute it."""
    changes = []
    for change in range(1, Deployed.version + 1):
        if patched(f"change {change}"):
            value = await add(value, change)
            changes.append(change)
    await sleep(NAP_SEC)
    return Evolved(await add(value, 1), changes)


@workflow(name="soak.tick", cron="*/5 * * * * *")
async def tick() -> int:
    return await enter(1)


del WORKFLOWS["soak.tick"]  # an App that names no workflows, as in other tests, serves all that are registered


# Served by a worker whose code never changes.
UNCHANGED: list[Workflow[..., Any]] = [
    probe, steps, fan, retrying, entries, saga, reservation, second_chance, parent, approval, nap, parcel, player,
    dealer, foreman, job_worker, tick,
]  # fmt: skip
