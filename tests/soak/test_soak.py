"""A short soak test, and what the judge says about series that grow."""

import math
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.engine.crashes.rig.checker import all_right
from tests.soak.judge import LIMITS, Verdict, judge
from tests.soak.samples import Sample
from tests.soak.soak import Plan, Soak

SECONDS, COUNT = 1800.0, 120
MEMORY, TABLE = "memory MB of the long-lived worker", "workflow_history"


async def test_mixed_load_with_kills_and_deployments_leaves_nothing(tmp_path: Path) -> None:
    report = await Soak("sqlite", Plan(3.0, rate=15, kill_every_sec=2, deployments=1, sample_sec=0.5)).run()
    all_right(report.wrong)
    assert (report.figures["kills"], report.figures["deployments"]) == (1, 1)
    assert report.figures["runs"] >= 45
    report.write(tmp_path)
    assert ElementTree.parse(tmp_path / "soak-sqlite.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("figure", LIMITS)
def test_judge_reports_a_figure_that_grows_steadily(figure: str) -> None:
    """Or falls, if less is worse. Noise and peaks are no growth, nor is what happens in the first half."""
    limit = LIMITS[figure]
    slope = 4 * limit.of(200) * (-1 if limit.falls else 1)
    assert _verdict(figure, _noisy).is_fine
    assert _verdict(figure, lambda part: _noisy(part) + slope * min(part, 0.5)).is_fine
    assert not _verdict(figure, lambda part: _noisy(part) + slope * part).is_fine


def test_judge_reports_the_rows_of_a_table_that_grows() -> None:
    assert _rows_verdict(lambda part: 100 + 10 * math.sin(50 * part)).is_fine
    assert not _rows_verdict(lambda part: 100 + 150 * part).is_fine


def test_judge_says_nothing_about_a_few_samples() -> None:
    assert judge(_samples(MEMORY, _noisy)[:15]) == []


def _noisy(part: float) -> float:
    """A level of 100 with waves, and peaks as after a kill."""
    return 100 + math.sin(40 * part) + (50 if int(part * COUNT) % 12 == 0 else 0)


def _samples(figure: str, value: Callable[[float], float]) -> list[Sample]:
    parts = [number / COUNT for number in range(COUNT)]
    return [Sample(SECONDS * part, {figure: value(part)}, [], {TABLE: int(value(part))}, {}) for part in parts]


def _verdict(figure: str, value: Callable[[float], float]) -> Verdict:
    return judge(_samples(figure, value))[0]


def _rows_verdict(value: Callable[[float], float]) -> Verdict:
    return judge(_samples("not judged", value))[-1]
