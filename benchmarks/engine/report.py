"""The figures of the engine as a table, and as JSON with the versions and the machine they are of."""

import os
import platform
import sqlite3
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.databases import version_of
from benchmarks.engine.measures import MEASURES, Figures, Measure

Found = Mapping[str, Mapping[str, Sequence[Figures]]]  # by measure and database, one for each round
DRIVERS = ("asyncpg", "asyncmy")
NAME, COLUMN = 50, 24


def heading(databases: Sequence[str]) -> str:
    """Return the first line of the table."""
    return f"{'':{NAME}}{'':8}" + "".join(f"{database:>{COLUMN}}" for database in databases)


def line(measure: Measure, of: Mapping[str, Sequence[Figures]]) -> str:
    """Return the line of a measure: the median of its rounds on each database, with the lowest and the highest."""
    cells = [f"{cell([figures['value'] for figures in rounds]):>{COLUMN}}" for rounds in of.values()]
    return f"{measure.what:{NAME}}{measure.unit:8}" + "".join(cells) + _verdict(measure, of)


def _verdict(measure: Measure, of: Mapping[str, Sequence[Figures]]) -> str:
    """Return whether a measure reaches its goal on every database."""
    if measure.most is None:
        return ""
    missed = [database for database, rounds in of.items() if rounds and _median(rounds) > measure.most]
    return f"  at most {measure.most:,}: {'missed on ' + ', '.join(missed) if missed else 'met'}"


def _median(rounds: Sequence[Figures]) -> float:
    return median(figures["value"] for figures in rounds)


def cell(values: Sequence[float]) -> str:
    """Return the median of some rounds, with the lowest and the highest; a dash for none."""
    if not values:
        return "–"
    low, middle, high = (number(value) for value in (min(values), median(values), max(values)))
    return f"{middle} ({low}–{high})" if len(values) > 1 else middle


def number(value: float) -> str:
    """Return a number as text, with a digit after the point if it is small."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def ratios(name: str, ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[float]:
    """Return for each round how many times better ours is, whether more or less of the measure is better."""
    found = [mine["value"] / other["value"] for mine, other in zip(ours, theirs, strict=True)]
    return found if MEASURES[name].more_is_better else [1 / ratio for ratio in found]


def as_json(
    found: Found, measures: Mapping[str, Measure] = MEASURES, around: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that was measured, with the medians, the versions and the machine."""
    return {
        **(around or circumstances()),
        "measures": {
            name: {
                "what": measures[name].what,
                "unit": measures[name].unit,
                **({} if measures[name].most is None else {"most": measures[name].most}),
                **{
                    database: {"median": _median(rounds), "rounds": list(rounds)}
                    for database, rounds in of.items()
                    if rounds
                },
            }
            for name, of in found.items()
        },
    }


def circumstances(servers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the machine, its load before the measurements, and the versions that figures are of."""
    return {
        "machine": {"cores": os.cpu_count(), "processor": _processor(), "system": platform.platform()},
        "load": round(os.getloadavg()[0], 1),
        "versions": {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            **{database: version_of(database, url) for database, url in (servers or {}).items() if url},
            **{name: _version(name) for name in ("perdure", *DRIVERS)},
        },
    }


def write(path: Path, text: str) -> None:
    """Write a file, and create its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((each.partition(":")[2].strip() for each in lines if each.startswith("model name")), platform.machine())
