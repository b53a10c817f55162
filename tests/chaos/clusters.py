"""Clusters on loopback that lose their primary: what the kinds have in common."""

import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from perdure.testing.servers import Server

DATABASE = "rig"
READY_SEC = 90.0


class Death(Enum):
    """How a primary dies."""

    SERVER = "its main process is killed"
    PROCESSES = "all its processes are killed"
    MACHINE = "so is the process that monitors it"
    DEMOTION = "it lives, but takes no more writes"
    SILENCE = "it is stopped, with the process that monitors it, and continues when another server leads"


class Cluster(Protocol):
    """Servers of which one takes writes; entering starts them, which blocks, and so does all else."""

    @property
    def url(self) -> str:
        """Names all of them."""

    @property
    def nodes(self) -> Sequence[Server]:
        """All of them."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def kill_primary(self, death: Death) -> None:
        """Kill the server that takes writes."""

    def replace(self) -> None:
        """Let another take them."""

    def wake(self) -> None:
        """Let what was silent continue, as if no time had passed."""

    def heal(self) -> None:
        """Bring the dead back, as followers."""


def wait_for(condition: Callable[[], bool], what: str, patience_sec: float = READY_SEC) -> None:
    """Wait for a condition, and fail when it does not come true."""
    until = time.monotonic() + patience_sec
    while not condition():
        assert time.monotonic() < until, f"waited {patience_sec} s in vain for {what}"
        time.sleep(0.05)
