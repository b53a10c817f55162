"""The retry policy of operations on a server."""

import random

import pytest

from perdure.database.backends.server import retries
from perdure.database.backends.server.retries import Attempts, Fault, Sent, Verdict, judge_read, judge_write


async def test_pauses_between_retries_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[float] = []

    def shortest(least: float, most: float) -> float:
        longest.append(most)
        return least

    monkeypatch.setattr(random, "uniform", shortest)
    attempts = Attempts()
    for _ in range(20):
        await attempts.pause()
    expected = [min(retries.PAUSE_MIN_SEC * 2**number, retries.PAUSE_MAX_SEC) for number in range(20)]
    assert longest == expected
    assert longest[-1] == retries.PAUSE_MAX_SEC > longest[0]


@pytest.mark.parametrize("fault", Fault)
def test_a_read_is_retried_unless_the_server_refused_it_or_it_is_late(fault: Fault) -> None:
    assert judge_read(fault, True) is Verdict.RAISE
    assert judge_read(fault, False) is (Verdict.RAISE if fault is Fault.REFUSED else Verdict.RETRY)


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.UNSENT, Fault.LOST])
@pytest.mark.parametrize(
    ("late", "unknown", "idempotent", "verdict"),
    [
        (False, False, False, Verdict.RETRY),
        (True, False, True, Verdict.RAISE),
        (False, True, True, Verdict.RETRY),
        (False, True, False, Verdict.READ_BACK),
        (True, True, True, Verdict.READ_BACK),
    ],
)
def test_a_write_whose_commit_is_unknown_is_repeated_only_if_idempotent(
    fault: Fault, late: bool, unknown: bool, idempotent: bool, verdict: Verdict
) -> None:
    assert judge_write(fault, late, unknown=unknown, idempotent=idempotent) is verdict


def test_a_refused_write_is_never_retried() -> None:
    for unknown in (False, True):
        assert judge_write(Fault.REFUSED, False, unknown=unknown, idempotent=True) is Verdict.RAISE


def test_a_lost_connection_leaves_a_commit_unknown_only_if_it_was_sent() -> None:
    assert not Sent().may_have_written(Fault.LOST)
    assert Sent(commit=True).may_have_written(Fault.LOST)
    assert not Sent(commit=True).may_have_written(Fault.CONFLICT)
    answered = Sent()
    answered.answered = True
    assert answered.may_have_written(Fault.CONFLICT)
