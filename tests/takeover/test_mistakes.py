"""Every mistake ends with the same message after every change of worker; the suite tries one commit of some.

`make takeover` tries all commits, and so does PERDURE_TAKEOVER=all.
"""

from zlib import crc32

import pytest

from tests.conftest import BackendDatabase
from tests.mistakes.catalogue import MISTAKES
from tests.takeover.mistakes import BY_CHANCE, NO_RUN, Fault, FaultPlayer, programs
from tests.takeover.rig import open_player
from tests.takeover.test_takeover import ALL

STRIDE = 3  # of the mistakes that the suite makes on SQLite
SERVER_STRIDE = 15


def chosen(backend: str, cases: list[Fault]) -> list[Fault]:
    """The cases of one mistake that the suite tries."""
    return cases if ALL else [cases[crc32(f"{backend} {cases[0].program}".encode()) % len(cases)]]


def _sample(first: int, stride: int) -> list[str]:
    """The mistakes that the suite makes on a database."""
    return list(programs()) if ALL else list(programs())[first::stride]


@pytest.mark.timeout(1800 if ALL else 300)
@pytest.mark.parametrize(
    ("backend", "program"),
    [
        *(("sqlite", name) for name in _sample(0, STRIDE)),
        *(("postgresql", name) for name in _sample(0, SERVER_STRIDE)),
        *(("mysql", name) for name in _sample(SERVER_STRIDE // 2, SERVER_STRIDE)),
    ],
)
async def test_person_sees_the_same_after_a_change_of_worker(
    backend: str, program: str, backend_database: BackendDatabase
) -> None:
    async with backend_database(backend) as database, open_player(database) as rig:
        player = FaultPlayer(rig)
        cases = await player.cases(program)
        assert cases, "the program starts no run: add it to NO_RUN"
        for case in chosen(backend, cases):
            wrong = await player.play(case)
            again = f"python -m tests.takeover --database {backend} --fault {str(case)!r}"
            assert not wrong, "\n".join([f"{case}; to repeat: {again}", *wrong])


def test_mistakes_that_are_left_out_are_in_the_catalogue() -> None:
    assert {*NO_RUN, *BY_CHANCE} <= {f"{each.group}: {each.title}" for each in MISTAKES}
