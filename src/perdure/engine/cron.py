"""Cron: workflows that start by the clock. Every tick has an id, so any number of workers may start it.

A tick that nobody was there for is made up for, if it is the last one; those before it are not.
"""

from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class Schedule:
    """When a workflow starts: a cron expression of five fields, in a time zone."""

    def __init__(self, expression: str, zone: str) -> None:
        if not isinstance(expression, str):
            raise TypeError(f"cron= must be a text such as '0 9 * * *', not {expression!r}")
        self.expression = expression
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{zone!r} is no time zone: use a name such as Europe/Berlin") from error
        self._simulate = _cronsim()
        try:
            self._simulate(expression, datetime.now(self._zone))
        except Exception as error:
            raise ValueError(f"{expression!r} is no cron expression such as '0 9 * * *': {error}") from error

    def next_after(self, moment: datetime) -> datetime:
        """The first tick after a moment."""
        tick: datetime = next(self._simulate(self.expression, moment.astimezone(self._zone)))
        return tick.astimezone(UTC)

    def last_before(self, moment: datetime) -> datetime:
        """The last tick at a moment or before it."""
        backwards = self._simulate(self.expression, moment.astimezone(self._zone), reverse=True)
        tick: datetime = next(backwards)
        following = self.next_after(tick)
        return following if following <= moment else tick.astimezone(UTC)


def tick_id(workflow_name: str, tick: datetime) -> str:
    """The id of the run of one tick."""
    return f"{workflow_name}@{tick:%Y-%m-%dT%H:%M:%SZ}"


@lru_cache(1)
def _cronsim() -> Any:
    try:
        return import_module("cronsim").CronSim
    except ImportError:
        raise ImportError("cron= needs the package cronsim: install perdure[cron]") from None
