"""The chart of a soak test: small panels with the figures over time."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.soak.judge import Point, rows, series
from tests.soak.samples import Sample
from tests.support.charts import Panel, Tick, svg

BUSIEST = 3  # tables that have a line of their own


def chart(title: str, samples: Sequence[Sample], deployments: Sequence[float]) -> str:
    """Draw all panels that have values; a dashed line is a deployment."""
    end_sec = max(samples[-1].at_sec, 1.0)
    ticks = [Tick(0, "0"), Tick(end_sec, f"{end_sec / 60:.1f} minutes", "end")]
    panels = [panel for panel in _panels(samples) if any(panel.lines.values())]
    return svg(title, [replace(panel, ticks=ticks, marks=deployments) for panel in panels])


def _panels(samples: Sequence[Sample]) -> Iterable[Panel]:
    def lines(*figures: str) -> dict[str, Sequence[Point]]:
        return {figure.removesuffix(" sec"): points for figure in figures if (points := series(samples, figure))}

    yield Panel("throughput per second", {"runs": series(samples, "runs per second"),
                                          "history rows": series(samples, "history rows per second")})  # fmt: skip
    yield Panel("runs in progress; load of the machine", lines("runs in progress", "load of the machine"))
    yield Panel("start of a run to its first step, seconds", lines("probe median sec", "probe max sec"))
    yield Panel("timers: delay after the due time, seconds", lines("timer lag median sec", "timer lag max sec"))
    oldest = {"long-lived worker": series(samples, "memory MB of the long-lived worker")}
    yield Panel("memory of workers, MB (gray: killed or replaced)", oldest, _others(samples))
    yield Panel("threads and files of the long-lived worker", {
        "threads": series(samples, "threads of the long-lived worker"),
        "files": series(samples, "files of the long-lived worker"),
    })  # fmt: skip
    yield Panel("memory of the server, MB", {"server": series(samples, "memory of the server MB")})
    yield Panel("connections", lines("connections"))
    busiest = sorted(samples[-1].rows, key=lambda table: -max(value for _, value in rows(samples, table)))[:BUSIEST]
    yield Panel("rows of the largest tables", {table: rows(samples, table) for table in busiest})
    yield Panel("size on disk, MB", lines("tables MB", "write-ahead log MB", "undo log MB"))


def _others(samples: Sequence[Sample]) -> list[list[Point]]:
    """The memory of each worker but the first, which lives as long as the test."""
    found: dict[int, list[Point]] = {}
    for sample in samples:
        for worker in sample.workers[1:]:
            found.setdefault(worker.pid, []).append((sample.at_sec, worker.memory_mb))
    return list(found.values())
