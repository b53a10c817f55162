"""A copy that ends at any point is continued by the same call."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure import Client
from perdure.copying import Progress, abort_copy, copy_database
from perdure.copying.database import Database
from perdure.database.backends.base import Executor
from perdure.errors import CopyError, StorageError
from perdure.storage.stores import open_migrated, open_storage
from tests.copying.rows import add_rows, assert_counters_continue
from tests.copying.work import begin, finish

# Copies in small batches, and is killed when a phase has come so far.
_KILLED = """
import asyncio, os, signal, sys
from perdure.copying import copy_database

def kill(progress):
    if progress.phase == sys.argv[3] and progress.done >= int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(copy_database(sys.argv[1], sys.argv[2], report=kill, batch_rows=2))
"""


async def _copy_and_die(source: str, target: str, phase: str, rows: int) -> None:
    command = [sys.executable, "-c", _KILLED, source, target, phase, str(rows)]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()


@pytest.mark.parametrize("pair", [("mysql", "postgresql")], indirect=True, ids="-to-".join)
async def test_a_copy_that_is_killed_is_continued(pair: tuple[str, str]) -> None:
    source, target = pair
    await begin(source)
    await add_rows(source)
    for phase, rows in (("copy", 8), ("copy", 30), ("compare", 5)):
        await _copy_and_die(source, target, phase, rows)
        async with Client(source) as client:
            with pytest.raises(StorageError, match=r"perdure copies this database to .*/perdure_suite_.* since"):
                await client.publish("copying.jobs", 9)
        async with Client(target) as client:
            with pytest.raises(StorageError, match=r"perdure copies .*/perdure_suite_.* to this database since"):
                await client.publish("copying.jobs", 9)
    assert (await copy_database(source, target)).state == "moved"
    await finish(target)


# Copies while no file of this process may become larger than so many bytes, as on a disk that is full.
_FULL = """
import asyncio, resource, sys
from perdure.copying import copy_database
from perdure.errors import PerdureError

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    asyncio.run(copy_database(sys.argv[1], sys.argv[2]))
except PerdureError as error:
    sys.exit(f"{error.code}: {error}")
"""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2 << 20, "storage.unavailable: SQLite cannot use the file: "),
        (4 << 20, "copy: the copy to sqlite:///"),  # at the commit
    ],
    ids=["statement", "commit"],
)
@pytest.mark.parametrize("pair", [("postgresql", "sqlite")], indirect=True, ids="-to-".join)
async def test_a_full_disk_is_no_fault_of_a_row_and_the_copy_continues_with_more_space(
    pair: tuple[str, str], size: int, text: str
) -> None:
    source, target = pair
    await add_rows(source)  # one of them has 5 MB
    command = [sys.executable, "-c", _FULL, source, target, str(size)]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    _, errors = await process.communicate()
    assert errors.decode().startswith(text)
    assert (await copy_database(source, target)).state == "moved"


class _CrashError(Exception):
    pass


@pytest.mark.timeout(300)  # it makes more than 100 copies
@pytest.mark.parametrize("pair", [("sqlite", "mysql"), ("mysql", "postgresql")], indirect=True, ids="-to-".join)
async def test_a_copy_continues_after_a_crash_before_any_write(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt crashes before the first write that no attempt before has tried, and does not clean up."""
    source, target = pair
    await add_rows(source, large=False)
    run, tried, is_crashed = Database.run, set[object](), False

    async def crashing(self: Database, text: str, values: Sequence[object] = (), on: Executor | None = None) -> int:
        nonlocal is_crashed
        step = tuple(values) if "last_key" in text else ()  # the same statement records each batch
        if not is_crashed and (place := (self.place, text, step)) not in tried and _is_of_interest(text):
            tried.add(place)
            is_crashed = True
        if is_crashed:
            raise _CrashError(text)
        return await run(self, text, values, on)

    monkeypatch.setattr(Database, "run", crashing)
    report = None
    while report is None:
        try:
            report = await copy_database(source, target, batch_rows=1)
        except _CrashError:
            is_crashed = False
    assert report.state == "moved"
    assert len(tried) > 50
    await assert_counters_continue(source, target)
    async with Client(target) as client:
        await client.publish("copying.jobs", 9)
    async with Client(source) as client:
        with pytest.raises(StorageError, match="perdure moved this database to"):
            await client.publish("copying.jobs", 9)


def _is_of_interest(text: str) -> bool:
    """Of the many triggers, those of one table are enough; texts with times are new in each attempt."""
    return ("TRIGGER" not in text or "channel_messages" in text) and "RAISE" not in text


async def test_two_processes_do_not_copy_the_same_rows(pair: tuple[str, str]) -> None:
    source, target = pair
    await add_rows(source)
    outcomes = await asyncio.gather(
        copy_database(source, target, batch_rows=1),
        copy_database(source, target, batch_rows=1),
        return_exceptions=True,
    )
    assert all(isinstance(each, CopyError | StorageError) for each in outcomes if isinstance(each, BaseException))
    assert (await copy_database(source, target)).state == "moved"


@pytest.mark.parametrize("pair", [("sqlite", "sqlite"), ("mysql", "postgresql")], indirect=True, ids="-to-".join)
async def test_a_copy_ends_if_another_process_aborts_it(pair: tuple[str, str]) -> None:
    source, target = pair
    await add_rows(source)

    def abort(_: Progress) -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, abort_copy(source, target)).result()

    with pytest.raises(CopyError, match="was aborted by another process"):
        await copy_database(source, target, report=abort, batch_rows=1)
    for url in pair:
        async with Client(url) as client:
            await client.publish("jobs", 1)


@pytest.mark.parametrize("pair", [("sqlite", "sqlite"), ("sqlite", "mysql")], indirect=True, ids="-to-".join)
async def test_a_row_that_was_changed_at_the_target_is_noticed(pair: tuple[str, str]) -> None:
    source, target = pair
    await add_rows(source)

    class _StopError(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.phase == "compare":
            raise _StopError

    with pytest.raises(_StopError):
        await copy_database(source, target, report=stop)
    async with open_storage(target) as storage, storage.transaction() as transaction:
        await transaction.execute("UPDATE perdure_copy SET is_written = 1")
        await transaction.execute("UPDATE workflow_history SET event_type = 'Activitycompleted'")
        await transaction.execute("UPDATE perdure_copy SET is_written = 0")
    with pytest.raises(CopyError, match="differs from its source in workflow_history: 1 and 1 rows"):
        await copy_database(source, target)
    async with open_migrated(source) as kept:
        assert await kept.db().fetchval("SELECT state FROM perdure_copy") == "copying", "not marked as moved"
