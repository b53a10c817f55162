"""All mutants, and samples of them."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import python_changes, sql_changes
from tests.mutants.changes import Change
from tests.planted.bugs import SOURCE

PERDURE = SOURCE / "perdure"
PACKAGES = (
    *("engine/api", "engine/worker", "engine/execution", "engine/starting", "engine/replay", "engine/history"),
    *("storage", "storage/sql", "database", "integrations"),
)
LEAST = 20  # mutants of a package in a sample, if it has so many


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file. Its id stays the same when other lines of the file change."""

    id: str
    file: str  # from the package perdure
    text: str
    change: Change

    @property
    def package(self) -> str:
        return package(self.file)

    @property
    def mutated(self) -> str:
        return self.change.apply(self.text)

    @property
    def definition(self) -> str:
        """Return the text of the function, the statement or the SQL statement that is changed."""
        if self.file.endswith(".sql"):
            sections = sql_changes.sections(self.text)
            return next(each.text for each in sections if each.start <= self.change.start < each.start + len(each.text))
        line = self.change.number(self.text)
        first, last = next(span for span in python_changes.definitions(self.text) if span[0] <= line <= span[1])
        return "\n".join(self.text.splitlines()[first - 1 : last])

    def __str__(self) -> str:
        return f"{self.file}:{self.change.number(self.text)}  {self.change.show(self.text)}"


def package(file: str) -> str:
    """Return the package that a file counts for."""
    return max((name for name in PACKAGES if file.startswith(name)), key=len)


def mutants(folder: Path = PERDURE) -> list[Mutant]:
    """Return all mutants, in the order of files and lines."""
    paths = [*folder.rglob("*.py"), *folder.glob("storage/sql/*.sql")]
    files = sorted(path.relative_to(folder).as_posix() for path in paths)
    return [
        mutant
        for file in files
        if file.startswith(PACKAGES)
        for mutant in mutants_of(file, (folder / file).read_text())
    ]


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Return all mutants of a file."""
    changes = sql_changes.changes(text) if file.endswith(".sql") else python_changes.changes(text)
    seen: Counter[str] = Counter()
    found: list[Mutant] = []
    for change in changes:
        key = change.key(text)
        seen[key] += 1
        ordinal = f":{seen[key]}" if seen[key] > 1 else ""  # of equal changes of equal lines
        found.append(Mutant(f"{file}:{key}{ordinal}", file, text, change))
    return found


def sample(all_mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return some mutants of each package, in proportion to its size; a larger sample contains a smaller one."""
    by_package: dict[str, list[Mutant]] = {}
    for mutant in all_mutants:
        by_package.setdefault(mutant.package, []).append(mutant)
    chosen: list[tuple[float, Mutant]] = []
    for group in by_package.values():
        quota = max(LEAST, round(count * len(group) / len(all_mutants)))
        ranked = sorted(group, key=lambda mutant: _rank(mutant, seed))[:quota]
        chosen += [(position / quota, mutant) for position, mutant in enumerate(ranked)]
    return [mutant for _, mutant in sorted(chosen, key=lambda each: each[0])]  # the packages by turns


def _rank(mutant: Mutant, seed: int) -> bytes:
    return hashlib.sha256(f"{seed} {mutant.id}".encode()).digest()
