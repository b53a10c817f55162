"""Outages of message brokers: one log message at the beginning, one at the end, and growing pauses in between.

`app.health()` shows them in the task that uses the broker. An outage does not make the app unhealthy: it executes runs
and serves requests, and messages wait in the outbox or at the broker.
"""

import logging
import random

from perdure.engine.execution.clock import steady
from perdure.engine.worker.log import seconds
from perdure.engine.worker.supervision import Supervised
from perdure.errors import BrokerRefusedError

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
        self._connects = True  # False if the last failure was that no connection could be made

    def began(self, task: Supervised, error: BaseException, longest_sec: float, *, connected: bool) -> float:
        """Note that the broker is unavailable, or still is; return the seconds to wait before the next attempt."""
        self._failures += 1
        self._began = steady() if self._began is None else self._began
        self._connects = connected
        reason = str(error) or type(error).__name__
        refused = isinstance(error, BrokerRefusedError)
        task.broker_failed(error, "refused" if refused else "unavailable")
        if reason != self._reason:
            log.log(
                logging.ERROR if refused else logging.WARNING,  # a person has to do something
                "the broker %s cannot be used, %s; retrying until this is corrected: %s"
                if refused
                else "the broker %s is unavailable, %s; retrying until it answers: %s",
                self._shown,
                self._meanwhile,
                reason,
                extra={"broker": self._shown, "reason": reason, "error_type": type(error).__name__},
            )
        self._reason = reason
        return back_off(self._failures, longest_sec)

    def connected(self, task: Supervised) -> None:
        """Note that a connection was made, which ends an outage unless the broker failed in spite of one."""
        if not self._connects:
            self.ended(task)

    def ended(self, task: Supervised) -> None:
        """Note that the broker answers."""
        task.broker_answered()
        if self._began is None:
            return
        lasted, self._began, self._failures, self._reason = steady() - self._began, None, 0, ""
        self._connects = True
        log.info(
            "the broker %s is available again after %s",
            self._shown,
            seconds(lasted),
            extra={"broker": self._shown, "duration_sec": lasted},
        )
