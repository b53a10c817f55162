"""The figures of perdure and of its peers as a table, and as JSON with the versions and the machine they are of."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.engine.measures import MEASURES, Figures
from benchmarks.engine.report import cell, number, ratios
from benchmarks.peers.environments import PEERS
from tests.support.charts import Bar, BarPanel, bar_svg

OURS = "perdure"
Rounds = Sequence[Figures]
Found = Mapping[str, Mapping[str, Rounds]]  # of one measure, by database and system; one for each round
NAME, COLUMN, RATIO = 24, 24, 9
DRAWN = ("ten-step", "latency")
SHOWN = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MariaDB"}


def heading(databases: Sequence[str]) -> str:
    """Return the first line of the table."""
    return f"{'':{NAME}}" + "".join(f"{database:>{COLUMN}}{'ratio':>{RATIO}}" for database in databases)


def lines(name: str, found: Found) -> list[str]:
    """Return the lines of a measure: one for each system, with its medians and ratios on each database."""
    measure = MEASURES[name]
    systems = dict.fromkeys(system for of in found.values() for system in of)
    table = [_line(name, system, found) for system in systems]
    return [f"{measure.what}, {measure.unit}", *table]


def _line(name: str, system: str, found: Found) -> str:
    version = f" {PEERS[system].version}" if system in PEERS else ""
    text = f"{f'  {system}{version}':{NAME}}"
    for of in found.values():
        rounds = of.get(system)
        figures = "" if rounds is None else cell([each["value"] for each in rounds]) if rounds else "failed"
        compared = _times(ratio(name, of[OURS], rounds)) if rounds and system != OURS else ""
        text += f"{figures:>{COLUMN}}{compared:>{RATIO}}"
    return text.rstrip()


def _times(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def ratio(name: str, ours: Rounds, theirs: Rounds) -> float:
    """Return how many times better perdure is: the median of the rounds, each of which may meet a slower machine."""
    return median(ratios(name, ours, theirs))


def notes(peers: Sequence[str]) -> list[str]:
    """Return what a reader of the table should know about each peer."""
    return ["ratio: above 1 perdure is better", *(f"{peer}: {PEERS[peer].note}" for peer in peers)]


def as_json(found: Mapping[str, Found], peers: Sequence[str], around: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, with the medians, the ratios, the versions and the machine."""
    return {
        **around,
        "peers": {
            peer: {
                "version": PEERS[peer].version,
                "own_storage": PEERS[peer].own_storage,
                "share_of_the_work": PEERS[peer].share,
                "installed": [*PEERS[peer].requirements, *PEERS[peer].npm],
                "note": PEERS[peer].note,
            }
            for peer in peers
        },
        "measures": {
            name: {
                "what": MEASURES[name].what,
                "unit": MEASURES[name].unit,
                "more_is_better": MEASURES[name].more_is_better,
                "databases": {
                    database: {
                        system: _summary(name, of[OURS], rounds, compared=system != OURS)
                        for system, rounds in of.items()
                        if rounds
                    }
                    for database, of in databases.items()
                },
            }
            for name, databases in found.items()
        },
    }


def _summary(name: str, ours: Rounds, rounds: Rounds, *, compared: bool) -> dict[str, Any]:
    summary: dict[str, Any] = {"median": median(each["value"] for each in rounds), "rounds": list(rounds)}
    return summary | ({"ratio": ratio(name, ours, rounds)} if compared else {})


def chart(written: Mapping[str, Any]) -> str:
    """Draw the medians of `as_json` that a reader compares first, with a panel for each measure and database."""
    panels = [
        _panel(measure, database, systems, written["peers"])
        for measure in (written["measures"][name] for name in DRAWN if name in written["measures"])
        for database, systems in measure["databases"].items()
    ]
    return bar_svg("perdure and other systems, on the same machine", panels)


def _storage_note(system: str, peers: Mapping[str, Any]) -> str:
    return ", files of its own" if system in peers and peers[system]["own_storage"] else ""


def _panel(measure: Mapping[str, Any], database: str, systems: Mapping[str, Any], peers: Mapping[str, Any]) -> BarPanel:
    better = "more" if measure["more_is_better"] else "less"
    bars = [
        Bar(
            f"{system} {peers[system]['version']}" if system in peers else system,
            summary["median"],
            f"{number(summary['median'])} {measure['unit']}{_storage_note(system, peers)}",
            emphasized=system == OURS,
        )
        for system, summary in systems.items()
    ]
    return BarPanel(f"{SHOWN[database]}: {measure['what']} ({better} is better)", bars)
