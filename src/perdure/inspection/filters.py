"""Filters of runs as text: `state:failed workflow:order input.order_id:A-1 started:<1h stuck:yes`.

A filter is a list of terms `key:value`, all of which must hold. Values with spaces are quoted: `workflow:"my order"`.

| term | meaning |
|---|---|
| `state:failed` | the status of the run, or `waiting` for any wait; `status:` is the same |
| `workflow:order` | the name of the workflow |
| `input.order_id:A-1` | a value of the input, as JSON: `input.n:3` is a number, `input.n:"3"` a text |
| `started:<1h`, `started:>1h` | started less than, or more than, an hour ago; units are s, m, h, d and w |
| `started:>2026-11-01`, `started:<2026-11-01T09:00` | started after or before a time, by default in the local zone |
| `stuck:yes` | only stuck runs |
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from perdure.engine.api.client import Client
from perdure.engine.api.queries import ANY_WAIT, RunQuery
from perdure.model.states import WorkflowStatus

Scalar = str | bool | int | float | None

KEYS = ("state:", "workflow:", "input.<path>:", "started:", "stuck:")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_TERM = re.compile(r'\s*(?:([A-Za-z_][\w.]*):([<>]?)("(?:[^"\\]|\\.)*"|[^\s"]+)(?=\s|\Z)|(\S+))')
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])\Z")


class FilterError(ValueError):
    """A filter that cannot be read; the message says which term, and what to write instead."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The filters of `Client.runs`, with which it has the same meaning."""

    workflow: str | None = None
    status: WorkflowStatus | str | None = None
    stuck: bool = False
    where: Mapping[str, Scalar] = field(default_factory=dict)
    started_after: datetime | None = None
    started_before: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether it selects all runs."""
        return self == RunFilter()

    def query(self, client: Client) -> RunQuery:
        """Return the query for the runs that match. Raise `FilterError` for filters that cannot be combined or used."""
        if self.where and client.pipeline is not None:
            raise FilterError(
                "a filter by input cannot be used here, because the database cannot read inputs that a codec has "
                "encoded: use state:, workflow:, started: or stuck:, and compare the inputs of these runs"
            )
        try:
            return client.runs(
                workflow=self.workflow,
                status=self.status,
                stuck=self.stuck,
                where=self.where,
                started_after=self.started_after,
                started_before=self.started_before,
            )
        except ValueError as error:
            if self.where and str(error).startswith("runs(where=)"):
                raise FilterError(
                    "a filter by input reads the input of every run that the other filters leave, and there is none: "
                    "add state:, workflow:, started:> or stuck:yes"
                ) from None
            raise FilterError(str(error)) from None


def parse_filter(text: str, now: datetime) -> RunFilter:
    """Return the filter that a text describes. `now` has a time zone: ages count from it, and dates without a zone
    are in it.

    Raise `FilterError` for a term that cannot be read, or that is given twice.
    """
    found = RunFilter()
    seen: set[str] = set()
    for match in _TERM.finditer(text):
        key, sign, value, rest = match.groups()
        if rest is not None:
            raise FilterError(f"{rest!r} is no filter: write {', '.join(KEYS)} and a value, such as state:failed")
        name = f"{key}{sign}" if key == "started" else "state" if key == "status" else key
        if name in seen:
            raise FilterError(f"{name}: is given twice, and one run cannot match both: remove one of them")
        seen.add(name)
        found = _with_term(found, key, sign, value, now)
    return found


def parse_time(text: str, now: datetime) -> datetime:
    """Return a point in time: an ISO 8601 date or time, or an age such as `1h`, which is that long before `now`."""
    if (age := parse_age(text)) is not None:
        try:
            return now - age
        except OverflowError:
            raise FilterError(f"{text!r} is too long") from None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise FilterError(
            f"{text!r} is no time: write an age such as 30m, 1h or 7d, or a date such as 2026-11-01T09:00"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)


def parse_age(text: str) -> timedelta | None:
    """Return a duration such as `30s`, `1h` or `7d`; None if the text is none."""
    match = _AGE.match(text)
    try:
        return None if match is None else timedelta(seconds=float(match[1]) * UNITS[match[2]])
    except OverflowError:
        raise FilterError(f"{text!r} is too long") from None


def _with_term(found: RunFilter, key: str, sign: str, quoted: str, now: datetime) -> RunFilter:
    value = json_text(quoted)
    if sign and key != "started":
        raise FilterError(f"{key}:{sign}{quoted} compares, which only started: can: write {key}:{quoted}")
    match key:
        case "state" | "status":
            return replace(found, status=_status(value))
        case "workflow":
            return replace(found, workflow=value)
        case "stuck":
            if value not in ("yes", "true"):
                raise FilterError(f"stuck:{value} is unknown: write stuck:yes, or leave it out for all runs")
            return replace(found, stuck=True)
        case "started":
            return _with_start(found, sign, value, now)
    if not key.startswith("input.") or not key.removeprefix("input."):
        raise FilterError(f"{key}: is no filter: use {', '.join(KEYS)}")
    return replace(found, where={**found.where, key.removeprefix("input."): _scalar(quoted)})


def _with_start(found: RunFilter, sign: str, value: str, now: datetime) -> RunFilter:
    if not sign:
        raise FilterError(f"started:{value} has no direction: write started:<{value} or started:>{value}")
    moment, is_age = parse_time(value, now), parse_age(value) is not None
    if (sign == "<") == is_age:  # less than an hour ago is after a time
        return replace(found, started_after=moment)
    return replace(found, started_before=moment)


def _status(value: str) -> WorkflowStatus | str:
    if value == ANY_WAIT:
        return value
    try:
        return WorkflowStatus(value)
    except ValueError:
        known = ", ".join(WorkflowStatus)
        raise FilterError(f"state:{value} is unknown: use one of {known}, or {ANY_WAIT} for any wait") from None


def json_text(quoted: str) -> str:
    """Return the text of a value, which may be in double quotes."""
    if not quoted.startswith('"'):
        return quoted
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise FilterError(
            f"{quoted} is no valid text in quotes: escape quotes and backslashes with a backslash"
        ) from None


def _scalar(quoted: str) -> Scalar:
    """Return a value of an input: JSON if it is JSON, otherwise the text as it is."""
    try:
        value = json.loads(quoted, parse_constant=_refuse)
    except ValueError:
        return quoted
    return value if value is None or isinstance(value, str | bool | int | float) else quoted


def _refuse(constant: str) -> None:
    raise ValueError(constant)
