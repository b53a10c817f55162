"""The storage benchmark runs, prints what it promises, and compares like with like. No speed is asked for here."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.storage import data
from benchmarks.storage.__main__ import main
from benchmarks.storage.cases import CASES
from benchmarks.storage.databases import opened
from benchmarks.storage.sides import Ours

TABLES = ("workflow_instances", "workflow_history", "channel_subscriptions", "channel_delivery_cursors")


@pytest.fixture(autouse=True)
def _few_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "INSTANCES", 300)


def test_the_table_has_a_line_for_each_case(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    options = ["--callers", "4", "--rounds", "1", "--seconds", "0.02", "--json", str(path)]
    assert main(["--database", "sqlite", *options]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:6] == ["database", "case", "callers", "raw/s", "ours/s", "ratio"]
    for line, case in zip(lines, CASES, strict=True):
        assert line.startswith("sqlite ")
        assert case.title in line
        numbers = [float(number.replace(",", "")) for number in line.partition(case.title)[2].split()[:-1]]
        assert len(numbers) == 9
        assert min(numbers) > 0
        assert line.endswith(("pass", "MISS"))
    written = json.loads(path.read_text())["results"]
    assert [(entry["case"], len(entry["ours_per_second"])) for entry in written] == [(case.name, 1) for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_both_sides_do_the_same(case: Any) -> None:
    given = case.prepare(1, 0.001)[0][:3]
    left = []
    for by_hand in (True, False):
        async with opened("sqlite") as (storage, raw):
            await data.fill(storage)
            await data.reset(storage, case.state)
            call = getattr(raw if by_hand else Ours(storage), case.name)
            for each in given:
                assert await call(each)
            left.append([await _rows(storage, table) for table in TABLES])
    assert left[0] == left[1]


async def _rows(storage: Any, table: str) -> list[dict[str, Any]]:
    """What is in a table, but for the times, which differ."""
    names = [row[1] for row in await storage.db().fetch(f"PRAGMA table_xinfo({table})")]
    rows = await storage.db().fetch(f"SELECT {', '.join(names)} FROM {table}")
    return [{name: value for name, value in zip(names, row, strict=True) if not name.endswith("_at")} for row in rows]
