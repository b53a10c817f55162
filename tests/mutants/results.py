"""What became of the mutants: a file, and a report."""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from tests.mutants.catalogue import PACKAGES, Mutant

RESULTS = Path(__file__).with_name("results.jsonl")
SURVIVORS = Path(__file__).with_name("survivors.toml")
GOAL = 0.9  # of the mutants of each package that a test can notice

Verdict = Literal["caught", "survived", "uncovered"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutant. `text` is a digest of what is changed: of another text the result says nothing."""

    id: str
    text: str
    verdict: Verdict
    by: str = ""  # the test that failed


def text_digest(mutant: Mutant) -> str:
    """Return a digest of the changed function or statement, without the change."""
    return hashlib.sha256(mutant.definition.encode()).hexdigest()[:16]


class Results:
    """The results so far, in a file that is part of the project: a clone reports the same figures."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._found = {result.id: result for result in (Result(**json.loads(line)) for line in lines)}

    def of(self, mutant: Mutant) -> Result | None:
        """Return the result of a mutant of the current text."""
        found = self._found.get(mutant.id)
        return found if found is not None and found.text == text_digest(mutant) else None

    def add(self, result: Result) -> None:
        """Write one more."""
        self._found[result.id] = result
        self._write()

    def forget_others(self, mutants: Iterable[Mutant]) -> None:
        """Drop the results of texts that are no longer those of these mutants."""
        current = {mutant.id for mutant in mutants if self.of(mutant) is not None}
        if dropped := self._found.keys() - current:
            self._found = {name: result for name, result in self._found.items() if name not in dropped}
            self._write()

    def _write(self) -> None:
        lines = [json.dumps(asdict(self._found[name])) + "\n" for name in sorted(self._found)]
        written = self._path.with_suffix(".new")
        written.write_text("".join(lines))
        written.replace(self._path)


def survivors(path: Path = SURVIVORS) -> dict[str, str]:
    """Return the mutants that need no test, with the reasons."""
    found = tomllib.loads(path.read_text()).get("survivor", [])
    return {each["id"]: each["why"] for each in found}


class Figures(NamedTuple):
    """The counts of one package."""

    caught: int
    survived: int
    uncovered: int
    harmless: int

    @property
    def rate(self) -> float:
        """Return which part a test has noticed, of those that it can notice."""
        judged = self.caught + self.survived + self.uncovered
        return self.caught / judged if judged else 1.0


def figures(mutants: Iterable[Mutant], results: Results, harmless: Mapping[str, str]) -> dict[str, Figures]:
    """Return the counts of each package."""
    counts: dict[str, dict[str, int]] = {}
    for mutant in mutants:
        if (result := results.of(mutant)) is not None:
            package = counts.setdefault(mutant.package, dict.fromkeys(Figures._fields, 0))
            is_harmless = result.verdict != "caught" and mutant.id in harmless
            package["harmless" if is_harmless else result.verdict] += 1
    return {name: Figures(**counts[name]) for name in PACKAGES if name in counts}


def table(found: Mapping[str, Figures]) -> str:
    """Return the figures as text, with their sum."""
    total = Figures(*(sum(column) for column in zip(*found.values(), strict=True))) if found else Figures(0, 0, 0, 0)
    lines = [f"{'':18}{'caught':>8}{'survived':>10}{'uncovered':>11}{'harmless':>10}{'rate':>8}"]
    for name, each in (*found.items(), ("all", total)):
        counts = f"{each.caught:>8}{each.survived:>10}{each.uncovered:>11}{each.harmless:>10}"
        lines.append(f"{name:18}{counts}{each.rate:>8.1%}")
    return "\n".join(lines)


def listing(mutants: Sequence[Mutant], results: Results, harmless: Mapping[str, str]) -> str:
    """Return one line for each mutant that no test noticed, and that is not known to be harmless."""
    lines: list[str] = []
    for mutant in mutants:
        result = results.of(mutant)
        if result is not None and result.verdict != "caught" and mutant.id not in harmless:
            lines.append(f"{result.verdict}: {mutant}\n    {mutant.id}")
    return "\n".join(lines)
