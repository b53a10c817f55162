"""The growth curves are measured, printed and drawn. No speed is checked here."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.databases import fresh_database, server_for
from benchmarks.growth import loads, processes
from benchmarks.growth.__main__ import main
from benchmarks.growth.copies import add_copies, create_original
from benchmarks.growth.curves import CURVES
from benchmarks.growth.report import as_json, lines
from perdure import App, send_event
from tests.support.databases import DATABASES


def test_curves_are_measured_written_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written, drawn = tmp_path / "growth.json", tmp_path / "growth.svg"
    options = "--database sqlite --curve finished --size 0 3 --most 2 --rounds 1 --steps 10".split()
    assert main([*options, "--json", str(written), "--chart", str(drawn)]) == 0
    _, title, point, goal = capsys.readouterr().out.splitlines()
    assert title.startswith(CURVES["finished"].what)
    assert point.split()[::2] == ["0", "1.00"]
    assert goal.split()[-1] == "–", "there is no second size to compare with"
    curve = json.loads(written.read_text())["curves"]["finished"]
    assert curve["points"]["sqlite"]["0"]["ratio"] == 1
    assert {"machine", "load", "versions"} <= set(curve)
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")


def test_file_keeps_the_curves_that_are_not_measured_again(tmp_path: Path) -> None:
    written = tmp_path / "growth.json"
    for curve in ("gather", "steps", "gather"):
        options = ["--database", "sqlite", "--curve", curve, "--size", "2", "--rounds", "1", "--json", str(written)]
        assert main(options) == 0
    assert list(json.loads(written.read_text())["curves"]) == ["gather", "steps"]


async def test_every_load_can_be_executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "RUNS", 3)
    monkeypatch.setattr(processes, "SHORT_LEASE_SEC", 1)
    for name, load in loads.LOADS.items():
        found = await load(f"sqlite:///{tmp_path}/{name}.db", 2)
        assert {"value", *(key for key, _ in CURVES[name].also)} <= set(found), name


@pytest.mark.parametrize("database", DATABASES)
async def test_copies_of_runs_are_like_the_original(database: str) -> None:
    with server_for(database) as server:
        async with fresh_database(database, server) as url:
            for kind in ("finished", "waiting"):
                await create_original(url, kind)
                await add_copies(url, kind, 0, 2)
                await add_copies(url, kind, 2, 5)
            async with App(url) as app:
                assert await app.get("finished-4").result() == 2
                assert [await app.runs(status=status).count() for status in ("completed", "waiting_for_message")] == [
                    6,
                    6,
                ]
                await send_event("go", 7, to="waiting-3")
                assert await app.get("waiting-3").result() == 7
                assert await app.runs(status="waiting_for_message").count() == 5


def test_ratios_are_to_the_first_point() -> None:
    few = [{"value": value, "cpu_us": 9.0} for value in (50.0, 40.0, 70.0)]
    found = {"sqlite": {1000: few, 5000: [{"value": 75.0, "cpu_us": 9.0}]}}
    _, first, _, second, _, goal = lines("steps", ["sqlite", "mysql"], found)
    assert first.split() == ["1,000", "50.0", "1.00", "–"]
    assert second.split() == ["5,000", "75.0", "1.50", "–"]
    assert goal.split() == ["goal:", "linear", "1.50", "met", "–"]
    assert as_json({"steps": found}, {})["curves"]["steps"]["points"]["sqlite"]["5000"]["ratio"] == 1.5


def test_figures_that_are_not_per_item_have_no_ratio() -> None:
    _, line, goal = lines("interrupted", ["sqlite"], {"sqlite": {1000: [{"value": 2.5}]}})
    assert line.split() == ["1,000", "2.5"]
    assert goal.split()[-2:] == ["2.5", "met"]


def test_goal_is_about_the_largest_size() -> None:
    found = {"sqlite": {1000: [{"value": 2.5}], 10_000: [{"value": 10.5}]}}
    assert lines("interrupted", ["sqlite"], found)[-1].split()[-2:] == ["10.5", "missed"]
    goal = as_json({"interrupted": found}, {})["curves"]["interrupted"]["goal"]
    assert (goal["most"], goal["reached"]) == (10, {"sqlite": 10.5})
