"""The benchmarks of the engine run and print their tables. No speed is checked here."""

import json
from pathlib import Path

import pytest

from benchmarks.compare.__main__ import main
from benchmarks.engine.__main__ import main as measure
from benchmarks.engine.measures import MEASURES

ROOT = Path(__file__).parents[2]


def test_a_tree_is_compared_with_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--database sqlite --measure one-step --rounds 1 --size 200".split()
    assert main(["--rev", str(ROOT), *options]) == 0
    _, line = capsys.readouterr().out.splitlines()
    database, name, speed_shown, other_shown, unit, ratio_shown, *_ = line.split()
    assert (database, name, unit) == ("sqlite", "one-step", "runs/s")
    speed, other, ratio = (float(figure.replace(",", "")) for figure in (speed_shown, other_shown, ratio_shown))
    assert min(speed, other) > 0
    assert abs(ratio - speed / other) < 0.02


def test_an_unknown_revision_is_reported() -> None:
    with pytest.raises(SystemExit, match="there is no revision 'nowhere'"):
        main(["--rev", "nowhere"])


def test_figures_are_measured_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written, names = tmp_path / "engine.json", ["ten-step", "event-across", "replay", "where", "memory"]
    options = ["--database", "sqlite", "--rounds", "1", "--size", "5", "--json", str(written)]
    assert measure([*options, "--measure", *names]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [MEASURES[name].what in line for name, line in zip(names, lines, strict=True)] == [True] * len(names)
    found = json.loads(written.read_text())
    assert {name: found["measures"][name]["unit"] for name in names} == {name: MEASURES[name].unit for name in names}
    assert found["measures"]["ten-step"]["sqlite"]["median"] > 0
    assert found["versions"]["perdure"]
