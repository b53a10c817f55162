"""Workflows whose every step can be accounted for.

An activity returns a mark: its step, a value that is the same whenever it runs, and a token that is not. A workflow
returns the marks it was given, so its result says which execution of every step counted.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from perdure import Retry, Workflow, activity, activity_info, publish, receive, sleep, subscribe, wait_event, workflow
from tests.engine.crashes.rig import effect_table
from tests.engine.crashes.rig.effect_log import EFFECTS, new_token

NAP_SEC = 1.1  # over a second: a row
SLOW_SEC = 1.3  # over a lease, which has to be renewed
PAUSE_SEC = 0.9  # under a second: kept in memory
JOBS, NEWS, DECIDED = "rig.jobs", "rig.news", "rig.decided"
PILL = "pill"
PROBES = 10


@dataclass(slots=True)
class Mark:
    step: str
    token: str
    value: int


@dataclass(slots=True)
class Account:
    """What a workflow returns: a value that is always the same, and the marks of its steps."""

    value: list[str | int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def add(self, mark: Mark) -> None:
        self.marks.append(mark)
        self.value.append(mark.value)


class Gates:
    """Files that activities wait for, in a folder that all workers know."""

    folder = Path()

    def open(self, name: str) -> None:
        (self.folder / name).touch()

    def is_open(self, name: str) -> bool:
        return (self.folder / name).exists()


GATES = Gates()


class Executed:
    """One execution of an activity, from its first line in the log to its last."""

    def __init__(self) -> None:
        self.token = new_token()
        EFFECTS.activity("begin", self.token)

    def mark(self, value: int) -> Mark:
        EFFECTS.activity("end", self.token)
        return Mark(activity_info().step, self.token, value)

    def fail(self, why: str) -> ValueError:
        EFFECTS.activity("fail", self.token)
        return ValueError(why)


def _some_time() -> float:
    return random.uniform(0.1, 0.3) if random.random() < 0.1 else random.uniform(0, 0.03)


@activity
async def step(number: int) -> Mark:
    executed = Executed()
    await asyncio.sleep(_some_time())
    return executed.mark(number * 2)


@activity
def thread_step(number: int) -> Mark:
    executed = Executed()
    time.sleep(_some_time())
    return executed.mark(number * 3)


@activity
async def slow_step(number: int) -> Mark:
    executed = Executed()
    await asyncio.sleep(SLOW_SEC)
    return executed.mark(number)


@activity(retry=Retry(attempts=3, initial=timedelta(milliseconds=20)))
async def flaky() -> Mark:
    return await _second_time()


@activity(retry=Retry(attempts=3, initial=timedelta(seconds=1.3), jitter=0.1))
async def flaky_slowly() -> Mark:
    return await _second_time()


@activity(retry=Retry(attempts=3, initial=timedelta(seconds=PAUSE_SEC), jitter=0))
async def flaky_briefly() -> Mark:
    return await _second_time()


async def _second_time() -> Mark:
    executed = Executed()
    await asyncio.sleep(_some_time())
    attempt = activity_info().attempt
    if attempt == 1:
        raise executed.fail("the first attempt fails")
    return executed.mark(attempt)


@activity
async def announce(job: str) -> Mark:
    executed = Executed()
    await publish(JOBS, job)
    await asyncio.sleep(_some_time())
    return executed.mark(1)


@activity(transactional=True, retry=Retry(attempts=100, initial=timedelta(milliseconds=50), factor=1))
async def entering(gate: str | None = None) -> Mark:
    """One row, in the transaction that records the result; its connection may break under it.

    With a gate the transaction stays open until that is, and executes a statement periodically: the server would end
    an idle one.
    """
    executed = Executed()
    try:
        await effect_table.enter(executed.token)
        if gate is not None:
            EFFECTS.activity("entered", executed.token)
            while not GATES.is_open(gate):
                await effect_table.run_sql("SELECT 1")
                await asyncio.sleep(0.02)
    except Exception as error:
        raise executed.fail("the database refused") from error
    return executed.mark(9)


@activity
async def held(gate: str) -> Mark:
    executed = Executed()
    await publish(JOBS, f"held {gate}")
    while not GATES.is_open(gate):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)
    return executed.mark(7)


@activity
def thread_held(gate: str) -> Mark:
    executed = Executed()
    while not GATES.is_open(gate):
        time.sleep(0.01)
    return executed.mark(8)


@workflow(name="rig.sequence")
async def sequence(count: int) -> Account:
    account = Account()
    for number in range(count):
        account.add(await step(number))
    account.add(await thread_step(count))
    return account


@workflow(name="rig.fan")
async def fan(count: int) -> Account:
    account = Account()
    account.add(await step(0))
    for mark in await asyncio.gather(*(_pair(number) for number in range(count))):
        account.marks += mark
    account.value = [sum(mark.value for mark in account.marks)]
    account.add(await step(1))
    return account


async def _pair(number: int) -> list[Mark]:
    return [await step(number), await thread_step(number)]


@workflow(name="rig.slow")
async def slow() -> Account:
    account = Account()
    account.add(await step(1))
    account.add(await slow_step(5))
    account.add(await step(2))
    return account


@workflow(name="rig.retrying")
async def retrying() -> Account:
    account = Account()
    account.add(await flaky())
    account.add(await flaky_slowly())
    return account


@workflow(name="rig.pausing")
async def pausing() -> Account:
    account = Account()
    account.add(await flaky_briefly())
    return account


@workflow(name="rig.napping")
async def napping() -> Account:
    account = Account()
    account.add(await step(1))
    await sleep(0.05)
    account.add(await step(2))
    await sleep(NAP_SEC)
    account.add(await step(3))
    return account


@workflow(name="rig.approval")
async def approval(key: str) -> Account:
    account = Account()
    account.add(await step(1))
    event = await wait_event(DECIDED, where={"run": key}, timeout=timedelta(minutes=5))
    account.value.append(event.data["verdict"])
    account.add(await step(2))
    return account


@workflow(name="rig.mixed")
async def mixed(key: str) -> Account:
    account = Account()
    async with asyncio.TaskGroup() as group:
        worked = group.create_task(_pair(5))
        decided = group.create_task(_decided(key))
        group.create_task(sleep(NAP_SEC))
    account.value.append(decided.result())
    for mark in worked.result():
        account.add(mark)
    account.add(await step(1))
    return account


async def _decided(key: str) -> str:
    return str((await wait_event(DECIDED, where={"run": key}, timeout=timedelta(minutes=5))).data["verdict"])


@workflow(name="rig.publisher")
async def publisher(key: str) -> Account:
    account = Account()
    account.add(await announce(f"by activity {key}"))
    await publish(JOBS, f"by body {key}")
    account.add(await step(1))
    return account


@workflow(name="rig.bookkeeper")
async def bookkeeper(count: int) -> Account:
    account = Account()
    for number in range(count):
        account.add(await entering())
        account.add(await step(number))
    return account


@workflow(name="rig.job_worker")
async def job_worker() -> Account:
    await subscribe(JOBS, "competing")
    account = Account()
    while (job := (await receive(JOBS, type=str)).data) != PILL:
        account.value.append(job)
        account.marks.append(await step(1))
    return account


@workflow(name="rig.listener")
async def listener(count: int) -> Account:
    await subscribe(NEWS)
    account = Account(marks=[await step(0)])
    for _ in range(count):
        account.value.append((await receive(NEWS, type=int)).data)
        if len(account.value) % 5 == 0:
            account.marks.append(await step(1))
    return account


@workflow(name="rig.detained")
async def detained(gates: list[str], kind: str) -> Account:
    """Stays inside activities until gates open, one after the other."""
    account = Account()
    account.add(await step(1))
    for gate in gates:
        if kind == "threads":
            account.add(await thread_held(gate))
        elif kind == "branches":
            for mark in await asyncio.gather(held(gate), thread_held(gate), step(4)):
                account.add(mark)
        elif kind == "transaction":
            account.add(await entering(gate))
        else:
            account.add(await held(gate))
        await publish(JOBS, f"passed {gate}")
        account.add(await step(2))
    return account


async def probe() -> Account:
    """Proves that the only worker that serves it is at work."""
    account = Account()
    for number in range(3):
        account.add(await step(number))
    await sleep(0.01)
    return account


PROBE: list[Workflow[[], Account]] = [workflow(name=f"rig.probe_{number}")(probe) for number in range(PROBES)]
MIX: list[Workflow[..., Account]] = [
    sequence, fan, slow, retrying, pausing, napping, approval, mixed, publisher, bookkeeper, job_worker, listener,
    detained,
]  # fmt: skip
