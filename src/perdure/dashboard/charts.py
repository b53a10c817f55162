"""Charts as SVG that the server draws: attributes and classes only, so that no style is inline."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from markupsafe import Markup

from perdure.dashboard.timeline import IDLE, Row, Scale
from perdure.model.records import EndedInstance
from perdure.model.states import WorkflowStatus
from perdure.views.durations import short

BUCKETS = 60
WIDTH, HEIGHT = 600.0, 90.0
STEPS_SEC = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1440)  # of a bucket
MARK = 3.0
LOG_FROM = 100.0  # times the shortest: a longest that would make a linear chart of durations flat
OPEN = ("running", "waiting", "retrying", "queued", "compensating")


def bucketed(ended: Sequence[EndedInstance], now: datetime, complete_since: datetime) -> "Buckets":
    """Return the ends of runs in 60 buckets of a round length: all are covered completely, and the first has an end."""
    covered = max((now - complete_since).total_seconds(), 1.0)
    used = (now - ended[-1].ended_at).total_seconds() if ended else 0.0
    fitting = [each for each in STEPS_SEC if each * BUCKETS <= covered] or [STEPS_SEC[0]]
    enough = [each for each in fitting if each * BUCKETS >= used] or fitting[-1:]
    return Buckets(ended, now, timedelta(seconds=enough[0]))


class Buckets:
    """The ends of runs by time."""

    def __init__(self, ended: Sequence[EndedInstance], now: datetime, length: timedelta) -> None:
        self.length, self.span = length, length * BUCKETS
        self.begin = now - self.span
        self.good = [0] * BUCKETS
        self.bad = [0] * BUCKETS
        self.cancelled = self.recurred = 0
        times: list[list[float]] = [[] for _ in range(BUCKETS)]
        for each in ended:
            number = int((each.ended_at - self.begin) / length)
            if not 0 <= number < BUCKETS:
                continue
            failed = each.status is WorkflowStatus.FAILED
            (self.bad if failed else self.good)[number] += 1
            self.cancelled += each.status is WorkflowStatus.CANCELLED
            self.recurred += each.status is WorkflowStatus.RECURRED
            times[number].append((each.ended_at - each.started_at).total_seconds())
        self.half = [percentile(each, 0.5) for each in times]
        self.most = [percentile(each, 0.95) for each in times]

    @property
    def total(self) -> int:
        """Return the number of runs that ended."""
        return sum(self.good) + sum(self.bad)

    @property
    def completed(self) -> int:
        """Return the number of runs that completed."""
        return self.total - self.failed - self.cancelled - self.recurred

    @property
    def rate(self) -> str:
        """Return the number of ends per second, or per minute if it is low."""
        per_sec = self.total / self.span.total_seconds()
        return f"{per_sec:,.1f} per second" if per_sec >= 1 else f"{per_sec * 60:,.1f} per minute"

    @property
    def peak(self) -> int:
        """Return the largest number of ends in a bucket: the top of the chart."""
        return max(good + bad for good, bad in zip(self.good, self.bad, strict=True))

    @property
    def longest(self) -> float:
        """Return the longest time that 95 % took in a bucket: the top of the chart."""
        return max((each for each in self.most if each is not None), default=0.0)

    @property
    def shortest(self) -> float:
        """Return the shortest median of a bucket, at least a millisecond: the bottom of a logarithmic chart."""
        return max(min((each for each in self.half if each is not None), default=0.0), 0.001)

    @property
    def is_logarithmic(self) -> bool:
        """Return whether durations differ so much that only a logarithmic scale shows all of them."""
        return self.longest > LOG_FROM * self.shortest

    def level(self, seconds: float) -> float:
        """Return how high a duration is drawn, from 0 to 1."""
        if self.is_logarithmic:
            return math.log(max(seconds, self.shortest) / self.shortest) / math.log(self.longest / self.shortest)
        return seconds / (self.longest or 1.0)

    @property
    def failed(self) -> int:
        """Return the number of runs that failed."""
        return sum(self.bad)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value that this share of the values does not exceed; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def throughput(buckets: Buckets) -> Markup:
    """Draw how many runs ended in each bucket; failed ones are hatched, on top."""
    most = max((good + bad for good, bad in zip(buckets.good, buckets.bad, strict=True)), default=0) or 1
    width, shapes = WIDTH / BUCKETS, []
    for number, (good, bad) in enumerate(zip(buckets.good, buckets.bad, strict=True)):
        x, low, high = number * width, HEIGHT * good / most, HEIGHT * bad / most
        title = Markup("<title>{}</title>").format(
            f"{buckets.begin + number * buckets.length:%H:%M:%S}: {good} ended otherwise, {bad} failed"
        )
        shapes.append(
            Markup('<g>{}<rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/>').format(
                title, x, width, HEIGHT
            )
        )
        shapes.append(_rect("c-good", x + 1, HEIGHT - low, width - 2, low))
        shapes.append(_rect("c-bad", x + 1, HEIGHT - low - high, width - 2, high) + Markup("</g>"))
    return _chart("Runs that ended", shapes)


def latency(buckets: Buckets) -> Markup:
    """Draw how long runs took: a line for the median, and one for the 95th percentile."""
    width, shapes = WIDTH / BUCKETS, []
    for kind, values in (("c-most", buckets.most), ("c-half", buckets.half)):
        points = [
            f"{(number + 0.5) * width:.1f},{HEIGHT - 4 - (HEIGHT - 8) * buckets.level(value):.1f}"
            for number, value in enumerate(values)
            if value is not None
        ]
        shapes.append(Markup('<polyline class="{}" points="{}"/>').format(kind, " ".join(points)))
        shapes += [
            Markup('<circle class="{}" cx="{}" cy="{}" r="2"/>').format(kind, *point.split(",")) for point in points
        ]
    for number, (half, high) in enumerate(zip(buckets.half, buckets.most, strict=True)):
        if half is not None and high is not None:
            shapes.append(
                Markup(
                    '<g><title>{}</title><rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/></g>'
                ).format(
                    f"{buckets.begin + number * buckets.length:%H:%M:%S}: median {short(half)}, "
                    f"95 % within {short(high)}",
                    number * width,
                    width,
                    HEIGHT,
                )
            )
    return _chart("How long runs took", shapes)


def _chart(name: str, shapes: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {:.0f} {:.0f}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, name, Markup("").join(shapes))


def _rect(kind: str, x: float, y: float, width: float, height: float) -> Markup:
    if height <= 0:
        return Markup("")
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"{}/>').format(
        kind, x, y, width, height, _fill(kind)
    )


def _fill(kind: str) -> Markup:
    """Return the attribute for what has a pattern; base.html defines the patterns."""
    pattern = {
        "wait": "p-wait",
        "child": "p-child",
        "undo": "p-undo",
        "c-bad": "p-bad",
        "failed": "p-bad",
        "b-gap": "p-gap",
    }.get(kind)
    return Markup("") if pattern is None else Markup(' fill="url(#{})"').format(pattern)


def bar(row: Row, scale: Scale) -> Markup:
    """Draw what a step did over time."""
    shapes = []
    for gap in scale.gaps:
        shapes.append(_rect("b-gap", gap.x, 0, gap.width, 20))
    for part in row.parts:
        begin, end = scale.place(part.begin), scale.place(part.end)
        thin = part.phase.value in ("queue", "pause")
        width = max(end - begin, MARK)
        left = min(begin, 1000 - width)
        open_end = part is row.parts[-1] and row.status in OPEN
        failed = row.is_failed and part is row.parts[-1] and part.phase not in IDLE
        shape = "failed" if failed else part.phase.value
        kind = f"b-{shape}" + (" b-open" if open_end else "")
        title = Markup("<title>{}</title>").format(f"{PHASES[part.phase.value]}: {short(part.end - part.begin)}")
        shapes.append(
            Markup('<g>{}<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"{}/></g>').format(
                title, kind, left, 8 if thin else 3, width, 4 if thin else 14, _fill(shape)
            )
        )
    for at in row.failures:
        x = min(max(scale.place(at), 2.0), 998.0)
        shapes.append(Markup('<g><title>failed attempt</title><path class="b-mark" d="M{:.1f} 0V20"/></g>').format(x))
    return Markup(
        '<svg class="bar" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(f"{row.name}: {row.status}, {short(row.duration)}", Markup("").join(shapes))


PHASES = {
    "run": "running",
    "wait": "waiting for an event or a time",
    "pause": "pause before the next attempt",
    "child": "waiting for a child",
    "undo": "compensation",
    "queue": "waiting for a worker",
}
