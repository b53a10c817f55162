"""The model: a small round of the rig on every database."""

import secrets
from random import Random

import pytest

from tests.chaos.model import compare
from tests.conftest import BackendDatabase
from tests.engine.crashes.rig.checker import all_right

STEPS = 200


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mysql"])
async def test_random_operations_give_the_same_results_as_the_reference(
    backend: str, backend_database: BackendDatabase
) -> None:
    seed = secrets.randbits(32)
    print(f"to repeat: python -m tests.chaos --rig model --database {backend} --seed {seed} --count {STEPS}")
    async with backend_database(backend) as database:
        outcome = await compare(database, Random(seed), STEPS)
    all_right(outcome.wrong)
    assert outcome.done >= STEPS
    assert outcome.figures["bursts"] > 0
