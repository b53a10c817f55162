"""The curves as a table, as JSON, and as a chart."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.engine.measures import Figures
from benchmarks.engine.report import number
from benchmarks.growth.curves import CURVES, Curve, Goal
from tests.support.charts import Panel, Tick, svg

Points = Mapping[int, Sequence[Figures]]  # the rounds by size
Found = Mapping[str, Mapping[str, Points]]  # by curve and database
NAME, COLUMN, RATIO = 44, 14, 8


def heading(databases: Sequence[str]) -> str:
    """Return the first line of the table."""
    return f"{'':{NAME}}" + "".join(f"{database:>{COLUMN}}{'ratio':>{RATIO}}" for database in databases)


def lines(name: str, databases: Sequence[str], found: Mapping[str, Points]) -> list[str]:
    """Return the lines of a curve: one for each size, with the median and its ratio to that of the first size."""
    curve = CURVES[name]
    table = [f"{curve.what}, {curve.unit}"]
    for size in sorted({size for points in found.values() for size in points}):
        table.append(_line(f"  {size:,}", [_cells(curve, found.get(database, {}), size) for database in databases]))
        for key, text in curve.also:
            cells = [(_figure(found.get(database, {}), size, key), "") for database in databases]
            table.append(_line(f"  {'':8}{text}", cells))
    if curve.goal is not None:
        cells = [_verdict(curve.goal, found.get(database, {})) for database in databases]
        table.append(_line(f"  goal: {curve.goal.what}", cells))
    return table


def _verdict(goal: Goal, points: Points) -> tuple[str, str]:
    """Return what a goal is about, at the largest size, and whether it is reached."""
    reached = _reached(goal, points)
    if reached is None:
        return "–", ""
    return f"{reached:.2f}" if goal.figure != "value" else number(reached), "met" if reached <= goal.most else "missed"


def _reached(goal: Goal, points: Points) -> float | None:
    """Return the figure that a goal limits; None if there is no size to compare the largest one with."""
    if goal.figure is not None:
        return _median(points[max(points)], goal.figure) if points else None
    return _ratio(points, max(points)) if len(points) > 1 else None


def _line(text: str, cells: Sequence[tuple[str, str]]) -> str:
    return (f"{text:{NAME}}" + "".join(f"{value:>{COLUMN}}{ratio:>{RATIO}}" for value, ratio in cells)).rstrip()


def _cells(curve: Curve, points: Points, size: int) -> tuple[str, str]:
    ratio = _ratio(points, size) if curve.per_item and size in points else None
    return _figure(points, size, "value"), "" if ratio is None else f"{ratio:.2f}"


def _figure(points: Points, size: int, key: str) -> str:
    return number(_median(points[size], key)) if size in points else "–"


def _median(rounds: Sequence[Figures], key: str = "value") -> float:
    return median(figures[key] for figures in rounds)


def _ratio(points: Points, size: int) -> float | None:
    first = _median(points[min(points)])
    return _median(points[size]) / first if first else None


def as_json(found: Found, circumstances: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, with the medians, the ratios, the goals, the versions and the machine.

    The latter are stated for each curve, because the curves of a file may be measured one by one.
    """
    return {
        "curves": {
            name: {
                "what": CURVES[name].what,
                "unit": CURVES[name].unit,
                **circumstances,
                **({} if (goal := CURVES[name].goal) is None else {"goal": _goal_as_json(goal, of)}),
                "points": {database: _points_as_json(CURVES[name], points) for database, points in of.items()},
            }
            for name, of in found.items()
        },
    }


def _goal_as_json(goal: Goal, of: Mapping[str, Points]) -> dict[str, Any]:
    return {
        "what": goal.what,
        "most": goal.most,
        "reached": {database: _reached(goal, points) for database, points in of.items()},
    }


def _points_as_json(curve: Curve, points: Points) -> dict[str, Any]:
    return {
        str(size): {"median": _median(rounds)}
        | ({"ratio": _ratio(points, size)} if curve.per_item else {})
        | {"rounds": list(rounds)}
        for size, rounds in points.items()
    }


def chart(written: Mapping[str, Any]) -> str:
    """Draw a panel for each curve of `as_json`, with a line for each database. A flat line means linear growth."""
    return svg("Cost of one as there are N", [_panel(written["curves"][name]) for name in written["curves"]])


def _panel(curve: Mapping[str, Any]) -> Panel:
    sizes = sorted({int(size) for points in curve["points"].values() for size in points})
    ticks = [Tick(at, f"{size:,}", _anchor(at, len(sizes))) for at, size in enumerate(sizes)]
    drawn = {
        database: [(float(sizes.index(int(size))), point["median"]) for size, point in points.items()]
        for database, points in curve["points"].items()
    }
    return Panel(f"{curve['what']}, {curve['unit']}", drawn, ticks=ticks)


def _anchor(at: int, count: int) -> Any:
    return "start" if at == 0 else "end" if at == count - 1 else "middle"
