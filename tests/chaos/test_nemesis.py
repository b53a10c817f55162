"""Faults of a server short of a crash, once each.

`tests/engine/crashes/test_database_restarts.py` has crashes and SQLite.
"""

import secrets
from pathlib import Path

import pytest

from tests.chaos.crashes import fragile, strike
from tests.chaos.rigs import Round
from tests.engine.crashes.rig.checker import all_right


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["postgresql", "mysql"])
async def test_server_faults_under_load_lose_nothing(backend: str, tmp_path: Path) -> None:
    round_ = Round(backend, secrets.randbits(32), 3, tmp_path)
    async with fragile(round_) as (database, _, others):
        outcome = await strike(database, round_, others, list(others), concurrency=9)
    print(backend, outcome.figures)
    all_right(outcome.wrong)
    assert {name: outcome.figures.get(name) for name in others} == dict.fromkeys(others, 1)
