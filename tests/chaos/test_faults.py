"""The short form of the fault rig, as the runner runs it; most fault tests are in tests/faults/."""

from pathlib import Path

import pytest

from tests.chaos import faults
from tests.chaos.rigs import Round


@pytest.mark.timeout(120)
async def test_round_of_the_fault_rig_runs_all_cases_of_its_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PLAYERS", 1)
    number = faults.THEMES.index(("try_acquire_lock", "alone"))
    outcome = await faults.play(Round("sqlite", seed=number, count=1, folder=tmp_path))
    assert outcome.wrong == []
    assert outcome.done == 1
    assert outcome.figures["storage_cases"] == 18
