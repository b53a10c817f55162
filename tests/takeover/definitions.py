"""The workflows of the rig, one or more for each feature of the engine.

A deploy executes this module once more, under another name. So it keeps no state of its own: that is in `log.py`.
Times are in hours, because a takeover may cost half a minute and the comparison must not notice.
"""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta

from perdure import (
    Retry,
    TerminalError,
    activity,
    connection,
    join_group,
    leave_group,
    now,
    patched,
    publish,
    random,
    receive,
    recur,
    send_event,
    send_to_group,
    set_state,
    sleep,
    sleep_until,
    subscribe,
    timeout,
    unsubscribe,
    uuid4,
    wait_event,
    workflow,
)
from perdure.engine.replay.definitions import WORKFLOWS
from tests.support.databases import run_natively
from tests.takeover.log import LOG, Broken

HOUR = 3600.0
QUICK = Retry(attempts=3, initial=0.002, factor=1, jitter=0)
HOURLY = Retry(attempts=3, initial=HOUR, factor=1, maximum=HOUR, jitter=0)
LEDGER = "takeover_ledger"


# Activities.


@activity(name="takeover.work")
async def work(what: str) -> str:
    LOG.executed(what)
    await LOG.turn()
    return what


@activity(name="takeover.shaky", retry=QUICK)
async def shaky(what: str, failures: int) -> int:
    """Fail so many times, with short pauses, which are kept in memory."""
    return await _fail_first(what, failures)


@activity(name="takeover.patient", retry=HOURLY)
async def patient(what: str, failures: int) -> int:
    """Fail so many times, with long pauses, which are kept in the database."""
    return await _fail_first(what, failures)


@activity(name="takeover.refuse")
async def refuse(what: str) -> None:
    LOG.executed(what)
    await LOG.turn()
    raise TerminalError(what)


async def _fail_first(what: str, failures: int) -> int:
    attempt = LOG.executed(what)
    await LOG.turn()
    if attempt <= failures:
        raise Broken(f"{what} {attempt}")
    return attempt


@activity(name="takeover.book", retry=QUICK)
async def book(what: str) -> str:
    LOG.executed(what)
    await LOG.turn()
    return f"{what} booked"


@book.compensation(retry=QUICK)
async def unbook(what: str, *, result: str) -> None:
    """Fail twice for a hotel and always for a ferry."""
    attempt = LOG.executed(result)
    if what == "ferry" or (what == "hotel" and attempt < 3):
        raise Broken(what)


@activity(name="takeover.enter", transactional=True, retry=HOURLY)
async def enter(what: str, failures: int = 0) -> int:
    """Write a row and send a message in the transaction that records the result."""
    attempt = LOG.executed(what)
    await run_natively(connection(), f"INSERT INTO {LEDGER} VALUES ('{what} {attempt}')")
    await publish("entered", what)
    if attempt <= failures:
        raise Broken(what)
    return attempt


@activity(name="takeover.lethal")
async def lethal(what: str, deaths: int) -> str:
    """End the worker so many times."""
    LOG.executed(what)
    if LOG.count(what) <= deaths:
        LOG.kill()
        await asyncio.Event().wait()
    return what


async def deadlock() -> None:
    """Wait for what can never happen: the try ends without progress."""
    await asyncio.get_running_loop().create_future()


# Deadlines.


@workflow(name="takeover.deadline")
async def deadline() -> str:
    await book("car")
    await sleep(HOUR)
    await book("hotel")
    await wait_event("never")
    return "not reached"


@workflow(name="takeover.punctual")
async def punctual(of: str = "") -> str:
    await work("first")
    await sleep(HOUR)
    return await work("second")


# Retries of activities.


@workflow(name="takeover.short_retries")
async def short_retries(of: str = "") -> list[object]:
    first = await shaky("first", 2)
    await sleep(HOUR)
    try:
        return [first, await shaky("second", 3)]
    except Broken as error:
        return [first, str(error)]


@workflow(name="takeover.long_retries")
async def long_retries(of: str = "") -> list[object]:
    first = await patient("first", 2)
    try:
        return [first, await patient("second", 3)]
    except Broken as error:
        return [first, str(error)]


@workflow(name="takeover.parallel_retries")
async def parallel_retries(of: str = "") -> list[int]:
    return list(await asyncio.gather(patient("long", 2), shaky("short", 1)))


# Rollbacks.


@workflow(name="takeover.rollback")
async def rollback() -> None:
    await book("car")
    await book("hotel")
    await book("ferry")
    await sleep(HOUR)
    await refuse("full")


@workflow(name="takeover.handled")
async def handled() -> None:
    await book("car")
    await refuse("full")


@handled.on_failure
async def apologise(*, error: str) -> None:
    if LOG.executed(error) < 2:
        raise Broken("apologise")


@workflow(name="takeover.cancelled")
async def cancelled() -> None:
    await book("car")
    await sleep(HOUR)
    await book("hotel")
    await wait_event("never")


@workflow(name="takeover.cancelled_parent")
async def cancelled_parent() -> None:
    await book("car")
    await slow_child("cancelled")


@workflow(name="takeover.failing")
async def failing() -> str:
    first = await work("first")
    await sleep(HOUR)
    second = await work("second")
    if "repaired" not in LOG.notes:
        await refuse("not yet")
    return f"{first} {second}"


# Tries without progress.


@workflow(name="takeover.tries")
async def tries() -> str:
    await book("car")
    await sleep(HOUR)
    if LOG.count("tried") <= 3:
        await deadlock()
    await sleep(HOUR)
    return await work("after")


@workflow(name="takeover.tries_exhausted", max_tries=3)
async def tries_exhausted() -> None:
    await book("car")
    await sleep(HOUR)
    LOG.count("tried")
    await deadlock()


@workflow(name="takeover.deaths")
async def deaths() -> str:
    await book("car")
    await sleep(HOUR)
    await lethal("twice", 2)
    await sleep(HOUR)
    return await work("after")


@workflow(name="takeover.deaths_exhausted", max_tries=2)
async def deaths_exhausted() -> None:
    await book("car")
    await sleep(HOUR)
    await lethal("always", 1000)


# Generations and children.


@workflow(name="takeover.recurring")
async def recurring(generation: int = 1) -> str:
    await work(f"of {generation}")
    await sleep(HOUR)
    if generation < 3:
        recur(generation + 1)
    return await work("last")


@workflow(name="takeover.ticking")
async def ticking(generation: int = 1) -> str:
    """Begin with a wait, so that a body of an earlier generation in memory waits for the same row."""
    await sleep(HOUR)
    if generation < 3:
        recur(generation + 1)
    return await work(f"of {generation}")


@workflow(name="takeover.child")
async def child(what: str) -> str:
    await book(f"{what} child")
    await sleep(HOUR)
    return await work(f"{what} child ends")


@child.compensation
async def unchild(what: str, *, result: str) -> None:
    LOG.executed(result)


@workflow(name="takeover.slow_child")
async def slow_child(what: str) -> str:
    await book(f"{what} child")
    await sleep(10 * HOUR)
    return what


@workflow(name="takeover.failing_child")
async def failing_child() -> None:
    await book("child")
    await sleep(HOUR)
    await refuse("child")


@workflow(name="takeover.parent")
async def parent(of: str = "") -> list[str]:
    await work("before")
    first = await child("first")
    both = await asyncio.gather(child("second"), child("third"))
    return [first, *both, await work("after")]


@workflow(name="takeover.regretting_parent")
async def regretting_parent() -> None:
    await child("regretted")
    await refuse("parent")


@workflow(name="takeover.bereaved_parent")
async def bereaved_parent(of: str = "") -> str:
    try:
        await failing_child()
    except Exception as error:
        return f"{type(error).__name__} {await work('after')}"
    return "not reached"


@workflow(name="takeover.impatient_parent")
async def impatient_parent(of: str = "") -> str:
    try:
        async with timeout(2 * HOUR):
            return await slow_child("dropped")
    except TimeoutError:
        return await work("after")


@workflow(name="takeover.starter")
async def starter(of: str = "") -> str:
    handle = await child.options(id=f"{of}started").start("started")
    await sleep(HOUR / 2)
    return handle.id


# Waits.


@workflow(name="takeover.waits")
async def waits(of: str = "") -> list[object]:
    found: list[object] = []
    try:
        await wait_event(f"{of}go", where={"n": 2}, timeout=2 * HOUR)
    except TimeoutError:
        found.append(await work("timed out"))
    found.append((await wait_event(f"{of}go", where={"n": 2}, timeout=2 * HOUR)).data)
    found.append((await wait_event(f"{of}stop")).data)
    found.append(await work("after"))
    return found


@workflow(name="takeover.several_waits")
async def several_waits(of: str = "") -> list[object]:
    found: list[object] = []

    async def note(waiting: Awaitable[object], name: str) -> None:
        try:
            await waiting
            found.append(await work(name))
        except TimeoutError:
            found.append(await work(f"no {name}"))

    await asyncio.gather(
        note(wait_event(f"{of}go", where={"n": 2}), "two"),
        note(wait_event(f"{of}go", where={"n": 1}), "one"),
        note(wait_event(f"{of}go", where={"n": 3}, timeout=3 * HOUR), "three"),
        note(wait_event(f"{of}stop", timeout=4 * HOUR), "stop"),
        note(sleep(2.5 * HOUR), "slept"),
    )
    return found


@workflow(name="takeover.first_of_two")
async def first_of_two(of: str = "") -> str:
    """Give up the other wait, which must leave nothing behind."""
    waits = [asyncio.ensure_future(wait_event(name, timeout=9 * HOUR)) for name in (f"{of}go", f"{of}stop")]
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in pending:
        each.cancel()
    await sleep(HOUR)
    return await work(f"{len(done)} came")


@workflow(name="takeover.sleeps")
async def sleeps(of: str = "") -> str:
    await sleep(HOUR)
    await work("slept")
    await sleep(0.002)
    await work("dozed")
    await sleep_until(now() + timedelta(hours=1))
    return await work("woke")


@workflow(name="takeover.timeouts")
async def timeouts(of: str = "") -> list[str]:
    found = []
    try:
        async with timeout(2 * HOUR):
            await sleep(HOUR)
            found.append(await work("in time"))
            await sleep(2 * HOUR)
    except TimeoutError:
        found.append(await work("too late"))
    return found


# Messages.


@workflow(name="takeover.channels")
async def channels(of: str = "") -> list[object]:
    found: list[object] = []
    await subscribe(f"{of}news")
    await publish(f"{of}news", "own")
    found.append((await receive(f"{of}news")).data)
    await work("received")
    found.append((await receive(f"{of}news", timeout=3 * HOUR)).data)
    await subscribe(f"{of}jobs", mode="competing")
    found.append((await receive(f"{of}jobs")).data)
    try:
        await receive(f"{of}news", timeout=HOUR)
    except TimeoutError:
        found.append("no more")
    await unsubscribe(f"{of}news")
    found.append((await receive(f"{of}jobs")).data)
    return found


@workflow(name="takeover.two_receivers")
async def two_receivers(of: str = "") -> list[object]:
    """Wait twice on one channel."""
    await subscribe(f"{of}news")
    found = await asyncio.gather(receive(f"{of}news"), receive(f"{of}news"))
    await work("received")
    return [each.data for each in found]


@workflow(name="takeover.groups")
async def groups(of: str = "") -> list[object]:
    await subscribe(f"{of}orders", mode="direct")
    await join_group(f"{of}crew")
    sent = [await send_to_group(f"{of}crew", f"{of}orders", "own")]
    found = [(await receive(f"{of}orders")).data, (await receive(f"{of}orders", timeout=3 * HOUR)).data]
    await leave_group(f"{of}crew")
    sent.append(await send_to_group(f"{of}crew", f"{of}orders", "lost"))
    return [*sent, *found]


@workflow(name="takeover.talker")
async def talker(of: str) -> str:
    await sleep(HOUR)
    await send_event(f"{of}go", {"n": 2})
    await sleep(HOUR)
    await send_event(f"{of}stop", "by talker")
    await sleep(HOUR)  # or the listener may or may not have suspended again before this ends
    return await work("talked")


@workflow(name="takeover.listener")
async def listener(of: str = "") -> list[object]:
    talking = asyncio.ensure_future(talker(of))
    found = [(await wait_event(f"{of}go", where={"n": 2})).data, (await wait_event(f"{of}stop")).data]
    return [*found, await talking]


# Transactions, schedules, and what a body takes or sets.


@workflow(name="takeover.transactions")
async def transactions(of: str = "") -> list[int]:
    found = [await enter("first")]
    await work("between")
    found.append(await enter("second", 1))
    return [*found, await enter("third")]


@workflow(name="takeover.scheduled", cron="0 * * * *")
async def scheduled() -> str:
    await work("tick")
    await sleep(HOUR / 4)
    return await work("tock")


@workflow(name="takeover.states")
async def states() -> str:
    set_state("begun")
    await work("first")
    set_state({"slept": False})
    await sleep(2 * HOUR)
    set_state({"slept": True})
    await sleep(2 * HOUR)
    return await work("second")


@workflow(name="takeover.patches")
async def patches(of: str = "") -> str:
    first = await (work("new") if patched(f"{of}one") else work("old"))
    await sleep(HOUR)
    second = await (work("newer") if patched(f"{of}two") else work("older"))
    await sleep(HOUR)
    again = await (work("newest") if patched(f"{of}one") else work("oldest"))
    return f"{first} {second} {again}"


@activity(name="takeover.echo")
async def echo(*what: str) -> list[str]:
    LOG.executed("values")
    await LOG.turn()
    return list(what)


@workflow(name="takeover.values")
async def values(of: str = "") -> list[bool]:
    taken = [str(now()), str(uuid4()), str(random().random())]
    echoed = await echo(*taken)
    await sleep(HOUR)
    more = [str(now()), str(uuid4()), str(random().random())]
    echoed += await echo(*more)
    await sleep(HOUR)
    again = await echo(*taken, *more)
    return [one == other for one, other in zip(again, echoed, strict=True)]


@workflow(name="takeover.later")
async def later(of: str = "") -> str:
    await work("begun")
    await sleep(HOUR)
    return await work("ended")


# Several features side by side.


async def _branch(body: str, of: str) -> object:
    try:
        return await WORKFLOWS[body].function(of)
    except Exception as error:
        return repr(error)


@workflow(name="takeover.branches")
async def branches(bodies: list[str], prefixes: list[str]) -> list[object]:
    return list(await asyncio.gather(*(_branch(*each) for each in zip(bodies, prefixes, strict=True))))
