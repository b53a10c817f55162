"""The finished rounds, in one file per rig and database: one JSON line per round."""

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".chaos"


@dataclass(frozen=True, slots=True)
class Played:
    """One round that was played."""

    seed: int
    count: int
    done: int
    wrong: list[str]
    figures: dict[str, float]
    seconds: float
    commit: str


@dataclass(slots=True)
class Totals:
    """What rounds come to."""

    done: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, rounds: Iterable[Played]) -> Self:
        totals = cls()
        for each in rounds:
            totals.done += each.done
            totals.seconds += each.seconds
            totals.wrong += each.wrong
            _add(totals.figures, each.figures)
            totals.commits += [] if each.commit in totals.commits else [each.commit]
        return totals


class Ledger:
    """The rounds of one rig on one database."""

    def __init__(self, rig: str, backend: str, home: Path | None = None) -> None:
        self.path = (home or HOME) / f"{rig}-{backend}.jsonl"

    def read(self) -> list[Played]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [Played(**json.loads(line)) for line in lines if line.endswith("}")]  # of a killed runner's: half a line

    def totals(self) -> Totals:
        return Totals.of(self.read())

    def append(self, played: Played) -> None:
        self.path.parent.mkdir(exist_ok=True)
        whole = not self.path.exists() or self.path.read_text()[-1:] in ("", "\n")
        with self.path.open("a") as file:
            file.write(("" if whole else "\n") + json.dumps(asdict(played)) + "\n")

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def _add(totals: dict[str, float], figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        before = totals.get(name, 0)
        totals[name] = max(before, value) if "_max" in name else round(before + value, 3)


def commit() -> str:
    """Which tree this is, with a plus when it was changed since."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + ("+" if _git("status", "--porcelain") else "") if head else "unknown"


def _git(*arguments: str) -> str:
    try:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
