"""The short form of the failover rig: a primary and its standby, on the real servers."""

import secrets
from pathlib import Path

import pytest

from tests.chaos.clusters import Cluster, Death
from tests.chaos.clusters_pairs import MariaDBPair, PostgresPair
from tests.chaos.failover import fail_over, started
from tests.chaos.rigs import Round
from tests.engine.rig.checker import all_right


@pytest.mark.parametrize(
    ("pair", "deaths"),
    [(PostgresPair, [Death.SERVER]), (MariaDBPair, [Death.DEMOTION, Death.SERVER])],
    ids=["postgresql", "mysql"],
)
async def test_nothing_is_lost_when_the_primary_is(pair: type[Cluster], deaths: list[Death], tmp_path: Path) -> None:
    round_ = Round(pair.__name__, secrets.randbits(32), len(deaths), tmp_path)
    async with started(pair()) as cluster:
        outcome = await fail_over(cluster, round_, deaths, work=20, lanes=6)
    all_right(outcome.wrong)
    assert outcome.done == len(deaths)
