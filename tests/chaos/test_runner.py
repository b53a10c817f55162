"""The runner, with a rig that does nothing."""

import asyncio
import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.ledger import Ledger, Totals
from tests.chaos.progress import Progress
from tests.chaos.rigs import RIGS, Outcome, Rig, Round, rig_named
from tests.chaos.runner import Options, Session


class Harmless:
    """Plays rounds, and remembers them."""

    def __init__(self, home: Path, wrong_at: int = 0) -> None:
        self.home, self.wrong_at = home, wrong_at
        self.played: list[Round] = []
        self.rig = Rig("harmless", "nothings", {"here": 25, "there": 5}, 10, self.play)
        self.out = io.StringIO()

    async def play(self, round_: Round) -> Outcome:
        assert not list(round_.folder.iterdir())
        self.played.append(round_)
        wrong = ["it was wrong"] if len(self.played) == self.wrong_at else []
        return Outcome(round_.count, wrong, {"runs": 2, "took_max_sec": len(self.played)})

    def run(self, backends: tuple[str, ...] = ("here",), **options: object) -> int:
        asked = replace(Options(), **options)  # type: ignore[arg-type]
        return Session([(self.rig, each) for each in backends], asked, self.home, self.out).run()

    def totals(self, backend: str = "here") -> Totals:
        return Ledger("harmless", backend, self.home).totals()


@pytest.fixture
def harmless(tmp_path: Path) -> Harmless:
    return Harmless(tmp_path / "ledgers")


def test_runner_stops_at_the_goal_of_each_database(harmless: Harmless) -> None:
    assert harmless.run(("here", "there")) == 0
    assert [(each.backend, each.count) for each in harmless.played] == [
        ("here", 10), ("here", 10), ("here", 5), ("there", 5)
    ]  # fmt: skip
    assert len({each.seed for each in harmless.played}) == 4
    assert harmless.totals().figures == {"runs": 6, "took_max_sec": 3}
    assert not any(each.folder.exists() for each in harmless.played)
    assert "25 nothings" in harmless.out.getvalue()


def test_each_round_is_recorded_with_seed_and_count(harmless: Harmless) -> None:
    harmless.run(seed=7, count=12)
    lines = [json.loads(line) for line in (harmless.home / "harmless-here.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["count"], line["done"], line["wrong"]) for line in lines] == [
        (7, 10, 10, []), (8, 2, 2, [])
    ]  # fmt: skip
    assert all(line["seconds"] >= 0 and line["commit"] and line["figures"]["runs"] == 2 for line in lines)


def test_runner_continues_where_it_stopped_and_can_start_over(harmless: Harmless) -> None:
    harmless.run(count=10)
    harmless.run()
    assert [each.count for each in harmless.played] == [10, 10, 5]
    harmless.run()
    assert len(harmless.played) == 3
    harmless.run(fresh=True)
    assert [each.count for each in harmless.played[3:]] == [10, 10, 5]
    assert harmless.totals().done == 25


def test_rig_with_ordered_cases_runs_each_case_once(harmless: Harmless) -> None:
    harmless.rig = replace(harmless.rig, in_order=True)
    harmless.run(seed=15, count=5)
    harmless.run()
    assert [(each.seed, each.count) for each in harmless.played] == [(15, 5), (0, 10), (10, 10), (20, 5)]
    assert harmless.totals().done == 25


def test_incomplete_line_of_a_killed_runner_is_ignored(harmless: Harmless) -> None:
    harmless.run(count=10)
    with (harmless.home / "harmless-here.jsonl").open("a") as file:
        file.write('{"seed": 1, "cou')
    assert harmless.totals().done == 10
    harmless.run()
    assert harmless.totals().done == 25


def test_runner_stops_at_a_violation_and_prints_the_command_to_repeat_it(tmp_path: Path) -> None:
    harmless = Harmless(tmp_path / "ledgers", wrong_at=2)
    assert harmless.run(("here", "there"), seed=40) == 1
    assert len(harmless.played) == 2
    said = harmless.out.getvalue()
    assert "it was wrong" in said
    assert "python -m tests.chaos --rig harmless --database here --seed 41 --count 10" in said
    assert harmless.played[1].folder.exists()
    assert harmless.totals().wrong == ["it was wrong"]


def test_earlier_violation_does_not_fail_a_repeated_round(tmp_path: Path) -> None:
    harmless = Harmless(tmp_path / "ledgers", wrong_at=1)
    assert harmless.run() == 1
    assert harmless.run(seed=3, count=10) == 0
    assert harmless.run() == 1
    assert "until --fresh" in harmless.out.getvalue()
    assert harmless.run(fresh=True) == 0


def test_keep_going_continues_after_a_violation_and_still_fails(tmp_path: Path) -> None:
    harmless = Harmless(tmp_path / "ledgers", wrong_at=2)
    assert harmless.run(("here", "there"), keep_going=True) == 1
    assert len(harmless.played) == 4


def test_round_that_raises_is_a_violation(harmless: Harmless) -> None:
    async def broken(_: Round) -> Outcome:
        raise RuntimeError("no such server")

    harmless.rig = replace(harmless.rig, play=broken)
    assert harmless.run() == 1
    assert harmless.totals().wrong == ["the round broke off: RuntimeError('no such server')"]


def test_time_limit_is_shared_between_databases(harmless: Harmless) -> None:
    """The first round of each is always played; another one only if there is time for it."""
    assert harmless.run(("here", "there"), minutes=1e-6) == 0
    assert [each.backend for each in harmless.played] == ["here", "there"]


def test_interrupt_ends_the_runner_and_keeps_finished_rounds(harmless: Harmless) -> None:
    async def interrupted(round_: Round) -> Outcome:
        if len(harmless.played) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return await harmless.play(round_)

    harmless.rig = replace(harmless.rig, play=interrupted)
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # the process that runs the suite may ignore it
    try:
        assert harmless.run(("here", "there")) == 130
    finally:
        signal.signal(signal.SIGINT, ours)
    assert harmless.totals().done == 10
    assert "10 nothings" in harmless.out.getvalue()


def test_progress_line_is_rewritten_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with Progress("kills sqlite", "kills", 100, out) as progress:
        progress.show(Totals(done=20, seconds=10))
        progress.show(Totals(done=40, seconds=20, wrong=["x"]))
    assert out.getvalue().count("\r") == 2
    assert out.getvalue().count("\n") == 1
    assert "40 of 100 kills, about 30 s left, 1 violations" in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--rig nonsense", "there is no rig 'nonsense'"),
        ("--rig wire --database oracle", "knows a database 'oracle'; they know postgresql, mysql"),
        ("--count 0", "0 is not above zero"),
        ("--minutes -1", "-1 is not above zero"),
        ("--minutes soon", "invalid float value"),
        ("--seed x", "invalid int value"),
        ("--count 5 --fresh", "does not go with --fresh"),
        ("--quickly", "unrecognized arguments"),
    ],
)
def test_invalid_options_are_reported(arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        chaos.main(arguments.split())
    assert refused.value.code == 2
    assert complaint in capsys.readouterr().err


def test_list_option_shows_every_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert chaos.main(["--list", "--rig", "kills", "wire"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in listed[1:]] == [
        ["kills", "sqlite"], ["kills", "postgresql"], ["kills", "mysql"], ["wire", "postgresql"], ["wire", "mysql"]
    ]  # fmt: skip
    assert all("2,000" in line for line in listed[1:4])


def test_every_rig_module_defines_the_rig_of_its_name() -> None:
    for name in RIGS:
        assert rig_named(name).name == name
