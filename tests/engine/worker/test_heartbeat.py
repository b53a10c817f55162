"""The heartbeat renews the leases of many runs in pages, including runs that only wait."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import pytest

from perdure.engine.execution.clock import steady
from perdure.engine.worker.heartbeat import PAGE, Heartbeat
from perdure.errors import DatabaseUnavailableError, StorageError
from perdure.model.records import Lease, WorkflowInstance
from perdure.storage.contract import Storage
from perdure.storage.stores import open_storage
from perdure.testing import TestApp
from tests.engine.waiting import until
from tests.support.storages import Database

LEASE_SEC = 3.0


@dataclass
class Held:
    deadline: float
    at_work: bool = True


@dataclass
class Beating:
    """A heartbeat over real leases, and what it asked for and found."""

    heartbeat: Heartbeat
    held: dict[str, Held]
    leases: list[Lease]
    lost: list[str]
    pages: list[list[str]]
    refusals: list[StorageError]  # the answers to the next renewals


@asynccontextmanager
async def beating(database: Database, count: int) -> AsyncIterator[Beating]:
    storage = await database.storage()
    ids = [f"run-{number:05}" for number in range(count)]
    leases: list[Lease] = []
    sent = steady()
    for first in range(0, count, 250):
        instances = [WorkflowInstance(id, "beating", b"{}", owner_service="perdure") for id in ids[first : first + 250]]
        answers = await storage.create_instances(instances, worker_id="w#0", timeout_sec=600)
        leases += [answer for answer in answers if isinstance(answer, Lease)]
    assert len(leases) == count
    pages: list[list[str]] = []
    refusals: list[StorageError] = []

    class Watched:
        """The storage that the heartbeat sees."""

        def __getattr__(self, name: str) -> Any:
            return getattr(own, name)

        async def refresh_locks(self, some: Sequence[Lease], timeout_sec: float) -> list[Lease | None]:
            pages.append([lease.instance_id for lease in some])
            if refusals:
                raise refusals.pop()
            return await own.refresh_locks(some, 600 + timeout_sec)  # longer than before, however fast the test is

    own: Storage

    @asynccontextmanager
    async def connect() -> AsyncIterator[Storage]:
        nonlocal own
        async with open_storage(database.url) as own:
            yield cast(Storage, Watched())

    lost: list[str] = []
    heartbeat = Heartbeat(connect, "w", LEASE_SEC, lambda lease: lost.append(lease.instance_id))
    held = {lease.instance_id: Held(sent + LEASE_SEC) for lease in leases}
    for lease in leases:
        heartbeat.hold(lease, held[lease.instance_id])
    heartbeat.start()
    try:
        yield Beating(heartbeat, held, leases, lost, pages, refusals)
    finally:
        await heartbeat.stop()


@pytest.mark.parametrize("count", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 1])
async def test_all_leases_of_all_pages_are_renewed(shared: Database, count: int) -> None:
    async with beating(shared, count) as beats:
        before = {id: held.deadline for id, held in beats.held.items()}
        await until(lambda: all(held.deadline > before[id] for id, held in beats.held.items()))
        assert beats.lost == []
        assert all(len(page) <= PAGE for page in beats.pages)
        assert set().union(*beats.pages) == set(before)


@pytest.mark.parametrize("count", [PAGE, PAGE + 1])
async def test_lease_lost_on_a_page_boundary_is_reported(shared: Database, count: int) -> None:
    async with beating(shared, count) as beats:
        storage = await shared.storage()
        ends = [beats.leases[0], beats.leases[PAGE - 1], beats.leases[-1]]
        for lease in ends:
            await storage.release_lock(lease.instance_id, lease.worker_id, lease=lease)
        names = {lease.instance_id for lease in ends}
        await until(lambda: set(beats.lost) == names)
        for lease in ends:
            beats.heartbeat.drop(lease)


@pytest.mark.parametrize("shared", ["sqlite"], indirect=True)
async def test_failed_renewal_is_logged_as_an_unavailable_database(
    shared: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with beating(shared, 1) as beats:
        beats.refusals.append(DatabaseUnavailableError("nobody answers"))
        await until(lambda: beats.refusals == [] and len(beats.pages) > 1)
    assert "the database is unavailable, retrying until it answers: nobody answers" in caplog.text


@pytest.mark.parametrize("shared", ["sqlite"], indirect=True)
async def test_idle_worker_reports_that_it_is_alive(shared: Database) -> None:
    storage = await shared.storage()
    async with beating(shared, 0):
        await until(lambda: _has_beaten(storage, None))
        (first,) = await storage.list_workers()
        await until(lambda: _has_beaten(storage, first.beat_at))


async def _has_beaten(storage: Storage, since: datetime | None) -> bool:
    """Whether there is a beat after this one."""
    return any(since is None or worker.beat_at > since for worker in await storage.list_workers())


async def test_nudge_renews_only_leases_of_executing_runs(shared: Database) -> None:
    async with beating(shared, 3) as beats:
        beats.held["run-00000"].at_work = False
        await until(lambda: bool(beats.pages))  # a whole beat
        asked = len(beats.pages)
        beats.heartbeat.nudge()
        await until(lambda: len(beats.pages) > asked)
        assert beats.pages[asked] == ["run-00001", "run-00002"]


async def test_nudges_do_not_prevent_renewal_for_waiting_runs(shared: Database) -> None:
    async with beating(shared, 2) as beats:
        waiting = beats.held["run-00000"]
        waiting.at_work, at_first = False, waiting.deadline
        await until(lambda: waiting.deadline > at_first)
        renewed, asked = waiting.deadline, len(beats.pages)

        async def is_renewed() -> bool:
            beats.heartbeat.nudge()
            await asyncio.sleep(0.01)
            return waiting.deadline > renewed

        await until(is_renewed)
        assert ["run-00001"] in beats.pages[asked:]


async def test_heartbeat_by_the_clock_of_a_test_is_a_task_of_its_event_loop() -> None:
    """A thread would renew by the real clock, and the leases would expire when the test moves its own."""
    before = set(threading.enumerate())
    async with TestApp():
        assert "perdure heartbeat" in {task.get_name() for task in asyncio.all_tasks()}
        assert "perdure-heartbeat" not in {thread.name for thread in set(threading.enumerate()) - before}
