"""A full disk and syncs that fail: a few episodes of each on SQLite, with workers too, and one on a server."""

from pathlib import Path

import pytest

from tests.chaos.disk import episodes
from tests.chaos.rigs import Round
from tests.engine.crashes.rig.checker import all_right

SEED = 1  # always the same in the suite; `make chaos` plays others


@pytest.mark.parametrize(
    ("kind", "backend", "count"),
    [
        ("full", "sqlite", 3),
        ("failing", "sqlite", 8),
        ("engine", "sqlite", 2),
        ("full", "postgresql", 1),
        ("failing", "mysql", 1),
    ],
)
async def test_disk_faults_lose_no_acknowledged_write(kind: str, backend: str, count: int, tmp_path: Path) -> None:
    outcome = await episodes(kind, Round(backend, SEED, count, tmp_path))
    all_right(outcome.wrong)
    assert outcome.done == count
    assert outcome.figures["acknowledged"] > 0
