"""What a rig is, and the table of all of them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

# One line a rig: its name and the module that holds its `RIG`. Imported by name only when it is asked for, since some
# rigs need tools that others can do without.
RIGS: Mapping[str, str] = {
    "kills": "tests.chaos.kills",
    "zombies": "tests.chaos.zombies",
    "crashes": "tests.chaos.crashes",
    "wire": "tests.chaos.wire",
    "skew": "tests.chaos.skew",
    "power": "tests.chaos.power",
    "disk": "tests.chaos.disk",
    "model": "tests.chaos.model",
    "engine-model": "tests.chaos.engine_model",
    "failover": "tests.chaos.failover",
    "faults": "tests.chaos.faults",
}


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a rig: small enough to repeat alone."""

    backend: str  # what the rig names, mostly "sqlite", "postgresql" or "mysql"
    seed: int  # everything random in the round comes from it
    count: int  # how many episodes are asked for
    folder: Path  # empty, for the round alone


@dataclass(slots=True)
class Outcome:
    """What a round did."""

    done: int  # episodes really played
    wrong: list[str] = field(default_factory=list)  # every violation, as a sentence
    figures: dict[str, float] = field(default_factory=dict)  # added up over rounds; of `*_max_*` the highest counts


@dataclass(frozen=True, slots=True)
class Rig:
    """A way to do harm, and how much of it is asked for."""

    name: str
    unit: str  # what an episode is, in the plural
    goals: Mapping[str, int]  # of the long form, by backend
    per_round: int
    play: Callable[[Round], Awaitable[Outcome]]
    in_order: bool = False  # goes through a list: a round's seed is the place at which it begins


def rig_named(name: str) -> Rig:
    rig = import_module(RIGS[name]).RIG
    assert isinstance(rig, Rig), name
    return rig
