"""Every feature survives every change of worker; the suite tries some of the commits, `make takeover` tries all.

PERDURE_TAKEOVER=all tries all commits of the chosen tests.
"""

import logging
import os
from collections.abc import Iterator
from zlib import crc32

import pytest

from tests.conftest import BackendDatabase
from tests.takeover.features import FEATURES, Change
from tests.takeover.rig import Case, open_player

ALL = os.environ.get("PERDURE_TAKEOVER") == "all"
SERVERS = ("postgresql", "mysql")
CHANGES = tuple(Change)
STRIDE = 5  # of the features that the suite plays on a server


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Workers die here all the time, so what they log is of no interest."""
    logger = logging.getLogger("perdure")
    before, logger.disabled = logger.level, True
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.disabled = False
    logger.setLevel(before)


def chosen(backend: str, cases: list[Case]) -> list[Case]:
    """The cases of one feature that the suite tries: one of each change on SQLite, one in all on a server."""
    if ALL:
        return cases
    name = cases[0].feature
    chance = crc32(f"{backend} {name}".encode())
    changes = [CHANGES[chance % len(CHANGES)]] if backend in SERVERS else CHANGES
    found = []
    for number, change in enumerate(changes):
        points = [case for case in cases if case.change is change]
        found.append(points[(chance // 7 + number * 3) % len(points)])
    return found


def _sample(first: int) -> list[str]:
    """The features that the suite plays on a server."""
    return list(FEATURES) if ALL else list(FEATURES)[first::STRIDE]


@pytest.mark.timeout(1800 if ALL else 300)
@pytest.mark.parametrize(
    ("backend", "feature"),
    [
        *(("sqlite", name) for name in FEATURES),
        *(("postgresql", name) for name in _sample(0)),
        *(("mysql", name) for name in _sample(STRIDE // 2)),
    ],
)
async def test_run_is_the_same_after_a_change_of_worker(
    backend: str, feature: str, backend_database: BackendDatabase
) -> None:
    async with backend_database(backend) as database, open_player(database) as player:
        for case in chosen(backend, await player.cases(feature)):
            wrong = await player.play(case)
            again = f"python -m tests.takeover --database {backend} --case {str(case)!r}"
            assert not wrong, "\n".join([f"{case}; to repeat: {again}", *wrong])
