"""The counts of each operation are those of the databases."""

import json
from pathlib import Path

import pytest

from benchmarks.databases import fresh_database, server_for
from benchmarks.statements.__main__ import main
from benchmarks.statements.counters import counting
from benchmarks.statements.indexes import unused_indexes
from benchmarks.statements.operations import OPERATIONS, Stage
from perdure.storage.stores import open_storage
from tests.support.databases import DATABASES


def test_counts_are_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "statements.json"
    assert main(["--database", "postgresql", "--size", "2", "--json", str(written)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("postgresql, per run")
    assert len(lines) == len(OPERATIONS) + 1
    found = json.loads(written.read_text())["databases"]["postgresql"]["operations"]
    assert found["step"]["2"]["rows_written"] == 2
    assert found["step in a run"]["100"]["rows_written"] >= 2


async def rows_written(database: str) -> dict[str, int]:
    with server_for(database) as server:
        async with fresh_database(database, server) as url, counting(url) as counters, open_storage(url) as storage:
            stage, written = Stage(storage, counters, 3), {}
            for name, operation in OPERATIONS.items():
                await operation(stage)
                assert set(stage.found) == set(counters.figures), name
                assert stage.found["statements"] > 0, name
                written[name] = stage.found["rows_written"]
    return written


@pytest.mark.parametrize("database", DATABASES)
async def test_rows_of_each_operation_are_counted(database: str) -> None:
    expected = {
        "start": 4,
        "step": 6,
        "last step and end": 6,
    }  # the first start stores the definition of the workflow, too
    # A server counts what other tests do meanwhile (MySQL), or reports the rows of a session late (PostgreSQL).
    tries: list[dict[str, int]] = []
    while len(tries) < (1 if database == "sqlite" else 3) and expected not in tries:
        written = await rows_written(database)
        tries.append({name: written[name] for name in expected})
    if database == "mysql":
        assert any(all(found[name] >= count for name, count in expected.items()) for found in tries), tries
    else:
        assert expected in tries, tries


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_unused_indexes_are_listed(database: str) -> None:
    with server_for(database) as server:
        async with fresh_database(database, server) as url:
            unused = await unused_indexes(url)
    assert "idx_outbox_order" not in unused
    assert not {name for name in unused if not name.startswith("idx_")}
