"""Runs that make no progress are retried with back-off, listed with their reason, and block no other run."""

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

from perdure import App, Client, RunInfo, WorkflowFailedError, WorkflowStatus, activity
from perdure.engine.api.stuck import stuck_info
from perdure.engine.worker import stuck
from perdure.engine.worker.stuck import published, reason_of, served_names
from perdure.errors import InvalidPageTokenError
from perdure.model.records import HistoryEvent, HistoryEventType, Lease, WorkflowInstance
from perdure.storage.stores import shift_clock
from tests.engine.versions import version
from tests.engine.waiting import move_clock, row_of, stuck_runs, until
from tests.support.storages import Database, storage_of

ROOT = Path(__file__).parents[3]
SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)


# Code that ends its process.

KILLER = """
import asyncio, ctypes, os, signal, sys, time
from datetime import timedelta
from perdure import App, activity, workflow
from perdure.engine.worker import back_off

back_off.DEATHS_PATIENCE = back_off.DEATHS_MAX  # test_deaths_are_counted_across_back_offs checks the real number

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

def live() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    asyncio.run(App(sys.argv[1], workflows=[killer, says], lease=timedelta(seconds=1)).serve())

# When one dies the next is forked, as a supervisor of processes would start it; imports take longer than its life.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
while (child := os.fork()) != 0:
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if code != 9:
        sys.exit(code)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
live()
"""


async def killer() -> None:
    raise AssertionError("runs elsewhere")


async def says(text: str) -> str:
    raise AssertionError("runs elsewhere")


@contextmanager
def worker_processes(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Worker processes, one at a time, and the process that starts the next one when one has died of its run."""
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src"))}
    command = [sys.executable, "-c", KILLER, *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as supervisor:
        try:
            yield supervisor
        finally:
            supervisor.terminate()


@pytest.mark.guarantee(9)
async def test_run_that_kills_its_workers_is_backed_off_after_three_deaths(shared: Database, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    async with Client(shared.url) as client:
        bad = await version(killer, "stuck.killer").options(id="bad").start()
        seen: list[RunInfo] = []
        with worker_processes(shared.url, str(deaths), "0") as supervisor:

            async def is_listed() -> bool:
                assert supervisor.poll() is None, "a worker ended of anything else than its run"
                seen[:] = await stuck_runs(client)
                return [each.id for each in seen if each.attempts] == ["bad"]  # not for want of a worker

            await until(is_listed, 100)
            (found,) = seen
            assert found.attempts >= 3
            assert found.stuck is not None
            assert found.stuck.reason.startswith(f"WorkerDiedError: {found.attempts} workers in a row died")
            good = await version(says, "stuck.says").start("others go on")
            assert await good.result(SOON) == "others go on"

            async def is_listed_again() -> bool:
                assert supervisor.poll() is None, "a worker ended of anything else than its run"
                return any(each.attempts >= 5 for each in await stuck_runs(client))

            await until(is_listed_again, 100)
            at = [float(line) for line in deaths.read_text().splitlines()]
            assert len(at) >= 5
            assert at[4] - at[3] > 2 * 0.75 + 1  # the pause, and the lease that has to expire first
            assert (await bad.info()).status is WorkflowStatus.RUNNING


@pytest.mark.guarantee(9)
async def test_max_tries_fails_a_run_that_kills_its_workers(shared: Database, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    async with Client(shared.url) as client:
        bad = await version(killer, "stuck.killer").options(id="bad").start()
        with worker_processes(shared.url, str(deaths), "2") as supervisor:

            async def has_failed() -> bool:
                assert supervisor.poll() is None, "a worker ended of anything else than its run"
                return (await bad.info()).status is WorkflowStatus.FAILED

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


async def test_run_that_made_progress_before_its_worker_died_is_not_backed_off(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Only tries in a row count, and only those without progress."""
    made = version(quiet, "stuck.quiet")
    async with App(database.url, workflows=[], lease=SHORT) as app:
        await _dead(app, "a", 7, made.name)
        row = await row_of(app, "a")
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
    claim = app._storage.claim_instances

    async def collecting(
        ids: Sequence[str], owner: str, timeout_sec: float, *, limit: int
    ) -> list[tuple[Lease, WorkflowInstance]]:
        owners.append(owner)
        return await claim(ids, owner, timeout_sec, limit=limit)

    app._storage.claim_instances = collecting  # type: ignore[method-assign, assignment]
    return owners


async def test_deaths_are_counted_across_back_offs(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The pauses grow even if another worker executes the next try."""
    made = version(quiet, "stuck.quiet")
    async with App(database.url, workflows=[made], lease=SHORT) as app:
        await _dead(app, "a", 8, made.name)

        async def is_stuck() -> bool:
            return bool(await stuck_runs(app))

        await until(is_stuck)
        (found,) = await stuck_runs(app)
        row = await row_of(app, "a")
        assert found.attempts == 9
        assert row.locked_at is not None
        assert found.stuck is not None
        assert found.stuck.next_retry_at is not None
        assert 0.7 * 8 < (found.stuck.next_retry_at - row.locked_at).total_seconds() < 1.3 * 8
    messages = [record.getMessage() for record in caplog.records if "stuck after" in record.getMessage()]
    assert [text.partition(" without")[0] for text in messages] == ["run a (stuck.quiet) is stuck after 9 tries"]


# What is listed.


@pytest.mark.guarantee(9)
async def test_rollback_without_progress_is_listed_as_stuck(database: Database) -> None:
    from perdure.engine.replay.definitions import COMPENSATIONS
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
            return bool(await stuck_runs(app))

        await until(is_stuck)
        (found,) = await stuck_runs(app)
        assert (found.id, found.status) == ("a", WorkflowStatus.COMPENSATING)
        assert found.stuck is not None
        assert "stuck.unknown" in found.stuck.reason


@pytest.mark.guarantee(9)
async def test_run_that_no_worker_serves_is_listed_and_logged_as_a_warning(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workflow was renamed or deleted."""
    gone, served = version(quiet, "stuck.gone"), version(says, "stuck.says")
    async with App(database.url, workflows=[served]) as app:
        await gone.options(id="a").start()
        assert await stuck_runs(app) == []  # a worker may be about to take it
        shift_clock(storage_of(app), timedelta(minutes=1))
        (found,) = await stuck_runs(app)
        assert (found.id, found.workflow, found.attempts) == ("a", "stuck.gone", 0)
        assert found.stuck is not None
        assert found.stuck.next_retry_at is None
        assert "no worker has taken the run for 6" in found.stuck.reason
        assert "no live worker serves workflow 'stuck.gone'" in found.stuck.reason

        def warnings() -> list[str]:
            found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
            return [text for text in found if "'stuck.gone'" in text]

        for _ in range(3):
            await app._worker.host.database_clock.set()
            await app._worker.work_loop.unserved.warn()
        assert len(warnings()) == 1
        assert "no worker has taken 1 run(s) of workflow 'stuck.gone', for example a" in warnings()[0]
        later = stuck.UNSERVED.total_seconds() + 1000
        monkeypatch.setattr("perdure.engine.worker.unserved.steady", lambda: time.monotonic() + later)
        await app._worker.work_loop.unserved.warn()
        assert len(warnings()) == 2


async def test_worker_warns_periodically_of_runs_that_no_worker_claims(
    shared: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(shared.url) as client:
        await version(quiet, "stuck.gone").options(id="a").start()
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


def test_stuck_run_has_a_readable_reason() -> None:
    reason = reason_of(ValueError("two\nlines,\t and\x00 more " + "x" * 5000))
    assert reason.startswith("ValueError: two lines, and more xxx")
    assert len(reason) == stuck.REASON_MAX
    assert reason_of(KeyError()) == "KeyError"


def test_run_is_stuck_if_no_live_worker_serves_its_workflow() -> None:
    now = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
    old = WorkflowInstance("a", "wf", updated_at=now - timedelta(hours=1))
    assert stuck_info(old, None, now, {"wf"}) is None
    assert stuck_info(old, None, now, None) is None  # some worker may serve anything
    found = stuck_info(old, None, now, {"other"})
    assert found is not None
    assert (found.since, found.next_retry_at) == (old.updated_at, None)
    leased = WorkflowInstance("a", "wf", locked_by="w#1", lock_expires_at=now + SHORT)
    assert stuck_info(leased, None, now, set()) is None


async def test_workers_publish_the_workflows_they_serve(database: Database) -> None:
    made = version(quiet, "stuck.quiet")
    async with App(database.url, workflows=[made]) as app:
        assert await served_names(app._storage) == {"stuck.quiet"}
        await app._storage.beat_worker("other", published(["stuck.other"], 15))
        assert await served_names(app._storage) == {"stuck.quiet", "stuck.other"}
        await app._storage.beat_worker("patient", published(["stuck.patient"], 600))
        shift_clock(storage_of(app), timedelta(minutes=10))
        assert "stuck.patient" in (await served_names(app._storage) or ())  # its heartbeats are rare
        assert "stuck.other" not in (await served_names(app._storage) or ())  # the app's own worker continues
        await app._storage.beat_worker("older", b"{}")  # of a version that publishes nothing
        assert await served_names(app._storage) is None
        await app._storage.beat_worker("older", published([f"{n:0200}" for n in range(1000)], 15))
        assert await served_names(app._storage) is None


async def test_no_run_counts_as_unserved_while_a_worker_of_an_older_version_lives(database: Database) -> None:
    async with Client(database.url) as client:
        await client._storage.create_instance(WorkflowInstance("a", "stuck.unknown", owner_service="perdure"))
        shift_clock(storage_of(client), timedelta(minutes=10))
        assert [run.id for run in await stuck_runs(client)] == ["a"]
        await client._storage.beat_worker("older", b"{}")  # it does not publish what it serves
        assert await stuck_runs(client) == []


async def test_run_that_makes_progress_is_no_longer_stuck(database: Database) -> None:
    made = version(quiet, "stuck.quiet")
    async with App(database.url, workflows=[made], lease=SHORT) as app:
        await _dead(app, "a", 8, made.name)

        async def is_stuck() -> bool:
            return (await app.get("a").info()).stuck is not None

        await until(is_stuck)
        (listed,) = await stuck_runs(app)
        assert listed.worker is None
        await move_clock(app, timedelta(minutes=5))
        assert await app.get("a").result(SOON) == "done"
        assert await stuck_runs(app) == []
        info = await app.get("a").info()
        assert (info.stuck, info.attempts) == (None, 0)
        if database.backend not in ("memory", "reference"):
            assert await app._storage.db().fetchval("SELECT count(*) FROM perdure_stuck") == 0


async def test_stuck_runs_are_paged_and_filtered(database: Database) -> None:
    one, other = version(quiet, "stuck.quiet"), version(says, "stuck.says")
    async with App(database.url, workflows=[]) as client:
        storage = client._storage
        for n in range(5):
            lease = await storage.create_instance(
                WorkflowInstance(f"off-{n}", one.name, b'{"n": %d}' % n), worker_id="w", timeout_sec=30
            )
            assert lease is not None
            await storage.back_off(lease, 1, f"ValueError: {n}", 300)
        for n in range(5):
            await other.options(id=f"late-{n}").start("x")
        shift_clock(storage_of(client), timedelta(minutes=1))
        seen, token = [], None
        for _ in range(20):
            page = await client.runs(stuck=True).page(2, token)
            seen += [run.id for run in page.runs]
            token = page.next_token
            if token is None:
                break
        assert seen == [*(f"off-{n}" for n in range(5)), *(f"late-{n}" for n in reversed(range(5)))]
        assert await client.runs(stuck=True).count() == 10
        assert await client.runs(stuck=True).count(limit=3) == 3
        assert [run.id async for run in client.runs(stuck=True, workflow=other)] == seen[5:]
        assert [run.id async for run in client.runs(stuck=True, where={"n": 3})] == ["off-3"]
        assert [run.id async for run in client.runs(stuck=True, status="failed")] == []
        started = {id: (await client.get(id).info()).started_at for id in seen}  # two may be equal
        middle = started["off-2"]
        before, after = client.runs(stuck=True, started_before=middle), client.runs(stuck=True, started_after=middle)
        assert [run.id async for run in before] == [id for id in seen if started[id] < middle]
        assert [run.id async for run in after] == [id for id in seen if started[id] > middle]
        first = await client.runs(stuck=True).first()
        assert first is not None
        assert first.stuck is not None
        assert (first.stuck.reason, first.attempts) == ("ValueError: 0", 1)
        assert first.stuck.next_retry_at is not None
        with pytest.raises(InvalidPageTokenError, match="pass next_token unchanged"):
            await client.runs(stuck=True).page(2, "rubbish")
