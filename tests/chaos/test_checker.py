"""The checker finds effects that are missing, duplicated or unrecorded."""

import json
from pathlib import Path

import pytest

from perdure.model.records import HistoryEvent
from tests.engine.crashes.rig.checker import COMPLETED, Checker, Rows
from tests.engine.crashes.rig.effect_log import Effects, Writer
from tests.engine.crashes.rig.effect_table import Entry

STEP = "1:entering"
COUNTED = Entry("run", STEP, "7-1")


def test_incomplete_line_of_a_killed_worker_is_ignored(tmp_path: Path) -> None:
    writer, effects = Writer(), Effects(tmp_path / "effects")
    writer.open(effects.path)
    writer.write("begin", run="run-1")
    whole = effects.path.read_bytes().strip()
    for length in range(1, len(whole)):
        with effects.path.open("ab") as file:
            file.write(b"\n" + whole[:length])
        assert len(effects.look()) == length
        writer.write("begin", run="run-1")
    writer.close()
    assert {line.run for line in effects.look()} == {"run-1"}


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([], "recorded without its effect"),
        ([COUNTED, COUNTED], "took effect too often"),
        ([Entry("run", STEP, "8-1")], "recorded without its effect"),
        ([COUNTED, Entry("run", STEP, "8-1")], "took effect too often"),
        ([COUNTED, Entry("run", "3:entering", "7-2")], "took effect too often"),
    ],
)
def test_checker_reports_missing_and_duplicate_transactional_effects(entries: list[Entry], complaint: str) -> None:
    assert not found([COUNTED])
    assert any(complaint in each for each in found(entries))


def found(entries: list[Entry]) -> list[str]:
    mark = json.dumps({"step": STEP, "token": COUNTED.token, "value": 9}).encode()
    checker = Checker(Rows({}, {"run": [HistoryEvent("run", STEP, COMPLETED, mark)]}, entries), [])
    checker.check_entries()
    return checker.wrong
