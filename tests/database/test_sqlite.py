"""The SQLite backend: pragmas, the single writer, the gate between processes, wake-ups, and locked databases."""

import asyncio
import json
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.database.backends.sqlite import SQLiteBackend, wal_watch
from perdure.database.backends.sqlite import backend as sqlite
from perdure.database.backends.sqlite import jobs as writer_jobs
from perdure.database.backends.sqlite.commits import roll_back
from perdure.database.backends.sqlite.writer_lock import WriterLock
from perdure.database.operation import Operation, Work
from perdure.errors import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseUnavailableError,
    SchemaError,
    StorageError,
)
from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.storage.stores import SQLiteStorage, SQLStorage, open_storage
from tests.engine.waiting import until


async def spawn(*arguments: object) -> Process:
    """Another process of `sqlite_process`, once it is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.database.sqlite_process", *map(str, arguments), stdout=PIPE, limit=1 << 24
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def finish(process: Process) -> str:
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/perdure.db"


@pytest.mark.pitfall(37)
async def test_pragmas_are_set_on_every_connection(url: str) -> None:
    async with open_storage(url) as storage:
        for pragma, wanted in {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}.items():
            assert await storage.db().fetchval(f"PRAGMA {pragma}") == wanted


async def test_open_waits_for_a_writer_in_rollback_journal_mode(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite refuses to change the journal at once while another program writes, whatever the busy timeout is."""
    refused = threading.Event()

    class Watched(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            try:
                return super().execute(*args)
            except sqlite3.OperationalError:
                refused.set()
                raise

    def connect(path: str) -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False, factory=Watched)

    monkeypatch.setattr(sqlite, "connect", connect)
    rival = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    rival.execute("CREATE TABLE theirs (n)")
    rival.execute("BEGIN IMMEDIATE")
    rival.execute("INSERT INTO theirs VALUES (1)")
    storage = open_storage(url)
    opening = asyncio.create_task(storage.initialize())
    try:
        assert await asyncio.to_thread(refused.wait, 10)
        rival.execute("COMMIT")
        await opening
        assert await storage.db().fetchval("PRAGMA journal_mode") == "wal"
    finally:
        rival.close()
        await storage.close()


async def test_file_that_cannot_have_a_write_ahead_log_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems have no shared memory, and SQLite then keeps its rollback journal without an error."""

    def connect(path: str) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{path}?vfs=unix-dotfile", uri=True, isolation_level=None, check_same_thread=False)

    monkeypatch.setattr(sqlite, "connect", connect)
    storage = open_storage(url)
    with pytest.raises(ConfigurationError, match="journal_mode of this file at 'delete', but perdure needs 'wal'"):
        await storage.initialize()
    await storage.close()


@pytest.mark.pitfall(37)
async def test_foreign_keys_are_enforced(url: str) -> None:
    async with open_storage(url) as storage:
        with pytest.raises(StorageError):
            await storage.create_instance(WorkflowInstance("i-1", "wf", continued_from="nobody"))
        assert await storage.get_instance("i-1") is None


async def test_memory_database_is_private_to_its_storage() -> None:
    async with open_storage("sqlite:///:memory:") as one, open_storage("sqlite:///:memory:") as two:
        await one.create_instance(WorkflowInstance("i-1", "wf"))
        assert await two.get_instance("i-1") is None


@pytest.mark.parametrize(
    "bad", ["sqlite://", "sqlite:///", "sqlite://host/file.db", "sqlite:///f.db?mode=ro", "sqlite:////no/such/dir/f.db"]
)
async def test_invalid_url_is_refused_at_once(bad: str) -> None:
    with pytest.raises(ConfigurationError):
        open_storage(bad)


@pytest.mark.parametrize("bad", ["oracle://x", "", "file.db", "sqlite", "postgres+psycopg://user:hunter2@host/db"])
async def test_error_for_an_unknown_database_hides_the_password(bad: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_storage(bad)
    assert "hunter2" not in str(caught.value)


async def test_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be read as one" * 20)
    storage = open_storage(f"sqlite:///{tmp_path}/notes.txt")
    with pytest.raises(ConfigurationError, match=r"notes\.txt is not a SQLite database"):
        await storage.initialize()
    await storage.close()


async def test_operation_before_initialize_says_what_to_do(url: str) -> None:
    storage = SQLiteStorage(url.removeprefix("sqlite:///"))
    with pytest.raises(DatabaseUnavailableError, match="not open"):
        await storage.create_instance(WorkflowInstance("i-1", "wf"))
    await storage._connect()
    with pytest.raises(SchemaError, match=r"initialize\(\)"):
        await storage.create_instance(WorkflowInstance("i-1", "wf"))
    await storage.close()
    for read in (storage.get_instance("i-1"), storage.list_instances(ListInstancesOptions())):
        with pytest.raises(DatabaseUnavailableError, match="not open"):
            await read


@pytest.mark.pitfall(23)
async def test_times_do_not_depend_on_the_time_zone_of_the_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        async with open_storage(url) as storage:
            await storage.create_instance(WorkflowInstance("i-1", "wf"))
            found = await storage.get_instance("i-1")
            assert found is not None
            assert found.started_at is not None
            assert abs(found.started_at - datetime.now(UTC)) < timedelta(minutes=1)
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_waiting_for_the_writer_times_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_jobs, "WAIT_SEC", 1.0)
    async with open_storage(url) as storage:
        async with storage.transaction():
            with storage.detached(), pytest.raises(DatabaseUnavailableError, match="no turn to write"):
                await storage.create_instance(WorkflowInstance("i-1", "wf"))
        assert await storage.get_instance("i-1") is None
        await storage.create_instance(WorkflowInstance("i-1", "wf"))


@pytest.mark.pitfall(37)
async def test_write_waits_for_a_program_that_ignores_the_gate(url: str) -> None:
    async with open_storage(url) as storage:
        stranger = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        stranger.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(storage.create_instance(WorkflowInstance("i-1", "wf")))
        await asyncio.sleep(0.05)
        assert not task.done()
        assert await storage.get_instance("i-1") is None  # readers are not blocked
        stranger.execute("COMMIT")
        await task
        stranger.close()


async def test_failed_commit_frees_the_writer(url: str) -> None:
    """SQLite keeps a transaction open whose deferred constraints fail at its commit."""
    async with open_storage(url) as storage:
        await storage.db().execute("CREATE TABLE mother (id INTEGER PRIMARY KEY)")
        await storage.db().execute(
            "CREATE TABLE child (mother INTEGER REFERENCES mother (id) DEFERRABLE INITIALLY DEFERRED)"
        )
        with pytest.raises(StorageError, match="FOREIGN KEY"):
            async with storage.transaction() as connection:
                await connection.execute("INSERT INTO child VALUES (1)")
        async with asyncio.timeout(20):
            await storage.create_instance(WorkflowInstance("i-1", "wf"))
        assert await storage.db().fetchval("SELECT COUNT(*) FROM child") == 0


async def test_savepoint_cancelled_at_its_release_is_not_committed(url: str) -> None:
    """The writer executes what it was given, so the level can no longer be undone separately."""
    async with open_storage(url) as storage:
        task, raised = asyncio.current_task(), list[BaseException]()
        assert task is not None
        with pytest.raises(StorageError, match="savepoint"):
            async with storage.transaction():
                try:
                    async with storage.transaction():
                        await storage.create_instance(WorkflowInstance("i-1", "wf"))
                        asyncio.get_running_loop().call_soon(task.cancel)
                except asyncio.CancelledError as error:
                    raised.append(error)
                    task.uncancel()
        assert len(raised) == 1
        assert await storage.get_instance("i-1") is None
        await storage.create_instance(WorkflowInstance("i-2", "wf"))


async def test_error_in_a_nested_transaction_that_sqlite_rolled_back_names_the_cause(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.db().execute("PRAGMA max_page_count = 1")  # as little as there is
        with pytest.raises(DatabaseUnavailableError, match="full"):
            async with storage.transaction(), storage.transaction():
                await storage.create_instance(WorkflowInstance("i-1", "wf", input_data=b'"%s"' % (b"x" * 100_000)))
        assert await storage.get_instance("i-1") is None
        await storage.db().execute("PRAGMA max_page_count = 1000000")
        await storage.create_instance(WorkflowInstance("i-2", "wf"))


class Slow:
    """A connection whose statement takes its time; to close it meanwhile would bring the interpreter down."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real
        self.asked, self.go_on, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.closed_under_it = False

    def execute(self, sql: str) -> sqlite3.Cursor:
        self.asked.set()
        assert self.go_on.wait(30)
        self.closed_under_it = self.closed.is_set()
        return self._real.execute(sql)

    def close(self) -> None:
        self.closed.set()
        self._real.close()


async def _is_not_current() -> bool:
    return False


async def test_cancelled_initialize_does_not_close_a_connection_in_use(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(url) as storage:
        backend = storage._backend
        assert isinstance(backend, SQLiteBackend)
        slow = Slow(backend._connect())
        monkeypatch.setattr(backend, "_connect", lambda: slow)
        monkeypatch.setattr(storage, "_is_current", _is_not_current)
        task = asyncio.create_task(storage.initialize())
        assert await asyncio.to_thread(slow.asked.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await asyncio.to_thread(slow.closed.wait, 0.3)  # long enough for who would
        slow.go_on.set()
        assert await asyncio.to_thread(slow.closed.wait, 30)
        assert not slow.closed_under_it


async def test_concurrent_writes_use_group_commit(url: str) -> None:
    async with open_storage(url) as storage:
        await storage.create_instance(WorkflowInstance("first", "wf"))
        await asyncio.gather(*(storage.create_instance(WorkflowInstance(f"i-{n}", "wf")) for n in range(200)))
        answers = await asyncio.gather(
            *(storage.create_instance(WorkflowInstance(f"i-{n}", "wf")) for n in range(150, 250)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, StorageError) for answer in answers) == 50
        assert await storage.db().fetchval("SELECT count(*) FROM workflow_instances") == 251


async def test_failed_write_does_not_affect_others_in_its_group_commit(url: str) -> None:
    def count(session: sqlite3.Connection) -> int:
        return session.execute("INSERT INTO seen VALUES (1)").rowcount

    def write_and_fail(session: sqlite3.Connection) -> int:
        count(session)
        raise StorageError("refused after writing")

    def fail(_: sqlite3.Connection) -> int:
        raise StorageError("refused before writing")

    async with open_storage(url) as storage:
        await storage.db().execute("CREATE TABLE seen (n)")
        async with storage.transaction():  # what comes meanwhile is one group
            jobs = [count, fail, write_and_fail, count, fail, count]
            with storage.detached():
                submit = storage._backend._writer.submit  # type: ignore[attr-defined]
                waiting = [asyncio.create_task(submit(writer_jobs.Job(job))) for job in jobs]
                await asyncio.sleep(0)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [answer if isinstance(answer, int) else str(answer)[:13] for answer in found] == [
            *(1, "refused befor", "refused after", 1, "refused befor", 1)
        ]
        assert await storage.db().fetchval("SELECT count(*) FROM seen") == 3


async def test_group_whose_savepoint_fails_is_refused_as_a_whole(url: str) -> None:
    def count(session: sqlite3.Connection) -> int:
        return session.execute("INSERT INTO seen VALUES (1)").rowcount

    def write_and_fail(session: sqlite3.Connection) -> int:
        session.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_SAVEPOINT else 0)
        count(session)
        raise StorageError("refused after writing")

    async with open_storage(url) as storage:
        await storage.db().execute("CREATE TABLE seen (n)")
        submit = storage._backend._writer.submit  # type: ignore[attr-defined]
        async with storage.transaction():  # what comes meanwhile is one group
            with storage.detached():
                waiting = [asyncio.create_task(submit(writer_jobs.Job(job))) for job in (count, write_and_fail, count)]
                await asyncio.sleep(0)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) for answer in found] == [StorageError] * 3
        assert await storage.db().fetchval("SELECT count(*) FROM seen") == 0
        await submit(writer_jobs.Job(lambda session: session.set_authorizer(None)))
        await submit(writer_jobs.Job(count))
        assert await storage.db().fetchval("SELECT count(*) FROM seen") == 1


async def test_storage_closed_twice_closes_no_file_of_others(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/a.db") as storage:
        pass
    files = [(tmp_path / f"{number}").open("wb") for number in range(20)]  # with the numbers that became free
    await storage.close()
    for file in files:
        file.write(b"mine")
        file.close()


def test_writer_that_waits_is_not_overtaken(tmp_path: Path) -> None:
    """A single file lock is unfair: a writer that wants it again at once gets it before the kernel wakes the other."""
    path = str(tmp_path / "perdure.db")
    busy, other = WriterLock(path), WriterLock(path)
    overtaken = sum(_times_overtaken(path, busy, other) for _ in range(5))
    busy.close()
    other.close()
    assert overtaken == 0


def _times_overtaken(path: str, busy: WriterLock, other: WriterLock) -> int:
    """How often a writer gets the lock again while another waits for it."""
    admitted, count = threading.Event(), 0

    def wait_for_lock() -> None:
        with other:
            admitted.set()

    thread = threading.Thread(target=wait_for_lock)
    with busy:
        thread.start()
        while not _has_waiter(path):
            time.sleep(0.001)
    while not admitted.is_set():
        with busy:
            count += not admitted.is_set()
    thread.join()
    return count


def _has_waiter(path: str) -> bool:
    """Whether a thread or process waits for the lock on writers."""
    inode = os.stat(f"{path}-gate").st_ino
    return any("->" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


async def test_write_waits_for_the_writer_of_another_process(url: str, tmp_path: Path) -> None:
    path = str(tmp_path / "perdure.db")
    async with open_storage(url) as storage:
        writer = WriterLock(path)
        with writer:
            task = asyncio.create_task(storage.create_instance(WorkflowInstance("i-1", "wf")))
            while not _has_waiter(path):  # noqa: ASYNC110 - the kernel has no event for it
                await asyncio.sleep(0.001)
            assert not task.done()
        writer.close()
        await task


async def test_killed_process_frees_the_gate(url: str) -> None:
    async with open_storage(url) as storage:
        holder = await spawn("hold", url)
        task = asyncio.create_task(storage.create_instance(WorkflowInstance("i-1", "wf")))
        await asyncio.sleep(0.05)
        assert not task.done()
        holder.send_signal(signal.SIGKILL)
        await asyncio.wait_for(task, 5)
        await holder.communicate()
        assert await storage.get_instance("never") is None


async def test_write_to_the_log_is_noticed_although_nothing_reads_it(tmp_path: Path) -> None:
    log = tmp_path / "perdure.db-wal"
    log.touch()
    with wal_watch._changes(str(log)) as changed:
        log.write_bytes(b"a commit")
        async with asyncio.timeout(10):
            await changed.wait()


async def test_hints_go_on_for_a_while_after_a_write(tmp_path: Path) -> None:
    """The write is seen before its fsync, so the commit is not visible at the first hint."""
    log = tmp_path / "perdure.db-wal"
    log.touch()
    hints = wal_watch.watch_log(str(log))
    await anext(hints)
    waiting = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0.01)  # it watches the file now
    log.write_bytes(b"a commit")
    async with asyncio.timeout(10):
        await waiting
        for _ in wal_watch.AFTERTHOUGHTS_SEC:
            await anext(hints)
    await hints.aclose()  # type: ignore[attr-defined]


async def test_commits_wake_other_storages_without_polling(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_watch, "STAT_SEC", 3600)
    monkeypatch.setattr(wal_watch, "AFTERTHOUGHTS_SEC", (3600,))
    hints = 0

    async def listen(storage: SQLStorage) -> None:
        nonlocal hints
        async for _ in storage.wakeups():
            hints += 1

    async with open_storage(url) as listener, open_storage(url) as writer:
        listening = asyncio.create_task(listen(listener))
        await until(lambda: hints > 0)
        for number in range(20):
            before = hints
            await writer.create_instance(WorkflowInstance(f"i-{number}", "wf"))
            await until(lambda before=before: hints > before)  # type: ignore[misc]
        listening.cancel()


async def test_idle_listening_costs_under_one_percent_of_a_core(url: str) -> None:
    async with open_storage(url):
        listener = await spawn("listen", url, 3)
        assert json.loads(await finish(listener))["cpu"] < 0.01


def test_failed_rollback_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("BEGIN")
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else 0)
    roll_back(connection)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("a rollback failed, so the SQLite transaction may still be open: ")
    connection.set_authorizer(None)
    roll_back(connection)
    assert not connection.in_transaction
    connection.close()


@pytest.mark.parametrize("repeat", [False, True])
async def test_write_whose_commit_is_unknown_is_repeated_only_if_that_is_safe(url: str, repeat: bool) -> None:
    runs = 0

    def operation() -> Operation[int]:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise CommitUnknownError("the disk failed")
        yield from ()
        return runs

    async with open_storage(url) as storage:
        with nullcontext() if repeat else pytest.raises(CommitUnknownError):
            assert await storage._backend.write(Work(operation, repeat=repeat)) == 2
    assert runs == (2 if repeat else 1)
