"""Faults at the calls of a worker: the run still ends correctly and soon, and exactly-once effects happen once.

The suite plays one fault of each run on every database; PERDURE_FAULTS=all plays all of them, and
PERDURE_FAULTS=saga:after:30 this one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.conftest import BackendDatabase
from tests.engine.crashes.rig.effect_log import EFFECTS
from tests.faults.workers import KINDS, Ended, Openings, RunCase, open_player
from tests.faults.workflows import PLAYS
from tests.support.databases import DATABASES

CHOSEN = os.environ.get("PERDURE_FAULTS", "")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see conftest.py
EARLY, LATE = 20, 60  # calls between which the suite's faults are: the worker has started, and the run has not ended


def spread(backend: str) -> Iterator[RunCase]:
    for name in PLAYS:
        chance = crc32(f"{name} {backend}".encode())
        yield RunCase(name, KINDS[chance % len(KINDS)], EARLY + chance // 7 % (LATE - EARLY))


@pytest.fixture
def effects(tmp_path: Path) -> Iterator[Path]:
    """The log to which the workers write their effects."""
    EFFECTS.open(tmp_path / "effects")
    yield tmp_path / "effects"
    EFFECTS.close()


@pytest.mark.timeout(14_400 if CHOSEN == "all" else 120)
@pytest.mark.parametrize("backend", DATABASES)
async def test_run_completes_correctly_despite_a_fault_at_any_call(
    backend: str, backend_database: BackendDatabase, effects: Path
) -> None:
    openings = Openings()
    ended: list[Ended] = []
    async with backend_database(backend) as database:
        with openings.watching():
            async with open_player(database, effects, openings) as opened:
                if CHOSEN == "all":
                    for name in PLAYS:
                        for kind in KINDS:
                            number = 1
                            while (last := await opened.play(RunCase(name, kind, number))).hit:
                                ended.append(last)
                                number += 1
                else:
                    cases = [RunCase.parse(CHOSEN)] if CHOSEN.count(":") == 2 else spread(backend)
                    ended += [await opened.play(case) for case in cases]
    hits, wrong = sum(each.hit for each in ended), [line for each in ended for line in each.wrong]
    print(f"{hits} of {len(ended)} cases, {len(wrong)} wrong, at most {max(each.seconds for each in ended):.2f} s")
    assert not wrong, "\n".join(wrong[:20])
    assert hits > len(ended) // 2  # a worker makes a few calls more or less
