"""Wrong clocks and lost notifications: a small round of the rig on every database."""

import secrets
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perdure import App
from perdure.engine.worker import clock as database_clock
from tests.chaos.rigs import Round
from tests.chaos.skew import mislead
from tests.conftest import BackendDatabase
from tests.engine.crashes.rig.checker import all_right
from tests.engine.crashes.rig.clocks import Wrong

NEARLY = timedelta(minutes=1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_wrong_clocks_and_lost_notifications_lose_nothing(
    backend: str, backend_database: BackendDatabase, tmp_path: Path
) -> None:
    async with backend_database(backend) as database:
        outcome = await mislead(database, Round(backend, secrets.randbits(32), 1, tmp_path), concurrency=9)
    all_right(outcome.wrong)
    assert outcome.done == 1
    assert outcome.figures["entries"] > 0


async def test_worker_uses_the_database_clock_when_the_machine_clock_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker takes for the time of deadlines and cron stays the database's when its machine's clock is set."""
    async with App("sqlite:///:memory:") as app:
        before = app._worker.host.database_clock.now()
        assert abs(before - datetime.now(UTC)) < NEARLY
        clock = Wrong(off_sec=48 * 3600)
        monkeypatch.setattr(clock, "off", lambda: 48 * 3600.0)
        monkeypatch.setattr(database_clock, "datetime", clock.datetime())
        monkeypatch.setattr(time, "time", clock.time)
        assert abs(app._worker.host.database_clock.now() - before) < NEARLY
