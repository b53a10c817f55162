"""Change perdure in one small place at a time and see that a test notices: `make mutants`.

A second call goes on where the first one stopped: the results so far are in `results.jsonl`. `.mutants/` has the traces
of the tests.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from tests.mutants import coverage
from tests.mutants.catalogue import PACKAGES, Mutant, mutants, sample
from tests.mutants.hunting import Hunter, servers
from tests.mutants.progress import Progress
from tests.mutants.results import GOAL, Results, figures, listing, survivors, table
from tests.planted.bugs import ROOT

FOLDER = ROOT / ".mutants"


def main(given: argparse.Namespace) -> int:
    """Return 1 if too many mutants of a package survive."""
    everything = mutants()
    found = chosen(everything, given)
    results = Results()
    harmless = survivors()
    if not given.report:
        due = [mutant for mutant in found if given.id or is_due(mutant, results, harmless, again=given.again)]
        results.forget_others(everything)
        try:
            asyncio.run(hunt(due, results, given.jobs, show_log=bool(given.id)))
        except KeyboardInterrupt:
            print("\nstopped; the next call goes on from here")
            return 130
    if given.id:
        return 0
    counts = figures(found, results, harmless)
    print(listing(found, results, harmless))
    print(table(counts))
    return int(any(each.rate < GOAL for each in counts.values()))


def chosen(everything: Sequence[Mutant], given: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that the arguments ask for."""
    if given.id:
        return [mutant for mutant in everything if mutant.id in given.id]
    packages = given.package or PACKAGES
    return sample([mutant for mutant in everything if mutant.package in packages], given.count, given.seed)


def is_due(mutant: Mutant, results: Results, harmless: dict[str, str], *, again: bool) -> bool:
    """Return whether a mutant has no result yet, or is to be tried again because it survived."""
    result = results.of(mutant)
    return result is None or (again and result.verdict != "caught" and mutant.id not in harmless)


async def hunt(due: Sequence[Mutant], results: Results, jobs: int, *, show_log: bool) -> None:
    """Try these mutants, several at a time."""
    if not due:
        return
    traces = FOLDER / "traces"
    covered = coverage.load(traces)
    if missing := coverage.untraced(covered):
        print(f"{len(missing)} test files have no trace: they run first", flush=True)
        await coverage.trace(traces, missing, jobs)
        covered = coverage.load(traces)
    queue, progress = list(reversed(due)), Progress(len(due), sys.stdout)

    async def work() -> None:
        with servers() as environment:
            await work_with(environment)

    async def work_with(environment: dict[str, str]) -> None:
        async with Hunter(covered, FOLDER, environment) as hunter:
            while queue:
                mutant = queue.pop()
                result = await hunter.hunt(mutant)
                results.add(result)
                progress.show(mutant, result)
                if show_log:
                    print(hunter.log.read_text() if hunter.log.exists() else "no test executes it")

    async with asyncio.TaskGroup() as group:
        for _ in range(min(jobs, len(due))):
            group.create_task(work())


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=600, help="how many mutants; default: 600")
    parser.add_argument("--seed", type=int, default=1, help="another sample")
    parser.add_argument("--package", action="append", choices=PACKAGES, help="only of this package")
    parser.add_argument("--id", action="append", help="only this mutant, with the output of its tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time; default: number of cores")
    parser.add_argument("--again", action="store_true", help="try those that survived again")
    parser.add_argument("--report", action="store_true", help="only print the figures")
    return parser


if __name__ == "__main__":
    sys.exit(main(arguments().parse_args()))
