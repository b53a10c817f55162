"""Outages of message brokers: one log message at the beginning, one at the end, and growing pauses in between."""

import logging
import random

from perdure.engine.execution.clock import steady
from perdure.engine.worker.log import seconds

log = logging.getLogger("perdure.engine")


def back_off(attempt: int, longest_sec: float) -> float:
    """Return the pause after an attempt (1, 2 …) in seconds: about 1, 2, 4 … with jitter of a quarter."""
    return min(2.0 ** min(attempt - 1, 30), longest_sec) * random.uniform(0.75, 1.25)  # nosec B311 # a pause


class BrokerOutage:
    """Whether a broker is unavailable. `meanwhile` says what this means, for the log."""

    def __init__(self, shown: str, meanwhile: str) -> None:
        self._shown = shown
        self._meanwhile = meanwhile
        self._began: float | None = None
        self._failures = 0
        self._reason = ""

    def began(self, error: BaseException, longest_sec: float) -> float:
        """Note that the broker is unavailable, or still is; return the seconds to wait before the next attempt."""
        self._failures += 1
        self._began = steady() if self._began is None else self._began
        reason = str(error) or type(error).__name__
        if reason != self._reason:
            log.warning(
                "the broker %s is unavailable, %s; retrying until it answers: %s",
                self._shown,
                self._meanwhile,
                reason,
                extra={"broker": self._shown, "reason": reason},
            )
        self._reason = reason
        return back_off(self._failures, longest_sec)

    def ended(self) -> None:
        """Note that the broker answers."""
        if self._began is None:
            return
        lasted, self._began, self._failures, self._reason = steady() - self._began, None, 0, ""
        log.info(
            "the broker %s is available again after %s",
            self._shown,
            seconds(lasted),
            extra={"broker": self._shown, "duration_sec": lasted},
        )
