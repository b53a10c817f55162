"""The chart of a soak test: small panels with the figures over time, as SVG that is readable in light and dark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from tests.soak.judge import Point, rows, series
from tests.soak.samples import Sample

WIDTH, HEIGHT = 380, 170  # of a panel
LEFT, TOP, RIGHT, BOTTOM = 48, 30, 12, 24
COLUMNS = 2
HEAD = 40
BUSIEST = 3  # tables that have a line of their own

STYLE = """
svg { font: 12px system-ui, sans-serif; background: #fff; }
text { fill: #1f2328; } .note { fill: #59636e; font-size: 11px; }
.grid { stroke: #d1d9e0; } .event { stroke: #d1d9e0; stroke-dasharray: 2 3; }
polyline { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
.l0 { stroke: #0969da; } .l1 { stroke: #bc4c00; } .l2 { stroke: #1a7f37; } .l3 { stroke: #8250df; }
.k0 { fill: #0969da; } .k1 { fill: #bc4c00; } .k2 { fill: #1a7f37; } .k3 { fill: #8250df; }
.thin { stroke: #8c959f; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; } text { fill: #f0f6fc; } .note { fill: #9198a1; }
  .grid, .event { stroke: #3d444d; } .thin { stroke: #656c76; }
  .l0 { stroke: #4493f8; } .l1 { stroke: #f0883e; } .l2 { stroke: #3fb950; } .l3 { stroke: #ab7df8; }
  .k0 { fill: #4493f8; } .k1 { fill: #f0883e; } .k2 { fill: #3fb950; } .k3 { fill: #ab7df8; }
}
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A title, lines by name, and lines that have no name."""

    title: str
    lines: Mapping[str, Sequence[Point]]
    thin: Sequence[Sequence[Point]] = ()


def chart(title: str, samples: Sequence[Sample], deployments: Sequence[float]) -> str:
    """Draw all panels that have values; a dashed line is a deployment."""
    panels = [panel for panel in _panels(samples) if any(panel.lines.values())]
    width, height = COLUMNS * WIDTH, HEAD + -(-len(panels) // COLUMNS) * HEIGHT
    end_sec = max(samples[-1].at_sec, 1.0)
    drawn = [
        f'<g transform="translate({number % COLUMNS * WIDTH} {HEAD + number // COLUMNS * HEIGHT})">'
        f"{_draw(panel, end_sec, deployments)}</g>"
        for number, panel in enumerate(panels)
    ]
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    heading = f'<text x="16" y="26" font-size="16" font-weight="600">{escape(title)}</text>'
    return "\n".join([opening, f"<style>{STYLE}</style>", heading, *drawn, "</svg>", ""])


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


def _draw(panel: Panel, end_sec: float, deployments: Sequence[float]) -> str:
    lines = [*panel.lines.values(), *panel.thin]
    top = _round_up(max((value for points in lines for _, value in points), default=0.0))

    def x(at_sec: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * at_sec / end_sec, 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * max(0.0, value) / top, 1)

    def line(points: Sequence[Point], style: str) -> str:
        places = " ".join(f"{x(at)},{y(value)}" for at, value in points)
        return f'<polyline class="{style}" points="{places}"/>'

    parts = [f'<text x="{LEFT}" y="14">{escape(panel.title)}</text>']
    for value in (0, top / 2, top):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text class="note" x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:,g}</text>')
    parts += [f'<line class="event" x1="{x(at)}" x2="{x(at)}" y1="{TOP}" y2="{y(0)}"/>' for at in deployments]
    parts.append(f'<text class="note" x="{LEFT}" y="{HEIGHT - 8}">0</text>')
    minutes = f"{end_sec / 60:.1f} minutes"
    parts.append(f'<text class="note" x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{minutes}</text>')
    parts += [line(points, "thin") for points in panel.thin]
    parts += [line(points, f"l{number % 4}") for number, points in enumerate(panel.lines.values())]
    return "".join([*parts, _key(panel)])


def _key(panel: Panel) -> str:
    """The names of the lines, in their colours, if there are several."""
    if len(panel.lines) + len(panel.thin) < 2:
        return ""
    names = [
        f'<tspan class="k{number % 4}" dx="{8 if number else 0}">{escape(name)}</tspan>'
        for number, name in enumerate(panel.lines)
    ]
    return f'<text class="note" x="{LEFT}" y="26">{"".join(names)}</text>'


def _round_up(value: float) -> float:
    """The next number with one or two digits that halves nicely."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return next(unit * step for step in (1, 2, 3, 4, 5, 6, 8, 10) if unit * step >= value)
