"""A SyncClient does for blocking programs what a Client does for coroutines, in any thread."""

import asyncio
import inspect
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import psycopg
import pytest

from perdure import (
    App,
    Client,
    ClosedError,
    ConfiguredWorkflow,
    EngineError,
    NotDurableError,
    Retention,
    Retry,
    RunHandle,
    RunNotFoundError,
    RunQuery,
    SyncClient,
    SyncRunHandle,
    SyncRunQuery,
    TerminalError,
    Workflow,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
    activity,
    receive,
    set_state,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.api import client_thread, current_sync
from perdure.engine.api.client_thread import ClientThread
from perdure.errors import ConfigurationError, DatabaseUnavailableError
from perdure.storage import open_storage
from tests.engine.orders import Receipt, order
from tests.support import leaks
from tests.support.storages import Database

SOON = timedelta(seconds=60)

everywhere = pytest.mark.parametrize("shared", ["sqlite", "postgresql", "mysql"], indirect=True)
on_sqlite = pytest.mark.parametrize("shared", ["sqlite"], indirect=True)


@activity(retry=Retry(attempts=1))
async def refuse() -> None:
    raise TerminalError("no money")


@workflow(name="sync.failing")
async def failing() -> None:
    set_state("about to fail")
    await refuse()


@workflow(name="sync.listener")
async def listener() -> list[Any]:
    await subscribe("news")
    await subscribe("mail", "direct")
    set_state("listening")
    news = await receive("news")
    mail = await receive("mail")
    event = await wait_event("paid")
    return [news.data, mail.data, event.data]


@workflow(name="sync.patient")
async def patient() -> str:
    return str((await wait_event("go")).data)


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON.total_seconds()
    while not check():
        assert time.monotonic() < end
        time.sleep(0.002)


def is_waiting(client: SyncClient, count: int = 1) -> bool:
    thread = client._background._thread
    return thread is not None and len(thread._waits) >= count


# Calls.


@pytest.mark.behaviour("SyncClient")
@everywhere
async def test_blocking_program_uses_every_call(shared: Database) -> None:
    async with App(shared.url, workflows=[order, failing, listener, patient]):
        await asyncio.to_thread(use_every_call, shared.url)


def use_every_call(url: str) -> None:
    with SyncClient(url) as client:
        run = order.options(id="order-1").start_sync("A-1", 9.0)
        assert run.result(SOON) == Receipt("A-1", 4.5)
        assert (run.id, run.info().status, run.state()) == ("order-1", WorkflowStatus.COMPLETED, None)
        assert (
            [step.name for step in run.steps()]
            == [step.name for step in client.steps("order-1")]
            == [
                "charge",
                "halve",
            ]
        )
        assert [entry.step for entry in run.history()] == ["1:charge", "2:halve"]
        assert client.start(order.options(id="order-1"), "A-1", amount=9.0).result() == Receipt("A-1", 4.5)
        assert client.get("order-1").result() == {"order_id": "A-1", "amount": 4.5}
        send_everything(client)
        look_at_runs(client)
        assert client.health().ok


def send_everything(client: SyncClient) -> None:
    run = client.start(listener)
    until(lambda: run.state() == "listening" and run.info().status is WorkflowStatus.WAITING_FOR_MESSAGE)
    client.publish("news", 1)
    client.send_to(run.id, "mail", 2, metadata={"from": "a test"})
    client.send_event("paid", 3, to=run.id, source="till", id="e-1", subject="A-1")
    assert run.result(SOON) == [1, 2, 3]
    with pytest.raises(RunNotFoundError):
        client.send_to("unknown", "mail", 2)


def look_at_runs(client: SyncClient) -> None:
    failed = failing.options(id="failed-1").start_sync()
    with pytest.raises(WorkflowFailedError) as raised:
        failed.result(SOON)
    assert isinstance(raised.value.__cause__, TerminalError)
    again = client.retry("failed-1")
    with pytest.raises(WorkflowFailedError):
        again.result(SOON)
    waiting = patient.start_sync()
    waiting.cancel("not needed")
    with pytest.raises(WorkflowCancelledError, match="not needed"):
        waiting.result(SOON)
    assert {each.id for each in client.runs(workflow=failing)} == {"failed-1", again.id}
    failures = client.runs(status="failed")
    first = failures.first()
    assert first is not None
    page = failures.page(1)
    assert (page.runs[0].id, failures.count()) == (first.id, 2)
    assert failures.page(1, page.next_token).runs[0].id != first.id
    assert failures.cancel().skipped == 2
    assert failures.retry(dry_run=True).done == 1  # the other one has been retried
    assert failures.delete().done == 2
    assert failures.first() is None
    assert client.sweep(Retention(finished=timedelta(days=1)), dry_run=True).finished == 0


@on_sqlite
async def test_history_is_read_page_by_page(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.api.step_reading.PAGE", 1)

    def program() -> list[str]:
        with SyncClient(shared.url):
            run = order.start_sync("A-1", 9.0)
            run.result(SOON)
            return [entry.step for entry in run.history()]

    async with App(shared.url):
        assert await asyncio.to_thread(program) == ["1:charge", "2:halve"]


INTERNAL = {"check_run", "dialect", "failure", "finished", "has_worker", "is_open", "schema", "send", "start"}
OWN = {"close", "dialect", "finished", "schema", "start", "start_request"}
TYPES = {RunHandle: SyncRunHandle, RunQuery: SyncRunQuery}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "blocking"), [(Client, SyncClient), (RunHandle, SyncRunHandle), (RunQuery, SyncRunQuery)]
)
def test_blocking_and_async_classes_have_the_same_methods_with_the_same_parameters(kind: type, blocking: type) -> None:
    internal, own = (INTERNAL, OWN) if kind is Client else (set(), set())
    shared = public(kind) - internal
    assert shared == public(blocking) - own
    for name in shared - {"id"}:
        theirs, ours = getattr(kind, name), getattr(blocking, name)
        assert not inspect.iscoroutinefunction(ours)
        if name == "get":
            continue  # that of a Client also takes the handle of a blocking start
        assert str(inspect.signature(ours).replace(return_annotation=None)) == str(
            inspect.signature(theirs).replace(return_annotation=None)
        )
        assert result_type(ours) == result_type(theirs), name


def result_type(method: Any) -> str:
    """Return the type that a method returns, as a text, with the names of the blocking classes."""
    text = str(get_type_hints(method)["return"])
    for kind, blocking in TYPES.items():
        text = text.replace(f"{kind.__module__}.{kind.__name__}", f"{blocking.__module__}.{blocking.__name__}")
    return text.replace("AsyncIterator", "Iterator")


def test_start_sync_takes_the_parameters_of_start() -> None:
    for kind in (Workflow, ConfiguredWorkflow):
        parameters = [inspect.signature(each).parameters for each in (kind.start, kind.start_sync)]
        assert parameters[0] == parameters[1]


# Which client a call uses.


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]


def test_start_without_a_client_is_refused() -> None:
    with pytest.raises(EngineError, match=r"orders\.order\.start_sync\(\) needs a SyncClient, and none is open"):
        order.start_sync("A-1", 9.0)


def test_start_uses_the_only_client_even_if_it_has_not_connected(urls: list[str]) -> None:
    with closing(SyncClient(urls[0])) as client:
        run = order.start_sync("A-1", 9.0)
        assert client.info(run.id).status is WorkflowStatus.RUNNING


def test_start_with_several_clients_needs_one_that_is_entered(urls: list[str]) -> None:
    line = inspect.stack()[0].lineno + 1
    with closing(SyncClient(urls[0])) as one, closing(SyncClient(urls[1])) as two:
        with pytest.raises(EngineError) as raised:
            order.start_sync("A-1", 9.0)
        assert repr(one) in str(raised.value)
        assert repr(two) in str(raised.value)
        assert f"{__file__}:{line}" in repr(two)
        with two:
            run = order.start_sync("A-1", 9.0)
            assert two.runs().count() == 1
            two.start(order, "A-2", 9.0)
            assert one.start(order, "A-1", 9.0).info().status is WorkflowStatus.RUNNING
        assert one.runs().count() == 1
        assert order.start_sync("A-3", 9.0).info().id != run.id  # the other one is closed
        with pytest.raises(ClosedError):
            run.info()


def test_client_that_is_dropped_is_no_longer_used(urls: list[str]) -> None:
    SyncClient(urls[0])
    with closing(SyncClient(urls[1])) as client:
        assert current_sync.current_client("a call", "") is client


# Opening and closing.


@pytest.mark.parametrize("given", ["sqlite:///:memory:", "oracle://localhost/shop", "shop.db"])
def test_url_that_cannot_work_is_refused_when_the_client_is_made(given: str) -> None:
    with pytest.raises(ConfigurationError):
        SyncClient(given)


async def test_open_storage_is_refused(shared_url: str) -> None:
    async with open_storage(shared_url) as storage:
        with pytest.raises(TypeError, match="belongs to the event loop that opened it"):
            SyncClient(storage)  # type: ignore[arg-type]


@pytest.fixture
def shared_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


def test_with_connects_and_a_later_attempt_may_succeed(tmp_path: Path) -> None:
    client = SyncClient(f"sqlite:///{tmp_path}/later/shop.db")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="does not exist: create it"):
            client.__enter__()
    (tmp_path / "later").mkdir()
    with client:
        assert client.runs().count() == 0


def test_client_is_entered_once_and_not_with_async_with(shared_url: str) -> None:
    client = SyncClient(shared_url)
    with client, pytest.raises(EngineError, match="was entered already"), client:
        pass
    with pytest.raises(ClosedError, match="this SyncClient is closed"):
        client.info("a")
    with pytest.raises(ClosedError), client:
        pass
    with pytest.raises(TypeError, match="use `with SyncClient"):
        client.__aenter__()  # type: ignore[attr-defined]


def test_client_closes_before_its_first_call_and_twice(shared_url: str) -> None:
    client = SyncClient(shared_url)
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.runs().count()


@pytest.mark.behaviour("SyncClient")
@everywhere
async def test_closing_ends_the_calls_of_other_threads(shared: Database) -> None:
    def program() -> list[BaseException]:
        client = SyncClient(shared.url)
        runs = [client.start(patient) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            waits = [threads.submit(run.result) for run in runs]
            until(lambda: is_waiting(client, 3))
            client.close()
            return [error for each in waits if (error := each.exception(SOON.total_seconds())) is not None]

    errors = await asyncio.to_thread(program)
    assert [type(each) for each in errors] == [ClosedError] * 3
    assert "was closed during the call" in str(errors[0])


def test_client_that_is_not_closed_warns_and_ends_its_thread(shared_url: str) -> None:
    client = SyncClient(shared_url)
    client.runs().count()
    thread = client._background._thread
    assert thread is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
    assert [str(each.message) for each in caught] == ["a SyncClient was not closed: use `with`, or close()"]
    assert thread.join(SOON.total_seconds())


# Threads, event loops and errors.


@everywhere
async def test_threads_share_a_client(shared: Database) -> None:
    def program() -> list[Receipt]:
        with SyncClient(shared.url) as client, ThreadPoolExecutor(8) as threads:
            return list(threads.map(lambda number: client.start(order, f"A-{number}", 2.0).result(SOON), range(40)))

    async with App(shared.url, workflows=[order]):
        assert await asyncio.to_thread(program) == [Receipt(f"A-{number}", 1.0) for number in range(40)]


def test_threads_that_cannot_connect_get_an_error_each() -> None:
    """With a traceback of their own, although one attempt to connect serves all of them."""
    with closing(SyncClient("postgresql://nobody@127.0.0.1:1/shop")) as client:
        ready = threading.Barrier(4)

        def call() -> BaseException:
            ready.wait()
            with pytest.raises(DatabaseUnavailableError) as raised:
                client.info("a")
            return raised.value

        with ThreadPoolExecutor(4) as threads:
            errors = list(threads.map(lambda _: call(), range(4)))
        assert len({id(each) for each in errors}) == 4
        for error in errors:
            frames = traceback.extract_tb(error.__traceback__)
            assert [frame.name for frame in frames if frame.filename == __file__] == ["call"]
            assert frames[0].name == "call"


def test_error_has_a_traceback_that_starts_at_the_call(shared_url: str) -> None:
    with SyncClient(shared_url) as client, pytest.raises(RunNotFoundError) as raised:
        client.get("nowhere").result()
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert (frames[0].filename, frames[0].line) == (__file__, 'client.get("nowhere").result()')
    assert frames[1].name == "result"
    assert frames[-1].name == "finished"


def test_timeout_names_the_run_and_the_time(shared_url: str) -> None:
    with SyncClient(shared_url) as client:
        run = client.start(patient)
        with pytest.raises(TimeoutError, match=rf"run '{run.id}' has not ended after 0\.05 s, and continues"):
            run.result(0.05)


@on_sqlite
async def test_call_on_the_event_loop_of_an_app_is_refused(shared: Database) -> None:
    with closing(SyncClient(shared.url)) as client:
        async with App(shared.url, workflows=[order]) as app:
            with pytest.raises(EngineError, match="on the event loop of an open App"):
                order.start_sync("A-1", 9.0)
            with pytest.raises(EngineError, match="call it in a thread"):
                client.get("a").result()
            run = await asyncio.to_thread(order.start_sync, "A-1", 9.0)
            assert await app.get(run).result(SOON) == Receipt("A-1", 4.5)


async def test_call_on_another_event_loop_blocks_it(shared_url: str) -> None:
    """As in a notebook, where a loop runs in the main thread."""
    with SyncClient(shared_url) as client:
        assert order.start_sync("A-1", 9.0).info().status is WorkflowStatus.RUNNING
        assert client.runs().count() == 1


held: list[SyncClient] = []


@workflow(name="sync.blocking")
async def blocking(starts: bool) -> str:
    try:
        if starts:
            order.start_sync("A-1", 9.0)
        else:
            held[0].runs().count()
    except NotDurableError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("starts", [False, True])
async def test_call_in_a_body_is_refused(shared_url: str, starts: bool) -> None:
    with closing(SyncClient(shared_url)) as client:
        held[:] = [client]
        async with App(shared_url):
            assert "in an activity" in await blocking(starts)


@activity
def start_another() -> str:
    return order.start_sync("A-1", 9.0).id


@workflow(name="sync.starter")
async def starter() -> str:
    return await start_another()


async def test_plain_activity_starts_a_run(shared_url: str) -> None:
    with closing(SyncClient(shared_url)):
        async with App(shared_url) as app:
            assert (await app.get(await starter()).result(SOON))["amount"] == 4.5


# Forks, without a second process: test_sync_processes.py has those with one.


def locked(url: str) -> "closing[sqlite3.Connection]":
    """Return a connection with a transaction that blocks all other writers."""
    mine = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    mine.execute("BEGIN IMMEDIATE")
    return closing(mine)


def is_busy(client: SyncClient) -> bool:
    thread = client._background._thread
    return thread is not None and bool(thread._tasks)


def test_fork_waits_for_a_call_that_writes_to_a_file(shared_url: str) -> None:
    with SyncClient(shared_url) as client, ThreadPoolExecutor(2) as threads, locked(shared_url) as mine:
        thread = client._background._thread
        call = threads.submit(client.publish, "news", 1)
        until(lambda: is_busy(client))
        assert thread is not None
        threads.submit(until, lambda: thread._is_stopping).add_done_callback(lambda _: mine.rollback())
        client._background.before_fork()
        try:
            assert call.done()
            assert thread.ended
        finally:
            client._background.after_fork()
        assert call.result() is None
        client.publish("news", 2)  # opens the file again


def test_fork_does_not_wait_forever_for_a_call(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.api.background.FORK_SEC", 0.05)
    with SyncClient(shared_url) as client, ThreadPoolExecutor(1) as threads, locked(shared_url) as mine:
        call = threads.submit(client.publish, "news", 1)
        until(lambda: is_busy(client))
        client._background.before_fork()
        mine.rollback()
        client._background.after_fork()
        with pytest.raises(EngineError, match="the call was interrupted, because the process forked"):
            call.result()
        client.publish("news", 2)


def test_wait_continues_after_a_fork(shared_url: str) -> None:
    with SyncClient(shared_url) as client, ThreadPoolExecutor(1) as threads:
        run = client.start(patient)
        call = threads.submit(run.result, 1000)
        until(lambda: is_waiting(client))
        client._background.before_fork()
        client._background.after_fork()
        until(lambda: is_waiting(client))
        assert not call.done()
        client.close()
        assert isinstance(call.exception(), ClosedError)


def test_process_that_was_forked_unnoticed_with_an_open_file_cannot_use_it(shared_url: str) -> None:
    """As by uWSGI, which calls only the hook in the new process."""
    with closing(SyncClient(shared_url)) as client:
        client.runs().count()
        thread = client._background._thread
        assert thread is not None
        client._background.after_fork_in_child()
        try:
            with pytest.raises(EngineError, match="was forked while this SyncClient had the SQLite file open"):
                client.runs().count()
        finally:
            thread.stop()
            thread.join()


# A thread that fails.


def fail(client: SyncClient) -> ClientThread:
    """Plant a bug in the event loop of a client, and return its thread, which ends."""
    thread = client._background._thread
    assert thread is not None
    thread._loop.call_soon_threadsafe(sys.exit, "a bug")
    return thread


def test_thread_that_fails_is_logged_and_replaced(shared_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with SyncClient(shared_url) as client, ThreadPoolExecutor(1) as threads:
        run = client.start(patient)
        call = threads.submit(run.result, 1000)
        until(lambda: is_waiting(client))
        assert fail(client).join(SOON.total_seconds())
        leaks._tasks.clear()  # its tasks were pending, of course
        assert (
            "the thread of a SyncClient failed; the next call opens the database again: SystemExit: a bug"
            in caplog.text
        )
        until(lambda: call.done() or is_waiting(client))
        assert run.info().status is WorkflowStatus.RUNNING
        assert not call.done()
        client.close()
        assert isinstance(call.exception(), ClosedError)


def test_call_during_the_report_of_a_failed_thread_waits_for_the_next_one(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop is closed by then, and the thread has not ended."""
    with SyncClient(shared_url) as client, ThreadPoolExecutor(1) as threads:
        calls: list[Future[int]] = []
        has_met_the_old_thread = threading.Event()
        join = ClientThread.join

        def noted_join(thread: ClientThread, timeout_sec: float | None = None) -> bool:
            has_met_the_old_thread.set()
            return join(thread, timeout_sec)

        def report(*args: object, **kwargs: object) -> None:
            calls.append(threads.submit(lambda: client.runs().count()))
            until(lambda: has_met_the_old_thread.is_set() or calls[0].done())

        client.start(patient)
        monkeypatch.setattr(ClientThread, "join", noted_join)
        monkeypatch.setattr(client_thread.log, "error", report)
        join(fail(client))
        leaks._tasks.clear()
        assert calls[0].result(SOON.total_seconds()) == 1


def test_call_in_the_thread_of_the_client_itself_is_refused(shared_url: str) -> None:
    with SyncClient(shared_url) as client:
        thread, errors = client._background._thread, list[BaseException]()
        assert thread is not None

        def handle() -> None:
            with pytest.raises(EngineError, match="was called in its own thread") as caught:
                client.runs().count()
            errors.append(caught.value)

        thread._loop.call_soon_threadsafe(handle)
        until(lambda: bool(errors))


# Starting in a transaction of the caller.


@on_sqlite
async def test_start_in_a_transaction_waits_for_no_lock_of_its_own(shared: Database) -> None:
    """The client has not connected yet, and would need the lock that the transaction has."""

    def program() -> Receipt:
        with (
            closing(SyncClient(shared.url)),
            closing(sqlite3.connect(shared.url.removeprefix("sqlite:///"), isolation_level=None)) as mine,
        ):
            mine.execute("BEGIN IMMEDIATE")
            run = order.options(in_transaction=mine).start_sync("A-1", 9.0)
            mine.execute("COMMIT")
            return run.result(SOON)

    receipt = asyncio.create_task(asyncio.to_thread(program))
    async with App(shared.url, workflows=[order]):
        assert await receipt == Receipt("A-1", 4.5)


def test_start_in_a_transaction_uses_the_schema_of_the_client(fresh_postgres_db: str) -> None:
    with closing(SyncClient(f"{fresh_postgres_db}?schema=mine")) as client:
        with psycopg.connect(fresh_postgres_db) as mine:
            mine.execute("SELECT 1")  # begins a transaction
            run = order.options(in_transaction=mine).start_sync("A-1", 9.0)
            explicit = client.start(order.options(in_transaction=mine), "A-2", 9.0)
        assert run.info().status is explicit.info().status is WorkflowStatus.RUNNING
        assert client.runs().count() == 2


def test_connection_to_another_kind_of_database_is_refused(shared_url: str, fresh_postgres_db: str) -> None:
    with closing(SyncClient(shared_url)), psycopg.connect(fresh_postgres_db) as mine:
        mine.execute("SELECT 1")
        with pytest.raises(EngineError, match="one of postgresql, but the SyncClient's database is sqlite"):
            order.options(in_transaction=mine).start_sync("A-1", 9.0)


def test_handle_of_a_start_without_a_client_uses_the_next_one(shared_url: str) -> None:
    with SyncClient(shared_url):
        pass  # creates the tables
    with closing(sqlite3.connect(shared_url.removeprefix("sqlite:///"))) as mine:
        mine.execute("BEGIN")
        run = order.options(in_transaction=mine).start_sync("A-1", 9.0)
        mine.commit()
    with pytest.raises(EngineError, match=r"info\(\) needs a SyncClient"):
        run.info()
    with closing(SyncClient(shared_url)):
        assert run.info().status is WorkflowStatus.RUNNING
        assert (run.steps(), run.state(), list(run.history())) == ([], None, [])
        run.cancel("no longer wanted")
        with pytest.raises(TimeoutError):
            run.result(0.01)


def test_client_keeps_nothing_of_a_call_that_has_ended(shared_url: str) -> None:
    with SyncClient(shared_url) as client:
        client.start(patient)
        with pytest.raises(RunNotFoundError):
            client.info("unknown")
        thread = client._background._thread
        assert thread is not None
        assert (thread._calls, thread._tasks, thread._waits) == (set(), {}, set())


def test_call_while_the_process_exits_is_refused(shared_url: str) -> None:
    """It would open connections that nothing closes any more."""
    with SyncClient(shared_url) as client:
        client._background.close_at_exit()
        with pytest.raises(ClosedError, match="this SyncClient is closed"):
            client.runs().count()


@on_sqlite
async def test_sweep_deletes_unless_it_is_a_dry_run(shared: Database) -> None:
    async with App(shared.url, workflows=[order]):
        await asyncio.to_thread(sweep_an_order, shared.url)


def sweep_an_order(url: str) -> None:
    finished = Retention(finished=timedelta(microseconds=1))
    with SyncClient(url) as client:
        client.start(order, "A-1", 9.0).result(SOON)
        until(lambda: client.sweep(finished, dry_run=True).finished == 1)
        assert client.runs().count() == 1
        assert client.sweep(finished).finished == 1
        assert client.runs().count() == 0


CALL_IN_A_SIGNAL_HANDLER = """
import faulthandler, signal, sys
from perdure import SyncClient

faulthandler.dump_traceback_later(60, exit=True)
with SyncClient(sys.argv[1]) as client:
    signal.signal(signal.SIGUSR1, lambda *_: print("handler", client.runs().count()))
    loop = client._background._thread._loop
    wake, signalled = loop._write_to_self, []

    def wake_and_signal():
        wake()
        if not signalled:
            signalled.append(True)
            signal.raise_signal(signal.SIGUSR1)  # while the main thread passes its call on

    loop._write_to_self = wake_and_signal
    print("main", client.runs().count())
"""


def test_signal_handler_may_make_a_call_while_its_thread_makes_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CALL_IN_A_SIGNAL_HANDLER, f"sqlite:///{tmp_path}/signal.db"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["handler", "0", "main", "0"], ended.stderr
