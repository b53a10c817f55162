"""Find out whether the tests notice a mutant."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from perdure.testing.servers import MySQLServer, PostgresServer
from tests.mutants.catalogue import Mutant
from tests.mutants.coverage import Coverage, Trace, is_mirror, varied
from tests.mutants.results import Result, text_digest
from tests.planted.bugs import ROOT

NEAREST = 20  # tests of other modules that are tried first, besides as many that differ
BATCH, BATCH_SEC = 150, 30.0  # tests of one run, and their time without a mutant
TEST_SEC = 40.0  # for one test at most: a trace under load may have taken long
DATABASE = "perdure_mutants"


class Copy:
    """A copy of the sources, in which one file at a time is changed."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.path = folder / "src"
        shutil.copytree(source, self.path)

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Replace a file by its mutant."""
        path = self.path / "perdure" / mutant.file
        self._remove(path)
        path.write_text(mutant.mutated)
        try:
            yield
        finally:
            self._remove(path)
            path.write_text(mutant.text)

    def _remove(self, path: Path) -> None:
        """Remove a file and its bytecode, which may look current: it is compared by size and second."""
        path.unlink()
        for bytecode in path.parent.glob(f"__pycache__/{path.stem}.*"):
            bytecode.unlink()


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """Start database servers; yield the variables that name them."""
    with PostgresServer() as postgres, MySQLServer() as mysql:
        yield {"PERDURE_TEST_POSTGRES_URL": postgres.url, "PERDURE_TEST_MYSQL_URL": mysql.url}


class Hunter:
    """Run tests against mutants, one after the other.

    `folder` is for temporary files. `servers` are the variables that name database servers.
    """

    grace_sec = 30.0  # for a run, besides five times what its tests take without a mutant

    def __init__(self, coverage: Coverage, folder: Path, servers: Mapping[str, str], root: Path = ROOT) -> None:
        self._coverage, self._folder, self._servers, self._root = coverage, folder, servers, root
        self._stack = ExitStack()
        self._environment: dict[str, str] = {}
        self._process: Process

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=self._folder)))
        self._copy, self.log = Copy(self._root / "src", folder), folder / "log"
        self._environment = {
            **self._servers,
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),  # keep no failures of mutants
            "PYTHONPATH": str(self._copy.path),
        }
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each run would compile everything
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.mutants.fork_server"), stdin=PIPE, stdout=PIPE, cwd=ROOT, env=environment
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()  # its forks die with it
            await self._process.wait()
        self._stack.close()

    async def hunt(self, mutant: Mutant) -> Result:
        """Run the tests that execute a mutant until one fails."""
        tests = self._coverage.tests_of(mutant)
        result = Result(mutant.id, text_digest(mutant), "survived" if tests else "uncovered")
        with self._copy.changed(mutant):
            for batch in batches(mutant, tests):
                if failed := await self._first_failure(mutant, batch):
                    return Result(result.id, result.text, "caught", failed)
        return result

    async def _first_failure(self, mutant: Mutant, batch: Sequence[Trace]) -> str:
        """Return the first test that fails twice, or an empty string: once may be an accident."""
        while batch and (failed := await self._run(mutant, batch)):
            position = next((at for at, trace in enumerate(batch) if trace.test == failed), None)
            if await self._run(mutant, batch if position is None else batch[position : position + 1]):
                return failed
            batch = [] if position is None else batch[position + 1 :]  # None: it was a time limit of the whole batch
        return ""

    async def _run(self, mutant: Mutant, batch: Sequence[Trace]) -> str:
        """Return the first test that fails, or what else went wrong; an empty string if nothing did."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.log.write_text("")
        order = {
            "tests": [trace.test for trace in batch],
            "root": str(self._root),
            "source": str(self._copy.path),
            "environment": self._environment | _shared_database(mutant),
            "log": str(self.log),
            "test_limit_sec": min(TEST_SEC, 10 + 5 * max(trace.seconds for trace in batch)),
            "limit_sec": self.grace_sec + 5 * sum(trace.seconds for trace in batch),
        }
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return str(json.loads(await self._process.stdout.readline()))


def batches(mutant: Mutant, tests: Sequence[Trace]) -> Iterator[Sequence[Trace]]:
    """Yield the tests of each run: those of the mutant's module, some others, and some of the rest.

    Tests without a server come first. On servers only tests run that did not run without one, until the last batch,
    which begins with those of the mutant's module.
    """
    tried: set[str] = set()
    for stage in _stages(mutant, tests):
        batch = list(_affordable([trace for trace in stage if trace.test not in tried]))
        tried.update(trace.test for trace in batch)
        if batch:
            yield sorted(batch, key=lambda trace: trace.seconds)


def _stages(mutant: Mutant, tests: Sequence[Trace]) -> Iterator[Sequence[Trace]]:
    """Yield the tests of each stage, the preferred first."""
    local = [trace for trace in tests if not trace.uses_server]
    own = [trace for trace in local if is_mirror(trace, mutant)]
    others = [trace for trace in local if not is_mirror(trace, mutant)]
    near = [*others[:NEAREST], *varied(others[NEAREST:], mutant, NEAREST)]
    functions = {trace.function for trace in (*own, *near)}
    remote = [trace for trace in tests if trace.uses_server and trace.function not in functions]
    mirrors = [trace for trace in remote if is_mirror(trace, mutant)]
    far = [trace for trace in remote if not is_mirror(trace, mutant)]
    yield from (own, near, [*mirrors, *far[:NEAREST], *varied(far[NEAREST:], mutant, NEAREST)])
    yield sorted(tests, key=lambda trace: (not is_mirror(trace, mutant), trace.seconds))


def _affordable(tests: Sequence[Trace]) -> Iterator[Trace]:
    """Yield the first test, and the following ones as far as there is time."""
    left = BATCH_SEC
    for position, trace in enumerate(tests[:BATCH]):
        if not position or trace.seconds < left:
            left -= trace.seconds
            yield trace


def _shared_database(mutant: Mutant) -> dict[str, str]:
    """Let mutants use one database, because creating one takes seconds; not those that create it in a wrong way."""
    return {} if "migrations" in mutant.file else {"PERDURE_TEST_DATABASE": DATABASE}
