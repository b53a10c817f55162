"""The pauses between attempts to reach a broker."""

import pytest

from perdure.engine.worker.outages import back_off


@pytest.mark.parametrize(("attempt", "about"), [(1, 1.0), (2, 2.0), (3, 4.0), (7, 60.0), (5000, 60.0)])
def test_pause_doubles_from_a_second_to_the_longest(attempt: int, about: float) -> None:
    pauses = [back_off(attempt, 60.0) for _ in range(100)]
    assert 0.75 * about <= min(pauses) < max(pauses) <= 1.25 * about
