"""Which tests execute a mutant.

The tests run once under `tests.mutants.tracing`, and again only those whose files have changed since. Tests that run
perdure in other processes are left out: their traces would be empty.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from tests.mutants.catalogue import PERDURE, Mutant
from tests.mutants.sql_changes import sections
from tests.mutants.tracing import FOLDER_VARIABLE, digest, source_digests
from tests.planted.bugs import ROOT
from tests.support.databases import DATABASES

LEFT_OUT = tuple(
    f"tests/{name}"
    for name in (
        *("chaos", "docs", "engine/crashes", "mutants", "packaging", "planted", "testing/crashes", "typecheck"),
        *("testing/test_plugin.py", "testing/test_replay_mark.py"),
        *("database/test_servers.py", "storage/test_benchmark.py", "storage/test_stopped_workers.py"),
    )
)
SERVERS = ("database/backends/postgres/", "database/backends/mysql/")
LINES = 1000  # more than any module has

# Tests of a module that its traces cannot tell: they execute it in other processes, or nearly all tests execute it.
NAMED = {
    "engine/api/background.py": "tests/engine/api/test_sync_processes.py::test_client_that_was_used_before_a_fork",
    "engine/api/app.py": "tests/engine/worker/test_shutdown.py::test_second_signal",
    "engine/api/step_info.py": "tests/engine/api/test_steps.py::test_kinds",
    "engine/worker/worker.py": "tests/engine/api/test_logs.py::test_started_worker",
    "engine/worker/work_loop.py": "tests/engine/worker/test_waking.py::",
    "engine/worker/claiming.py": "tests/engine/api/test_logs.py::test_end_of_a_back_off",
    "engine/execution/run.py": "tests/engine/worker/test_leases.py::test_run_that_resumes",
    "engine/execution/recorder.py": "tests/engine/worker/test_no_progress.py::test_result",
    "engine/execution/waits.py": "tests/engine/execution/test_timers.py::",
    "engine/execution/attempts.py": "tests/engine/execution/test_cancel.py::test_cancel",
    "engine/history/hints.py": "tests/engine/history/test_codec.py::",
    "engine/history/unions.py": "tests/engine/history/test_codec.py::",
    "storage/timers.py": "tests/faults/test_storage_faults.py::test_timers_fire_without_an_error",
    "storage/sql/history.sql": "tests/storage/plans/test_plans.py::test_no_statement_reads_more",
    "database/backends/mysql/backend.py": "tests/database/test_mysql.py::test_url_options",
    "database/dialects/": "tests/database/test_features.py::",
}


@dataclass(frozen=True)
class Trace:
    """What one test executes."""

    test: str
    seconds: float
    lines: dict[str, int]  # by file; the bits of a number
    sql: frozenset[str]
    stale: frozenset[str]  # files that have changed since

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def function(self) -> str:
        """The test without its parameters."""
        return self.test.partition("[")[0]

    @cached_property
    def size(self) -> int:
        """How many lines it executes: the fewer, the closer it is to each of them."""
        return sum(bits.bit_count() for bits in self.lines.values())

    @cached_property
    def uses_server(self) -> bool:
        return any(file.startswith(SERVERS) for file in self.lines)

    def executes(self, mutant: Mutant) -> bool:
        """Return whether the test executes the line or the statement of a mutant."""
        place = mutant.change.place
        if isinstance(place, str):
            return not self.sql.isdisjoint(statements(mutant.file, place))
        if not place or mutant.file in self.stale:
            return mutant.file in self.lines
        return bool(self.lines.get(mutant.file, 0) >> place & 1)


class Coverage:
    """The traces of all tests."""

    def __init__(self, traces: Iterable[Trace], imported: Mapping[str, int]) -> None:
        self.traces = list(traces)
        self._imported = imported

    def tests_of(self, mutant: Mutant) -> list[Trace]:
        """Return the tests that execute a mutant, those nearest to it first."""
        found = {trace.test: trace for trace in self.traces if trace.executes(mutant) or is_named(trace, mutant)}
        if self._is_imported(mutant):
            users = {mutant.file, *importers(mutant.file)}
            found |= {trace.test: trace for trace in self.traces if not users.isdisjoint(trace.lines)}
        return sorted(found.values(), key=lambda trace: _distance(trace, mutant))

    def _is_imported(self, mutant: Mutant) -> bool:
        """Return whether an import executes a mutant, which affects all tests of modules that import it."""
        place = mutant.change.place
        return not place or (isinstance(place, int) and bool(self._imported.get(mutant.file, 0) >> place & 1))


def varied(traces: Sequence[Trace], mutant: Mutant, count: int) -> list[Trace]:
    """Choose tests that differ in what they execute around a mutant: in its module, and those that this imports.

    A line that every test executes has an effect in few of them: those that execute something else, too.
    """
    files = sorted(_neighbours(mutant.file))
    left = [(_around(trace, files), trace) for trace in traces]
    chosen: list[Trace] = []
    seen = 0
    while left and len(chosen) < count:
        best = max(left, key=lambda each: (each[0] & ~seen).bit_count())  # the first of equals
        if seen and not best[0] & ~seen:
            seen = 0  # nothing is new: begin again
            continue
        seen |= best[0]
        chosen.append(best[1])
        left.remove(best)
    return chosen


def _around(trace: Trace, files: Sequence[str]) -> int:
    bits = 1
    for file in files:
        bits = bits << LINES | trace.lines.get(file, 0)
    return bits


@cache
def _neighbours(file: str) -> frozenset[str]:
    """Return a module and those that it imports; for SQL, the module that uses it."""
    path = PERDURE / (f"storage/{Path(file).stem}.py" if file.endswith(".sql") else file)
    modules = re.findall(
        r"^\s*from (perdure[\w.]*) import (.*)", path.read_text() if path.exists() else "", re.MULTILINE
    )
    names = {module for module, _ in modules} | {
        f"{module}.{name.strip()}" for module, names in modules for name in names.strip("()").split(",")
    }
    paths = [PERDURE.parent / f"{name.replace('.', '/')}.py" for name in names]
    return frozenset(each.relative_to(PERDURE).as_posix() for each in (path, *paths) if each.exists())


def is_mirror(trace: Trace, mutant: Mutant) -> bool:
    """Return whether a test belongs to the module of a mutant, by the name of its file or folder, or by `NAMED`."""
    stem = Path(mutant.file).stem
    return trace.file.endswith(f"/test_{stem}.py") or f"/{stem}/" in trace.file or is_named(trace, mutant)


def is_named(trace: Trace, mutant: Mutant) -> bool:
    """Return whether `NAMED` has a test for the module of a mutant."""
    return any(mutant.file.startswith(place) and trace.test.startswith(test) for place, test in NAMED.items())


def _distance(trace: Trace, mutant: Mutant) -> tuple[bool, bool, int]:
    path = Path(mutant.file)
    folder = "storage/conformance" if mutant.file.endswith(".sql") else path.parent.as_posix()
    return not is_mirror(trace, mutant), not trace.file.startswith(f"tests/{folder}/"), trace.size


_statements: dict[tuple[str, str], frozenset[str]] = {}


def statements(file: str, place: str) -> frozenset[str]:
    """Return what tests note when they execute this text: each statement that contains it, with the dialect."""
    if (file, place) not in _statements:
        _statements[file, place] = frozenset(_statements_with(Path(file).stem, *place.split(" ")))
    return _statements[file, place]


def _statements_with(stem: str, name: str, dialect: str = "") -> Iterator[str]:
    if stem != "pieces":
        yield from (f"{stem}.{name} {each}" for each in _dialects(stem, name, dialect))
        return
    use = re.compile(rf"\{{{name}[}}(]")
    for path in (PERDURE / "storage" / "sql").glob("*.sql"):
        for section in sections(path.read_text()):
            if use.search(section.text) and (path.stem, section.name) != ("pieces", name):
                yield from _statements_with(path.stem, section.name, section.dialect)


def _dialects(stem: str, name: str, dialect: str) -> Iterator[str]:
    """Yield the dialects that use a text: its own, or all without a text of their own."""
    if dialect:
        yield dialect
        return
    text = (PERDURE / "storage" / "sql" / f"{stem}.sql").read_text()
    own = {section.dialect for section in sections(text) if section.name == name and section.dialect}
    yield from (each for each in ("", *DATABASES) if each not in own)


@cache
def importers(file: str) -> frozenset[str]:
    """Return the modules that import from a module."""
    module = "perdure." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    parent, _, name = module.rpartition(".")
    use = re.compile(rf"(?:from|import) {re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{name}\b")
    paths = [path for path in PERDURE.rglob("*.py") if use.search(path.read_text())]
    return frozenset(path.relative_to(PERDURE).as_posix() for path in paths)


def load(folder: Path, root: Path = ROOT) -> Coverage:
    """Read the last trace of each test file, unless the file or the source of one of its tests has changed since."""
    digest.cache_clear()  # files may have changed while tests were traced
    current = {digest(str(path)) for path in _test_sources(root)}
    now = source_digests(root)
    found: dict[str, list[Trace]] = {}
    imported: dict[str, int] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        header, *rows = _rows(path)
        stale = frozenset(file for file, old in header["sources"].items() if now.get(file) != old)
        imported |= _bits(header["imported"])
        for file, group in groupby(sorted(rows, key=_test), key=lambda row: _test(row).partition("::")[0]):
            traced = list(group)
            is_current = all(row["digest"] in current for row in traced)
            if not file.startswith(LEFT_OUT):
                found[file] = [_trace(row, stale) for row in traced if row["passed"]] if is_current else []
    return Coverage(chain.from_iterable(found.values()), imported)


def _test(row: dict[str, Any]) -> str:
    return str(row["test"])


def _rows(path: Path) -> list[dict[str, Any]]:
    """Return what a process wrote, also one that was killed."""
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole] or [{"sources": {}, "imported": {}}]


def _trace(row: dict[str, Any], stale: frozenset[str]) -> Trace:
    return Trace(row["test"], row["seconds"], _bits(row["lines"]), frozenset(row["sql"]), stale)


def _bits(lines: Mapping[str, str]) -> dict[str, int]:
    return {file: int(bits, 16) for file, bits in lines.items()}


def _test_sources(root: Path) -> list[Path]:
    return [*(root / "tests").rglob("test_*.py"), *(root / "src/perdure/testing/conformance").rglob("*.py")]


def untraced(coverage: Coverage) -> list[str]:
    """Return the test files without a trace, because they are new or have changed."""
    traced = {trace.file for trace in coverage.traces}
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    return [file for file in files if file not in traced and not file.startswith(LEFT_OUT)]


async def trace(folder: Path, files: list[str], jobs: int, root: Path = ROOT) -> None:
    """Run tests and write their traces."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "tests.mutants.tracing"]
    spread = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
    path = os.pathsep.join([str(root / "src"), str(ROOT)])
    environment = {**os.environ, FOLDER_VARIABLE: str(folder), "PYTHONPATH": path}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", *options, *spread, *files), cwd=root, env=environment
    )
    await process.wait()
