"""Report the results as a table and as JSON, with the target of each ratio."""

from collections.abc import Sequence
from typing import Any

from benchmarks.storage.rounds import Result, middle

GAIN = 4.0  # target for batched steps compared with single ones, at the maximum of callers
GAIN_CALLERS = 64

HEADER = (
    f"{'database':10}  {'case':26}  {'callers':>7}  {'raw/s':>8}  {'ours/s':>8}  {'ratio':>5}  {'min':>5}  {'max':>5}  "
    f"{'raw µs':>7}  {'ours µs':>7}  target"
)


def line(result: Result) -> str:
    """Return one line of the table. The µs are this process's CPU time per item, without the server's."""
    raw, ours, (low, high) = middle(result.raw), middle(result.ours), result.spread
    return (
        f"{result.database:10}  {result.case.title:26}  {result.callers:>7}  {raw.per_second:>8,.0f}  "
        f"{ours.per_second:>8,.0f}  {result.ratio:>5.2f}  {low:>5.2f}  {high:>5.2f}  {raw.cpu_us:>7.1f}  "
        f"{ours.cpu_us:>7.1f}  {_verdict(result.ratio, result.target)}"
    )


def gains(results: Sequence[Result]) -> list[tuple[str, float]]:
    """Return for each database how many times faster batched steps are than single ones."""
    found = {(result.database, result.case.name): result for result in results if result.callers == GAIN_CALLERS}
    databases = dict.fromkeys(result.database for result in results)
    return [
        (name, middle(found[name, "batch"].ours).per_second / middle(found[name, "step"].ours).per_second)
        for name in databases
        if (name, "batch") in found and (name, "step") in found
    ]


def gain_line(database: str, gain: float) -> str:
    """Return one line below the table."""
    return f"{database:10}  batched / single steps at {GAIN_CALLERS} callers: {gain:.1f} x  {_verdict(gain, GAIN)}"


def missed(results: Sequence[Result]) -> bool:
    """Return whether any target was missed."""
    return any(result.ratio < result.target for result in results) or any(gain < GAIN for _, gain in gains(results))


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return all measurements, round by round."""
    return {
        "results": [
            {
                "database": result.database,
                "case": result.case.name,
                "callers": result.callers,
                "ratio": result.ratio,
                "target": result.target,
                "raw_per_second": [speed.per_second for speed in result.raw],
                "ours_per_second": [speed.per_second for speed in result.ours],
                "raw_cpu_us": middle(result.raw).cpu_us,
                "ours_cpu_us": middle(result.ours).cpu_us,
            }
            for result in results
        ],
        "gains": [{"database": name, "gain": gain, "target": GAIN} for name, gain in gains(results)],
    }


def _verdict(found: float, target: float) -> str:
    return f"{target:.1f} {'pass' if found >= target else 'MISS'}"
