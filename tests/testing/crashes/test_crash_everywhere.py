"""`crash_everywhere()` finds planted mistakes, passes the same workflows without them, and plays every point."""

import asyncio
import itertools
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Client, Workflow, WorkflowFailedError
from perdure.errors import ConfigurationError
from perdure.testing.crashes import crash_everywhere
from perdure.testing.crashes.points import Kind, Point, sample
from perdure.testing.crashes.processes import Scenario
from tests.testing.crashes import workflows


def started(workflow: Workflow[[str], Any], argument: str = "A-1", id: str | None = "order-A-1") -> Scenario:
    """A scenario that starts a run and waits for its result."""

    async def scenario(app: Client) -> object:
        run = await workflow.options(id=id).start(argument)
        return await run.result()

    return scenario


def failing(workflow: Workflow[[str], Any]) -> Scenario:
    """A scenario whose run fails."""

    async def scenario(app: Client) -> str:
        run = await workflow.options(id="order-A-1").start("A-1")
        with pytest.raises(WorkflowFailedError):
            await run.result()
        return (await run.info()).status

    return scenario


async def failure(scenario: Scenario, **options: Any) -> str:
    """What the first failing point reports."""
    with pytest.raises(AssertionError) as raised:
        await crash_everywhere(scenario, setup=workflows.reset, **options)
    return str(raised.value)


# Planted mistakes.


async def test_effect_of_a_body_outside_an_activity_is_found() -> None:
    report = await failure(started(workflows.mails_in_body), effects=lambda: workflows.MAILS)
    assert re.search(r"effects: undisturbed \['receipt for A-1'\], here \['receipt for A-1', 'receipt", report)


async def test_effect_of_an_activity_that_notes_its_key_passes() -> None:
    report = await crash_everywhere(
        started(workflows.mails_in_activity), setup=workflows.reset, effects=lambda: workflows.SENT
    )
    assert not report.not_reached


async def test_file_written_by_a_body_is_found_without_effects(tmp_path: Path) -> None:
    report = await failure(started(workflows.writes_file_in_body, str(tmp_path / "ledger")))
    assert "the body of workflow 'crashing.writes_file_in_body' calls open(" in report
    assert "move the call into an activity" in report


async def test_missing_compensation_of_a_failed_run_is_found() -> None:
    report = await failure(failing(workflows.books_without_compensation), uncompensated=[workflows.price])
    assert "compensated 1:crashing.reserve, but not 2:crashing.book" in report
    assert "3:crashing.price" not in report


async def test_saga_that_compensates_all_passes() -> None:
    report = await crash_everywhere(
        failing(workflows.reserves_only),
        setup=workflows.reset,
        effects=lambda: workflows.LEDGER,
        uncompensated=[workflows.price],
    )
    assert report.points
    assert not report.not_reached


async def test_branch_on_the_wall_clock_is_found() -> None:
    report = await failure(started(workflows.branches_on_wall_clock))
    assert "run 'order-A-1' is stuck" in report or "crashing.book" in report
    assert "to repeat it: python -m pytest" in report


async def test_branch_on_durable_time_passes() -> None:
    report = await crash_everywhere(started(workflows.branches_on_durable_time), setup=workflows.reset)
    assert not report.not_reached


# Points.


async def test_every_kind_of_crash_is_played_at_every_write() -> None:
    report = await crash_everywhere(started(workflows.mails_in_activity), setup=workflows.reset)
    points = [Point.parse(each) for each in report.points]
    assert {each.kind for each in points} == set(Kind)
    assert report.total == len(points) > 50
    assert not report.not_reached


async def test_scenario_that_sends_an_event_passes() -> None:
    async def scenario(app: Client) -> object:
        run = await workflows.approval.options(id="approval-1").start("A-1")
        await app.send_event("crashing.approved", {"order": "A-1"}, to=run.id)
        return await run.result()

    report = await crash_everywhere(scenario, setup=workflows.reset)
    assert not report.not_reached


async def test_event_that_nobody_sends_times_out_without_waiting() -> None:
    report = await crash_everywhere(started(workflows.approval), setup=workflows.reset, effects=lambda: workflows.SENT)
    assert not report.not_reached


async def test_random_ids_of_runs_exclude_a_restart_of_the_scenario() -> None:
    report = await crash_everywhere(started(workflows.mails_in_activity, id=None), setup=workflows.reset)
    assert not report.restarts
    assert not [each for each in report.points if Point.parse(each).kind.is_restart]


async def test_scenario_that_is_not_idempotent_is_found_by_a_restart() -> None:
    numbers = itertools.count(1)

    async def scenario(app: Client) -> object:
        return await (await workflows.mails_in_activity.options(id=f"order-{next(numbers)}").start("A-1")).result()

    def setup() -> None:
        nonlocal numbers
        numbers = itertools.count(1)

    with pytest.raises(AssertionError, match=r"(?s)crash_everywhere\[\w+:\d:restart_.*\+ order-2 "):
        await crash_everywhere(scenario, setup=setup)


async def test_point_plays_only_itself() -> None:
    report = await crash_everywhere(started(workflows.mails_in_activity), point="append_histories:1:after")
    assert report.points == ["append_histories:1:after"]


async def test_point_of_a_failure_repeats_it() -> None:
    scenario, effects = started(workflows.mails_in_body), lambda: workflows.MAILS
    report = await failure(scenario, effects=effects)
    (point,) = re.findall(r"--crash-point (.*)", report)
    again = await failure(scenario, effects=effects, point=point)
    assert again == report


async def test_failure_shows_the_history_up_to_the_crash() -> None:
    report = await failure(
        started(workflows.mails_in_body), effects=lambda: workflows.MAILS, point="suspend_instances:1:after"
    )
    assert 'order-A-1  1:crashing.charge  ActivityCompleted  "receipt for A-1"' in report


@pytest.mark.parametrize("point", ["nonsense", "append_histories:x:after", "append_histories:1:later"])
async def test_invalid_point_is_refused(point: str) -> None:
    with pytest.raises(ValueError, match="is no crash point"):
        await crash_everywhere(started(workflows.mails_in_activity), point=point)


def test_sample_is_spread_and_repeatable() -> None:
    points = [Point("append_histories", number, Kind.AFTER) for number in range(1000)]
    chosen = sample(points, 10, seed=3)
    assert [each.number // 100 for each in chosen] == list(range(10))
    assert chosen == sample(points, 10, seed=3) != sample(points, 10, seed=4)
    assert sample(points, 1000, seed=3) == points


async def test_limit_plays_a_sample() -> None:
    report = await crash_everywhere(started(workflows.mails_in_activity), setup=workflows.reset, limit=5)
    assert len(report.points) == 5 < report.total


# The time of a scenario.


async def test_activity_that_hangs_longer_than_a_lease_times_out() -> None:
    report = await crash_everywhere(started(workflows.hanging), limit=4)
    assert len(report.points) == 4


async def test_clock_stands_still_while_the_scenario_does_not_wait() -> None:
    async def scenario(app: Any) -> object:
        run = await workflows.approval.options(id="approval-1").start("A-1")
        while not (await run.info()).waiting_for:  # noqa: ASYNC110 - the clock must not jump over the timeout meanwhile
            await asyncio.sleep(0.001)
        await app.send_event("crashing.approved", {"order": "A-1"})
        return await run.result()

    report = await crash_everywhere(scenario, setup=workflows.reset, restarts=False)
    assert not report.restarts
    assert not report.not_reached


async def test_scenario_can_advance_the_clock() -> None:
    async def scenario(app: Any) -> object:
        run = await workflows.mails_in_activity.options(id="order-A-1").start("A-1")
        began = app.clock.now
        await app.clock.advance(timedelta(hours=23))
        early = (await run.info()).status
        await app.clock.run_until_idle()
        return early, (await run.info()).status, app.clock.now - began > timedelta(hours=24)

    await crash_everywhere(scenario, setup=workflows.reset, point="append_histories:1:after")
    report = await crash_everywhere(scenario, setup=workflows.reset, restarts=False)
    assert not report.not_reached


async def test_stubs_of_the_scenario_and_of_the_test_apply_in_every_play() -> None:
    async def scenario(app: Any) -> object:
        with workflows.charge.stub(returns="free"):
            run = await workflows.mails_in_activity.options(id="order-A-1").start("A-1")
            return await run.result()

    with workflows.mail.stub() as mails:
        report = await crash_everywhere(scenario)
    assert not report.not_reached
    assert {call.arguments["text"] for call in mails.calls} == {"free"}


# Databases.


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    server = {"postgresql": "postgres_url", "mysql": "mysql_url"}.get(request.param)
    return request.getfixturevalue(server) if server else f"sqlite:///{tmp_path}/orders.db"


async def test_crashes_on_a_database_come_to_the_same(url: str) -> None:
    scenario = failing(workflows.reserves_only)
    report = await crash_everywhere(scenario, database=url, uncompensated=[workflows.price], limit=8)
    assert len(report.points) == 8
    with pytest.raises(AssertionError, match=r"effects: undisturbed \['receipt"):
        await crash_everywhere(
            started(workflows.mails_in_body),
            database=url,
            setup=workflows.reset,
            effects=lambda: workflows.MAILS,
            point="suspend_instances:1:after",
        )


async def test_database_with_runs_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/orders.db"
    async with App(url):
        await workflows.mails_in_activity.options(id="order-A-1").start("A-1")
    with pytest.raises(ConfigurationError, match="has runs, and it would delete them"):
        await crash_everywhere(started(workflows.mails_in_activity), database=url)


# Scenarios that cannot be judged.


async def test_scenario_that_varies_is_refused() -> None:
    numbers = itertools.count()

    async def scenario(app: Client) -> int:
        return next(numbers)

    with pytest.raises(AssertionError, match="two undisturbed plays of the scenario differ"):
        await crash_everywhere(scenario)


async def test_error_of_the_undisturbed_scenario_is_raised_unchanged() -> None:
    async def scenario(app: Client) -> None:
        raise ZeroDivisionError("by me")

    with pytest.raises(ZeroDivisionError, match="by me"):
        await crash_everywhere(scenario)


async def test_assertion_that_fails_only_after_a_crash_is_reported_with_its_text() -> None:
    async def scenario(app: Client) -> None:
        run = await workflows.mails_in_body.options(id="order-A-1").start("A-1")
        await run.result()
        assert workflows.MAILS == ["receipt for A-1"], "one mail"

    assert "AssertionError: one mail" in await failure(scenario)


def test_progress_is_shown_if_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(crash_everywhere(started(workflows.mails_in_activity), limit=3, progress=True))
    assert "crash_everywhere: 3/3" in capsys.readouterr().err
