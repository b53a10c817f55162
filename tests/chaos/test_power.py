"""Power cuts: a small round of the rig, and the losses that it must detect with worse disks or pragmas."""

import secrets
from pathlib import Path

from tests.chaos.power import FAILING, NORMAL, cuts
from tests.chaos.rigs import Round
from tests.engine.crashes.rig.checker import all_right

CUTS = 80


def small(folder: Path, cuts: int = CUTS) -> Round:
    return Round("sqlite", secrets.randbits(32), cuts, folder)


async def test_power_cuts_lose_no_acknowledged_write(tmp_path: Path) -> None:
    outcome = await cuts(small(tmp_path), lives=16, failing=FAILING)
    all_right(outcome.wrong)
    assert outcome.done == CUTS
    assert outcome.figures["acknowledged"] > 100
    assert outcome.figures["cut again"] > 5
    assert outcome.figures["continued"] > 0


async def test_rig_detects_writes_lost_with_synchronous_normal(tmp_path: Path) -> None:
    outcome = await cuts(small(tmp_path, 30), lives=4, synchronous=NORMAL)
    assert any("lost: " in each for each in outcome.wrong)


async def test_rig_detects_damage_by_a_disk_that_does_not_sync(tmp_path: Path) -> None:
    outcome = await cuts(small(tmp_path, 60), lives=16, ignores_sync=True)
    assert any("damaged: " in each for each in outcome.wrong)


async def test_rig_detects_writes_lost_by_a_recovery_that_does_not_sync(tmp_path: Path) -> None:
    outcome = await cuts(small(tmp_path, 30), lives=8, again=1, ignores_sync_later=True)
    assert any("again at " in each and ("lost: " in each or "fell from" in each) for each in outcome.wrong)
    assert outcome.figures["cut again"] == 30
