"""The benchmark of what the drivers allow measures on every database. No speed is checked here."""

import json
from pathlib import Path

import pytest

from benchmarks.databases import fresh_database, server_for
from benchmarks.limit import pgbench
from benchmarks.limit.__main__ import main
from benchmarks.limit.measures import MEASURES, ONLY
from benchmarks.limit.writers import Rows, open_writer
from tests.support.databases import DATABASES


def test_limits_are_measured_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written, names = tmp_path / "limit.json", ["syncs", "prototype-ten-step"]
    options = ["--database", "sqlite", "--rounds", "1", "--size", "20", "--json", str(written)]
    assert main([*options, "--measure", *names]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [MEASURES[name].what in line for name, line in zip(names, lines, strict=True)] == [True] * len(names)
    found = json.loads(written.read_text())
    assert all(found["measures"][name]["sqlite"]["median"] > 0 for name in names)
    assert found["versions"]["perdure"]


@pytest.mark.parametrize("database", DATABASES)
async def test_every_limit_is_measured_on_its_databases(database: str) -> None:
    names = [name for name in MEASURES if database in ONLY.get(name, DATABASES)]
    if pgbench.program() is None:
        names = [name for name in names if name not in ONLY]
    with server_for(database) as server:
        for name in names:
            async with fresh_database(database, server) as url:
                assert (await MEASURES[name].play(url, 10))["value"] > 0, name


@pytest.mark.parametrize("database", DATABASES)
async def test_prototype_stores_each_kind_of_row(database: str) -> None:
    with server_for(database) as server:
        async with fresh_database(database, server) as url:
            writer = await open_writer(url)
            await writer.store(Rows([("a", "1"), ("b", "2")], [("a", 0, "2")], []))
            await writer.store(Rows([], [], [("a", "3")]))
            with pytest.raises(Exception, match=r"(?i)duplicate|unique"):
                await writer.store(Rows([("a", "1")], [], []))
            await writer.close()


def test_a_missing_pgbench_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgbench, "program", lambda: None)
    assert main(["--database", "postgresql", "--measure", "pgbench-insert", "--rounds", "1"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "not installed" in line
    assert line.endswith("–")
