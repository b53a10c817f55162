"""What a worker logs when the database does not answer and the error is not raised: a storage that was closed."""

import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.engine import starting
from perdure.engine.worker.lost_leases import LostLeases
from perdure.engine.worker.run_task import release
from perdure.engine.worker.stuck import UnservedWarning
from perdure.model.records import Lease
from perdure.storage.contract import Storage
from perdure.storage.stores import open_storage
from tests.engine.waiting import until


@pytest.fixture
async def closed_storage(caplog: pytest.LogCaptureFixture) -> Storage:
    async with open_storage("sqlite:///:memory:") as storage:
        pass
    caplog.set_level(logging.DEBUG, "perdure.engine")
    return storage


async def test_lease_that_cannot_be_released_is_logged(
    closed_storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    await release(closed_storage, Lease("order-1", "w#0", 1, datetime.now(UTC)))
    (record,) = caplog.records
    assert record.getMessage().startswith("worker w#0 could not release its lease on run order-1, so other workers ")


async def test_lost_lease_is_logged_as_a_warning_even_if_the_run_cannot_be_read(
    closed_storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    run: Any = SimpleNamespace(id="order-1", workflow=SimpleNamespace(name="order"))
    await LostLeases(closed_storage, "w#0").report(run)
    unread, lost = caplog.records
    assert unread.getMessage().startswith("could not read whether run order-1 (order) was cancelled: ")
    assert lost.levelno == logging.WARNING
    assert lost.getMessage().startswith("worker w#0 lost its lease on run order-1 (order) ")


async def test_check_for_a_live_worker_that_fails_is_logged(
    closed_storage: Storage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.worker.stuck.WARN_SEC", 0.0)
    warning = UnservedWarning(closed_storage, "order-1")
    await until(lambda: bool(caplog.records))
    warning.stop()
    (record,) = caplog.records
    assert record.getMessage().startswith("could not check whether a live worker serves run order-1: ")


async def test_definitions_that_cannot_be_stored_in_advance_are_logged(
    closed_storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    await starting.define(closed_storage, {"order": "hash"})
    (record,) = caplog.records
    assert record.getMessage().startswith("the definitions of 1 workflows were not stored in advance; ")
