"""Cron schedules. Each tick has a fixed run id, so any number of workers may start it and it still runs once.

If no worker was running, only the most recent missed tick runs when a worker starts (no backfill).
"""

from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from perdure.model import limits


class Schedule:
    """A schedule: a cron expression of five fields in a time zone. Raises `ValueError` if one of them is invalid."""

    def __init__(self, expression: str, zone: str) -> None:
        if not isinstance(expression, str):
            raise TypeError(f"cron= must be a text such as '0 9 * * *', not {expression!r}")
        self.expression = expression
        self.zone = zone
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"time zone {zone!r} is unknown: use a name such as 'Europe/Berlin'") from error
        self._simulate = _cronsim()
        try:
            self._simulate(expression, datetime.now(self._zone))
        except Exception as error:
            raise ValueError(
                f"cron expression {expression!r} is invalid: {error}; use five fields, such as '0 9 * * mon-fri'"
            ) from error

    def next_after(self, moment: datetime) -> datetime:
        """Return the first tick after a point in time."""
        tick: datetime = next(self._simulate(self.expression, moment.astimezone(self._zone)))
        return tick.astimezone(UTC)

    def last_before(self, moment: datetime) -> datetime:
        """Return the last tick at or before a point in time."""
        backwards = self._simulate(self.expression, moment.astimezone(self._zone), reverse=True)
        tick: datetime = next(backwards)
        following = self.next_after(tick)
        return following if following <= moment else tick.astimezone(UTC)


NAME_MAX = limits.INSTANCE_ID_MAX - len("@2026-01-02T03:04:05Z")  # leaves space for the tick in the id of its run


def tick_id(workflow_name: str, tick: datetime) -> str:
    """Return the id of the run of a tick."""
    return f"{workflow_name}@{tick:%Y-%m-%dT%H:%M:%SZ}"


@lru_cache(1)
def _cronsim() -> Any:
    try:
        return import_module("cronsim").CronSim
    except ImportError:
        raise ImportError("cron= needs the package cronsim: install perdure[cron]") from None
