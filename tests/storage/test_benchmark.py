"""The storage benchmark runs, prints its table, and compares equal work. No speed is checked here."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.storage import data
from benchmarks.storage.__main__ import main
from benchmarks.storage.cases import CASES, Case
from benchmarks.storage.databases import opened
from benchmarks.storage.sides import Ours, Side
from perdure.storage.stores import SQLStorage

TABLES = ("workflow_instances", "workflow_history", "channel_subscriptions", "channel_delivery_cursors")


@pytest.fixture(autouse=True)
def _few_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "INSTANCES", 300)


def test_benchmark_prints_a_line_for_each_case(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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


async def test_both_sides_of_the_benchmark_leave_the_same_rows() -> None:
    async with opened("sqlite") as (storage, raw):
        await data.fill(storage)
        for case in CASES:
            left = [await _left_by(side, case, storage) for side in (raw, Ours(storage))]
            assert left[0] == left[1], case.name


async def _left_by(side: Side, case: Case, storage: SQLStorage) -> list[Any]:
    """What is in the tables after a few calls, but for generated ids and times, which differ."""
    await data.reset(storage, case.state)
    for given in case.prepare(1, 0.001)[0][:3]:
        assert await getattr(side, case.name)(given)
    found = []
    for table in TABLES:
        names = [row[1] for row in await storage.db().fetch(f"PRAGMA table_info({table})")]
        kept = ", ".join(name for name in names if name != "id" and not name.endswith("_at"))
        found.append(await storage.db().fetch(f"SELECT {kept} FROM {table} ORDER BY rowid"))
    return found
