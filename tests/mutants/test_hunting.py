"""Mutants of a small package are caught, or survive, as they should."""

import json
from pathlib import Path

import pytest

from tests.mutants import coverage
from tests.mutants.catalogue import PERDURE, Mutant, mutants, mutants_of, sample
from tests.mutants.coverage import NAMED, Coverage, Trace, statements, varied
from tests.mutants.hunting import BATCH, NEAREST, Hunter, batches
from tests.mutants.results import Figures, Result, Results, figures, survivors, text_digest
from tests.planted.bugs import ROOT

PACKAGE = '''\
"""A small package."""

import time


def limited(value):
    if value > 10:
        return 10
    return value


def loops(count):
    while count:
        time.sleep(0.01)
        count -= 1


def never_called():
    return 1
'''
TESTS = """\
from perdure.engine.replay.small import limited, loops


def test_limited():
    assert limited(5) == 5
    assert limited(50) == 10


def test_loops():
    loops(3)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the package and its tests."""
    folder = tmp_path / "src" / "perdure" / "engine" / "replay"
    folder.mkdir(parents=True)
    (folder / "small.py").write_text(PACKAGE)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_small.py").write_text(TESTS)
    # Its package hides the real one, whose plugin pytest would load.
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:perdure\n")
    return tmp_path


FATES = {
    "value > 10  →  not (value > 10)": ("caught", "tests/test_small.py::test_limited"),
    ">  →  >=": ("survived", ""),  # the same result
    "count -= 1  →  pass": ("caught", "time limit"),
    "1  →  None": ("uncovered", ""),
}


async def test_mutants_are_caught_by_the_tests_that_execute_them(project: Path) -> None:
    traces = project / ".mutants" / "traces"
    await coverage.trace(traces, ["tests"], 1, project)
    found = {str(mutant).partition("  ")[2]: mutant for mutant in mutants(project / "src" / "perdure")}
    async with Hunter(coverage.load(traces, project), project / ".mutants", {}, project) as hunter:
        hunter.grace_sec = 2
        results = {what: await hunter.hunt(found[what]) for what in FATES}
    assert {what: (result.verdict, result.by) for what, result in results.items()} == FATES
    assert (project / "src/perdure/engine/replay/small.py").read_text() == PACKAGE


def _mutants(count: int) -> list[Mutant]:
    """The mutants of the small package, as if they were many files."""
    return [mutant for number in range(count) for mutant in mutants_of(f"engine/replay/small{number}.py", PACKAGE)]


def test_sample_has_mutants_of_every_package_and_grows() -> None:
    found = [*_mutants(40), *mutants_of("integrations/small.py", PACKAGE)]
    small, large = (sample(found, count, seed=1) for count in (100, 200))
    assert {mutant.package for mutant in small} == {"engine/replay", "integrations"}
    assert set(small) < set(large)
    assert set(small) != set(sample(found, 100, seed=2))


def test_id_of_a_mutant_stays_when_other_lines_change() -> None:
    before, after = (mutants_of("engine/api/small.py", text) for text in (PACKAGE, "A = None\n\n" + PACKAGE))
    assert [mutant.id for mutant in before] == [mutant.id for mutant in after]
    assert len({mutant.id for mutant in before}) == len(before)


def _trace(name: str, *, seconds: float = 0.1, server: bool = False, file: str = "test_other.py") -> Trace:
    lines = {"database/backends/mysql/backend.py": 1} if server else {}
    return Trace(f"tests/{file}::{name}", seconds, lines, frozenset(), frozenset())


def test_local_tests_come_first_and_the_fastest_of_them() -> None:
    slow, fast, remote = _trace("a", seconds=2), _trace("b"), _trace("c", server=True)
    twin, own = _trace("b[mysql]", server=True), _trace("d", file="test_small0.py")
    found = list(batches(_mutants(1)[0], [own, remote, twin, slow, fast]))
    assert found == [[own], [fast, slow], [remote], [twin]]


def test_own_tests_run_on_servers_before_the_rest() -> None:
    own, twin = _trace("a", file="test_small0.py"), _trace("a[mysql]", file="test_small0.py", server=True)
    others = [_trace(str(number), seconds=0.01) for number in range(1000)]
    last = list(batches(_mutants(1)[0], [own, twin, *others]))[-1]
    assert twin in last


def test_far_tests_are_limited() -> None:
    first, others = batches(_mutants(1)[0], [_trace(str(number), seconds=0.01) for number in range(1000)])
    assert (len(first), len(others)) == (2 * NEAREST, BATCH)


def test_tests_that_execute_something_else_around_a_mutant_are_preferred() -> None:
    (mutant, *_) = mutants_of("storage/instances.py", "A = 1")
    bits = {"a": (0b11, 0), "b": (0b11, 0), "c": (0b01, 0b10), "d": (0b01, 0b01)}
    traces = [
        Trace(name, 1.0, {mutant.file: own, "storage/creation.py": imported}, frozenset(), frozenset())
        for name, (own, imported) in bits.items()
    ]
    assert [trace.test for trace in varied(traces, mutant, 4)] == ["a", "c", "d", "b"]


def test_named_test_is_chosen_although_it_does_not_execute_the_line() -> None:
    (mutant, *_) = mutants_of("engine/api/app.py", PACKAGE)
    named = Trace(f"{NAMED[mutant.file]}_ends[sqlite]", 1.0, {}, frozenset(), frozenset())
    assert Coverage([_trace("a"), named], {}).tests_of(mutant) == [named]
    assert next(batches(mutant, [_trace("a"), named])) == [named]


def test_named_tests_and_modules_exist() -> None:
    for module, test in NAMED.items():
        assert (PERDURE / module).exists()
        file, _, name = test.partition("::")
        assert f"def {name or 'test_'}" in (ROOT / file).read_text()


def test_statement_is_executed_by_the_dialects_without_an_override() -> None:
    assert statements("storage/sql/locks.sql", "acquire") == {"locks.acquire ", "locks.acquire sqlite"}
    assert statements("storage/sql/locks.sql", "acquire mysql") == {"locks.acquire mysql"}
    assert {"locks.acquire sqlite", "locks.acquire mysql"} < statements("storage/sql/pieces.sql", "takeable")


def test_results_are_kept_until_the_changed_function_gets_another_text(tmp_path: Path) -> None:
    one, two = _mutants(1)[:2]
    Results(tmp_path / "results.jsonl").add(Result(one.id, text_digest(one), "survived"))
    results = Results(tmp_path / "results.jsonl")
    assert (results.of(one) is None, results.of(two)) == (False, None)
    for old, new, is_kept in (("0.01", "0.02", True), ("return value", "return 1", False)):
        text = PACKAGE.replace(old, new)
        (changed,) = [mutant for mutant in mutants_of(one.file, text) if mutant.id == one.id]
        assert (results.of(changed) is not None) is is_kept
    assert figures([one, two], results, {}) == {"engine/replay": Figures(0, 1, 0, 0)}
    assert figures([one, two], results, {one.id: "it has no effect"}) == {"engine/replay": Figures(0, 0, 0, 1)}
    results.add(Result(two.id, "of another text", "caught"))
    results.forget_others([one, two])
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [one.id]


def test_every_known_survivor_still_exists_and_has_a_reason() -> None:
    known = survivors()
    files = {id.partition(":")[0] for id in known}
    ids = {mutant.id for file in files for mutant in mutants_of(file, (PERDURE / file).read_text())}
    assert set(known) - ids == set()
    assert all(len(why) > 20 for why in known.values())
