"""Replay: a body makes the same calls from any prefix of its history, and changed code is detected."""

import asyncio
import json
import random as chance
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import (
    NonDeterminismError,
    RunEvicted,
    Workflow,
    activity,
    now,
    patched,
    publish,
    random,
    set_state,
    sleep,
    wait_event,
)
from perdure.engine.history.ids import OWN
from perdure.engine.history.records import VALUES, Record, record_of, row_of
from perdure.engine.replay.replayer import Replayer
from perdure.model.records import HistoryEvent, HistoryEventType
from tests.engine.random_bodies import INSTANCE, STORED, Live, asked, live, planned, random_plan, replayed, taken
from tests.engine.versions import version

SEEDS = range(20)
BODIES = 20  # per seed


def _recorded(seed: int) -> Live:
    rng = chance.Random(seed)
    return live(planned, random_plan(rng)).run(rng)


def _check_full(history: Live) -> None:
    """All rows again: the same end, and nothing new is asked for or taken."""
    again = replayed(planned, history.input_data, history.rows)
    assert again.rows == history.rows
    assert again.story == history.story
    assert asked(again.steps) == asked(history.steps)
    again.body.evict()


def _check_prefix(history: Live, length: int) -> None:
    """A beginning of the rows: what is asked for is what was then, and the rest leads to the same end."""
    rest = history.rows[length:]
    if rest and rest[0].activity_id.startswith(OWN):
        return  # the values were not stored: they are taken again, see _check_crash
    again = replayed(planned, history.input_data, history.rows[:length])
    assert again.rows == history.rows[:length]
    assert asked(again.steps) == history.snapshots[length]
    again.catch_up(rest)
    assert not taken(again.body)
    assert again.story == history.story
    assert asked(again.steps) == asked(history.steps)
    again.body.evict()


def _check_crash(history: Live, length: int, rng: chance.Random) -> None:
    """A crash after so many rows: it continues differently, and that history is as valid as the other."""
    again = replayed(planned, history.input_data, history.rows[:length]).run(rng)
    assert again.rows[:length] == history.rows[:length]
    _check_full(again)
    again.body.evict()


@pytest.mark.behaviour("order")
@pytest.mark.parametrize("seed", SEEDS)
def test_any_body_replays_from_any_prefix_of_its_history(seed: int) -> None:
    ended = rows = 0
    for number in range(BODIES):
        history = _recorded(seed * 1000 + number)
        ended += history.body.done
        rows += len(history.rows)
        for length in range(len(history.rows) + 1):
            _check_prefix(history, length)
        rng = chance.Random(number)
        for length in rng.sample(range(len(history.rows) + 1), min(4, len(history.rows) + 1)):
            _check_crash(history, length, rng)
        history.body.evict()
    assert ended > BODIES * 0.9  # hardly any waits for what is never sent
    assert rows > BODIES * 3


@pytest.mark.behaviour("order")
def test_order_of_completion_is_that_of_the_history() -> None:
    plan = ["gather", [["sequence", [["act", "a"], ["act", "b"]]], ["act", "c"], ["completed", [["act", "d"]] * 4]]]
    stories = set()
    for seed in range(40):
        history = live(planned, plan).run(chance.Random(seed))
        _check_full(history)
        stories.add(history.story)
        history.body.evict()
    assert len(stories) > 20


# Changed code.

Function = Callable[[], Coroutine[Any, Any, Any]]


@activity
async def charge() -> int:
    return 1


@activity
async def ship() -> int:
    return 2


@activity
async def post() -> int:
    return 3


async def order() -> list[int]:
    return [await charge(), await ship()]


async def order_renamed() -> list[int]:
    return [await charge(), await post()]


async def order_swapped() -> list[int]:
    return [await ship(), await charge()]


async def order_longer() -> list[int]:
    return [await post(), await charge(), await ship()]


async def order_shorter() -> list[int]:
    return [await charge()]


async def order_with_a_value() -> list[object]:
    return [await charge(), now(), await ship()]


async def order_with_a_sleep() -> list[object]:
    await sleep(5)
    return [await charge(), await ship()]


async def order_with_a_message() -> list[object]:
    await charge()
    await publish("shipped", 1)
    return [await ship()]


async def order_side_by_side() -> list[int]:
    return list(await asyncio.gather(charge(), ship()))


async def order_that_catches() -> str:
    try:
        await charge()
        now()
    except Exception:
        await post()
    await ship()
    return "caught"


async def order_that_stamps() -> list[object]:
    return [await charge(), now(), random().random(), await ship()]


def _named(function: Function) -> Workflow[..., Any]:
    made: Workflow[..., Any] = version(function, "order")
    return made


def _history(*ids: str) -> list[HistoryEvent]:
    return [HistoryEvent(INSTANCE, id, STORED, b"1") for id in ids]


def _replay(function: Function, rows: list[HistoryEvent]) -> Live:
    return replayed(_named(function), b"{}", rows)


def test_unchanged_code_replays() -> None:
    done = _replay(order, _history("1:charge", "2:ship"))
    assert done.body.outcome() == ([1, 1], None)


@pytest.mark.call("versions")
@pytest.mark.parametrize(
    ("changed", "history_side", "code_side"),
    [
        (order_renamed, "2:ship (ActivityCompleted)", "waits for 2:post"),
        (order_swapped, "1:charge", "waits for 1:ship"),
        (order_longer, "1:charge", "waits for 1:post"),
        (order_shorter, "2:ship", "has ended"),
        (order_with_a_value, "the history has none there", "takes a value at 2"),
        (order_that_catches, "the history has none there", "takes a value at 2"),
        (order_with_a_sleep, "1:charge", "waits for 1:timer"),
        (order_with_a_message, "2:ship", "waits for 2:publish"),
    ],
)
def test_changed_code_is_detected_and_the_error_names_both_sides(
    changed: Function, history_side: str, code_side: str
) -> None:
    with pytest.raises(NonDeterminismError) as caught:
        _replay(changed, _history("1:charge", "2:ship"))
    message = str(caught.value)
    assert history_side in message
    assert code_side in message
    assert f"run {INSTANCE!r} (order)" in message
    assert "patched()" in message


def test_concurrent_steps_may_have_completed_in_any_order() -> None:
    for ids in (("1:charge", "2:ship"), ("2:ship", "1:charge")):
        assert _replay(order_side_by_side, _history(*ids)).body.outcome() == ([1, 1], None)


@pytest.mark.behaviour("order")
def test_unconsumed_records_at_the_end_are_detected() -> None:
    with pytest.raises(NonDeterminismError, match=r"3:post.*has ended"):
        _replay(order, _history("1:charge", "2:ship", "3:post"))


def test_values_that_the_code_no_longer_takes_are_detected() -> None:
    history = live(_named(order_that_stamps))
    history.tell("1:charge", STORED, b"1")
    values, stamped = history.rows[1], history.rows
    assert (values.activity_id, values.event_type) == ("~2", VALUES)
    with pytest.raises(NonDeterminismError, match=r"values at 2, 3, which the code does not take"):
        _replay(order, stamped)
    with pytest.raises(NonDeterminismError, match=r"values at 3, which the code does not take"):
        _replay(order_with_a_value, stamped)
    assert asked(_replay(order_that_stamps, stamped).steps) == asked(history.steps)


def test_wait_instead_of_an_activity_is_detected() -> None:
    async def waits() -> None:
        await wait_event("paid")

    with pytest.raises(NonDeterminismError, match=r"1:charge.*waits for 1:wait_event, 1:wait_event@"):
        _replay(waits, _history("1:charge"))


def test_body_that_catches_everything_stops_after_a_mismatch() -> None:
    with pytest.raises(NonDeterminismError):
        _replay(order_that_catches, _history("1:charge", "2:post", "3:ship"))


# Deliberate changes.


async def order_patched() -> list[int]:
    if patched("post instead of ship"):
        return [await charge(), await post()]
    return [await charge(), await ship()]


async def order_patched_late() -> list[int]:
    done = [await charge()]
    done.append(await post() if patched("late") else await ship())
    if patched("late"):
        done.append(await post())
    return done


@pytest.mark.call("versions")
def test_patched_is_true_and_recorded_in_new_runs() -> None:
    history = live(_named(order_patched))
    assert history.rows[0].activity_id == "~patch:post instead of ship"
    history.tell("1:charge", STORED, b"1")
    history.tell("2:post", STORED, b"3")
    assert history.story == "([1, 3], None)"
    assert _replay(order_patched, history.rows).story == history.story


@pytest.mark.call("versions")
def test_patched_is_false_in_old_histories() -> None:
    old = _replay(order_patched, _history("1:charge"))
    assert [line.split()[0] for line in asked(old.steps)] == ["2:ship"]
    assert _replay(order_patched, _history("1:charge", "2:ship")).story == "([1, 1], None)"


def test_patched_is_true_after_the_last_row_of_an_old_history() -> None:
    old = _replay(order_patched_late, _history("1:charge"))
    assert [line.split()[0] for line in asked(old.steps)] == ["2:post"]
    old.tell("2:post", STORED, b"3")
    old.tell("3:post", STORED, b"3")
    assert _replay(order_patched_late, old.rows).story == old.story == "([1, 3, 3], None)"
    assert _replay(order_patched_late, _history("1:charge", "2:ship")).story == "([1, 1], None)"


def test_patched_is_decided_once_per_run() -> None:
    async def twice() -> list[bool]:
        first = patched("once")
        await charge()
        return [first, patched("once")]

    assert _replay(twice, _history("1:charge")).story == "([False, False], None)"
    history = live(_named(twice))
    history.tell("1:charge", STORED, b"1")
    assert history.story == "([True, True], None)"
    assert len(history.rows) == 2
    assert _replay(twice, history.rows).story == history.story


def test_removed_patch_is_detected() -> None:
    history = live(_named(order_patched))
    with pytest.raises(NonDeterminismError, match="patch:post instead of ship"):
        _replay(order, [*history.rows, *_history("1:charge")])


# Ending without a verdict.


def test_evicted_body_makes_no_more_calls() -> None:
    seen: list[str] = []

    async def tidy() -> None:
        try:
            await charge()
        finally:
            try:
                await ship()
            except RunEvicted:
                seen.append("refused")
                raise

    history = live(_named(tidy))
    history.body.evict()
    assert seen == ["refused"]
    assert not taken(history.body)
    assert not history.steps
    with pytest.raises(RunEvicted):
        history.body.outcome()


@pytest.mark.parametrize("call", [now, random, lambda: set_state(1), lambda: patched("x"), lambda: charge()])
def test_durable_calls_of_an_evicted_body_raise(call: Callable[[], object]) -> None:
    async def tidy() -> None:
        try:
            await charge()
        finally:
            call()

    history = live(_named(tidy))
    history.body.evict()
    assert not taken(history.body)
    with pytest.raises(RunEvicted):
        history.body.outcome()


@pytest.mark.parametrize("wait", [lambda: sleep(5), lambda: wait_event("x"), lambda: asyncio.sleep(1)])
def test_waits_of_an_evicted_body_do_not_start(wait: Function) -> None:
    async def tidy() -> None:
        try:
            await charge()
        finally:
            await wait()

    history = live(_named(tidy))
    history.body.evict()
    assert not history.steps
    with pytest.raises(RunEvicted):
        history.body.outcome()


def test_body_that_swallows_its_eviction_stays_suspended() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.gather(charge() if not history.body.evicted else asyncio.Event().wait())
            except asyncio.CancelledError:
                continue

    history = Live(_named(stubborn), b"{}")
    history.begin()
    history.body.evict()
    history.body.evict()
    assert not taken(history.body)
    assert not history.body.done


@pytest.mark.parametrize("seed", range(3))
def test_any_body_can_be_evicted_anywhere(seed: int) -> None:
    for number in range(60):
        rng = chance.Random(seed * 1000 + number)
        history = live(planned, random_plan(rng)).run(rng, most=rng.randrange(6))
        stored = len(history.rows)
        history.body.evict()
        assert not taken(history.body)
        assert len(history.rows) == stored
        assert not history.steps


# Values.


def test_recorded_state_is_not_written_again() -> None:
    async def stateful() -> str:
        set_state("charging")
        await charge()
        set_state("shipping")
        await ship()
        return "done"

    history = live(_named(stateful))
    history.tell("1:charge", STORED, b"1")
    assert [row.activity_id for row in history.rows] == ["~state:0", "1:charge", "~state:1"]
    crashed = _replay(stateful, history.rows[:2])
    assert crashed.rows == history.rows
    assert taken(_replay(stateful, history.rows).body) == []


def test_receive_times_out_on_replay_as_recorded() -> None:
    async def impatient() -> str:
        try:
            await wait_event("paid", timeout=5)
        except TimeoutError:
            return "late"
        return "paid"

    row = HistoryEvent(INSTANCE, "1:wait_event", HistoryEventType.MESSAGE_TIMEOUT, b"{}")
    assert _replay(impatient, [row]).story == "('late', None)"


@activity(name="replay.greet")
async def greet(name: str) -> str:
    return name


def _row(id: str, kind: str = STORED, data: bytes = b'"a"') -> HistoryEvent:
    return HistoryEvent(INSTANCE, id, kind, data)


async def _without_state() -> None:
    await greet("a")
    await greet("b")


async def _with_state() -> None:
    set_state("begun")
    await greet("a")
    set_state("half")
    set_state("way")
    now()
    await greet("b")
    set_state("done")


def test_set_state_can_be_added_to_the_code_of_a_started_run() -> None:
    """`set_state` must not use up a step id."""
    rows = [_row("1:replay.greet"), _row("2:replay.greet")]
    first = version(_without_state, "replay.state")
    assert replayed(first, b"{}", rows).body.done
    for kept in range(3):
        again = version(_plain_state, "replay.state")
        story = replayed(again, b"{}", rows[:kept])
        assert asked(story.steps) == asked(replayed(first, b"{}", rows[:kept]).steps)
        story.body.evict()


async def _plain_state() -> None:
    set_state("begun")
    await greet("a")
    set_state("half")
    await greet("b")


def test_states_recorded_as_steps_by_earlier_versions_replay() -> None:
    """In those versions `set_state` was a step."""
    rows = [
        _row("~1", "State", b'{"values": {}, "state": "begun"}'),
        _row("2:replay.greet"),
        _row("~3", "State", b'{"values": {"5": "2026-01-01T00:00:00+00:00"}, "state": "way"}'),
        _row("6:replay.greet"),
    ]
    workflow = version(_with_state, "replay.state")
    whole = replayed(workflow, b"{}", rows)
    assert whole.body.done
    begun = replayed(workflow, b"{}", rows[:3])
    assert begun.body.steps.expects("6:replay.greet")
    fresh = replayed(workflow, b"{}", rows[:2])  # killed before the state was stored: it is not numbered any more
    assert fresh.body.steps.expects("4:replay.greet")
    for each in (begun, fresh):
        each.body.evict()


def test_states_have_their_own_rows_and_replay() -> None:
    workflow = version(_with_state, "replay.state")
    body = Replayer(workflow, INSTANCE, b"{}")
    records: list[Record] = [taken(body)[0]]
    for id in ("1:replay.greet", "3:replay.greet"):
        records.append(record_of(_row(id)))
        body.feed(records[-1])
        records.append(taken(body)[0])
    rows = [row_of(INSTANCE, record) for record in records]
    assert [row.activity_id for row in rows] == ["~state:0", "1:replay.greet", "~2", "3:replay.greet", "~state:2"]
    assert [json.loads(row.event_data or b"")["state"] for row in rows[::2]] == ["begun", "way", "done"]
    for kept in range(len(rows) + 1):
        again = Replayer(workflow, INSTANCE, b"{}")
        for row in rows[:kept]:
            again.feed(record_of(row))
        again.catch_up()
        assert again.done is (kept >= 4)
        again.evict()
