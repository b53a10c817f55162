"""The comparison of two trees runs and prints its table. No speed is checked here."""

from pathlib import Path

import pytest

from benchmarks.compare.__main__ import main

ROOT = Path(__file__).parents[2]


def test_a_tree_is_compared_with_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--database sqlite --load one-step --rounds 1 --steps 200".split()
    assert main(["--rev", str(ROOT), *options]) == 0
    _, line = capsys.readouterr().out.splitlines()
    database, load, *figures = line.split()
    assert (database, load) == ("sqlite", "one-step")
    speed, other, ratio = (float(figure.replace(",", "")) for figure in figures[:3])
    assert min(speed, other) > 0
    assert abs(ratio - speed / other) < 0.02


def test_an_unknown_revision_is_reported() -> None:
    with pytest.raises(SystemExit, match="there is no revision 'nowhere'"):
        main(["--rev", "nowhere"])
