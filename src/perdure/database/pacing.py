"""Pauses between polls: short after something happened, and longer the longer nothing does."""

from time import monotonic

SHARE = 0.2


class Pace:
    """Lets the pause be a share of the time since the last event, so that a poll is late by at most that share."""

    def __init__(self, shortest_sec: float, longest_sec: float) -> None:
        self._shortest_sec = shortest_sec
        self._longest_sec = longest_sec
        self._since = monotonic()

    def quicken(self) -> None:
        """Make the pauses short again, because something happened."""
        self._since = monotonic()

    def pause(self) -> float:
        """Return the seconds until the next poll."""
        return max(self._shortest_sec, min(self._longest_sec, SHARE * (monotonic() - self._since)))
