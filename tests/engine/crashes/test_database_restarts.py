"""The database restarts twice under load: nothing acknowledged is lost, and all runs finish."""

import secrets
from pathlib import Path

import pytest

from tests.chaos.crashes import fragile, strike
from tests.chaos.rigs import Round
from tests.engine.crashes.rig.checker import all_right

OUTAGES = 2


@pytest.mark.guarantee(3)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_database_restarts_lose_nothing(backend: str, tmp_path: Path) -> None:
    """A small round of the chaos room's rig: a server crashes; of a file's two harms each comes once."""
    round_ = Round(backend, secrets.randbits(32), OUTAGES, tmp_path)
    async with fragile(round_) as (database, crashes, _):
        outcome = await strike(database, round_, crashes, [*crashes, *crashes][:OUTAGES], concurrency=16)
    print(backend, outcome.figures)
    all_right(outcome.wrong)
    assert outcome.done == OUTAGES
