"""The curves: what grows, to which sizes, and what is measured at each."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.support.databases import DATABASES


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


_BESIDE = (0, 10_000, 100_000, 1_000_000)
_CLAIMS = (("empty", "searches without result"), ("refused", "leases refused"), ("leases", "of leases requested"))

CURVES = {
    "finished": Curve("ten-step workflows beside N finished runs", "µs/step", _BESIDE, copies="finished"),
    "waiting": Curve("ten-step workflows beside N waiting runs", "µs/step", _BESIDE, copies="waiting"),
    "park": Curve("parking N waiting runs", "µs/run", (1000, 5000, 10_000, 50_000)),
    "where": Curve(
        "N events that runs select with where=", "µs/event", (1000, 3000, 10_000), also=(("times_to", "times to="),)
    ),
    "release": Curve("N waiting runs released by N events", "µs/run", (1000, 10_000, 50_000)),
    "broadcast": Curve("one event to N waiting runs", "µs/run", (500, 1000, 5000)),
    "gather": Curve("a run with N steps at once", "µs/step", (1000, 5000, 20_000)),
    "steps": Curve("a run with N steps in a row", "µs/step", (1000, 5000, 20_000)),
    "waits": Curve("a run with N waits in a row", "µs/wait", (500, 1000, 5000)),
    "memory": Curve("memory of N resident waiting runs", "bytes/run", (1000, 10_000, 100_000)),
    "memory-parked": Curve("memory of N waiting runs not resident", "bytes/run", (1000, 10_000, 100_000)),
    "interrupted": Curve("N runs after kill -9, beyond the lease", "s", (1000, 10_000), per_item=False),
    "workers": Curve("N worker processes", "steps/s", (1, 2, 4), also=_CLAIMS, databases=("postgresql",)),
}
