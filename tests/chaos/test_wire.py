"""Network faults of every kind: a small round of the rig on both servers."""

import secrets
from pathlib import Path

import pytest

from tests.chaos.rigs import Round
from tests.chaos.wire import disturb
from tests.conftest import BackendDatabase
from tests.engine.crashes.rig.checker import all_right

FAULTS = 4  # each kind once


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["postgresql", "mysql"])
async def test_network_faults_lose_nothing(backend: str, backend_database: BackendDatabase, tmp_path: Path) -> None:
    async with backend_database(backend) as database:
        outcome = await disturb(database, Round(backend, secrets.randbits(32), FAULTS, tmp_path), concurrency=9)
    print(backend, outcome.figures)
    all_right(outcome.wrong)
    assert outcome.done == FAULTS
