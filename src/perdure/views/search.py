"""The search language of the dashboard and the command line: `state:failed workflow:order input.order_id:A-1
started:<1h`.

Each term is served by an index, except `input.…`, which reads the inputs of the runs that the other terms leave. So it
needs one of them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from perdure.engine.api.client import Client
from perdure.engine.api.queries import ANY_WAIT, RunQuery
from perdure.errors import InvalidJSONPathError
from perdure.model.states import WAITING, WorkflowStatus
from perdure.storage.filters import validate_json_path
from perdure.views.durations import parse_age

Value = str | bool | int | float | None

# The three waits are one state for people: whether a timeout or an event comes first is no difference to them.
LABELS: dict[WorkflowStatus, str] = {
    status: ANY_WAIT if status in WAITING else status.value for status in WorkflowStatus
}
STATES = tuple(dict.fromkeys([*LABELS.values(), *WorkflowStatus]))

HELP: tuple[tuple[str, str], ...] = (
    ("state:failed", f"the state: {', '.join(dict.fromkeys(LABELS.values()))}"),
    ("workflow:order", "the name of the workflow"),
    ("stuck:yes", "only stuck runs, the longest stuck first"),
    ("started:<1h", "started less than an hour ago; also s, m, d and w, and > for more than that"),
    ("started:>2026-01-31", "started after a date, or a time such as 2026-01-31T12:00Z; < for before"),
    ("input.customer.id:C-7", 'a value in the input; "7" in quotes is a text, 7 a number; needs another term'),
    ("A-1", "the run with exactly this id"),
)

_TERM = re.compile(r'(?P<key>[a-zA-Z][\w.]*):(?P<value>"(?:[^"\\]|\\.)*"|\S*)|(?P<word>"(?:[^"\\]|\\.)*"|\S+)')


class SearchError(ValueError):
    """A text is not a search; the message says which term is wrong, and what could stand in its place."""


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search. With `id`, the other fields have no meaning."""

    id: str | None = None
    workflow: str | None = None
    status: str | None = None
    stuck: bool = False
    after: datetime | None = None
    before: datetime | None = None
    where: Mapping[str, Value] = field(default_factory=dict)

    def query(self, client: Client) -> RunQuery:
        """Return the query for the runs of this search."""
        return client.runs(
            workflow=self.workflow,
            status=self.status,
            stuck=self.stuck,
            where=self.where,
            started_after=self.after,
            started_before=self.before,
        )


def parse(text: str, now: datetime) -> Search:
    """Return the search that a text describes; ages count back from `now`. Raises `SearchError`."""
    given: dict[str, object] = {}
    where: dict[str, Value] = {}
    for term in _TERM.finditer(text):
        if (word := term["word"]) is not None:
            _set(given, "id", _text(word), word)
        elif term["key"].startswith("input."):
            where[_path(term["key"].removeprefix("input."))] = _value(term["value"])
        else:
            key, value = _field(term["key"].lower(), _text(term["value"]), now)
            _set(given, key, value, term[0])
    if "id" in given and (len(given) > 1 or where):
        raise SearchError(f"{given['id']!r} is not a term: write key:value, or search for an id alone")
    if where and not given.keys() - {"before"}:
        raise SearchError("input.… reads the inputs of all runs: add workflow:, state:, started:<1h or stuck:yes")
    return Search(**given, where=where)  # type: ignore[arg-type]


def _set(given: dict[str, object], key: str, value: object, term: str) -> None:
    if key in given:
        raise SearchError(f"{term} says something twice: give each term once")
    given[key] = value


def _field(key: str, value: str, now: datetime) -> tuple[str, object]:
    if not value:
        raise SearchError(f"{key}: has no value: write it without a space, as in {key}:x")
    match key:
        case "state" | "status":
            if value.lower() not in STATES:
                raise SearchError(f"{value!r} is not a state: use one of {', '.join(dict.fromkeys(LABELS.values()))}")
            return "status", value.lower()
        case "workflow":
            return "workflow", value
        case "stuck" if value.lower() in ("yes", "true"):
            return "stuck", True
        case "started" if value[0] in "<>":
            return _started(value, now)
        case "id":
            return "id", value
    raise SearchError(f"{key}:{value} is not a term: use {', '.join(example for example, _ in HELP)}")


def _started(value: str, now: datetime) -> tuple[str, datetime]:
    """Return a bound of the start: less than an hour ago is after a time, and more than an hour ago is before it."""
    sign, text = value[0], value[1:]
    if (age := parse_age(text)) is not None:
        return "after" if sign == "<" else "before", now - age
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SearchError(
            f"{text!r} is not a time: use an age such as 1h, or a date such as 2026-01-31 or 2026-01-31T12:00Z"
        ) from None
    return "before" if sign == "<" else "after", moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _path(path: str) -> str:
    try:
        validate_json_path(path)
    except InvalidJSONPathError as error:
        raise SearchError(f"input.{path} is not a path: {error}") from None
    return path


def _text(word: str) -> str:
    if not word.startswith('"'):
        return word
    try:
        return str(json.loads(word))
    except ValueError:
        raise SearchError(f"{word} is not closed by a quote, or has an invalid escape") from None


def _value(word: str) -> Value:
    """Return a value: JSON if it is a number, true, false, null or quoted, else a text."""
    if word.startswith('"'):
        return _text(word)
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if value is None or isinstance(value, str | bool | int | float) else word
