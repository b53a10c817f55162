"""The pauses between tries of a run that makes no progress."""

from perdure import WorkerDiedError
from perdure.engine.worker.back_off import BACK_OFF_MAX_SEC, DEATHS_PATIENCE, pause_sec


def test_the_pause_doubles_with_each_try_up_to_a_limit() -> None:
    assert [pause_sec(ValueError(), tries) for tries in (1, 2, 3, 9)] == [1, 2, 4, 256]
    assert {pause_sec(ValueError(), tries) for tries in (10, 100, 10_000)} == {BACK_OFF_MAX_SEC}


def test_after_deaths_of_workers_the_pause_grows_later_and_varies() -> None:
    died = WorkerDiedError("on purpose")
    assert all(0.75 <= pause_sec(died, tries) <= 1.25 for tries in range(3, DEATHS_PATIENCE + 1))
    assert all(1.5 <= pause_sec(died, DEATHS_PATIENCE + 1) <= 2.5 for _ in range(100))
    assert len({pause_sec(died, 100) for _ in range(100)}) > 1
