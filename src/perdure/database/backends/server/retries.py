"""Decide what follows an error on a server: a retry, the error itself, or reading back what was written."""

import asyncio
import random
import time
from enum import Enum

RETRY_SEC = 15.0  # how long an operation is retried after conflicts, or while the server is unavailable
PAUSE_MIN_SEC, PAUSE_MAX_SEC = 0.002, 0.25


class Fault(Enum):
    """Classify a driver's error by what it means for the operation."""

    CONFLICT = "a deadlock or a serialization failure: nothing was written, retry"
    UNSENT = "the connection broke, or could not serve us, before sending: nothing was written, retry on another"
    LOST = "the connection broke"
    REFUSED = "the server answered with an error"


class Verdict(Enum):
    """Say how an operation continues after an error."""

    RETRY = "run it again"
    RAISE = "nothing was written: raise the error"
    READ_BACK = "the write may or may not exist: read it back, or report that"


class Sent:
    """Record whether a commit was sent, or even answered, for when the connection breaks."""

    __slots__ = ("answered", "commit")

    def __init__(self, commit: bool = False) -> None:
        self.commit = commit
        self.answered = False

    def may_have_written(self, fault: Fault) -> bool:
        """Return whether something may be committed although an error was raised."""
        return self.answered or (fault is Fault.LOST and self.commit)


class Attempts:
    """Hold the deadline of an operation's retries, and the growing pauses between them."""

    __slots__ = ("_pause", "until")

    def __init__(self) -> None:
        self.until = time.monotonic() + RETRY_SEC
        self._pause = PAUSE_MIN_SEC

    def are_over(self) -> bool:
        """Return whether the operation has been retried for long enough."""
        return time.monotonic() > self.until

    async def pause(self) -> None:
        """Wait for a random time, so that operations in conflict do not meet again."""
        await asyncio.sleep(random.uniform(0, self._pause))  # nosec B311 # a pause
        self._pause = min(self._pause * 2, PAUSE_MAX_SEC)


def judge_read(fault: Fault, late: bool) -> Verdict:
    """Return how an operation continues that writes nothing; `late`: its retries are over."""
    return Verdict.RAISE if fault is Fault.REFUSED or late else Verdict.RETRY


def judge_write(fault: Fault, late: bool, *, unknown: bool, idempotent: bool) -> Verdict:
    """Return how an operation continues that writes; `unknown`: it may be committed."""
    if fault is Fault.REFUSED or (late and not unknown):
        return Verdict.RAISE
    if unknown and (late or not idempotent):
        return Verdict.READ_BACK
    return Verdict.RETRY
