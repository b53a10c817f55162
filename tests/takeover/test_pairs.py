"""Two features in one run come to the same as each alone; `make takeover` plays all pairs in all orders."""

import pytest

from tests.conftest import BackendDatabase
from tests.takeover.pairs import PairPlayer, pairs
from tests.takeover.rig import open_player

STRIDE = 23  # of the pairs that the suite plays on SQLite
ORDERS = 2  # that it plays of each
SERVER_STRIDE = 99


@pytest.mark.parametrize(
    ("backend", "first", "second"),
    [
        *(("sqlite", *pair) for pair in pairs()[::STRIDE]),
        *((server, *pair) for server in ("postgresql", "mysql") for pair in pairs()[3::SERVER_STRIDE]),
    ],
)
async def test_two_features_side_by_side_come_to_the_same_as_alone(
    backend: str, first: str, second: str, backend_database: BackendDatabase
) -> None:
    async with backend_database(backend) as database, open_player(database) as player:
        async for order, wrong in PairPlayer(player).differences(first, second, ORDERS):
            again = f"python -m tests.takeover --database {backend} --order {str(order)!r}"
            assert not wrong, "\n".join([f"{order}; to repeat: {again}", *wrong])
