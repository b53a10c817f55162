"""Random workflows under random kills: results, steps, compensations and messages are those of a model.

Every run has its own seed; PERDURE_MODEL_SEEDS says how many are tried, PERDURE_SEED which is the first.
"""

import os
import secrets
from pathlib import Path

import pytest

from tests.conftest import BackendDatabase
from tests.engine.crashes.rig.checker import all_right
from tests.engine.crashes.rig.random_runs import perform

SEEDS = int(os.environ.get("PERDURE_MODEL_SEEDS", "8"))
SEED = int(os.environ.get("PERDURE_SEED", "0")) or secrets.randbelow(1 << 32)


@pytest.mark.timeout(60 + 5 * SEEDS)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_random_workflows_under_kills_match_the_model(
    backend: str, backend_database: BackendDatabase, tmp_path: Path
) -> None:
    print(f"to repeat: PERDURE_SEED={SEED} PERDURE_MODEL_SEEDS={SEEDS}")
    async with backend_database(backend) as database:
        checker, figures = await perform(database, tmp_path, SEED, SEEDS)
    print(f"{backend}: {SEEDS} plans, {figures}")
    all_right(checker.wrong)
