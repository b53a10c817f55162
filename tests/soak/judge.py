"""The judge: does a figure grow over the second half of the time by more than its limit?

The growth is the slope of the figure times the duration. The slope is the median of the slopes between all pairs of
samples (Theil and Sen), so single peaks after a kill do not count. Growth within three standard errors is noise; a long
test has less of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import median

from tests.soak.samples import Sample

Point = tuple[float, float]  # seconds, value

POINTS_MAX = 100  # more samples are thinned out: there are pairs of them all
POINTS_MIN = 10
NORMAL = 1.4826  # standard deviation of normal values by their median absolute deviation


@dataclass(frozen=True, slots=True)
class Limit:
    """By how much a figure may grow: by a part of its median, and by a fixed amount."""

    part: float
    fixed: float
    falls: bool = False  # a figure of which less is worse
    why: str = ""  # the reason for which it may grow

    def of(self, level: float) -> float:
        return self.part * abs(level) + self.fixed


LIMITS: Mapping[str, Limit] = {
    "runs per second": Limit(0.15, 0.2, falls=True),
    "history rows per second": Limit(0.15, 1, falls=True),
    "runs in progress": Limit(0.2, 10),
    "probe median sec": Limit(0.2, 0.1),
    "timer lag median sec": Limit(0.2, 0.1),
    "memory MB of the long-lived worker": Limit(0.03, 1.5, why="caches of runs and statements fill up"),
    "threads of the long-lived worker": Limit(0, 2),
    "files of the long-lived worker": Limit(0, 4),
    "connections": Limit(0.1, 3),
    "memory of the server MB": Limit(0.1, 8, why="buffers fill up to their fixed size"),
    "write-ahead log MB": Limit(0.1, 16, why="PostgreSQL recycles segments of 16 MB"),
    "undo log MB": Limit(0.1, 16),
    "rows": Limit(0.1, 200),
    "tables MB": Limit(0.15, 1),
}
ROWS = Limit(0.1, 50)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says about one figure."""

    figure: str
    level: float
    growth: float  # over the second half of the time
    limit: float
    falls: bool = False  # the figure falls by the growth
    why: str = ""

    @property
    def is_fine(self) -> bool:
        return self.growth <= self.limit

    def __str__(self) -> str:
        mark = "ok" if self.is_fine else "FALLS" if self.falls else "GROWS"
        why = f" ({self.why})" if self.why else ""
        change = -self.growth if self.falls else self.growth
        return f"{mark:5} {self.figure}: {self.level:,.3g}, change {change:+,.3g}, limit {self.limit:,.3g}{why}"


def judge(samples: Sequence[Sample]) -> list[Verdict]:
    """Judge all figures, and the rows of every table."""
    found = [_verdict(figure, series(samples, figure), limit) for figure, limit in LIMITS.items()]
    names = samples[-1].rows if samples else {}
    found += [_verdict(f"rows of {table}", rows(samples, table), ROWS) for table in names]
    return [verdict for verdict in found if verdict is not None]


def series(samples: Iterable[Sample], figure: str) -> list[Point]:
    """The values of a figure, where it has one."""
    return [(sample.at_sec, sample.figures[figure]) for sample in samples if figure in sample.figures]


def rows(samples: Iterable[Sample], table: str) -> list[Point]:
    """The number of rows of a table."""
    return [(sample.at_sec, sample.rows[table]) for sample in samples if table in sample.rows]


def growth(points: Sequence[Point]) -> float:
    """By how much the values grow over the whole time, without regard to peaks."""
    thin = points[:: max(1, len(points) // POINTS_MAX)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(thin, 2) if b[0] > a[0]]
    return median(slopes) * (thin[-1][0] - thin[0][0]) if slopes else 0.0


def noise(points: Sequence[Point]) -> float:
    """Three standard errors of the growth, if the values scatter around their trend independently."""
    slope, middle = growth(points) / (points[-1][0] - points[0][0]), median(at for at, _ in points)
    rest = [value - slope * (at - middle) for at, value in points]
    level = median(rest)
    return 3 * NORMAL * median(abs(value - level) for value in rest) * sqrt(12 / len(points))


def _verdict(figure: str, points: Sequence[Point], limit: Limit) -> Verdict | None:
    """None if there are too few points to judge."""
    half = [point for point in points if point[0] >= points[-1][0] / 2] if points else []
    if len(half) < POINTS_MIN:
        return None
    level = median(value for _, value in half)
    grown = -growth(half) if limit.falls else growth(half)
    return Verdict(figure, level, grown, limit.of(level) + noise(half), limit.falls, limit.why)
