"""Searches of the dashboard: an id, or a filter as the command line has it (`perdure.inspection.filters`)."""

import json
import re
from dataclasses import dataclass, field
from datetime import datetime

from perdure.engine.api.client import Client
from perdure.engine.api.queries import ANY_WAIT, RunQuery
from perdure.inspection.filters import FilterError, RunFilter, json_text, parse_filter
from perdure.model.states import WAITING, WorkflowStatus

# The three waits are one state for people: whether a timeout or an event comes first is no difference to them.
LABELS: dict[WorkflowStatus, str] = {
    status: ANY_WAIT if status in WAITING else status.value for status in WorkflowStatus
}

HELP: tuple[tuple[str, str], ...] = (
    ("state:failed", f"the state: {', '.join(dict.fromkeys(LABELS.values()))}"),
    ("workflow:order", "the name of the workflow"),
    ("stuck:yes", "only stuck runs, the longest stuck first"),
    ("started:<1h", "started less than an hour ago; also s, m, d and w, and > for more than that"),
    ("started:>2026-01-31", "started after a date, or a time such as 2026-01-31T12:00Z; < for before"),
    ("input.customer.id:C-7", 'a value in the input; "7" in quotes is a text, 7 a number; needs another term'),
    ("A-1", "the run with exactly this id; id:a:b if it has a colon"),
)

_ID = re.compile(r"""\s*(?:(?:id:)("(?:[^"\\]|\\.)*"|\S+)|("(?:[^"\\]|\\.)*"|[^\s":]+))\s*\Z""")


_WORD = re.compile(r"""[^\s"<>][^\s"]*\Z""")


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search: an id, or a filter."""

    id: str | None = None
    filter: RunFilter = field(default_factory=RunFilter)

    def query(self, client: Client) -> RunQuery:
        """Return the query for the runs of this search. Raise `FilterError` for terms that cannot be combined."""
        return self.filter.query(client)


def searched(value: str) -> str:
    """Return a value as a term of a search has it: in quotes if it is more than a word."""
    return value if _WORD.match(value) else json.dumps(value, ensure_ascii=False)


def parse(text: str, now: datetime) -> Search:
    """Return the search that a text describes; ages count back from `now`. Raise `FilterError` if it is none."""
    if (found := _ID.match(text)) is not None:
        return Search(json_text(found[1] or found[2]))
    return Search(filter=parse_filter(text, now))


__all__ = ["HELP", "LABELS", "FilterError", "Search", "parse", "searched"]
