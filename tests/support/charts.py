"""Charts of lines or bars in small panels, as SVG that is readable in light and dark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import Literal

Point = tuple[float, float]

WIDTH, HEIGHT = 380, 170  # of a panel
LEFT, TOP, RIGHT, BOTTOM = 48, 30, 12, 24
COLUMNS = 2
HEAD = 40
NAMES, VALUES, BAR_HEIGHT = 108, 160, 22  # of bars: the room for names and values, and the distance of two

STYLE = """
svg { font: 12px system-ui, sans-serif; background: #fff; }
text { fill: #1f2328; } .note { fill: #59636e; font-size: 11px; }
.grid { stroke: #d1d9e0; } .event { stroke: #d1d9e0; stroke-dasharray: 2 3; }
polyline { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
.l0 { stroke: #0969da; } .l1 { stroke: #bc4c00; } .l2 { stroke: #1a7f37; } .l3 { stroke: #8250df; }
.k0 { fill: #0969da; } .k1 { fill: #bc4c00; } .k2 { fill: #1a7f37; } .k3 { fill: #8250df; }
.thin { stroke: #8c959f; stroke-width: 1; }
.bar { fill: #afb8c1; } .bar.own { fill: #0969da; } .own { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; } text { fill: #f0f6fc; } .note { fill: #9198a1; }
  .grid, .event { stroke: #3d444d; } .thin { stroke: #656c76; } .bar { fill: #656c76; } .bar.own { fill: #4493f8; }
  .l0 { stroke: #4493f8; } .l1 { stroke: #f0883e; } .l2 { stroke: #3fb950; } .l3 { stroke: #ab7df8; }
  .k0 { fill: #4493f8; } .k1 { fill: #f0883e; } .k2 { fill: #3fb950; } .k3 { fill: #ab7df8; }
}
"""


@dataclass(frozen=True, slots=True)
class Tick:
    """A label below the horizontal axis."""

    at: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(frozen=True, slots=True)
class Panel:
    """A title, lines by name, lines that have no name, labels of the horizontal axis, and dashed vertical marks."""

    title: str
    lines: Mapping[str, Sequence[Point]]
    thin: Sequence[Sequence[Point]] = ()
    ticks: Sequence[Tick] = ()
    marks: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its name to the left and its value, as text, to the right."""

    name: str
    value: float
    text: str
    emphasized: bool = False


@dataclass(frozen=True, slots=True)
class BarPanel:
    """A title, and bars below each other."""

    title: str
    bars: Sequence[Bar]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Draw panels side by side below a title. The horizontal axis of each ends at its last tick."""
    return _sheet(title, [_draw(panel) for panel in panels], HEIGHT)


def bar_svg(title: str, panels: Sequence[BarPanel]) -> str:
    """Draw panels of bars side by side below a title. The longest bar of each ends where the others can be compared."""
    most = max((len(panel.bars) for panel in panels), default=0)
    return _sheet(title, [_draw_bars(panel) for panel in panels], TOP + most * BAR_HEIGHT + BOTTOM)


def _sheet(title: str, panels: Sequence[str], panel_height: int) -> str:
    width, height = COLUMNS * WIDTH, HEAD + -(-len(panels) // COLUMNS) * panel_height
    drawn = [
        f'<g transform="translate({number % COLUMNS * WIDTH} {HEAD + number // COLUMNS * panel_height})">{panel}</g>'
        for number, panel in enumerate(panels)
    ]
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    heading = f'<text x="16" y="26" font-size="16" font-weight="600">{escape(title)}</text>'
    return "\n".join([opening, f"<style>{STYLE}</style>", heading, *drawn, "</svg>", ""])


def _draw_bars(panel: BarPanel) -> str:
    longest = max((bar.value for bar in panel.bars), default=0.0) or 1.0
    room = WIDTH - NAMES - VALUES - RIGHT
    parts = [f'<text x="16" y="14">{escape(panel.title)}</text>']
    for number, bar in enumerate(panel.bars):
        y, length = TOP + number * BAR_HEIGHT, max(1.0, round(room * bar.value / longest, 1))
        own = " own" if bar.emphasized else ""
        middle = y + BAR_HEIGHT // 2 + 2
        parts += [
            f'<text class="note{own}" x="{NAMES - 8}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>',
            f'<rect class="bar{own}" x="{NAMES}" y="{y}" width="{length:g}" height="{BAR_HEIGHT - 6}" rx="2"/>',
            f'<text class="note{own}" x="{NAMES + length + 6:g}" y="{middle}">{escape(bar.text)}</text>',
        ]
    return "".join(parts)


def _draw(panel: Panel) -> str:
    lines = [*panel.lines.values(), *panel.thin]
    top = _round_up(max((value for points in lines for _, value in points), default=0.0))
    end = max((tick.at for tick in panel.ticks), default=0.0) or 1.0

    def x(at: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * at / end, 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * max(0.0, value) / top, 1)

    def line(points: Sequence[Point], style: str) -> str:
        places = " ".join(f"{x(at)},{y(value)}" for at, value in points)
        return f'<polyline class="{style}" points="{places}"/>'

    def label(tick: Tick) -> str:
        anchor = "" if tick.anchor == "start" else f' text-anchor="{tick.anchor}"'
        return f'<text class="note" x="{x(tick.at):g}" y="{HEIGHT - 8}"{anchor}>{escape(tick.text)}</text>'

    parts = [f'<text x="{LEFT}" y="14">{escape(panel.title)}</text>']
    for value in (0, top / 2, top):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text class="note" x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:,g}</text>')
    parts += [f'<line class="event" x1="{x(at)}" x2="{x(at)}" y1="{TOP}" y2="{y(0)}"/>' for at in panel.marks]
    parts += map(label, panel.ticks)
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
