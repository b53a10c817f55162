"""Every call of the public API that waits: what must be there before it, and what it must leave.

A function is named after its call. It prepares the case and returns a `Call`. `whole` is called after the call has
ended, with whether it succeeded, and returns what is wrong: the effect must be there if it did, and there or not, but
never in part, if it was cancelled.

What a cancelled call has sent to a server may take effect at any time afterwards, between two reads as well. `whole`
therefore reads what belongs together in one statement.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiosqlite
import asyncmy
import asyncpg
import pytest

from perdure import Client, Retention, RunHandle, RunNotFoundError, WorkflowCancelledError, WorkflowFailedError
from perdure.engine.api import messages
from tests.cancellation.workflows import blocked, book, done, fail, gates, greet, listen
from tests.engine.waiting import waiting
from tests.support.databases import mysql_login
from tests.support.storages import Database, storage_of

SOON = timedelta(seconds=60)
Whole = Callable[[bool], Awaitable[str]]


async def _reads_only(succeeded: bool) -> str:
    return ""


@dataclass
class Call:
    """The call of one case, and how its effect is checked."""

    act: Callable[[], Coroutine[Any, Any, object]]
    whole: Whole = _reads_only
    beside: Callable[[], object] | None = None  # called once the call has begun


@dataclass
class Stage:
    """Where a case takes place: a name of its own, and the client whose methods are called."""

    client: Client
    database: Database
    name: str


Prepare = Callable[[Stage], Awaitable[Call]]


@dataclass(frozen=True)
class Enumerated:
    """A call of the enumeration: the method that is called, and the function that prepares a case."""

    method: str
    prepare: Prepare

    @property
    def changes_one_run(self) -> bool:
        """Return whether the call starts, awaits or changes one run, or sends a message."""
        return self.method in CHANGES


CHANGES = {
    *("Startable.start", "Startable.__call__", "RunHandle.result", "RunHandle.cancel"),
    *("Client.retry", "Client.publish", "Client.send_to", "Client.send_event"),
}
CALLS: dict[str, Enumerated] = {}


def call(method: str) -> Callable[[Prepare], Prepare]:
    """Make the call of a method part of the enumeration."""

    def enumerated(prepare: Prepare) -> Prepare:
        CALLS[prepare.__name__] = Enumerated(method, prepare)
        return prepare

    return enumerated


async def _count(stage: Stage, *tables: tuple[str, str, str]) -> tuple[int, ...]:
    """Count the rows of each table whose column has the value, in one statement."""
    counts = ", ".join(
        f"(SELECT COUNT(*) FROM {table} WHERE {column} = '{value}') AS count_{number}"
        for number, (table, column, value) in enumerate(tables)
    )
    (row,) = await storage_of(stage.client).db().fetch(f"SELECT {counts}")
    return tuple(row)


# Starts.


async def _begun(client: Client, id: str) -> bool:
    """Wait for the end of a run of `greet`; return False if there is none."""
    try:
        assert (await client.get(id).result(SOON)).startswith("hello ")
    except RunNotFoundError:
        return False
    return True


def _start(stage: Stage, id: str, act: Callable[[], Coroutine[Any, Any, object]]) -> Call:
    async def whole(succeeded: bool) -> str:
        exists = await _begun(stage.client, id)
        if done[stage.name] != exists:
            return f"the run exists: {exists}, and its activity was executed {done[stage.name]} times"
        return "" if exists or not succeeded else "the run does not exist"

    return Call(act, whole)


@call("Startable.start")
async def start(stage: Stage) -> Call:
    async def whole(succeeded: bool) -> str:
        found = [run async for run in stage.client.runs(workflow=greet, status="running")]
        for run in found:
            await stage.client.get(run.id).result(SOON)
        count = done[stage.name]
        return "" if count == 1 or (count == 0 and not succeeded) else f"executed {count} times"

    return Call(lambda: greet.start(stage.name), whole)


@call("Startable.start")
async def start_with_id(stage: Stage) -> Call:
    return _start(stage, stage.name, lambda: greet.options(id=stage.name).start(stage.name))


@call("Startable.start")
async def start_with_timeout(stage: Stage) -> Call:
    return _start(stage, stage.name, lambda: greet.options(id=stage.name, timeout=3600).start(stage.name))


@call("Startable.start")
async def start_later(stage: Stage) -> Call:
    async def whole(succeeded: bool) -> str:
        try:
            found = await stage.client.info(stage.name)
        except RunNotFoundError:
            return "the run does not exist" if succeeded else ""
        await stage.client.cancel(stage.name)
        return "" if found.waiting_for and not done[stage.name] else "the run exists, but does not wait"

    return Call(lambda: greet.options(id=stage.name, after=3600).start(stage.name), whole)


@call("Startable.start")
async def start_again(stage: Stage) -> Call:
    await (await greet.options(id=stage.name).start(stage.name)).result(SOON)
    return _start(stage, stage.name, lambda: greet.options(id=stage.name).start(stage.name))


@call("Startable.start")
async def start_in_transaction(stage: Stage) -> Call:
    storage = storage_of(stage.client)
    await storage.db().execute("CREATE TABLE IF NOT EXISTS cancellation_orders (name VARCHAR(100))")
    caller = await CONNECTORS[stage.database.backend](stage.database.url)

    async def act() -> None:
        await caller.execute("BEGIN")
        try:
            await caller.execute(f"INSERT INTO cancellation_orders VALUES ('{stage.name}')")
            await greet.options(id=stage.name, in_transaction=caller.connection).start(stage.name)
            await caller.execute("COMMIT")
        except BaseException:
            await caller.close()  # which rolls back
            raise

    async def whole(succeeded: bool) -> str:
        await caller.close()
        orders, runs = await _count(
            stage, ("cancellation_orders", "name", stage.name), ("workflow_instances", "instance_id", stage.name)
        )
        if orders != runs:
            return f"there are {orders} orders, but {runs} runs"
        return "" if await _begun(stage.client, stage.name) or not succeeded else "the run does not exist"

    return Call(act, whole)


@call("Startable.__call__")
async def direct_call(stage: Stage) -> Call:
    return _start(stage, stage.name, lambda: greet.options(id=stage.name)(stage.name))


@dataclass
class Caller:
    """A connection of the program, which begins and commits itself; it may be closed twice."""

    connection: Any
    execute: Callable[[str], Awaitable[object]]
    close: Callable[[], Awaitable[object]]


async def _connect_sqlite(url: str) -> Caller:
    connection = await aiosqlite.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    return Caller(connection, connection.execute, connection.close)


async def _connect_postgres(url: str) -> Caller:
    connection = await asyncpg.connect(url)
    return Caller(connection, connection.execute, connection.close)


async def _connect_mysql(url: str) -> Caller:
    connection = await asyncmy.connect(**mysql_login(url))

    async def close() -> None:
        connection.close()

    return Caller(connection, connection.query, close)


CONNECTORS = {"sqlite": _connect_sqlite, "postgresql": _connect_postgres, "mysql": _connect_mysql}


# Results.


async def _awaited(stage: Stage, act: Callable[[RunHandle[str]], Coroutine[Any, Any, object]]) -> Call:
    handle = await blocked.options(id=stage.name).start(stage.name)

    async def whole(succeeded: bool) -> str:
        if stage.name in stage.client._results._waiting:
            return "the result is still waited for"
        gates[stage.name].set()
        assert await handle.result(SOON) == stage.name
        return "" if done[f"gated {stage.name}"] == 1 else "the run was disturbed"

    def open_gate() -> None:
        asyncio.get_running_loop().call_later(0.005, gates[stage.name].set)

    return Call(lambda: act(handle), whole, open_gate)


@call("RunHandle.result")
async def result(stage: Stage) -> Call:
    return await _awaited(stage, lambda handle: handle.result())


@call("RunHandle.result")
async def result_with_timeout(stage: Stage) -> Call:
    return await _awaited(stage, lambda handle: handle.result(SOON))


async def _failed(stage: Stage, suffix: str = "") -> str:
    id = stage.name + suffix
    handle = await fail.options(id=id).start(id)
    try:
        await handle.result(SOON)
    except WorkflowFailedError:
        return id
    raise AssertionError("the run did not fail")


@call("RunHandle.result")
async def result_of_a_failed_run(stage: Stage) -> Call:
    id = await _failed(stage)

    async def act() -> None:
        with pytest.raises(WorkflowFailedError, match=id):
            await stage.client.get(id).result()

    return Call(act)


# Messages.


def _sending(stage: Stage, act: Callable[[], Coroutine[Any, Any, object]], *tables: tuple[str, str, str]) -> Call:
    """A call that adds a row to each of the tables."""

    async def whole(succeeded: bool) -> str:
        counts = await _count(stage, *tables)
        whole = {(1,) * len(tables)} if succeeded else {(1,) * len(tables), (0,) * len(tables)}
        return "" if counts in whole else f"rows: {counts}"

    return Call(act, whole)


@call("Client.publish")
async def publish(stage: Stage) -> Call:
    channel = f"news {stage.name}"
    return _sending(stage, lambda: stage.client.publish(channel, 1), ("channel_messages", "channel", channel))


@call("Client.send_to")
async def send_to(stage: Stage) -> Call:
    """The run that waits for the message gets it once; if it is not there, the run gets the next."""
    handle = await listen.options(id=stage.name).start()
    await waiting(stage.client, stage.name)

    async def send(word: str) -> None:
        await stage.client.send_to(stage.name, "cancellation.word", word)

    async def whole(succeeded: bool) -> str:
        await send("second")
        word = await handle.result(SOON)
        return "" if word == "first" or not succeeded else f"the run got {word}"

    return Call(lambda: send("first"), whole)


@call("Client.send_event")
async def send_event(stage: Stage) -> Call:
    """The run that waits for the event gets it once; if it is not there, the run gets the next."""
    handle = await book.options(id=stage.name).start(stage.name)
    await waiting(stage.client, stage.name)

    async def send(word: str) -> None:
        await stage.client.send_event("cancellation.go", {"name": stage.name, "word": word})

    async def whole(succeeded: bool) -> str:
        await send("second")
        word = await handle.result(SOON)
        return "" if word.endswith("first") or not succeeded else f"the run got {word}"

    return Call(lambda: send("first"), whole)


@call("Client.send_event")
async def send_event_with_outbox(stage: Stage) -> Call:
    type = f"type {stage.name}"
    return _sending(
        stage,
        lambda: stage.client.send_event(type, 1, id=stage.name, source="tests"),
        ("channel_messages", "channel", type),
        ("outbox_events", "event_type", type),
    )


@call("Client.send_event")
async def send_event_that_starts_a_run(stage: Stage) -> Call:
    event = messages.event("cancellation.begin", stage.name, id=stage.name, source="tests")
    ((run, _),) = event.new_runs()
    return _sending(
        stage,
        lambda: stage.client.send_event("cancellation.begin", stage.name, id=stage.name, source="tests"),
        ("outbox_events", "event_id", stage.name),
        ("workflow_instances", "instance_id", run),
    )


# Cancelling and retrying runs.


async def _booked(stage: Stage, suffix: str = "") -> str:
    name = stage.name + suffix
    await book.options(id=name).start(name)
    await waiting(stage.client, name)
    return name


async def _cancelled_or_not(client: Client, name: str) -> str:
    """Return "cancelled" if a run is cancelled and compensated, and "" if it continues as if nothing had happened."""
    await client.send_event("cancellation.go", {"name": name, "word": "go"})
    try:
        assert await client.get(name).result(SOON) == f"{name} go"
    except WorkflowCancelledError:
        assert done[f"release {name}"] == 1
        return "cancelled"
    assert not done[f"release {name}"]
    return ""


@call("RunHandle.cancel")
async def cancel(stage: Stage) -> Call:
    name = await _booked(stage)

    async def whole(succeeded: bool) -> str:
        found = await _cancelled_or_not(stage.client, name)
        return "" if found or not succeeded else "the run was not cancelled"

    return Call(lambda: stage.client.get(name).cancel(), whole)


async def _retried_or_not(client: Client, id: str, skipped: bool) -> bool:
    try:
        await client.get(f"{id}~r1").result(SOON)
    except RunNotFoundError:
        assert done[id] == 1
        return False
    except WorkflowFailedError:
        assert (done[f"before {id}"], done[id]) == (1 if skipped else 2, 2)
    return True


def _retry(stage: Stage, id: str, step: str | None) -> Call:
    async def whole(succeeded: bool) -> str:
        found = await _retried_or_not(stage.client, id, step is not None)
        return "" if found or not succeeded else "the run was not retried"

    return Call(lambda: stage.client.retry(id, from_step=step), whole)


@call("Client.retry")
async def retry(stage: Stage) -> Call:
    return _retry(stage, await _failed(stage), None)


@call("Client.retry")
async def retry_from_step(stage: Stage) -> Call:
    id = await _failed(stage)
    last = (await stage.client.steps(id))[-1]
    return _retry(stage, id, last.id)


# Queries, and what they change.


@call("RunQuery.cancel")
async def cancel_many(stage: Stage) -> Call:
    names = [await _booked(stage, suffix) for suffix in ("a", "b")]
    query = stage.client.runs(workflow=book, status="waiting_for_message")

    async def whole(succeeded: bool) -> str:
        found = [await _cancelled_or_not(stage.client, name) for name in names]
        return "" if all(found) or not succeeded else f"of two runs: {found}"

    return Call(query.cancel, whole)


@call("RunQuery.retry")
async def retry_many(stage: Stage) -> Call:
    ids = [await _failed(stage, suffix) for suffix in ("a", "b")]
    query = stage.client.runs(workflow=fail, status="failed")

    async def whole(succeeded: bool) -> str:
        found = [await _retried_or_not(stage.client, id, False) for id in ids]
        await stage.client.runs(workflow=fail).delete()
        return "" if all(found) or not succeeded else f"of two runs: {found}"

    return Call(query.retry, whole)


async def _run_and_history(stage: Stage, id: str) -> tuple[int, ...]:
    """Count the rows of a run and those of its history."""
    return await _count(stage, ("workflow_instances", "instance_id", id), ("workflow_history", "instance_id", id))


@call("RunQuery.delete")
async def delete_many(stage: Stage) -> Call:
    ids = [await _failed(stage, suffix) for suffix in ("a", "b")]

    async def whole(succeeded: bool) -> str:
        found = [await _run_and_history(stage, id) for id in ids]
        if any(bool(runs) != bool(records) for runs, records in found):
            return f"a run was deleted in part: {found}"
        return "" if not any(runs for runs, _ in found) or not succeeded else "the runs were not deleted"

    return Call(stage.client.runs(workflow=fail).delete, whole)


async def _all(entries: AsyncIterator[object]) -> list[object]:
    return [each async for each in entries]


@call("RunQuery.__aiter__")
async def list_runs(stage: Stage) -> Call:
    await _failed(stage)
    return Call(lambda: _all(aiter(stage.client.runs(workflow=fail))))


@call("RunQuery.__aiter__")
async def list_stuck_runs(stage: Stage) -> Call:
    return Call(lambda: _all(aiter(stage.client.runs(stuck=True))))


@call("RunQuery.page")
async def page_of_runs(stage: Stage) -> Call:
    await _failed(stage)
    return Call(stage.client.runs(workflow=fail, status="failed").page)


@call("RunQuery.first")
async def first_run(stage: Stage) -> Call:
    return Call(stage.client.runs(workflow=greet).first)


@call("RunQuery.count")
async def count_runs(stage: Stage) -> Call:
    return Call(stage.client.runs(workflow=greet).count)


# Reading one run.


@call("RunHandle.info")
async def info(stage: Stage) -> Call:
    id = await _failed(stage)
    return Call(lambda: stage.client.get(id).info())


@call("RunHandle.steps")
async def steps(stage: Stage) -> Call:
    id = await _failed(stage)
    return Call(lambda: stage.client.get(id).steps())


@call("RunHandle.state")
async def state(stage: Stage) -> Call:
    id = await _failed(stage)
    return Call(lambda: stage.client.get(id).state())


@call("RunHandle.history")
async def history(stage: Stage) -> Call:
    id = await _failed(stage)
    return Call(lambda: _all(stage.client.get(id).history()))


@call("Client.health")
async def health(stage: Stage) -> Call:
    return Call(stage.client.health)


@call("Client.codecs_in_use")
async def codecs_in_use(stage: Stage) -> Call:
    await _failed(stage)
    return Call(stage.client.codecs_in_use)


@call("Client.sweep")
async def sweep(stage: Stage) -> Call:
    id = await _failed(stage)

    async def whole(succeeded: bool) -> str:
        runs, records = await _run_and_history(stage, id)
        return "" if bool(runs) == bool(records) else f"a run was deleted in part: {runs}, {records}"

    return Call(lambda: stage.client.sweep(Retention(finished=timedelta(microseconds=1))), whole)
