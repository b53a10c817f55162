"""Define the cases: what the callers do, from which state, and the target ratio to the driver's speed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.storage import data
from benchmarks.storage.sides import PAGE

BATCH = 64
CALLERS_MAX = data.INSTANCES // BATCH

# What a round can use up in a second on the faster side; a round that has used up everything ends early.
_STEPS_MAX = 40_000
_BATCHED_MAX = 160_000
_PAGES_MAX = 20_000

Inputs = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """Describe one case; its name is that of a method of both sides."""

    name: str
    title: str
    state: data.State
    prepare: Callable[[int, float], Inputs]  # for so many callers and seconds: the inputs of each caller, one by one
    size: int = 1  # items per call

    def target(self, database: str, callers: int) -> float:
        """Return the minimum ratio to the driver."""
        return 0.6 if self.size > 1 or (database, callers) == ("sqlite", 1) else 0.7


def _steps(callers: int, seconds: float) -> Inputs:
    """Give every caller an instance of its own, as in a run."""
    count = _share(_STEPS_MAX, callers, seconds)
    return [[data.step(caller, n) for n in range(count)] for caller in range(callers)]


def _batches(callers: int, seconds: float) -> Inputs:
    """Give every caller 64 instances, which all make a step in each batch."""
    count = _share(_BATCHED_MAX // BATCH, callers, seconds)
    return [
        [[data.step(n, batch) for n in range(caller * BATCH, (caller + 1) * BATCH)] for batch in range(count)]
        for caller in range(callers)
    ]


def _instances(callers: int, seconds: float) -> Inputs:
    """Distribute the instances, each once."""
    return [[data.instance_id(n) for n in range(caller, data.INSTANCES, callers)] for caller in range(callers)]


def _messages(callers: int, seconds: float) -> Inputs:
    """Distribute the messages, each once."""
    return [[data.message(n) for n in range(caller, data.INSTANCES, callers)] for caller in range(callers)]


def _pages(callers: int, seconds: float) -> Inputs:
    """Let every caller read pages from a different start, as often as there is time."""
    pages = [data.place(n) for n in range(data.INSTANCES - PAGE, PAGE, -PAGE)]
    often = 1 + round(seconds * _PAGES_MAX) // len(pages)
    return [[*pages[caller:], *pages[:caller]] * often for caller in range(callers)]


def _share(most: int, callers: int, seconds: float) -> int:
    return 20 + round(most * seconds / min(callers, 4))


CASES = (
    Case("step", "single fenced step", "leased", _steps),
    Case("batch", f"batched steps, {BATCH} each", "leased", _batches, BATCH),
    Case("acquire", "acquire a free lease", "free", _instances),
    Case("deliver", "deliver to a waiting one", "waiting", _messages),
    Case("page", f"list page of {PAGE}", "free", _pages),
)
