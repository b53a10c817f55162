"""Durations: the API takes a number of seconds or a timedelta everywhere."""

import math
from datetime import datetime, timedelta

from perdure.model.limits import SPAN_MAX

Duration = timedelta | float


def seconds(value: object, what: str, *, positive: bool = False, longest: timedelta = SPAN_MAX) -> float:
    """Return a duration in seconds. Raise `TypeError` or `ValueError`, naming it `what`, if it is invalid.

    - `positive`: whether 0 is invalid (default: False).
    - `longest`: the maximum (default: 100 years).
    """
    number = _number(value, what)
    if math.isnan(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{what} must be {'above 0' if positive else '0 or more'} seconds, not {value!r}")
    if number > longest.total_seconds():
        raise ValueError(f"{what} must be at most {_span(longest)}, not {value!r}")
    return number


def span(value: object, what: str, *, positive: bool = False) -> timedelta:
    """Return a duration as a timedelta; raise as `seconds` does if it is invalid."""
    return timedelta(seconds=seconds(value, what, positive=positive))


def any_seconds(value: object, what: str) -> float:
    """Return a duration in seconds, which may be negative or infinite; raise as `seconds` does if it is invalid."""
    number = _number(value, what)
    if math.isnan(number):
        raise ValueError(f"{what} must be a number of seconds or a timedelta, not nan")
    return number


def moment(value: object, what: str) -> datetime:
    """Return a datetime; raise `TypeError` or `ValueError` if it is not one or has no time zone."""
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
