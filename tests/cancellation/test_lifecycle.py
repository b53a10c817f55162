"""An app that is cancelled or gets a signal at any of its awaits, as it opens, serves or closes, leaves nothing open.

Each app takes over the runs of the one before: an activity at work, a compensation at work, and a waiting run. It could
not if that one had kept its leases, which are long.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial

import pytest

from perdure import App, Client, ClosedError, WorkflowFailedError
from perdure.engine.worker.waiting import end_tasks
from tests.cancellation.interruption import InterruptedCall, Moment, moments_of
from tests.cancellation.workflows import blocked, book, done, gates, greet, undo
from tests.engine.waiting import row_of, until, waiting
from tests.support import leaks
from tests.support.databases import DATABASES
from tests.support.storages import Database

LEASE = timedelta(minutes=10)
DRAIN = timedelta(seconds=0.02)
SOON = timedelta(seconds=60)
RUNS = ("blocked", "undo", "book")


def chosen(index: int) -> pytest.MarkDecorator:
    """Run a test on every database, by turns with one of the moments."""
    cases = [(backend, moment) for place, backend in enumerate(DATABASES) for moment in moments_of(index + place)]
    return pytest.mark.parametrize(("database", "moment"), cases, indirect=["database"])


@pytest.fixture(autouse=True)
def forgotten() -> None:
    done.clear()
    gates.clear()
    gates["undo"].clear()  # a gate in which the compensation waits


def app_on(database: Database) -> App:
    return App(database.url, lease=LEASE, drain_timeout=DRAIN)


async def end_runs(client: Client) -> None:
    """Let the runs end; each must have been left as a worker that stops leaves it."""
    for name in RUNS:
        gates[name].set()
    await waiting(client, "book")
    await client.send_event("cancellation.go", {"name": "book", "word": "go"})
    assert await client.get("blocked").result(SOON) == "blocked"
    assert await client.get("book").result(SOON) == "book go"
    with pytest.raises(WorkflowFailedError):
        await client.get("undo").result(SOON)
    assert (done["reserve book"], done["release book"], done["reserve undo"]) == (1, 0, 1)


async def under_way(client: Client) -> None:
    """Wait until an app executes the runs."""
    blocked_count, released_count = done["gated blocked"], done["release undo"]
    await until(lambda: done["gated blocked"] > blocked_count and done["release undo"] > released_count)
    await waiting(client, "book")


class Surroundings:
    """What is open in this process before an app is opened, and must be all that is open after it has closed."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._resources, self._tasks = leaks.resources(), len(asyncio.all_tasks())

    async def check(self, client: Client) -> None:
        """Check that a closed app has released its leases, and that nothing of it is left."""
        leased = {name: (await row_of(client, name)).locked_by for name in RUNS}
        assert not any(leased.values()), f"{self._label}: {leased}"
        await until(lambda: len(asyncio.all_tasks()) <= self._tasks, 5)
        try:
            await until(lambda: not self._left(), 5)
        except TimeoutError:
            raise AssertionError(f"{self._label}: {self._left()} is left") from None

    def _left(self) -> list[str]:
        """Return what is left and not of others: SQLite closes its file with the client's last lock on it, and the loop
        keeps the threads of its executor, of which it starts another whenever the earlier ones are busy.
        """
        others = ("perdure.db", "thread asyncio_")
        return [each for each in leaks.opened_since(self._resources) if not any(other in each for other in others)]


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    """A client beside the apps, which opens no more connections, with three runs that they are to execute."""
    options = "" if database.backend == "sqlite" else "?pool_size=1"
    async with Client(database.url + options) as client:
        await blocked.options(id="blocked").start("blocked")
        await undo.options(id="undo").start("undo")
        await book.options(id="book").start("book")
        yield client


@chosen(0)
async def test_app_cancelled_while_it_opens_leaves_nothing(database: Database, client: Client, moment: Moment) -> None:
    number = 0
    while True:
        number += 1
        around, app = Surroundings(f"{moment} {number}"), app_on(database)
        outcome = await InterruptedCall(app.__aenter__(), number, moment).outcome()
        assert outcome.cancelled is outcome.hit, f"{moment} {number}: {outcome}"
        if not outcome.hit:
            break
        await around.check(client)
    try:
        await end_runs(app)
    finally:
        await app.__aexit__(None, None, None)
    print(f"{number} cases")


@pytest.mark.guarantee(10)
@chosen(1)
async def test_app_cancelled_while_it_closes_releases_everything(
    database: Database, client: Client, moment: Moment
) -> None:
    number = 0
    while True:
        number += 1
        around, app = Surroundings(f"{moment} {number}"), app_on(database)
        await app.__aenter__()
        await under_way(app)
        asking = asyncio.create_task(app.get("book").result())
        await until(lambda: "book" in app._results._waiting)  # noqa: B023 - it ends before the next app
        outcome = await InterruptedCall(app.__aexit__(None, None, None), number, moment).outcome()
        assert outcome.cancelled is outcome.hit, f"{moment} {number}: {outcome}"
        with pytest.raises(ClosedError):
            await asyncio.wait_for(asking, 5)
        await around.check(client)
        if not outcome.hit:
            break
    await _end_all(database, number)


@pytest.mark.guarantee(10)
@pytest.mark.parametrize("database", DATABASES, indirect=True)
async def test_cancelled_close_ends_the_draining(database: Database, client: Client) -> None:
    app = App(database.url, lease=LEASE, drain_timeout=timedelta(hours=1))
    await app.__aenter__()
    await under_way(client)
    closing = asyncio.create_task(app.__aexit__(None, None, None))
    await until(lambda: app._worker.executor.stopping)
    closing.cancel()
    await asyncio.wait([closing], timeout=20)
    assert closing.cancelled()


@chosen(2)
async def test_serving_app_cancelled_at_any_await_releases_everything(
    database: Database, client: Client, moment: Moment
) -> None:
    await _serve(database, client, moment, None)


@pytest.mark.guarantee(10)
@chosen(3)
async def test_serving_app_that_gets_a_signal_at_any_await_releases_everything(
    database: Database, client: Client, moment: Moment
) -> None:
    number = signal.SIGTERM if database.backend == "mysql" else signal.SIGINT
    await _serve(database, client, moment, lambda: signal.raise_signal(number))


async def _serve(database: Database, client: Client, moment: Moment, interrupt: Callable[[], None] | None) -> None:
    """Interrupt an app at each of its awaits until its first signal ends it undisturbed."""
    number = 0
    while True:
        number += 1
        around, app = Surroundings(f"{moment} {number}"), app_on(database)
        serving = InterruptedCall(app.serve(), number, moment, interrupt)
        asked = asyncio.create_task(_stop_at_work(client))
        outcome = await serving.outcome()
        await end_tasks([asked])
        assert outcome.cancelled is (outcome.hit and interrupt is None), f"{moment} {number}: {outcome}"
        assert outcome.cancelled or outcome.error is None, f"{moment} {number}: {outcome}"
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        await around.check(client)
        if not outcome.hit:
            break
    await _end_all(database, number)


async def _end_all(database: Database, cases: int) -> None:
    """Let an app that nobody disturbs end the runs of all cases."""
    async with app_on(database) as last:
        await end_runs(last)
    print(f"{cases} cases")


async def _stop_at_work(client: Client) -> None:
    await under_way(client)
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("database", DATABASES, indirect=True)
@pytest.mark.parametrize(
    "make", [Client, App, partial(App, workflows=[])], ids=["client", "app", "app without workflows"]
)
async def test_close_waits_for_the_commit_of_a_cancelled_start(
    database: Database, make: Callable[[str], Client]
) -> None:
    tasks = asyncio.all_tasks()
    async with make(database.url):
        outcome = await InterruptedCall(greet.options(id="a").start("a"), 1, Moment.AT_ONCE).outcome()
        assert outcome.cancelled
    assert asyncio.all_tasks() == tasks
