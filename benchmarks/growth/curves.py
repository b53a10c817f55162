"""The curves: what grows, to which sizes, and what is measured at each."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.support.databases import DATABASES


class Goal(NamedTuple):
    """The most that a figure may be at the largest size; without a figure, the ratio to the first size."""

    most: float
    what: str
    figure: str | None = None


class Curve(NamedTuple):
    """What is measured at each size. A curve with `copies` measures throughput beside so many runs of that kind.

    `also` has more figures that the table shows, with their names in it. A curve that is not `per_item` has no ratios.
    """

    what: str
    unit: str
    sizes: Sequence[int]
    copies: str | None = None
    also: Sequence[tuple[str, str]] = ()
    per_item: bool = True
    databases: Sequence[str] = DATABASES
    goal: Goal | None = None


_BESIDE = (0, 10_000, 100_000, 1_000_000)
_FAST_BESIDE = Goal(1 / 0.9, "at least 0.9 of the throughput")
# With ten times as many, a quadratic cost is ten times as high; garbage collections and caches can add a half to any.
_LINEAR = Goal(2.0, "linear")
_CPU = (("cpu_us", "CPU time of the process, µs"),)
_CLAIMS = (("empty", "searches without result"), ("refused", "leases refused"), ("leases", "of leases requested"))

CURVES = {
    "finished": Curve(
        "ten-step workflows beside N finished runs", "µs/step", _BESIDE, copies="finished", goal=_FAST_BESIDE
    ),
    "waiting": Curve(
        "ten-step workflows beside N waiting runs", "µs/step", _BESIDE, copies="waiting", goal=_FAST_BESIDE
    ),
    "park": Curve(
        "parking N waiting runs",
        "µs/run",
        (1000, 5000, 10_000, 50_000),
        also=_CPU,
        goal=Goal(1.1, "as cheap as the first"),
    ),
    "where": Curve(
        "N events that runs select with where=",
        "µs/event",
        (1000, 3000, 10_000),
        also=(("times_to", "times to="),),
        goal=Goal(2.0, "at most twice the cost of to=", "times_to"),
    ),
    "release": Curve("N waiting runs released by N events", "µs/run", (1000, 10_000, 50_000), also=_CPU, goal=_LINEAR),
    "broadcast": Curve("one event to N waiting runs", "µs/run", (500, 1000, 5000), also=_CPU, goal=_LINEAR),
    "gather": Curve("a run with N steps at once", "µs/step", (1000, 5000, 20_000), also=_CPU, goal=_LINEAR),
    "steps": Curve("a run with N steps in a row", "µs/step", (1000, 5000, 20_000), also=_CPU, goal=_LINEAR),
    "replay": Curve("the replay of N steps after a takeover", "µs/step", (1000, 5000, 20_000), also=_CPU, goal=_LINEAR),
    "rollback": Curve("compensating N steps of a run", "µs/step", (500, 1000, 5000), also=_CPU, goal=_LINEAR),
    "waits": Curve("a run with N waits in a row", "µs/wait", (500, 1000, 5000), also=_CPU, goal=_LINEAR),
    "waits-at-once": Curve("a run with N waits at once", "µs/wait", (500, 1000, 5000), also=_CPU, goal=_LINEAR),
    "memory": Curve(
        "memory of N resident waiting runs",
        "bytes/run",
        (1000, 10_000, 100_000),
        goal=Goal(4096, "at most 4 KB", "value"),
    ),
    "memory-parked": Curve(
        "memory of N waiting runs not resident",
        "bytes/run",
        (1000, 10_000, 100_000),
        goal=Goal(300, "at most 300 bytes", "value"),
    ),
    "interrupted": Curve(
        "N runs after kill -9, beyond the lease",
        "s",
        (1000, 10_000),
        per_item=False,
        goal=Goal(10, "at most 10 s", "value"),
    ),
    "workers": Curve("N worker processes", "steps/s", (1, 2, 4), also=_CLAIMS, databases=("postgresql",)),
}
