"""The counts of the hot path are taken and written. No count is checked exactly."""

import json
from pathlib import Path

import pytest

from benchmarks.databases import fresh_database, server_for
from benchmarks.instructions import native
from benchmarks.instructions.__main__ import main
from benchmarks.instructions.load import count
from tests.support.databases import DATABASES


def test_counts_are_printed_and_added_to_earlier_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "instructions.json"
    written.write_text('{"0.0.1 abc": {}}')
    options = "--database sqlite --load one-step --runs 5 --rounds 1 --no-native --json".split()
    assert main([*options, str(written)]) == 0
    assert "calls of Python functions" in capsys.readouterr().out
    found = json.loads(written.read_text())
    earlier, this = found
    assert earlier == "0.0.1 abc"
    counts = found[this]["loads"]["one-step"]["sqlite"]
    assert counts["python_calls"] > 100
    assert counts["callbacks"] > 1
    assert counts["rows_written"] >= 3


@pytest.mark.parametrize("database", DATABASES)
async def test_statements_of_a_run_are_counted(database: str) -> None:
    with server_for(database) as server:
        async with fresh_database(database, server) as url:
            found = await count("database", "ten-step", url, 5)
    assert found["statements"] > 0
    assert found["rows_written"] >= 2


def test_reports_of_the_tools_are_understood() -> None:
    assert native.instructions_in("4211,,instructions:u,1000,100.00,,\n") == 4211
    assert native.instructions_in("==1== Events    : Ir\n==1== Collected : 123456\n") == 123456
    assert native.instructions_in("<not supported>,,instructions:u,0,100.00,,\n") is None
    assert native.watched("perf", ["true"])[:2] == ["perf", "stat"]
    assert native.watched("callgrind", ["true"])[-1] == "true"
