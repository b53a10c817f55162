"""The replayer alone: a recorded history against a function, without a database and without a clock."""

import asyncio
import gc
import socket
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import App, NonDeterminismError, activity, now, set_state, sleep, wait_event, workflow
from perdure.engine.execution.rows import read_rows
from perdure.engine.history.records import AttemptFailed, Completed, PauseEnded, Record, TimerFired, record_of
from perdure.engine.replay.commands import Apply, Await, Execute, Forget, Pause, SetTimer, Take
from perdure.engine.replay.replayer import Replayer
from perdure.model.records import HistoryEvent
from tests.engine.versions import version
from tests.support.storages import storage_of

FAILURE = {"error_type": "ValueError", "error_message": "no", "stack_trace": "", "args": ["no"]}


@activity(name="replayer.greet")
async def greet(name: str) -> str:
    return f"hello {name}"


async def _greets() -> list[str]:
    set_state(str(now().year))
    first = await greet("ann")
    await sleep(0.01)
    return [first, *await asyncio.gather(greet("bob"), greet("eve"))]


async def _greets_others() -> list[str]:
    set_state(str(now().year))
    first = await greet("ann")
    await sleep(0.01)
    return [first, *await asyncio.gather(greet("bob"), greet("dan"))]


async def _history(made: Any, id: str) -> list[Record]:
    async with App("sqlite:///:memory:") as app:
        await made.options(id=id).start()
        await app.get(id).result(30)
        return [record_of(row) async for row in read_rows(storage_of(app), id)]


def _replay(made: Any, id: str, records: Sequence[Record]) -> Replayer:
    replayer = Replayer(made, id, b"{}")
    for record in records:
        assert replayer.feed(record) == []
    replayer.catch_up()
    return replayer


async def test_history_of_a_run_is_replayed_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    made = workflow(name="replayer.greets")(_greets)
    history = await _history(made, "a")
    monkeypatch.setattr(socket.socket, "connect", None)  # nothing connects to anything
    replayer = _replay(made, "a", history)
    assert replayer.outcome() == (["hello ann", "hello bob", "hello eve"], None)


async def test_changed_code_is_detected_by_replaying_a_history() -> None:
    made = workflow(name="replayer.greets.changed")(_greets)
    history = await _history(made, "b")
    changed = version(_greets_others, "replayer.greets.others")
    with pytest.raises(NonDeterminismError, match="with different arguments than the code passes now"):
        _replay(changed, "b", history)


async def _one_step() -> str:
    return await greet("ann")


def test_commands_follow_the_attempts_of_an_activity() -> None:
    replayer = Replayer(version(_one_step, "replayer.one"), "c", b"{}")
    (begin,) = replayer.catch_up()
    assert isinstance(begin, Execute)
    assert (begin.step.id, begin.step.attempt) == ("1:replayer.greet", 1)

    def commands_after(record: Record) -> list[Any]:
        return [*replayer.feed(record), *replayer.catch_up()]

    (pause,) = commands_after(AttemptFailed(begin.step.id, 1, FAILURE, 5.0))
    assert isinstance(pause, Pause)
    assert (pause.step.attempt, pause.step.pause_sec) == (2, 5.0)
    (again,) = commands_after(PauseEnded(begin.step.id, 1))
    assert isinstance(again, Execute)
    assert commands_after(Completed(begin.step.id, b'"hi"')) == [Forget(begin.step.id)]
    assert replayer.outcome() == ("hi", None)


@pytest.mark.parametrize(
    ("failed", "step", "attempt"),
    [
        pytest.param(0, "9:replayer.greet", 1, id="of another step"),
        pytest.param(0, "1:replayer.greet", 2, id="too early"),
        pytest.param(1, "1:replayer.greet", 1, id="again"),
        pytest.param(1, "1:replayer.greet", 2, id="before the end of its pause"),
    ],
)
def test_failed_attempt_that_is_not_the_current_one_is_refused(failed: int, step: str, attempt: int) -> None:
    replayer = Replayer(version(_one_step, "replayer.one.attempts"), "d", b"{}")
    replayer.catch_up()
    for number in range(1, failed + 1):
        replayer.feed(AttemptFailed("1:replayer.greet", number, FAILURE, 5.0))
        replayer.catch_up()
    with pytest.raises(NonDeterminismError, match="the history continues with"):
        _continue(replayer, AttemptFailed(step, attempt, FAILURE, 5.0))


def _continue(replayer: Replayer, record: Record) -> None:
    replayer.feed(record)
    replayer.catch_up()


async def _many() -> str:
    waiting = asyncio.create_task(wait_event("news"))
    await sleep(60)
    waiting.cancel()
    return f"{now():%Y}"


def test_commands_tell_what_the_body_waits_for_and_gives_up() -> None:
    replayer = Replayer(version(_many, "replayer.many"), "d", b"{}")
    commands = {type(each): each for each in replayer.catch_up()}
    assert set(commands) == {Await, SetTimer}
    found = [*replayer.feed(TimerFired("2:timer")), *replayer.catch_up()]
    kinds = [type(each) for each in found]
    assert sorted(kind.__name__ for kind in kinds) == ["Forget", "Forget", "Take"]
    assert kinds[0] is Take, "values are recorded right behind the record that made the body continue"
    assert replayer.done
    assert Apply not in kinds


async def _fails() -> None:
    await greet("ann")
    raise ValueError("no stock")


def test_body_that_fails_before_the_end_of_its_history_is_reported_with_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And nothing else is logged: its main task is not one that the body did not await."""
    replayer = Replayer(version(_fails, "replayer.fails"), "e", b"{}")
    replayer.feed(Completed("1:replayer.greet", b'"hi"'))
    replayer.feed(TimerFired("2:timer"))
    with pytest.raises(
        NonDeterminismError, match=r"2:timer .*, but the code has failed by then: ValueError: no stock;"
    ):
        replayer.catch_up()
    replayer.evict()
    del replayer
    gc.collect()
    assert [message for message in caplog.messages if "run e " in message] == []


async def _greets_many(count: int) -> None:
    for number in range(count):
        await greet(str(number))


def _calls_of_replay(count: int) -> int:
    """Return how many functions of Python the replay of so many steps calls."""
    replayer = Replayer(version(_greets_many, "replayer.many"), "a", b'{"count": %d}' % count)
    rows = [HistoryEvent("a", f"{n}:replayer.greet", Completed.kind, b'"hi"') for n in range(1, count + 1)]
    calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        replayer.feed_all(map(record_of, rows))
        replayer.catch_up()
    finally:
        sys.setprofile(before)
    assert replayer.done
    return calls


def test_replay_of_a_step_takes_few_calls() -> None:
    """The loop of the body is entered once for all rows, not for each."""
    few, many = _calls_of_replay(100), _calls_of_replay(300)
    assert (many - few) / 200 <= 45


@workflow(name="replayer.child")
async def child(name: str) -> str:
    return name


@workflow(name="replayer.other_child")
async def other_child(name: str) -> str:
    return name


async def _calls_a_child() -> str:
    return await child("ann")


async def _calls_another_child() -> str:
    return await other_child("ann")


async def test_child_of_another_workflow_with_the_same_arguments_is_detected() -> None:
    history = await _history(workflow(name="replayer.calls")(_calls_a_child), "e")
    changed = version(_calls_another_child, "replayer.calls.others")
    with pytest.raises(NonDeterminismError, match=r'code passes now: replayer\.other_child \{"name":"ann"\}'):
        _replay(changed, "e", history)


def test_body_that_has_begun_keeps_no_encoded_input() -> None:
    replayer = Replayer(version(_one_step, "replayer.one.input"), "f", b"{}")
    replayer.catch_up()
    assert replayer.begun
    assert replayer._input == b""
    replayer.evict()
