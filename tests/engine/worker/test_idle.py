"""An idle App sends almost no statements."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from perdure import App, Client, activity, wait_event, workflow
from perdure.database.backends.polling import LONGEST_SEC, SHORTEST_SEC
from perdure.database.backends.postgres import PostgresBackend
from perdure.database.backends.sqlite import SQLiteBackend
from perdure.database.pacing import Pace
from perdure.model.records import WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.conftest import BackendDatabase
from tests.engine.waiting import waiting
from tests.support.storages import Database

seen: list[Any] = []
BACKENDS = ("sqlite", "postgresql", "mysql", "reference")
IDLE_SEC = 10.5  # a whole round of looks and beats
QUIET_SEC = 0.2
FIRST_SEC = 5.0  # how long MySQL is polled more often than once a second after the last commit of the process


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@activity
async def note(what: str) -> str:
    seen.append(what)
    return what


@workflow(name="idle.approved")
async def approved(what: str) -> str:
    first = await note(what)
    event = await wait_event("go", timeout=timedelta(minutes=5))
    return f"{first} {event.data} {await note('after')}"


class Statements:
    """Counts what is sent to each database: by the drivers, or by the server itself."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._counts: Counter[str] = Counter()
        self._asking: SQLStorage | None = None
        connect, dial = SQLiteBackend._connect, PostgresBackend._dial

        def traced(backend: SQLiteBackend) -> Any:
            connection = connect(backend)
            connection.set_trace_callback(lambda _: self._counts.update(["sqlite"]))
            return connection

        async def logged(backend: PostgresBackend) -> Any:
            connection = await dial(backend)
            connection.add_query_logger(lambda _: self._counts.update(["postgresql"]))
            return connection

        patch.setattr(SQLiteBackend, "_connect", traced)
        patch.setattr(PostgresBackend, "_dial", logged)

    async def sent(self, database: Database) -> int:
        """So far; asking MySQL is a statement as well, which is taken off."""
        if database.backend != "mysql":
            return self._counts[database.backend]
        storage = self._asking = self._asking or await database.storage()
        self._counts["mysql"] += 1
        return int((await storage.db().fetch("SHOW GLOBAL STATUS LIKE 'Questions'"))[0][1]) - self._counts["mysql"]


@pytest.mark.guarantee(8)
async def test_idle_app_sends_few_statements(
    backend_database: BackendDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"sqlite": 1.0, "postgresql": 1.0, "mysql": 2.0}
    counted = Statements(monkeypatch)
    async with AsyncExitStack() as stack:
        databases = [await stack.enter_async_context(backend_database(backend)) for backend in limits]
        for database in databases:
            app = await stack.enter_async_context(App(database.url))
            await approved.options(id="a").start("parked")
            await waiting(app, "a")
        before = [0]
        while before != (now := [await counted.sent(database) for database in databases]):  # hints of the starts
            before = now
            await asyncio.sleep(QUIET_SEC)
        assert all(before)
        began = time.monotonic()
        await asyncio.sleep(IDLE_SEC)
        after = [await counted.sent(database) for database in databases]
        spent = time.monotonic() - began
    rates = {each.backend: (b - a) / spent for each, a, b in zip(databases, before, after, strict=True)}
    assert all(0 < rates[backend] <= limit for backend, limit in limits.items()), rates


@pytest.mark.guarantee(8)
async def test_one_query_per_second_serves_all_awaited_results(
    backend_database: BackendDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all databases at once, because this waits until MySQL is polled once a second."""
    async with AsyncExitStack() as stack:
        databases = [await stack.enter_async_context(backend_database(backend)) for backend in BACKENDS]
        async with asyncio.TaskGroup() as group:
            for database in databases:
                group.create_task(_queries_are_rare(database, monkeypatch))


async def _queries_are_rare(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(database.url, workflows=[]), Client(database.url) as client:
        handles = [await approved.options(id=f"a{n}").start("nobody runs it") for n in range(30)]
        asked: list[int] = []
        times: list[float] = []
        plain = client._storage.get_instances

        async def counting(ids: Sequence[str]) -> list[WorkflowInstance | None]:
            asked.append(len(ids))
            times.append(time.monotonic() - began)
            return await plain(ids)

        monkeypatch.setattr(client._storage, "get_instances", counting)
        began = time.monotonic()
        waiters = [asyncio.create_task(handle.result(timedelta(seconds=FIRST_SEC + 3.2))) for handle in handles]
        ended = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(each, TimeoutError) for each in ended)
        assert max(asked) == 30, database.backend
        assert 1 <= len([at for at in times if at > FIRST_SEC]) <= 5
        assert len(asked) <= 50


@pytest.mark.guarantee(8)
def test_polling_after_a_commit_is_at_most_two_queries_per_second_over_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MySQL is polled often right after a commit, and once a second in the end."""
    now = 0.0
    monkeypatch.setattr("perdure.database.pacing.monotonic", lambda: now)
    pace, polls = Pace(SHORTEST_SEC, LONGEST_SEC), list[float]()
    while now < 60:
        now += pace.pause()
        polls.append(now)
    assert len(polls) <= 2 * 60
    assert len([at for at in polls if at <= FIRST_SEC]) <= 40
    assert max(b - a for a, b in itertools.pairwise(polls)) < 1.01
    assert polls[0] <= 0.002
