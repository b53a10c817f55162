"""What a run knows about its timers, without looking at all of them again and again."""

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.engine.execution.progress import Progress, StepsInProgress
from perdure.engine.execution.timed_steps import TimedSteps
from perdure.engine.replay.commands import Forget, SetTimer
from perdure.engine.replay.steps import TimerStep


class Delay:
    """Stands for a timer of the body's loop."""

    def __init__(self, seconds: float) -> None:
        self.delay = seconds


class Counted(dict[str, Any]):
    """Counts how many of its values are looked at."""

    looked = 0

    def values(self) -> Any:
        return self

    def __reversed__(self) -> Iterator[Any]:
        for key in super().__reversed__():
            self.looked += 1
            yield self[key]


def with_timers(count: int, seconds: float) -> tuple[StepsInProgress, TimedSteps]:
    steps = StepsInProgress()
    for number in range(count):
        set_timer(steps, str(number), seconds)
    return steps, TimedSteps(steps)


def set_timer(steps: StepsInProgress, id: str, seconds: float) -> None:
    timer: Any = Delay(seconds)
    steps.apply(SetTimer(TimerStep(id, timer, has_row=False)))


def taken(timed: TimedSteps) -> list[str]:
    timers, pauses, waits = timed.take_unwatched()
    assert not pauses
    assert not waits
    return [timer.step.id for timer in timers]


def test_each_timer_is_taken_once_in_the_order_of_the_calls() -> None:
    steps, timed = with_timers(3, 60)
    steps.apply(Forget("1"))
    assert taken(timed) == ["0", "2"]
    assert taken(timed) == []
    set_timer(steps, "3", 60)
    assert not timed.any_short()
    assert taken(timed) == ["3"]
    timed.clear()  # the run was suspended: its timers are stopped
    assert taken(timed) == ["0", "2", "3"]


def test_short_timers_count_while_they_are_open() -> None:
    steps, timed = with_timers(2, 0.1)
    assert timed.any_short()
    steps.apply(Forget("0"))
    assert timed.any_short()
    steps.apply(Forget("1"))
    assert not timed.any_short()


def test_registered_timers_count_while_they_are_open() -> None:
    steps, timed = with_timers(2, 60)
    for timer in timed.take_unwatched()[0]:
        timed.add_registered(timer)
    steps.apply(Forget("0"))
    assert timed.any_registered()
    assert [_id(timer) for timer in timed.registered()] == ["1"]
    steps.apply(Forget("1"))
    assert not timed.any_registered()


def _id(timer: Progress[Any]) -> str:
    return str(timer.step.id)


@pytest.mark.parametrize("count", [100, 400])
def test_end_of_a_timer_costs_no_look_at_the_others(count: int) -> None:
    steps, timed = with_timers(count, 0.1)
    timers = Counted(steps.timers)
    steps.timers = timers
    for number in range(count - 1):
        assert timed.any_short()
        timed.take_unwatched()
        timers.pop(str(number)).close()
    assert timers.looked <= 4 * count
