"""A caller that is cancelled at any of its awaits disturbs nobody, leaves its effect whole or not at all, and no leak.

Each call of the public API is cancelled at its first suspension, then at its second, and so on, until it completes
undisturbed: as soon as it waits, or at the moment in which the answer arrives. Others start runs and send messages at
the same time, in the same group commits.

The suite plays each call on one of the databases by turns, those that change one run on SQLite as well, and each with
one of the moments. PERDURE_CANCELLATION=all plays all of them on all databases with both.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import App, Client
from perdure.engine.api.handles import RunHandle
from perdure.engine.api.queries import RunQuery
from perdure.engine.api.workflow import Startable
from perdure.model.records import OutboxEvent, WorkflowInstance
from perdure.storage.stores import SQLStorage
from tests.cancellation.calls import CALLS, SOON, Call, Stage
from tests.cancellation.interruption import EVERYTHING, InterruptedCall, Moment, Outcome, moments_of
from tests.cancellation.workflows import done, gates, greet
from tests.engine.waiting import until
from tests.support.databases import DATABASES
from tests.support.storages import Database, storage_of

MOST = 100  # suspensions of a call
SHARED_BATCH = 3  # the call and those beside it
ELSEWHERE = {
    *("Client.start", "Client.send", "Client.finished", "Client.check_run"),  # which other methods call
    *("Client.info", "Client.steps", "Client.state", "Client.history", "Client.cancel"),  # which handles call
    "App.serve",  # see test_lifecycle.py
    "Client.failure",  # of a server; see tests/http/test_server.py
    "Client.delete_unused_blobs",  # deletes files one by one, and may be repeated
}
CALLABLE = {"Startable.__call__", "RunQuery.__aiter__", "RunHandle.history"}  # no coroutine functions


def chosen() -> Iterator[tuple[str, Moment, str]]:
    """Return each call with the databases and moments for which it is played."""
    for index, (name, enumerated) in enumerate(CALLS.items()):
        for place, backend in enumerate(DATABASES):
            if EVERYTHING or place == index % len(DATABASES) or (enumerated.changes_one_run and place == 0):
                yield from ((backend, moment, name) for moment in moments_of(index + place))


@pytest.fixture(autouse=True)
def forgotten() -> None:
    done.clear()
    gates.clear()


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each commit of starts creates."""
    found: list[int] = []
    create = SQLStorage.create_instances

    async def counting(storage: SQLStorage, instances: Sequence[WorkflowInstance], **options: Any) -> Any:
        found.append(len(instances))
        return await create(storage, instances, **options)

    monkeypatch.setattr(SQLStorage, "create_instances", counting)
    return found


async def publish_nothing(event: OutboxEvent) -> None:
    """Publish nowhere."""


class Rig:
    """An app whose callers are cancelled, and others beside them."""

    def __init__(self, app: App, client: Client, database: Database) -> None:
        self._app, self._client, self._database = app, client, database
        self._known = Counter[str]()
        self._beside = 0
        self.wrong: list[str] = []
        self.cases = 0

    async def enumerate(self, name: str, moment: Moment) -> None:
        """Cancel the call at each of its suspensions, until it completes undisturbed."""
        await self._start_beside("at first")
        self._known = _tasks()
        for number in range(1, MOST):
            self.cases += 1
            if not await self._play(name, moment, number):
                return
        self.wrong.append(f"{name}: it does not end")

    async def _play(self, name: str, moment: Moment, number: int) -> bool:
        label = f"{name} {moment} {number}"
        prepared = await CALLS[name].prepare(Stage(self._client, self._database, label))
        beside = [asyncio.create_task(self._start_beside(label))]
        called = InterruptedCall(prepared.act(), number, moment)
        beside.append(asyncio.create_task(self._client.publish("beside", label)))
        if name.startswith("start"):
            beside.append(asyncio.create_task(self._start_beside(label)))
        await asyncio.sleep(0)
        if prepared.beside is not None:
            prepared.beside()
        outcome = await called.outcome()
        self.wrong += [f"{label}: {wrong}" for wrong in await self._judge(prepared, outcome)]
        for found in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(found, BaseException):
                self.wrong.append(f"{label}: a call beside it got {found!r}")
        await self._check_quiet(label)
        return outcome.hit

    async def _start_beside(self, label: str) -> None:
        self._beside += 1
        name = f"beside {self._beside} {label}"
        assert await (await greet.options(id=name).start(name)).result(SOON) == f"hello {name}"
        assert done[name] == 1

    async def _judge(self, prepared: Call, outcome: Outcome) -> list[str]:
        wrong = []
        if outcome.error is not None and not outcome.cancelled:
            wrong.append(f"the caller got {outcome.error!r}")
        if outcome.hit and not outcome.cancelled:
            wrong.append(f"the cancelled caller got {outcome.error or outcome.answer!r}")
        await storage_of(self._client).db().fetch("SELECT 1")  # SQLite's writer has then ended what it had begun
        try:
            if found := await prepared.whole(outcome.error is None):
                wrong.append(found)
        except (Exception, AssertionError) as error:
            wrong.append(f"afterwards: {error!r}")
        return wrong

    async def _check_quiet(self, label: str) -> None:
        """Wait until nothing is under way or held."""
        try:
            await until(lambda: not self._held(), 5)
        except TimeoutError:
            self.wrong.append(f"{label}: this is left: {self._held()}")

    def _held(self) -> list[str]:
        storage: Any = storage_of(self._client)
        results, worker, backend = self._client._results, self._app._worker, storage._backend
        held = [f"result of {id}" for id in (*results._waiting, *results._watched)]
        held += [f"slots: {worker.slots.taken}"] * bool(worker.slots.taken)
        held += [f"run {id}" for id in worker.executor.tasks]
        if hasattr(backend, "_pool"):
            pool = backend._pool
            held += [f"connections: {pool._size - len(pool._idle)}"] * (pool._size != len(pool._idle))
            held += ["waiters for a connection"] * bool(pool._waiters)
        else:
            held += [f"job {job}" for job in backend._writer._waiting]
        return held + list((_tasks() - self._known).elements())


def _tasks() -> Counter[str]:
    """Count the tasks by what they execute, without background tasks and the steps of listeners, which come and go."""
    tasks = [each for each in asyncio.all_tasks() if not each.get_name().startswith("perdure ")]
    return Counter(f"task {code.__qualname__}" for each in tasks if inspect.iscoroutine(code := each.get_coro()))


@asynccontextmanager
async def rig(database: Database, kind: type[Client]) -> AsyncIterator[Rig]:
    async with App(database.url, publisher=publish_nothing) as app:
        if kind is App:
            yield Rig(app, app, database)
        else:
            async with Client(database.url, outbox=True) as client:
                yield Rig(app, client, database)


@pytest.mark.parametrize(("database", "moment", "name"), list(chosen()), indirect=["database"])
async def test_call_cancelled_at_any_await_is_whole_and_disturbs_nobody(
    database: Database, moment: Moment, name: str, batches: list[int]
) -> None:
    await _enumerate(database, moment, App, name, batches)


@pytest.mark.parametrize("database", DATABASES, indirect=True)
@pytest.mark.parametrize(
    ("moment", "name"), [(moment, name) for name in ("start_with_id", "result") for moment in moments_of(0)]
)
async def test_call_of_a_client_cancelled_at_any_await_is_whole_and_disturbs_nobody(
    database: Database, moment: Moment, name: str, batches: list[int]
) -> None:
    await _enumerate(database, moment, Client, name, batches)


async def _enumerate(database: Database, moment: Moment, kind: type[Client], name: str, batches: list[int]) -> None:
    async with rig(database, kind) as played:
        await played.enumerate(name, moment)
    print(f"{played.cases} cases, {len(played.wrong)} wrong")
    assert not played.wrong, "\n".join(played.wrong[:20])
    if name in ("start", "start_with_id"):
        assert max(batches) >= SHARED_BATCH


def test_every_method_that_waits_is_enumerated() -> None:
    methods = {
        f"{kind.__name__}.{name}"
        for kind in (Client, App, RunHandle, RunQuery, Startable)
        for name, method in vars(kind).items()
        if not name.startswith("_") and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method))
    }
    assert methods - ELSEWHERE == {each.method for each in CALLS.values()} - CALLABLE
