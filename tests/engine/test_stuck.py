"""Runs that make no progress are backed off, listed with their reason, and hold nobody up."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from perdure import App, Client, StuckRun, WorkflowFailedError, WorkflowStatus, activity
from perdure.engine import stuck
from perdure.engine.stuck import stuck_owner, why_stuck
from perdure.errors import LimitError
from perdure.model import limits
from perdure.model.records import HistoryEvent, HistoryEventType, Lease, WorkflowInstance
from perdure.storage.stores import shift_clock
from tests.engine.bodies import version
from tests.engine.waiting import until
from tests.storages import Database

ROOT = Path(__file__).parents[2]
SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)


# Code that ends its process.

KILLER = """
import asyncio, os, sys, time
from datetime import timedelta
from perdure import App, activity, workflow

@activity
async def die() -> None:
    with open(sys.argv[2], "a") as log:
        log.write(f"{time.monotonic()}\\n")
    os._exit(9)

@activity
async def echo(text: str) -> str:
    return text

@workflow(name="stuck.killer", max_tries=int(sys.argv[3]) or None)
async def killer() -> None:
    await die()

@workflow(name="stuck.says")
async def says(text: str) -> str:
    return await echo(text)

asyncio.run(App(sys.argv[1], workflows=[killer, says], lease=timedelta(seconds=1)).serve())
"""


async def killer() -> None:
    raise AssertionError("runs elsewhere")


async def says(text: str) -> str:
    raise AssertionError("runs elsewhere")


class Crew:
    """Worker processes, one at a time: when one dies the next is started, as a supervisor of processes would."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.deaths = 0
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src"))}
        command = [sys.executable, "-c", KILLER, *self._arguments]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def look(self) -> int:
        """How many have died so far."""
        if self._process.poll() is not None:
            assert self._process.returncode == 9, "of anything else than its run"
            self.deaths += 1
            self._process = self._start()
        return self.deaths

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def crew(*arguments: str) -> Iterator[Crew]:
    made = Crew(*arguments)
    try:
        yield made
    finally:
        made.stop()


async def test_a_run_that_kills_its_workers_is_backed_off_after_three_deaths(shared: Database, tmp_path: Path) -> None:
    """A5."""
    deaths = tmp_path / "deaths"
    async with Client(shared.url) as client:
        bad = await version(killer, "stuck.killer").start(id="bad")
        seen: list[StuckRun] = []
        with crew(shared.url, str(deaths), "0") as workers:

            async def is_listed() -> bool:
                workers.look()
                seen[:] = await client.stuck()
                return [each.id for each in seen if each.tries] == ["bad"]  # not for want of a worker that has started

            await until(is_listed, 100)
            (found,) = seen
            assert found.tries >= 3
            assert found.reason.startswith(f"WorkerDiedError: {found.tries} workers in a row died")
            assert found.next_try_at is not None
            good = await version(says, "stuck.says").start("others go on")
            assert await good.result(SOON) == "others go on"

            async def is_listed_again() -> bool:
                workers.look()
                return any(each.tries >= 8 for each in await client.stuck())

            await until(is_listed_again, 100)
            at = [float(line) for line in deaths.read_text().splitlines()]
            assert len(at) >= 8
            assert at[7] - at[6] > 2 * 0.75 + 1  # the pause, and the lease that has to expire first
            assert await bad.status() is WorkflowStatus.RUNNING


async def test_max_tries_fails_a_run_that_kills_its_workers(shared: Database, tmp_path: Path) -> None:
    """A5."""
    deaths = tmp_path / "deaths"
    async with Client(shared.url) as client:
        bad = await version(killer, "stuck.killer").start(id="bad")
        with crew(shared.url, str(deaths), "2") as workers:

            async def has_failed() -> bool:
                workers.look()
                return await bad.status() is WorkflowStatus.FAILED

            await until(has_failed, 100)
        assert len(deaths.read_text().splitlines()) == 2
        with pytest.raises(WorkflowFailedError, match="2 workers in a row died"):
            await client.get("bad").result(SOON)


@activity
async def echo(text: str) -> str:
    return text


async def quiet() -> str:
    return await echo("done")


async def _dead(app: App, id: str, tries: int, name: str) -> None:
    """A run whose worker died, with so many tries behind it."""
    instance = WorkflowInstance(id, name, owner_service="perdure")
    await app._storage.create_instance(instance, worker_id=f"dead#{tries}", timeout_sec=0.05)


async def test_a_run_that_made_progress_before_its_worker_died_is_not_backed_off(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A5: only tries in a row count, and only those without progress."""
    made = version(quiet, "stuck.quiet")
    async with App(database.url, workflows=[], lease=SHORT) as app:
        await _dead(app, "a", 7, made.name)
        row = await app.describe("a")
        lease = await app._storage.refresh_lock("a", row.locked_by or "", 1)
        await asyncio.sleep(0.002)  # the clock has to move on
        done = HistoryEvent("a", "1:echo", HistoryEventType.ACTIVITY_COMPLETED, b'"recorded"')
        await app._storage.append_history(done, lease=lease)
        claims = _owners_of_claims(app)
        app._served[made.name] = made
        assert await app.get("a").result(SOON) == "recorded"
    assert claims == [f"{app.worker_id}#0"]  # the next death is the first one again
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def _owners_of_claims(app: App) -> list[str]:
    """Collect, from now on, under which names this app acquires leases."""
    owners: list[str] = []
    acquire = app._storage.acquire_locks

    async def collecting(ids: Sequence[str], owner: str, timeout_sec: float) -> list[Lease | None]:
        owners.append(owner)
        return await acquire(ids, owner, timeout_sec)

    app._storage.acquire_locks = collecting  # type: ignore[method-assign, assignment]
    return owners


async def test_deaths_are_counted_on_after_a_back_off(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A5: the pauses grow, whoever takes the run next."""
    made = version(quiet, "stuck.quiet")
    async with App(database.url, workflows=[made], lease=SHORT) as app:
        await _dead(app, "a", 8, made.name)

        async def is_stuck() -> bool:
            return bool(await app.stuck())

        await until(is_stuck)
        (found,) = await app.stuck()
        row = await app.describe("a")
        assert found.tries == 9
        assert row.locked_at is not None
        assert found.next_try_at is not None
        assert 0.7 * 8 < (found.next_try_at - row.locked_at).total_seconds() < 1.3 * 8
    told = [record.getMessage() for record in caplog.records if "stuck after" in record.getMessage()]
    assert [text.partition(" without")[0] for text in told] == ["run a (stuck.quiet) is stuck after 9 tries"]


# What is listed.


async def test_a_rollback_that_cannot_go_on_is_listed(database: Database) -> None:
    """B10."""
    from perdure.engine.definitions import COMPENSATIONS
    from perdure.model.records import CompensationEntry

    made = version(quiet, "stuck.quiet")
    async with App(database.url, workflows=[made], lease=SHORT) as app:
        instance = WorkflowInstance("a", made.name, owner_service="perdure", status=WorkflowStatus.COMPENSATING)
        assert "stuck.unknown" not in COMPENSATIONS
        async with app._storage.transaction():
            await app._storage.create_instance(instance)
            await app._storage.add_compensation(
                CompensationEntry("a", "1:x", "stuck.unknown", b'{"input": {}, "result": null}')
            )

        async def is_stuck() -> bool:
            return bool(await app.stuck())

        await until(is_stuck)
        (found,) = await app.stuck()
        assert (found.id, found.status) == ("a", WorkflowStatus.COMPENSATING)
        assert "stuck.unknown" in found.reason


async def test_a_run_that_no_worker_serves_is_listed_and_warned_of(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B10: its workflow was renamed or deleted."""
    gone, served = version(quiet, "stuck.gone"), version(says, "stuck.says")
    async with App(database.url, workflows=[served]) as app:
        await gone.start(id="a")
        assert await app.stuck() == []  # a worker may be about to take it
        shift_clock(app._storage, timedelta(minutes=1))
        (found,) = await app.stuck()
        assert (found.id, found.workflow, found.tries, found.next_try_at) == ("a", "stuck.gone", 0, None)
        assert "no worker has taken it for 6" in found.reason

        def warnings() -> list[str]:
            found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
            return [text for text in found if "'stuck.gone'" in text]

        for _ in range(3):
            await app._worker._set_clock()
            await app._worker._warn_of_unserved()
        assert len(warnings()) == 1
        assert "no worker has taken 1 run(s) of workflow 'stuck.gone', for example a" in warnings()[0]
        later = stuck.UNSERVED.total_seconds() + 1000
        monkeypatch.setattr("perdure.engine.worker.steady", lambda: time.monotonic() + later)
        await app._worker._warn_of_unserved()
        assert len(warnings()) == 2


async def test_a_worker_warns_by_itself_of_runs_that_nobody_takes(
    shared: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """B10."""
    async with Client(shared.url) as client:
        await version(quiet, "stuck.gone").start(id="a")
        await client._storage.db().execute(_older(shared.backend))
    async with App(shared.url, workflows=[version(says, "stuck.says")]):
        await until(lambda: any("'stuck.gone'" in record.getMessage() for record in caplog.records))


def _older(backend: str) -> str:
    earlier = {
        "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now', '-1 hour')",
        "postgresql": "now() - interval '1 hour'",
        "mysql": "NOW(6) - INTERVAL 1 HOUR",
    }[backend]
    return f"UPDATE workflow_instances SET updated_at = {earlier}"


def test_a_stuck_run_has_a_reason_to_read() -> None:
    now = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
    owner = stuck_owner(3, ValueError("two\nlines,\t and\x00 more " + "x" * 500))
    assert len(owner) == limits.NAME_MAX
    limits.name(owner)
    row = WorkflowInstance("a", "wf", framework="perdure", locked_by=owner, lock_expires_at=now)
    found = why_stuck(row, now, {"wf"})
    assert found is not None
    assert found.reason.startswith("ValueError: two lines, and more xxx")
    assert (found.id, found.instance_id, found.workflow, found.workflow_name) == ("a", "a", "wf", "wf")
    assert (found.tries, found.next_try_at, found.locked_by) == (3, now, owner)
    assert why_stuck(WorkflowInstance("a", "wf", framework="perdure", locked_by="w#1"), now, {"wf"}) is None
    old = WorkflowInstance("a", "wf", framework="edda", updated_at=now - timedelta(hours=1))
    assert why_stuck(old, now, set()) is None
    former = why_stuck(WorkflowInstance("a", "wf", locked_by="~put-off#2:KeyError"), now, {"wf"})  # of the last version
    assert former == StuckRun("a", "wf", WorkflowStatus.RUNNING, "KeyError", 2, None, "~put-off#2:KeyError")


def test_a_reason_without_a_message_is_the_error_itself() -> None:
    assert stuck_owner(1, KeyError()) == "~put-off#1:KeyError"
    with pytest.raises(LimitError):
        limits.name("~put-off#1: ")
