"""Durations: wherever the API takes one, it is a number of seconds or a timedelta."""

import math
from datetime import datetime, timedelta

from perdure.model.limits import SPAN_MAX

Duration = timedelta | float


def seconds(value: object, what: str, *, positive: bool = False, longest: timedelta = SPAN_MAX) -> float:
    """Return the duration in seconds; `what` names it in the error if it is none, or out of bounds."""
    number = _number(value, what)
    if math.isnan(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{what} must be {'above 0' if positive else '0 or more'} seconds, not {value!r}")
    if number > longest.total_seconds():
        raise ValueError(f"{what} must be at most {_span(longest)}, not {value!r}")
    return number


def any_seconds(value: object, what: str) -> float:
    """Return a duration of any size in seconds, negative or infinite ones included."""
    number = _number(value, what)
    if math.isnan(number):
        raise ValueError(f"{what} must be a number of seconds or a timedelta, not nan")
    return number


def moment(value: object, what: str) -> datetime:
    """Return a point in time, which must have a time zone."""
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be a datetime with a time zone, not {value!r}")
    if value.tzinfo is None:
        raise ValueError(f"{what} must have a time zone, such as datetime(…, tzinfo=UTC), and {value!r} has none")
    return value


def _number(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise TypeError(f"{what} must be a number of seconds or a timedelta, not {value!r}")


def _span(longest: timedelta) -> str:
    return "100 years" if longest == SPAN_MAX else f"{longest.days} days"
